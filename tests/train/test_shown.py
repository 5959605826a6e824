"""What a training that failed shows: why, on the page of the run, and its curves as far as they go."""

from pathlib import Path

import pytest

from trainwright.errors import Diverged, Preempted, PreemptedUnsaved, TrainwrightError
from trainwright.experiment import Tracking
from trainwright.launch.agent.rank_errors import RankError
from trainwright.launch.failure import Failure
from trainwright.launch.job_directory import create_attempt
from trainwright.train.loop import StepReport
from trainwright.train.page_delivery import PAGE, failed_report_prefix, show_failure
from trainwright.train.recorder import TrainingRecorder

ERROR = Diverged("the loss is 3 | nan", where="rank 1", hint="Lower the rate.")


def shown(root: Path, folder: Path) -> tuple[str, str]:
    """Return the summary and the page."""
    summary, report = root / "out" / "summary.md", root / "out" / "report.html"
    show_failure(ERROR, folder, summary, report)
    return summary.read_text(), report.read_text() if report.exists() else ""


def test_the_card_of_the_launcher_is_shown_with_the_curves_of_the_latest_attempt(tmp_path: Path) -> None:
    first, second, third = (create_attempt(tmp_path) for _ in range(3))
    (first / PAGE).write_text("first")
    (second / PAGE).write_text("second")
    (tmp_path / Failure.CARD).write_text("### HOST_OOM")
    assert shown(tmp_path, third) == ("### HOST_OOM", "second")


def test_without_a_launchers_card_the_error_of_the_process_makes_one(tmp_path: Path) -> None:
    folder = create_attempt(tmp_path)
    RankError.of(ERROR, 1).save(folder)
    summary, page = shown(tmp_path, folder)
    assert "NAN" in summary
    assert "Lower the rate" in summary
    assert page == ""


def test_an_error_before_any_attempt_is_shown_too(tmp_path: Path) -> None:
    summary, _ = shown(tmp_path, create_attempt(tmp_path))
    assert summary.startswith("### Diverged\n")
    assert "3 \\| nan" in summary
    assert "Lower the rate" in summary


def fail(root: Path, keep: str) -> Path:
    """Fail a training at its first step, and return the attempt's folder."""
    folder = create_attempt(root)
    with pytest.raises(Diverged, match="nan"):
        _diverge(TrainingRecorder(folder, root, Tracking(), None, leads=True, failed_report=keep))
    return folder


def _diverge(curves: TrainingRecorder) -> None:
    with curves:
        curves.on_step(StepReport(number=1, total=9, epoch=0, samples=8, loss=2.0, norm=1.0, rate=0.1))
        raise Diverged("the loss is 3 | nan", hint="Lower the rate.")


def test_the_page_of_a_failed_training_is_kept_beside_its_artifacts_and_its_error_names_it(
    tmp_path: Path,
) -> None:
    """Kubeflow Pipelines 2.17 throws the outputs of a failed step away."""
    folder = fail(tmp_path / "home", str(tmp_path / "store" / "report-of-failed"))
    error = Diverged("the loss is 3 | nan", hint="Lower the rate.")
    show_failure(error, folder, tmp_path / "s.md", tmp_path / "r.html")
    [kept] = (tmp_path / "store").iterdir()
    assert kept.read_text() == (folder / PAGE).read_text()
    assert error.hint == f"Lower the rate. Its curves are at {kept}"


@pytest.mark.parametrize("error", [Preempted("step 7 is saved"), PreemptedUnsaved("no step is saved")])
def test_preempted_training_draws_its_page_and_publishes_nothing(
    error: TrainwrightError, tmp_path: Path
) -> None:
    """The grace period is for the checkpoint, and the next attempt resumes the training."""
    folder = create_attempt(tmp_path / "home")
    keep = str(tmp_path / "store" / "report-of-failed")
    with (
        pytest.raises(type(error)),
        TrainingRecorder(folder, tmp_path / "home", Tracking(), None, leads=True, failed_report=keep),
    ):
        raise error
    assert (folder / PAGE).exists()
    assert not (tmp_path / "store").exists()


def test_a_store_that_refuses_the_page_does_not_hide_the_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = fail(tmp_path / "home", str(tmp_path / "file" / "report-of-failed"))
    assert (folder / PAGE).exists()
    error = Diverged("nan", hint="Lower the rate.")
    show_failure(error, folder, tmp_path / "s.md", tmp_path / "r.html")
    assert error.hint == "Lower the rate."
    assert "the page of this training could not be stored" in capfd.readouterr().err


def test_only_a_store_keeps_the_page_of_a_failed_training() -> None:
    root = "minio://mlpipeline/v2/artifacts/train-and-register/run/train/execution"
    assert failed_report_prefix(f"{root}/model") == f"{root}/report-of-failed"
    assert failed_report_prefix("/runs/0192f3/train/model") == ""

"""Curves, progress and pages of a training, also of one that failed or whose server is away."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.tracking.server import Way, mlflow_server, way_to
from tests.train.problems import Outcome, recorder, run
from trainwright.artifacts import Progress
from trainwright.documents import digest_file
from trainwright.errors import Diverged, Preempted, PreemptedUnsaved, TrainwrightError
from trainwright.launch.agent.rank_errors import RankError
from trainwright.launch.failure import Failure
from trainwright.launch.job_directory import create_attempt
from trainwright.tracking.__main__ import replay
from trainwright.tracking.history import HISTORY_FILE, TrainingHistory
from trainwright.train.loop import StepReport
from trainwright.train.page_delivery import PAGE, failed_report_prefix, show_failure
from trainwright.train.recorder import TrainingRecorder

TRACKED = {"epochs": 2, "tracking": {"every_steps": 1}}
ALONE = {"processes": 1}


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    """A way to a running MLflow server."""
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as port, way_to(port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def untracked(training_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The same training without a server."""
    return run(training_set, tmp_path_factory.mktemp("untracked"), training=TRACKED, resources=ALONE)


def weights(outcome: Outcome) -> str:
    return digest_file(outcome.model / "weights.safetensors")


@pytest.mark.covers("F54")
@pytest.mark.parametrize("mode", ["open", "silent"])
def test_a_training_is_the_same_whatever_the_server_does_and_replay_brings_every_point(
    training_set: Path,
    tmp_path: Path,
    untracked: Outcome,
    way: Way,
    mode: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    way.mode = mode
    tracking = TRACKED | {"tracking": {"every_steps": 1, "uri": way.uri, "experiment": mode}}
    outcome = run(training_set, tmp_path, training=tracking, resources=ALONE)
    assert weights(outcome) == weights(untracked)
    assert outcome.submitted.model_version == untracked.submitted.model_version
    if mode == "silent":
        said = "the curves at MLflow are incomplete: trainwright curves sends the rest"
        assert said in capfd.readouterr().err
        assert "incomplete: trainwright curves sends the rest" in (outcome.folder / "report.html").read_text()

    way.mode = "open"
    client = MlflowClient(way.uri)
    replay(outcome.model, way.uri, experiment=mode)
    experiment = client.get_experiment_by_name(mode)
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    history = TrainingHistory.read(outcome.model / HISTORY_FILE)
    steps, losses = history.curve("loss")
    assert steps == list(range(1, 25)), "5,851 rows with a label: two epochs of 12 batches"
    sent = sorted((point.step, point.value) for point in client.get_metric_history(found.info.run_id, "loss"))
    assert sent == list(zip(steps, losses, strict=True))


def test_the_curves_of_two_trainings_that_are_alike_are_alike(
    trained: Outcome, trained_again: Outcome
) -> None:
    first, second = (
        TrainingHistory.read(outcome.model / HISTORY_FILE) for outcome in (trained, trained_again)
    )
    for name in ("loss", "gradient_norm", "learning_rate"):
        assert first.curve(name) == second.curve(name)


def test_what_was_spent_before_a_restart_is_part_of_the_cost(tmp_path: Path) -> None:
    for start in (0, 2):
        with recorder(tmp_path, tmp_path, gpus=1, world=2, every_steps=1, gpu_hour=3600) as curves:
            for step in (start + 1, start + 2):
                curves.on_step(StepReport(step, 4, 1, 0.5, 1.0, 0.1, 8 * step))
                time.sleep(0.02)
    steps, costs = TrainingHistory.read(tmp_path / HISTORY_FILE).curve("cost")
    assert steps == [1, 2, 3, 4]
    assert costs == sorted(costs), "two GPUs at one a second"
    assert costs[2] >= costs[1] >= 0.04


def test_the_use_of_the_machine_is_in_the_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwright.train.recorder._SAMPLE_S", 0.05)
    with recorder(tmp_path, tmp_path, every_steps=1) as curves:
        end, number = time.monotonic() + 60, 0
        while (
            not TrainingHistory.read(tmp_path / HISTORY_FILE).curve("host_cpu")[0] and time.monotonic() < end
        ):
            number += 1
            curves.on_step(StepReport(number, 10**6, 1, 0.5, 1.0, 0.1, 8 * number))
            time.sleep(0.05)
    history = TrainingHistory.read(tmp_path / HISTORY_FILE)
    shares, memory = (history.curve(name)[1] for name in ("host_cpu", "host_memory_gib"))
    assert all(0 <= share <= 1 for share in shares)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    assert all(0 < gib <= total for gib in memory)
    assert shares
    assert len(shares) == len(memory)


def test_a_disk_that_refuses_the_progress_file_ends_no_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "attempt").touch()
    with recorder(tmp_path / "attempt" / "0001", tmp_path) as curves:
        curves.on_step(StepReport(7, 7, 1, loss=0.5, norm=1.0, rate=0.1, samples=70))
    said = capfd.readouterr().err
    assert "the progress file could not be written" in said
    assert "step 7 of 7" in said


def test_progress_names_the_step_of_the_newest_checkpoint(training_set: Path, tmp_path: Path) -> None:
    """What a job on a shared volume leaves there has it still; beside an output it is removed in the end."""
    shared, settings = tmp_path / "shared", {"epochs": 2, "checkpoints": {"every_steps": 1}}
    shared.mkdir()
    resources = {**ALONE, "launcher": "pytorchjob", "claim": "team", "mount": str(shared)}
    run(training_set, tmp_path / "out", training=settings, resources=resources)
    (path,) = shared.rglob("progress.json")
    progress = Progress.read(path)
    assert progress.step == progress.total, "written before the last checkpoint is"
    assert 0 < progress.checkpoint_step < progress.step


def test_the_page_shows_the_curves(trained: Outcome) -> None:
    page = (trained.folder / "report.html").read_text()
    assert "incomplete" not in page
    assert page.count("<svg") >= 3
    assert "Mean loss per sample, at logged steps." in page


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
        _diverge(recorder(folder, root, failed_report=keep))
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
        recorder(folder, tmp_path / "home", failed_report=keep),
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

"""What a training that failed shows: why, on the page of the run, and its curves as far as they go."""

from pathlib import Path

from trainwright.errors import Diverged
from trainwright.launch.attempt import next_attempt
from trainwright.launch.failure import Failure
from trainwright.launch.ranks import RankError
from trainwright.train.shown import PAGE, show_failure

ERROR = Diverged("the loss is 3 | nan", where="rank 1", hint="Lower the rate.")


def shown(root: Path, folder: Path) -> tuple[str, str]:
    """Return the summary and the page."""
    summary, report = root / "out" / "summary.md", root / "out" / "report.html"
    show_failure(ERROR, folder, summary, report)
    return summary.read_text(), report.read_text() if report.exists() else ""


def test_the_card_of_the_launcher_is_shown_with_the_curves_of_the_latest_attempt(tmp_path: Path) -> None:
    first, second, third = (next_attempt(tmp_path) for _ in range(3))
    (first / PAGE).write_text("first")
    (second / PAGE).write_text("second")
    (tmp_path / Failure.CARD).write_text("### HOST_OOM")
    assert shown(tmp_path, third) == ("### HOST_OOM", "second")


def test_without_a_launchers_card_the_error_of_the_process_makes_one(tmp_path: Path) -> None:
    folder = next_attempt(tmp_path)
    RankError.of(ERROR, 1).save(folder)
    summary, page = shown(tmp_path, folder)
    assert "NAN" in summary
    assert "Lower the rate" in summary
    assert page == ""


def test_an_error_before_any_attempt_is_shown_too(tmp_path: Path) -> None:
    summary, _ = shown(tmp_path, next_attempt(tmp_path))
    assert summary.startswith("### Diverged\n")
    assert "3 \\| nan" in summary
    assert "Lower the rate" in summary

"""What a training that failed shows on its run's page: why, and the curves as far as they go."""

import shutil
from pathlib import Path

from trainwright.errors import TrainwrightError
from trainwright.launch import job_directory
from trainwright.launch.diagnosis.reports import read_report
from trainwright.launch.failure import Failure
from trainwright.report import markdown
from trainwright.train.published import address_of

PAGE = "report.html"
"""The page of the curves, in an attempt's folder."""


def show_page(folder: Path, report: Path) -> None:
    """Bring the page of an attempt to its place, if the training got as far as to draw one."""
    if (folder / PAGE).exists():
        report.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / PAGE, report)


def show_failure(error: TrainwrightError, folder: Path, summary: Path, report: Path) -> None:
    """Say why a training failed, on the page of the run, and show the curves of its latest attempt.

    Where Kubeflow Pipelines throws the outputs of the failed step away, the error names the copy of that page
    in the store.

    Args:
        error: What it failed of.
        folder: Folder of the attempt that was asked for; a cluster may have run others.
        summary: Where the Markdown is to appear.
        report: Where the page is to appear.
    """
    home = job_directory.job_directory_of(folder)
    attempts = job_directory.attempts(home)[::-1] if home else [folder]
    shown = next((path for path in attempts if (path / PAGE).exists()), folder)
    show_page(shown, report)
    if uri := address_of(shown):
        error.hint = f"{error.hint} Its curves are at {uri}".strip()
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(_card(error, folder, home))


def _card(error: TrainwrightError, folder: Path, home: Path | None) -> str:
    """Return the card that a launcher left, or that what the processes left amounts to, or the error."""
    for place in (home, folder):
        if place and (place / Failure.CARD).exists():
            return (place / Failure.CARD).read_text()
    if told := read_report(folder):
        return told.failure.card()
    rows = [(name, said) for name, said in (("where", error.where), ("next", error.hint)) if said]
    table = f"\n\n{markdown.table(['', ''], rows)}" if rows else ""
    return f"### {type(error).__name__}\n\n{markdown.escape(error.what)}{table}\n"

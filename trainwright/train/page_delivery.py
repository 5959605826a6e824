"""Delivers the page of a training to the outputs of its run, even after a failure.

The launcher's image imports this module: it needs neither torch nor the packages that draw a page.
"""

import shutil
import sys
import time
from pathlib import Path

from trainwright.errors import TrainwrightError
from trainwright.launch import job_directory
from trainwright.launch.diagnosis.reports import read_report
from trainwright.launch.failure import Failure
from trainwright.report import markdown

PAGE = "report.html"
"""The page, in an attempt's folder."""

_ADDRESS = "report.uri"
"""File beside the page with the address of its copy in a store."""


def failed_report_prefix(artifact: str) -> str:
    """Return the prefix for pages of a failed training: beside its model's address, if that is in a store.

    Kubeflow Pipelines 2.17 keeps no artifact of a failed step but its log. The job's pods write the page, as
    they have the store's driver, which the launcher's small image does not have.
    """
    return f"{artifact.rpartition('/')[0]}/report-of-failed" if "://" in artifact else ""


def publish_page(page: Path, prefix: str) -> str:
    """Copy a page into the store under a fresh name, and write its address beside it.

    A store that rejects it or does not answer is only logged: the training's own error matters.

    Args:
        page: The page, in an attempt's folder.
        prefix: From :func:`failed_report_prefix`.

    Returns:
        The address; empty if the page could not be written.
    """
    from trainwright import storage

    uri = f"{prefix}-{page.parent.name}-{time.time_ns()}.html"
    try:
        storage.publish(page, uri, storage.Access(retry_s=20.0))
    except Exception as error:
        sys.stderr.write(f"the page of this training could not be stored at {uri}: {error}\n")
        return ""
    (page.parent / _ADDRESS).write_text(uri)
    return uri


def copy_page(folder: Path, report: Path) -> None:
    """Copy the page of an attempt to the step's output, if there is one."""
    if (folder / PAGE).exists():
        report.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / PAGE, report)


def show_failure(error: TrainwrightError, folder: Path, summary: Path, report: Path) -> None:
    """Write the cause of a failed training and the curves of its latest attempt to the step's outputs.

    The error's hint gets the address of the page in the store, as Kubeflow Pipelines drops these outputs.

    Args:
        error: The error of the training.
        folder: Folder of the first attempt; a cluster may have run others.
        summary: The Markdown output.
        report: The HTML output.
    """
    directory = job_directory.job_directory_of(folder)
    attempts = job_directory.attempts(directory)[::-1] if directory else [folder]
    shown = next((path for path in attempts if (path / PAGE).exists()), folder)
    copy_page(shown, report)
    if (shown / _ADDRESS).exists():
        error.hint = f"{error.hint} Its curves are at {(shown / _ADDRESS).read_text()}".strip()
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(_failure_card(error, folder, directory))


def _failure_card(error: TrainwrightError, folder: Path, directory: Path | None) -> str:
    """Return the launcher's card, or one from the errors of the processes, or the error itself."""
    for place in (directory, folder):
        if place and (place / Failure.CARD).exists():
            return (place / Failure.CARD).read_text()
    if found := read_report(folder):
        return found.failure.card()
    rows = [(name, text) for name, text in (("where", error.where), ("next", error.hint)) if text]
    table = f"\n\n{markdown.table(['', ''], rows)}" if rows else ""
    return f"### {type(error).__name__}\n\n{markdown.escape(error.what)}{table}\n"

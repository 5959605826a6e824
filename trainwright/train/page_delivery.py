"""Delivers the page of a training to the outputs of its run, even after a failure.

The launcher's image imports this module: it needs neither torch nor the packages that draw a page.
"""

import shutil
import sys
import time
from pathlib import Path

from trainwright.errors import TrainwrightError
from trainwright.launch import job_directory
from trainwright.launch.diagnosis.diagnosis import read_report
from trainwright.launch.failure import Failure
from trainwright.report import markdown

PAGE = "report.html"
"""The page, in an attempt's folder."""

_ADDRESS = "report.uri"
"""File beside the page with the address of its copy in a store."""


def failed_report_prefix(artifact: str) -> str:
    """Return the prefix for pages of a failed training: beside its model's address, if that is in a store.

    KFP 2.17 keeps only the log of a failed step. The job's pods have the store's driver, this image has not.
    """
    return f"{artifact.rpartition('/')[0]}/report-of-failed" if "://" in artifact else ""


def publish_page(page: Path, prefix: str) -> None:
    """Copy a page into the store under a fresh name, and write its address beside it.

    A store that rejects it or does not answer is only logged: the training's own error matters.
    """
    from trainwright import storage

    uri = f"{prefix}-{page.parent.name}-{time.time_ns()}.html"
    try:
        storage.publish(page, uri, storage.Access(retry_s=20.0))
    except Exception as error:
        sys.stderr.write(f"the page of this training could not be stored at {uri}: {error}\n")
    else:
        (page.parent / _ADDRESS).write_text(uri)


def copy_page(folder: Path, report: Path) -> None:
    """Copy the page of an attempt to the step's output, if there is one."""
    if (folder / PAGE).exists():
        report.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / PAGE, report)


def show_failure(error: TrainwrightError, folder: Path, summary: Path, report: Path) -> None:
    """Write the cause of a failed training and the curves of its latest attempt to the step's outputs.

    The cause is the launcher's card, or one from the errors of the processes, or the error itself. Its hint
    gets the address of the page in the store, as Kubeflow Pipelines drops these outputs.
    """
    directory = job_directory.job_directory_of(folder)
    attempts = job_directory.attempts(directory)[::-1] if directory else [folder]
    latest = next((path for path in attempts if (path / PAGE).exists()), folder)
    copy_page(latest, report)
    if (latest / _ADDRESS).exists():
        error.hint = f"{error.hint} Its curves are at {(latest / _ADDRESS).read_text()}".strip()
    summary.parent.mkdir(parents=True, exist_ok=True)
    cards = [place / Failure.CARD for place in (directory, folder) if place]
    if card := next((path for path in cards if path.exists()), None):
        summary.write_text(card.read_text())
    elif found := read_report(folder):
        summary.write_text(found.failure.card())
    else:
        rows = [(name, text) for name, text in (("where", error.where), ("next", error.hint)) if text]
        table = f"\n\n{markdown.table(['', ''], rows)}" if rows else ""
        summary.write_text(f"### {type(error).__name__}\n\n{markdown.escape(error.what)}{table}\n")

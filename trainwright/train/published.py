"""The page of a training that failed, kept in the store beside the artifacts that its step was to make.

Kubeflow Pipelines 2.17 keeps no artifact of a step that failed but its log. The pods of the job write the
page, since they have the driver of the store, which the launcher's small image has not.
"""

import sys
import time
from pathlib import Path

ADDRESS = "report.uri"
"""Where the page went, beside it in the attempt's folder: the launcher reads it."""


def prefix_of(artifact: str) -> str:
    """Return where pages of a training that failed go: beside its model's address, if that is in a store."""
    return f"{artifact.rpartition('/')[0]}/report-of-failed" if "://" in artifact else ""


def publish_page(page: Path, prefix: str) -> str:
    """Copy a page into the store under a fresh name, and note its address beside it.

    A store that refuses or is away changes nothing about the training's own error: it is only noted.

    Args:
        page: The page, in an attempt's folder.
        prefix: As :func:`prefix_of` gives it.

    Returns:
        The address; empty if the page could not be written.
    """
    from trainwright import storage

    uri = f"{prefix}-{page.parent.name}-{time.time_ns()}.html"
    try:
        storage.publish(page, uri, storage.Access(retry_s=20.0))
    except Exception as error:
        sys.stderr.write(f"the page of this training could not be kept at {uri}: {error}\n")
        return ""
    (page.parent / ADDRESS).write_text(uri)
    return uri


def address_of(folder: Path) -> str:
    """Return where the page of an attempt was kept; empty if it was not."""
    try:
        return (folder / ADDRESS).read_text()
    except OSError:
        return ""

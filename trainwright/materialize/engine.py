"""Handing a window over to one of Feast's own engines, for data past one machine.

Only the engine is asked, not ``FeatureStore.materialize``: that one writes its own watermark and state into
the registry, where a killed run leaves them wrong.
"""

import contextlib
import os
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from trainwright.errors import DependencyError
from trainwright.featurestore import Online, OnlineView
from trainwright.materialize.window import Window

LOCAL = "local"
"""The engine that is this process; its work is done here instead."""

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_INSTANT = timedelta(microseconds=1)
"""Feast's windows hold their end; ours do not."""


def run_engine(online: Online, view: OnlineView, window: Window) -> None:
    """Let the repository's engine materialize a window, and wait for it.

    An engine's word is not taken for it: Ray's reports success when nothing was written. The check afterwards
    decides.

    Raises:
        DependencyError: The engine failed, or says so.
    """
    from feast.infra.common.materialization_job import MaterializationJobStatus, MaterializationTask

    # Spark starts "python3" else, which may be one without Feast; all its nodes run the same image.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    task = MaterializationTask(
        project=online.project,
        feature_view=view.feast,
        start_time=window.start or _BEGINNING,
        end_time=window.end - _INSTANT,
        tqdm_builder=_quiet,
    )
    try:
        with contextlib.chdir(online.folder):  # an engine takes relative paths of files from where it runs
            jobs = online.feast.provider.batch_engine.materialize(online.feast.registry, [task])
        failed = [job.error() for job in jobs if job.status() == MaterializationJobStatus.ERROR]
    except Exception as error:
        raise _failed(online, view, error) from error
    if failed:
        raise _failed(online, view, failed[0]) from failed[0]


def _failed(online: Online, view: OnlineView, error: Any) -> DependencyError:
    return DependencyError(
        f"Feast's engine {online.engine!r} failed on view {view.name!r}: {type(error).__name__}: {error}",
        where=str(online.folder),
        hint="Nothing is lost: the watermark stays where it was, and the next run repeats the window.",
    )


def _quiet(length: int) -> Any:
    from tqdm import tqdm  # type: ignore[import-untyped]

    return tqdm(total=length, disable=True)

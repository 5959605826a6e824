"""One of Feast's engines materializes a window: for data past one machine."""

import contextlib
import copy
import ctypes
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from trainwright.errors import DependencyError, InputError
from trainwright.featurestore import (
    SETTINGS,
    Online,
    OnlineView,
    address_towards,
    require_same_feast,
    spark_session,
)
from trainwright.materialize.watermark import TimeWindow
from trainwright.tables.workers import Pool

LOCAL, SPARK, RAY = "local", "spark.engine", "ray.engine"
"""Feast's names of engines; ``local`` is this process."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INSTANT = timedelta(microseconds=1)
_WHERE = f"{SETTINGS}: batch_engine"
_JOINED = "Ray runtime started"
_PR_SET_PDEATHSIG = 1
_REJECTED = re.compile("[Vv]ersion mismatch|Unknown keyword argument")
"""Ray's errors for a cluster of another version than ours, and for an option in ``ray_conf``."""


@dataclass(frozen=True)
class EngineRun:
    """One view's window for an engine; ``config`` is that of Feast's repository in ``folder``."""

    engine: str
    config: Any
    folder: Path
    view: OnlineView
    window: TimeWindow

    @property
    def failure(self) -> str:
        """The beginning of the message of a failure."""
        return f"Feast's engine {self.engine!r} failed on view {self.view.name!r}"


def run_engine(online: Online, view: OnlineView, window: TimeWindow) -> None:
    """Let the repository's engine materialize a window, and wait for it.

    Ray ends the process that drives it when it loses its cluster, so that is another one. Ray's engine
    reports success when nothing was written, so the check afterwards decides.
    """
    run = EngineRun(online.engine, online.feast.config, online.folder, view, window)
    if online.engine == SPARK:
        with spark_session(run.config.batch_engine.spark_conf, run.failure, _WHERE) as session:
            require_same_feast(session, _WHERE)
            _materialize(run)
    elif online.engine == RAY:
        pool = Pool(_drive, 1, describe=lambda run: run.failure, preload=[__name__], inline=False)
        list(pool.run([run]))
    else:
        _drive(run)


def _drive(run: EngineRun) -> None:
    """Materialize, and name the reason of a failure."""
    address = getattr(run.config.batch_engine, "ray_address", None)
    try:
        with _ray_node(address) if address else contextlib.nullcontext():
            _materialize(run)
    except InputError:
        raise
    except Exception as error:
        what = f"{run.failure}: {type(error).__name__}: {error}"
        if _REJECTED.search(what):
            hint = "Correct the option, or run the cluster with the versions of this step: docs/features.md."
            raise InputError(what, where=_WHERE, hint=hint) from error
        hint = "Nothing is lost: the watermark stays where it was, and the next run repeats the window."
        raise DependencyError(what, where=_WHERE, hint=hint) from error


def _materialize(run: EngineRun) -> None:
    """Call the engine alone.

    ``FeatureStore.materialize`` writes its own watermark and state into the registry, where a killed run
    leaves them wrong.
    """
    from feast import FeatureStore
    from feast.infra.common.materialization_job import MaterializationJobStatus, MaterializationTask

    view = copy.copy(run.view.feast)
    view.ttl = timedelta(0)  # Ray's engine leaves out rows that are older now, also in a backfill
    store: Any = FeatureStore(repo_path=str(run.folder), config=run.config)
    task = MaterializationTask(
        project=store.project,
        feature_view=view,
        start_time=run.window.start or _EPOCH,
        end_time=run.window.end - _INSTANT,  # Feast's windows include their end
        tqdm_builder=_quiet,
    )
    with contextlib.chdir(run.folder):  # an engine resolves relative paths against its own folder
        jobs = store.provider.batch_engine.materialize(store.registry, [task])
    for job in jobs:
        if job.status() == MaterializationJobStatus.ERROR:
            raise job.error()


@contextlib.contextmanager
def _ray_node(address: str) -> Iterator[None]:
    """Let this machine join a Ray cluster, without CPUs for its tasks.

    Only a node of the cluster can drive Ray Data: Ray's client (``ray://``) cannot, as of Ray 2.60.
    """
    try:
        answers = address_towards(address)
    except ValueError as error:
        hint = "Name HOST:PORT of the cluster's GCS, such as ray-head:6379: Ray's client cannot run Ray Data."
        raise InputError(str(error), where=f"{_WHERE}.ray_address", hint=hint) from None
    if not answers:
        raise ConnectionError(f"no Ray cluster answers at {address}")
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--address={address}"]
    command += ["--num-cpus=0", "--disable-usage-stats"]
    with subprocess.Popen(  # noqa: S603
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509  Ray sets it in its children this way, too
    ) as node:
        said = []
        for line in node.stdout or ():
            said.append(line)
            if _JOINED in line:
                break
        else:
            raise ConnectionError(f"this machine could not join the cluster at {address}: {''.join(said)}")
        try:
            yield
        finally:
            import ray  # type: ignore[import-not-found,unused-ignore]

            ray.shutdown()  # else Ray ends this process with its node
            node.kill()  # it has no work, and a node that is terminated waits for 30 s


def _end_with_parent() -> None:
    """Let the kernel end this process, and Ray all below it, also when the parent was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _quiet(length: int) -> Any:
    from tqdm import tqdm  # type: ignore[import-untyped]

    return tqdm(total=length, disable=True)

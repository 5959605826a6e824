"""Launchers of the tests: fast ones, against the stand-in for a cluster, and what rank 0 would leave."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.launch.programs import job as program
from tests.launch.standin import Cluster
from tests.launch.standin.clusters import ADMIN
from trainwright.launch.cluster.api import PYTORCHJOB, Api, JobKind, ServerClock
from trainwright.launch.cluster.launcher import ClusterLauncher
from trainwright.launch.cluster.monitor import ClusterSettings
from trainwright.launch.job import Job, Result
from trainwright.launch.job_directory import Completion, create_attempt
from trainwright.launch.manifests import FOLDER
from trainwright.retries import RetryPolicy

Object = dict[str, Any]


def api(
    cluster: Cluster,
    *,
    outage_s: float = 10.0,
    kind: JobKind = PYTORCHJOB,
    token: str = ADMIN,
    clock: ServerClock | None = None,
) -> Api:
    """Return the access of a launcher that is patient for a moment only."""
    policy = RetryPolicy(outage_s=outage_s, first_s=0.01, longest_s=0.1)
    return Api(cluster.api_client(token), "team", kind, policy, clock)


def launcher(cluster: Cluster, **changes: Any) -> ClusterLauncher:
    """Return a launcher that looks often; what it is told otherwise are its settings, pace and access."""
    access = {name: changes.pop(name) for name in ("outage_s", "kind", "token", "clock") if name in changes}
    workflow = changes.pop("workflow", "")
    settings = ClusterSettings(**{"tick_s": 0.05, "settle_s": 60.0, **changes})
    return ClusterLauncher(api(cluster, **access), workflow=workflow, settings=settings)


def cluster_job(root: Path, body: str = "", **changes: Any) -> Job:
    """Describe a job of two nodes whose attempts lie in a home below ``root``."""
    home = root / "home"
    settings = {
        "claim": "shared",
        "mount": str(root),
        "nodes": 2,
        "processes": 1,
        "folder": create_attempt(home),
    }
    return program(root, body, **settings | changes)


def folder_of(body: Object) -> Path:
    """Return the folder of the attempt that a job was made for."""
    return Path(body["metadata"]["annotations"][FOLDER])


def complete(body: Object) -> None:
    """Do what rank 0 does at the very end of the attempt that a job names."""
    folder = folder_of(body)
    Completion(attempt=folder.name, outputs={"model": "abc"}).write(folder)


def stamp() -> str:
    """Return the time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def jobs(cluster: Cluster) -> list[Object]:
    """Return the jobs that there are."""
    return cluster.objects("PyTorchJob")


def watches(cluster: Cluster) -> bool:
    """Tell whether a launcher watches the pods of the newest job: what goes before, nobody can see."""
    calls = list(cluster.calls)
    made = max((at for at, call in enumerate(calls) if (call.verb, call.code) == ("create", 201)), default=0)
    return any((call.verb, call.resource) == ("watch", "pods") for call in calls[made:])


@contextmanager
def running(start: Callable[[], Result]) -> Iterator["Future[Result]"]:
    """Run a launcher in a thread, and give its result to come; wait for it at the end."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(start())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield future
    thread.join(180)
    assert not thread.is_alive()

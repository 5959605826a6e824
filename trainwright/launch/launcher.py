"""Create the launcher of a job, and stop the job on SIGTERM and SIGINT before this process ends.

Signal handlers can be set in the main thread only; any other thread keeps the caller's.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainwright.launch.job import Launcher

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""Kubernetes puts this file into every pod that may talk to its API."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def resolve_launcher(name: str, service_account: Path = SERVICE_ACCOUNT) -> str:
    """Return the launcher's name; ``auto`` is ``pytorchjob`` in a pod of a cluster, else ``local``."""
    if name == "auto":
        return "pytorchjob" if service_account.exists() else "local"
    return name


def create_launcher(name: str, *, outage_s: float = 900.0, pending_s: float = 1800.0) -> Launcher:
    """Create a launcher by name; only the one that is chosen loads its libraries.

    Args:
        name: ``local``, ``pytorchjob`` or ``trainjob``.
        outage_s: Longest outage of the cluster's API to retry through.
        pending_s: Seconds until all pods have to run, time in a queue excluded.

    Raises:
        DependencyError: This is no pod of a cluster.
    """
    if name == "local":
        from trainwright.launch.local import LocalLauncher

        return LocalLauncher()
    from trainwright.launch.cluster.api import JOB_KINDS
    from trainwright.launch.cluster.launcher import ClusterLauncher

    return ClusterLauncher.in_cluster(JOB_KINDS[name], outage_s=outage_s, pending_s=pending_s)


class Stopped(BaseException):
    """This process received a stop signal. Not an ``Exception``: no handler may take it for a failure."""

    def __init__(self, number: int) -> None:
        self.name = signal.Signals(number).name
        super().__init__(self.name)


@contextmanager
def collect_signals() -> Iterator[list[int]]:
    """Collect the signals that come, for a caller that polls."""
    received: list[int] = []
    with signal_handlers(received.append):
        yield received


@contextmanager
def raise_on_signal() -> Iterator[None]:
    """Raise :class:`Stopped` at once, wherever the main thread is, when the first signal comes."""
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        if len(received) == 1:
            raise Stopped(number)

    with signal_handlers(stop):
        yield


@contextmanager
def signal_handlers(react: Callable[[int], None]) -> Iterator[None]:
    """React to SIGTERM and SIGINT while the context lasts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda got, _frame: react(got)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

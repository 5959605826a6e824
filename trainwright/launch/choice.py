"""Which launcher runs a job."""

from pathlib import Path

from trainwright.errors import InputError
from trainwright.launch.job import Launcher

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""Kubernetes puts this file into every pod that may talk to its API."""

NAMES = ("auto", "local", "pytorchjob")


def resolve(name: str, service_account: Path = SERVICE_ACCOUNT) -> str:
    """Return the launcher's name; ``auto`` is ``pytorchjob`` in a pod of a cluster, else ``local``.

    Raises:
        InputError: There is no such launcher.
    """
    if name not in NAMES:
        raise InputError(f"no launcher {name!r}; known are {', '.join(NAMES)}", where="resources.launcher")
    if name == "auto":
        return "pytorchjob" if service_account.exists() else "local"
    return name


def make(name: str, service_account: Path = SERVICE_ACCOUNT) -> Launcher:
    """Make a launcher by name. Only the one that is chosen loads its libraries.

    Raises:
        InputError: There is no such launcher.
    """
    if resolve(name, service_account) == "local":
        from trainwright.launch.local import Local

        return Local()
    from trainwright.launch.pytorchjob import PyTorchJobs

    return PyTorchJobs.in_cluster()

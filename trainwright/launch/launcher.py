"""Choose and create the launcher of a job."""

from pathlib import Path

from trainwright.errors import InputError
from trainwright.launch.job import Launcher

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""Kubernetes puts this file into every pod that may talk to its API."""

LAUNCHERS = ("auto", "local", "pytorchjob", "trainjob")


def resolve_launcher(name: str, service_account: Path = SERVICE_ACCOUNT) -> str:
    """Return the launcher's name; ``auto`` is ``pytorchjob`` in a pod of a cluster, else ``local``.

    Raises:
        InputError: There is no such launcher.
    """
    if name not in LAUNCHERS:
        raise InputError(
            f"no launcher {name!r}; known are {', '.join(LAUNCHERS)}", where="resources.launcher"
        )
    if name == "auto":
        return "pytorchjob" if service_account.exists() else "local"
    return name


def create_launcher(
    name: str, *, workflow: str = "", outage_s: float = 900.0, pending_s: float = 1800.0
) -> Launcher:
    """Create a launcher by name; only the one that is chosen loads its libraries.

    Args:
        name: One of ``LAUNCHERS``.
        workflow: The Argo workflow that owns a cluster's job; empty: the one that this pod belongs to.
        outage_s: Longest outage of the cluster's API to retry through.
        pending_s: Seconds until all pods have to run, time in a queue excluded.

    Raises:
        InputError: There is no such launcher.
        DependencyError: This is no pod of a cluster.
    """
    chosen = resolve_launcher(name)
    if chosen == "local":
        from trainwright.launch.local import LocalLauncher

        return LocalLauncher()
    from trainwright.launch.cluster.api import JOB_KINDS
    from trainwright.launch.cluster.launcher import ClusterLauncher

    return ClusterLauncher.in_cluster(
        JOB_KINDS[chosen], workflow=workflow, outage_s=outage_s, pending_s=pending_s
    )

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
    name: str,
    service_account: Path = SERVICE_ACCOUNT,
    *,
    workflow: str = "",
    outage_s: float = 900.0,
    pending_s: float = 1800.0,
) -> Launcher:
    """Make a launcher by name. Only the one that is chosen loads its libraries.

    Args:
        name: One of ``NAMES``.
        service_account: Where a pod of a cluster has its token.
        workflow: The Argo workflow that a cluster's job is to go with; empty: none.
        outage_s: Longest outage of the cluster's API to retry through.
        pending_s: Seconds until all pods have to run, waiting in a queue apart.

    Raises:
        InputError: There is no such launcher.
        DependencyError: This is no pod of a cluster.
    """
    chosen = resolve_launcher(name, service_account)
    if chosen == "local":
        from trainwright.launch.local import LocalLauncher

        return LocalLauncher()
    from trainwright.launch.cluster.api import JOB_KINDS
    from trainwright.launch.cluster.launcher import ClusterLauncher

    return ClusterLauncher.in_cluster(
        JOB_KINDS[chosen], workflow=workflow, outage_s=outage_s, pending_s=pending_s
    )

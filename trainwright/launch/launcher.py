"""Choose and create the launcher of a job."""

from pathlib import Path

from trainwright.launch.job import Launcher

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""Kubernetes puts this file into every pod that may talk to its API."""


def resolve_launcher(name: str, service_account: Path = SERVICE_ACCOUNT) -> str:
    """Return the launcher's name; ``auto`` is ``pytorchjob`` in a pod of a cluster, else ``local``."""
    if name == "auto":
        return "pytorchjob" if service_account.exists() else "local"
    return name


def create_launcher(
    name: str, *, workflow: str = "", outage_s: float = 900.0, pending_s: float = 1800.0
) -> Launcher:
    """Create a launcher by name; only the one that is chosen loads its libraries.

    Args:
        name: ``local``, ``pytorchjob`` or ``trainjob``.
        workflow: The Argo workflow that owns a cluster's job; empty: the one that this pod belongs to.
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

    return ClusterLauncher.in_cluster(
        JOB_KINDS[name], workflow=workflow, outage_s=outage_s, pending_s=pending_s
    )

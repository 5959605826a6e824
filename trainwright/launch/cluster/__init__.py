"""Runs a job on a Kubernetes cluster: one job whatever replies are lost, the truth about it, no orphans."""

from trainwright.launch.cluster.launcher import ClusterLauncher, Settings

__all__ = ["ClusterLauncher", "Settings"]

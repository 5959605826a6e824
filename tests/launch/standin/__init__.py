"""A stand-in for a Kubernetes cluster: real HTTP for the real client, and jobs whose pods really run.

from tests.launch.standin import cluster

with cluster(tmp_path) as running:
    jobs = k8s.CustomObjectsApi(running.api_client())
    running.faults.commit_then_drop(verbs=("create",), chance=0.3, times=None)
    jobs.create_namespaced_custom_object("kubeflow.org", "v1", "team", "pytorchjobs", manifest,
                                         field_validation="Strict")
    running.wait(lambda: running.objects("PyTorchJob"))
    assert [call.verb for call in running.calls] == ["create"]
"""

from tests.launch.standin.access import Call
from tests.launch.standin.answers import Refused
from tests.launch.standin.clusters import Cluster, cluster

__all__ = ["Call", "Cluster", "Refused", "cluster"]

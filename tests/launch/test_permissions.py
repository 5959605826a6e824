"""What ``deploy/`` grants is what the launcher calls: no call is refused, and no right is left over."""

from pathlib import Path

import yaml
from kubernetes import client as k8s

from tests.launch.cluster import JOBS, PODS, Cluster
from trainwright.launch.api import Api

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "train.yaml"
VERBS = {"POST": "create", "GET": "get", "DELETE": "delete"}


def test_the_role_grants_exactly_the_calls_that_the_launcher_makes(
    connected: tuple[Cluster, k8s.ApiClient],
) -> None:
    cluster, client = connected
    api = Api(client, "team")
    api.create({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "tw-train-1"}})
    api.job("tw-train-1")
    api.pods("tw-train-1")
    api.delete("tw-train-1")
    made = set()
    for method, path in cluster.calls:
        if path.startswith(JOBS):
            made.add(("kubeflow.org", "pytorchjobs", VERBS[method]))
        else:
            assert path.startswith(PODS)
            made.add(("", "pods", "list"))
    public = {name for name in vars(Api) if not name.startswith("_")}
    assert public == {"create", "job", "pods", "delete"}, "a new call has to be made above, too"
    role = next(body for body in yaml.safe_load_all(DEPLOY.read_text()) if body["kind"] == "Role")
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == made

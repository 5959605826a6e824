"""The stand-in's operator and nodes do what the recorded ones did, event by event."""

import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as k8s

from tests.launch import recordings
from tests.launch.replaying import calm, counts, in_steps, job_seen, pod_seen, replays
from tests.launch.standin import Cluster, cluster, replicas
from tests.launch.standin.store import Change

GROUP = ("kubeflow.org", "v1", "team", "pytorchjobs")
Object = dict[str, Any]
BY_CHANCE = {"worker-fails-then-master-done", "master-done-worker-fails-same-time"}


class Replay:
    """A recording that is done again, and what is seen of it."""

    def __init__(self, running: Cluster, told: Object) -> None:
        self.running, self.told, self.name = running, told, told["manifest"]["metadata"]["name"]
        self.jobs: list[Object] = []
        self.pods: dict[str, list[str]] = {}
        running.store.listen(self._see)

    def _see(self, change: Change) -> None:
        if change.resource.kind == "PyTorchJob":
            self.jobs.append(change.body)
        if change.resource.kind == "Pod":
            line = pod_seen(change.body, change.type)
            self.pods.setdefault(change.body["metadata"]["name"], []).append(line)

    def seen(self) -> dict[str, list[str]]:
        return {name: in_steps(lines) for name, lines in self.pods.items()}

    def play(self) -> None:
        for pod, code in self.told["on_term"].items():
            self.running.nodes.plan(pod, process=False, on_term=code)
        for what, given in self.told["steps"]:
            self.running.settle()
            getattr(self, what.replace(" ", "_"))(given)
        self.running.settle()

    def create(self, _name: str) -> None:
        body = json.loads(json.dumps(self.told["manifest"]))
        if any(step == "delete owner" for step, _ in self.told["steps"]):
            owner = self.running.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}})
            body["metadata"]["ownerReferences"] = [replicas.owner(owner)]
        self.api.create_namespaced_custom_object(*GROUP, body, field_validation="Strict")

    def patch(self, body: str) -> None:
        self.api.patch_namespaced_custom_object(*GROUP, self.name, json.loads(body))

    def delete(self, policy: str) -> None:
        options = k8s.V1DeleteOptions(propagation_policy=policy)
        self.api.delete_namespaced_custom_object(*GROUP, self.name, body=options)

    def delete_owner(self, _what: str) -> None:
        self.core.delete_namespaced_config_map("owner", "team")

    def delete_pod(self, name: str) -> None:
        self.core.delete_namespaced_pod(name, "team")

    def evict(self, name: str) -> None:
        body = k8s.V1Eviction(metadata=k8s.V1ObjectMeta(name=name, namespace="team"))
        self.core.create_namespaced_pod_eviction(name, "team", body)

    def taint(self, _what: str) -> None:
        self.running.nodes.taint("node-0")

    def untaint(self, _what: str) -> None:
        self.running.nodes.untaint("node-0")

    def end(self, what: list[Any]) -> None:
        name, restarts, code, reason = what
        self.running.wait(lambda: self._runs(name, restarts))
        self.running.nodes.end(name, code, reason=reason)

    def _runs(self, name: str, restarts: int) -> bool:
        told = (self.running.find("Pod", name) or {"status": {}})["status"].get("containerStatuses") or []
        return any("running" in entry["state"] and entry["restartCount"] == restarts for entry in told)

    @property
    def api(self) -> k8s.CustomObjectsApi:
        return k8s.CustomObjectsApi(self.running.api_client())

    @property
    def core(self) -> k8s.CoreV1Api:
        return k8s.CoreV1Api(self.running.api_client())


@pytest.mark.parametrize("scenario", sorted(replays()))
def test_a_recording_done_again_is_seen_again(tmp_path: Path, scenario: str) -> None:
    told = replays()[scenario]
    with cluster(tmp_path, processes=False, nodes=1, backoff_s=0.05) as running:
        if scenario not in BY_CHANCE:
            running.operator.order = ("Master", "Worker")
        replay = Replay(running, told)
        replay.play()
        running.store.wait(lambda: replay.seen() == told["pods"], 3)
        assert calm([job_seen(body) for body in replay.jobs]) == told["job"]
        assert counts(replay.jobs[-1]) == told["counts"]
        assert replay.seen() == told["pods"]


def test_pods_have_the_names_labels_owners_and_environment_of_the_recorded_ones(tmp_path: Path) -> None:
    for scenario in ("success-static", "success-elastic", "success-static-torchrun"):
        told = recordings.load(scenario)
        wanted = {}
        for event in told.of("Pod"):
            meta = event.body["metadata"]
            wanted[meta["name"]] = (meta["labels"], event.body["spec"]["containers"][0]["env"])
        job_spec = told.of("PyTorchJob")[0].body["spec"]
        given = {"name": "OMP_NUM_THREADS", "value": "1"}
        container = {"name": "pytorch", "image": "x", "command": ["python"], "env": [given]}
        for entry in job_spec["pytorchReplicaSpecs"].values():
            entry["template"] = {"spec": {"containers": [container]}}
        body = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": told.job}}
        with cluster(tmp_path, processes=False) as running:
            made = running.put({**body, "spec": job_spec})
            running.settle()
            found = running.objects("Pod")
            seen = {pod["metadata"]["name"]: pod for pod in found}
            assert {
                name: (pod["metadata"]["labels"], pod["spec"]["containers"][0]["env"])
                for name, pod in seen.items()
            } == wanted
            assert all(pod["metadata"]["ownerReferences"] == [replicas.owner(made)] for pod in found)
            assert [entry["metadata"]["name"] for entry in running.objects("Service")] == sorted(wanted)

"""The stand-in does what real operators and a real Kueue did."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as k8s

from tests.launch import recordings
from tests.launch.replaying import calm, counts, in_steps, job_seen, pod_seen, replays
from tests.launch.standin import Cluster, cluster, replicas
from tests.launch.standin.jobs import holding, pytorchjob, trainjob
from tests.launch.standin.kueue import Kueue
from tests.launch.standin.store import Change
from tests.launch.streams import bodies

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


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, processes=False, kueue=True) as found:
        yield found


def standing_of(workload: Object) -> dict[str, tuple[str, str]]:
    """Return a workload's conditions: status and reason by type. The stand-in does not tell of PodsReady."""
    told = workload["status"]["conditions"]
    return {
        entry["type"]: (entry["status"], entry["reason"]) for entry in told if entry["type"] != "PodsReady"
    }


def queues_of(running: Cluster) -> Kueue:
    assert running.kueue is not None
    running.kueue.add_queue("team-queue")
    return running.kueue


def test_a_queue_holds_a_job_back_until_it_has_room_and_takes_it_away_again(running: Cluster) -> None:
    queues = queues_of(running)
    queues.manual = True
    body = pytorchjob("Master")
    body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team-queue"}
    k8s.CustomObjectsApi(running.api_client()).create_namespaced_custom_object(*GROUP, body)
    running.settle()
    assert holding(running) == {"Created", "Suspended"}
    workload = queues.workload("a")
    assert workload is not None
    assert workload["status"]["conditions"][0]["message"].startswith(
        "couldn't assign flavors to pod set master"
    )
    queues.admit("a")
    running.settle()
    assert holding(running) == {"Created", "Running"}
    queues.preempt("a")
    running.wait(lambda: not running.objects("Pod"))
    running.settle()
    assert holding(running) == {"Created", "Suspended"}
    queues.admit("a")
    running.settle()
    running.nodes.end("a-master-0", 0)
    running.settle()
    assert holding(running) == {"Created", "Succeeded"}
    recorded = bodies("preempted", "workloads")[-1]
    assert standing_of(queues.workload("a") or {}) == standing_of(recorded)


def test_a_job_of_an_unknown_priority_gets_no_workload(running: Cluster) -> None:
    queues_of(running)
    body = pytorchjob("Master")
    body["metadata"]["labels"] = {
        "kueue.x-k8s.io/queue-name": "team-queue",
        "kueue.x-k8s.io/priority-class": "absent",
    }
    k8s.CustomObjectsApi(running.api_client()).create_namespaced_custom_object(*GROUP, body)
    running.settle()
    assert running.objects("Workload") == []
    recorded = {event["reason"] for event in bodies("no-priority", "events")}
    assert {event["reason"] for event in running.objects("Event")} == recorded == {"PyTorchJobSuspended"}
    assert holding(running) == {"Created", "Suspended"}


def pods_of(running: Cluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in running.objects("Pod")]


def test_a_trainjob_is_complete_when_all_of_its_pods_are(running: Cluster) -> None:
    running.put(trainjob())
    running.settle()
    first, second = pods_of(running)
    assert (first.startswith("a-node-0-0-"), second.startswith("a-node-0-1-")) == (True, True)
    assert running.find("TrainJob", "a")["status"]["jobsStatus"][0]["ready"] == 1  # type: ignore[index]
    running.nodes.end(first, 0)
    running.settle()
    assert holding(running, "TrainJob") == set()
    running.nodes.end(second, 0)
    running.settle()
    assert holding(running, "TrainJob") == {"Complete"}


@pytest.mark.covers("F33")
def test_a_trainjob_that_failed_runs_again_when_its_jobset_is_gone(running: Cluster) -> None:
    runtime = {"spec": {"backoffLimit": 0}}
    running.edit(
        "clustertrainingruntimes",
        "torch-distributed",
        lambda body: body["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"].update(
            runtime["spec"]
        ),
    )
    running.nodes.plan(process=False, on_term=143)
    running.put(trainjob())
    running.settle()
    running.nodes.end(pods_of(running)[0], 1)
    running.wait(lambda: holding(running, "TrainJob") == {"Failed"})
    assert running.trainer is not None
    running.trainer.collect("a")
    running.settle()
    assert holding(running, "TrainJob") == set()
    staying = [pod for pod in running.objects("Pod") if "deletionTimestamp" not in pod["metadata"]]
    assert len(staying) == 2


def test_a_trainjob_is_suspended_resumed_and_ended_at_its_deadline(running: Cluster) -> None:
    running.put(trainjob(suspend=True, activeDeadlineSeconds=1))
    running.settle()
    assert (holding(running, "TrainJob"), pods_of(running)) == ({"Suspended"}, [])
    running.edit("TrainJob", "a", lambda body: body["spec"].update(suspend=False))
    running.settle()
    assert len(pods_of(running)) == 2
    running.wait(lambda: holding(running, "TrainJob") == {"Failed"})
    told = running.find("TrainJob", "a")["status"]["conditions"]  # type: ignore[index]
    assert [entry["reason"] for entry in told] == ["Resumed", "DeadlineExceeded"]


def test_a_trainjob_of_an_absent_runtime_is_refused(running: Cluster) -> None:
    api = k8s.CustomObjectsApi(running.api_client())
    where = ("trainer.kubeflow.org", "v1alpha1", "team", "trainjobs")
    with pytest.raises(k8s.ApiException) as caught:
        api.create_namespaced_custom_object(*where, trainjob(runtimeRef={"name": "absent"}))
    assert (caught.value.status, "must be created before the TrainJob" in caught.value.body) == (403, True)


TRAINJOBS = ("trainer.kubeflow.org", "v1alpha1", "team", "trainjobs")


def graced(seconds: int = 10) -> Object:
    """Make a TrainJob whose patch has the field that Trainer has since 2.3, and Kueue's client lacks."""
    pod = {"spec": {"terminationGracePeriodSeconds": seconds}}
    part = {"name": "node", "template": {"spec": {"template": pod}}}
    patch = {"manager": "a/b", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [part]}}}}
    return trainjob(runtimePatches=[patch])


def chain(found: list[Object]) -> set[tuple[str, str]]:
    """Return which kinds own which."""
    return {
        (entry["kind"], body["kind"])
        for body in found
        for entry in body["metadata"].get("ownerReferences") or []
    }


def test_a_trainjob_owns_a_jobset_that_owns_a_job_that_owns_the_pods(running: Cluster) -> None:
    running.put(trainjob())
    running.settle()
    for pod in pods_of(running):
        running.nodes.end(pod, 0)
    running.settle()
    here = [body for kind in ("JobSet", "Job", "Pod") for body in running.objects(kind)]
    recorded = [body for kind in ("jobsets", "jobs", "pods") for body in bodies("success", kind)]
    assert chain(here) == chain(recorded)
    ends = [
        {
            (kind, entry["type"], entry["reason"], entry["message"])
            for kind, body in found
            for entry in body["status"].get("conditions") or []
        }
        for found in (
            [(kind, running.objects(kind)[0]) for kind in ("TrainJob", "JobSet", "Job")],
            [
                (body["kind"], body)
                for kind in ("trainjobs", "jobsets", "jobs")
                for body in bodies("success", kind)
            ],
        )
    ]
    assert ends[0] == ends[1]
    labels = set(running.objects("Pod")[0]["metadata"]["labels"])
    assert labels <= set(bodies("success", "pods")[0]["metadata"]["labels"])


@pytest.mark.parametrize(
    ("policy", "recording"), [("Foreground", "stop-foreground"), ("Background", "stop-background")]
)
def test_only_a_deletion_in_the_background_makes_no_second_jobset(
    running: Cluster, policy: str, recording: str
) -> None:
    running.nodes.plan(process=False, on_term=143)
    running.put(trainjob(nodes=1))
    running.settle()
    k8s.CustomObjectsApi(running.api_client()).delete_namespaced_custom_object(
        *TRAINJOBS, "a", propagation_policy=policy
    )
    running.wait(lambda: not running.objects("TrainJob") and not running.objects("Pod"), 30)
    recorded = {body["metadata"]["uid"] for body in bodies(recording, "jobsets")}
    assert (running.store.created["jobsets"] > 1) == (len(recorded) > 1) == (policy == "Foreground")


def test_pods_that_the_namespace_refuses_are_told_on_the_batch_job(running: Cluster) -> None:
    running.verbs.quotas["team", "pods"] = 0
    running.put(trainjob())
    running.wait(lambda: [event for event in running.objects("Event") if event["reason"] == "FailedCreate"])
    (about,) = {
        (event["involvedObject"]["kind"], event["involvedObject"]["name"])
        for event in running.objects("Event")
        if event["reason"] == "FailedCreate"
    }
    assert about == ("Job", "a-node-0")
    assert {event["involvedObject"]["kind"] for event in bodies("quota", "events")} == {"Job"}


def test_kueue_drops_a_field_that_its_client_lacks_and_the_jobset_stays_suspended(running: Cluster) -> None:
    queues = queues_of(running)
    queues.manual = True
    body = graced()
    body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team-queue"}
    k8s.CustomObjectsApi(running.api_client()).create_namespaced_custom_object(*TRAINJOBS, body)
    running.settle()
    queues.admit("a")
    running.settle()
    job, jobset = running.objects("TrainJob")[0], running.objects("JobSet")[0]
    assert (job["spec"]["suspend"], jobset["spec"]["suspend"], pods_of(running)) == (False, True, [])
    assert "terminationGracePeriodSeconds" not in str(job["spec"])
    said = [event["message"] for event in running.objects("Event") if "CreationFailed" in event["reason"]]
    recorded = [
        event["message"] for event in bodies("stuck", "events") if "CreationFailed" in event["reason"]
    ]
    assert said[0].partition("webhook")[0] == recorded[0].partition("webhook")[0]


def test_trainer_2_2_rejects_a_field_that_2_3_has(running: Cluster) -> None:
    create = k8s.CustomObjectsApi(running.api_client()).create_namespaced_custom_object
    create(*TRAINJOBS, graced(), field_validation="Strict", dry_run="All")
    running.verbs.schemas["trainjob"] = "trainjob-2.2"
    with pytest.raises(k8s.ApiException) as caught:
        create(*TRAINJOBS, graced(), field_validation="Strict")
    assert (caught.value.status, "strict decoding error: unknown field" in caught.value.body) == (400, True)

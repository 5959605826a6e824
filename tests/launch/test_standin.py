"""The stand-in for a cluster answers as a real API server, operator and kubelet do."""

import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from kubernetes import client as k8s

from tests.launch.programs import alive, gone
from tests.launch.replaying import pod_seen
from tests.launch.standin import Cluster, cluster, replicas
from tests.launch.standin.calling import GROUP, create, events, job, jobs, refused
from tests.launch.standin.jobs import holding, pytorchjob
from tests.launch.standin.store import Change

REFUSALS = Path(__file__).parent / "data" / "standin" / "admission.json.gz"
Object = dict[str, Any]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, operator=False) as found:
        yield found


def config_map(name: str, **metadata: Any) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}


def recorded() -> list[Object]:
    with gzip.open(REFUSALS, "rt") as stream:
        cases: list[Object] = json.load(stream)
    return cases


def test_every_recorded_answer_to_a_request_is_given_again(tmp_path: Path) -> None:
    http, differing = urllib3.PoolManager(retries=False), []
    with cluster(tmp_path, operator=False, namespaces=("r16", "kubeflow"), without=("trainjobs",)) as running:
        role = running.account("system:serviceaccount:r16:norole", [], "r16")
        for case in recorded():
            name = case["case"]
            running.verbs.quotas = {("r16", "pytorchjobs"): 0} if "exceeded quota" in name else {}
            running.verbs.terminating = {"r16"} if "terminating" in name else set()
            token = role if "ServiceAccount" in name else "none" if "401" in name else "admin"
            headers = {"Authorization": f"Bearer {token}", "Content-Type": case["form"]}
            body = None if case["body"] is None else json.dumps(case["body"])
            answer = http.request(case["method"], running.url + case["path"], body=body, headers=headers)
            told = answer.data.decode() if "text/plain" in answer.headers["Content-Type"] else answer.json()
            same = answer.status < 300 or told == case["answer"]
            if (answer.status, answer.headers.get("Warning")) != (case["code"], case["warning"]) or not same:
                differing.append((name, answer.status, told))
    assert not differing
    assert len(recorded()) > 40


def test_an_object_gets_a_uid_a_version_and_a_generation(running: Cluster) -> None:
    made = create(running, job())
    found = jobs(running).get_namespaced_custom_object(*GROUP, "a")
    assert found == made
    assert (made["metadata"]["generation"], "status" in made) == (1, False)
    assert made["metadata"]["uid"]
    patch = {"metadata": {"annotations": {"k": "v"}}}
    noted = jobs(running).patch_namespaced_custom_object(*GROUP, "a", patch)
    assert noted["metadata"]["generation"] == 1
    assert int(noted["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    again = jobs(running).patch_namespaced_custom_object(*GROUP, "a", patch)
    assert again["metadata"]["resourceVersion"] == noted["metadata"]["resourceVersion"]
    changed = jobs(running).patch_namespaced_custom_object(*GROUP, "a", {"spec": {"nprocPerNode": "2"}})
    assert changed["metadata"]["generation"] == 2


def test_the_status_is_only_written_through_its_own_address(running: Cluster) -> None:
    create(running, job())
    status = {"status": {"conditions": [{"type": "Running", "status": "True"}]}}
    assert "status" not in jobs(running).patch_namespaced_custom_object(*GROUP, "a", status)
    jobs(running).patch_namespaced_custom_object_status(*GROUP, "a", status | {"spec": {"nprocPerNode": "4"}})
    found = jobs(running).get_namespaced_custom_object(*GROUP, "a")
    assert found["status"]["conditions"][0]["type"] == "Running"
    assert "nprocPerNode" not in found["spec"]


def test_a_write_from_an_older_version_is_a_conflict(running: Cluster) -> None:
    made = create(running, job())
    body = job(resourceVersion="17", uid=made["metadata"]["uid"])
    error = refused(jobs(running).replace_namespaced_custom_object, *GROUP, "a", body)
    assert (error.status, json.loads(error.body)["reason"]) == (409, "Conflict")
    stale = {"metadata": {"resourceVersion": "17"}}
    assert refused(jobs(running).patch_namespaced_custom_object, *GROUP, "a", stale).status == 409
    body["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
    body["metadata"]["labels"] = {"k": "v"}
    assert jobs(running).replace_namespaced_custom_object(*GROUP, "a", body)["metadata"]["labels"] == {
        "k": "v"
    }


def test_a_json_patch_tests_before_it_changes(running: Cluster) -> None:
    create(running, job(annotations={"lease": "1"}))
    path = "/metadata/annotations/lease"

    def patch(old: str) -> Object:
        steps = [{"op": "test", "path": path, "value": old}, {"op": "replace", "path": path, "value": "2"}]
        found: Object = running.api_client().call_api(
            "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/a",
            "PATCH",
            header_params={"Content-Type": "application/json-patch+json"},
            body=steps,
            response_type="object",
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
        )
        return found

    error = refused(patch, "0")
    assert (error.status, json.loads(error.body)["details"]) == (422, {})
    assert patch("1")["metadata"]["annotations"] == {"lease": "2"}


def test_a_deletion_for_another_uid_is_a_conflict(running: Cluster) -> None:
    made = create(running, job())
    other = k8s.V1DeleteOptions(preconditions=k8s.V1Preconditions(uid="0"))
    error = refused(jobs(running).delete_namespaced_custom_object, *GROUP, "a", body=other)
    assert error.status == 409
    assert f"(0) does not match the UID in record ({made['metadata']['uid']})" in error.body
    mine = k8s.V1DeleteOptions(preconditions=k8s.V1Preconditions(uid=made["metadata"]["uid"]))
    jobs(running).delete_namespaced_custom_object(*GROUP, "a", body=mine)
    assert running.objects("PyTorchJob") == []


@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
def test_what_an_object_owns_goes_with_it_unless_it_is_orphaned(running: Cluster, policy: str) -> None:
    made = create(running, job())
    running.put(config_map("mine", ownerReferences=[replicas.owner(made)], finalizers=["test/hold"]))
    options = k8s.V1DeleteOptions(propagation_policy=policy)
    jobs(running).delete_namespaced_custom_object(*GROUP, "a", body=options)
    if policy == "Orphan":
        running.wait(lambda: not running.objects("PyTorchJob"))
        assert running.find("ConfigMap", "mine")["metadata"]["ownerReferences"] == []  # type: ignore[index]
        return
    running.wait(lambda: "deletionTimestamp" in running.find("ConfigMap", "mine")["metadata"])  # type: ignore[index]
    left = [entry["metadata"].get("finalizers") for entry in running.objects("PyTorchJob")]
    assert left == ([["foregroundDeletion"]] if policy == "Foreground" else [])
    running.edit("ConfigMap", "mine", lambda body: body["metadata"].pop("finalizers"))
    running.wait(lambda: not running.objects("PyTorchJob") and not running.objects("ConfigMap"))


def test_an_object_whose_owner_never_was_is_collected(running: Cluster) -> None:
    absent = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "w", "uid": "0"}}
    create(running, job(ownerReferences=[replicas.owner(absent)]))
    running.wait(lambda: not running.objects("PyTorchJob"))


def test_a_watch_shows_every_change_after_its_version(running: Cluster) -> None:
    create(running, job("a"))
    listed = jobs(running).list_namespaced_custom_object(*GROUP)
    seen = events(running, resource_version=listed["metadata"]["resourceVersion"])
    create(running, job("b"))
    jobs(running).patch_namespaced_custom_object(*GROUP, "a", {"metadata": {"labels": {"k": "v"}}})
    jobs(running).delete_namespaced_custom_object(*GROUP, "b")
    found = [
        (event["type"], event["object"]["metadata"]["name"]) for _, event in zip(range(3), seen, strict=False)
    ]
    assert found == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]


def test_a_watch_with_a_selector_shows_what_begins_and_ceases_to_match(running: Cluster) -> None:
    create(running, job("a"))
    listed = jobs(running).list_namespaced_custom_object(*GROUP, label_selector="k=v")
    assert listed["items"] == []
    seen = events(running, resource_version=listed["metadata"]["resourceVersion"], label_selector="k=v")
    for value in ("v", "w"):
        jobs(running).patch_namespaced_custom_object(*GROUP, "a", {"metadata": {"labels": {"k": value}}})
    assert [event["type"] for _, event in zip(range(2), seen, strict=False)] == ["ADDED", "DELETED"]


def test_a_watch_from_a_version_that_is_no_longer_kept_ends_with_410(running: Cluster) -> None:
    version = create(running, job("a"))["metadata"]["resourceVersion"]
    create(running, job("b"))
    running.expire()
    error = refused(list, events(running, resource_version=version))
    assert (error.status, error.reason.startswith("Expired: too old resource version")) == (410, True)


def test_a_watch_ends_after_its_time_with_a_bookmark(running: Cluster) -> None:
    create(running, job("a"))
    http = urllib3.PoolManager()
    query = "?watch=1&allowWatchBookmarks=true&timeoutSeconds=1&resourceVersion="
    url = f"{running.url}/apis/kubeflow.org/v1/namespaces/team/pytorchjobs{query}{running.store.number}"
    answer = http.request("GET", url, headers={"Authorization": "Bearer admin"})
    found = json.loads(answer.data)
    assert found["type"] == "BOOKMARK"
    assert found["object"]["metadata"] == {"resourceVersion": str(running.store.number)}


def test_a_long_list_comes_in_pages(running: Cluster) -> None:
    core = k8s.CoreV1Api(running.api_client())
    for index in range(5):
        core.create_namespaced_config_map("team", config_map(f"m{index}"))
    first = core.list_namespaced_config_map("team", limit=3)
    second = core.list_namespaced_config_map("team", limit=3, _continue=first.metadata._continue)
    assert [entry.metadata.name for entry in first.items + second.items] == ["m0", "m1", "m2", "m3", "m4"]


def test_two_hundred_who_look_on_miss_nothing(running: Cluster) -> None:
    seen: list[str] = []

    def look(name: str) -> None:
        for event in events(running, 60, field_selector=f"metadata.name={name}"):
            if event["object"].get("status", {}).get("done"):
                seen.append(name)
                return

    names = [f"j{index}" for index in range(200)]
    threads = [threading.Thread(target=look, args=(name,)) for name in names]
    for name, thread in zip(names, threads, strict=True):
        running.put(job(name))
        thread.start()
    running.wait(lambda: len(running.store.watches()) == 200)
    for name in names:
        running.edit("PyTorchJob", name, lambda body: body.update(status={"done": True}))
    for thread in threads:
        thread.join(180)
    assert sorted(seen) == sorted(names)


def test_a_reply_that_is_lost_was_a_call_that_was_made(running: Cluster) -> None:
    running.faults.commit_then_drop(verbs=("create",))
    with pytest.raises(urllib3.exceptions.HTTPError):
        create(running, job())
    error = refused(create, running, job())
    assert json.loads(error.body)["reason"] == "AlreadyExists"
    assert [(call.verb, call.code) for call in running.calls] == [("create", 0), ("create", 409)]


def test_a_script_of_faults_befalls_the_calls_it_names(running: Cluster) -> None:
    running.faults.drop(verbs=("get",), after=1)
    running.faults.busy(3, verbs=("list",))
    running.faults.error(503, verbs=("patch",), resources=("pytorchjobs",))
    create(running, job())
    jobs(running).get_namespaced_custom_object(*GROUP, "a")
    with pytest.raises(urllib3.exceptions.HTTPError):
        jobs(running).get_namespaced_custom_object(*GROUP, "a")
    error = refused(jobs(running).list_namespaced_custom_object, *GROUP)
    assert (error.status, error.headers["Retry-After"]) == (429, "3")
    assert refused(jobs(running).patch_namespaced_custom_object, *GROUP, "a", {}).status == 503
    jobs(running).get_namespaced_custom_object(*GROUP, "a")


def test_faults_by_chance_are_the_same_with_the_same_seed(tmp_path: Path) -> None:
    def met(seed: int) -> list[int]:
        with cluster(tmp_path, seed=seed, operator=False) as running:
            running.faults.error(chance=0.3, times=None)
            for _ in range(40):
                try:
                    jobs(running).list_namespaced_custom_object(*GROUP)
                except k8s.ApiException:
                    continue
            return [call.code for call in running.calls]

    assert met(1) == met(1) != met(2)
    assert 4 < met(1).count(500) < 25


def test_an_outage_cuts_calls_and_watches_until_it_is_over(running: Cluster) -> None:
    create(running, job())
    ended = threading.Event()

    def look() -> None:
        try:
            list(events(running, 30))
        except (urllib3.exceptions.HTTPError, OSError):
            ended.set()

    looking = threading.Thread(target=look)
    looking.start()
    running.wait(lambda: any(call.verb == "watch" for call in running.calls))
    with running.faults.outage():
        with pytest.raises(urllib3.exceptions.HTTPError):
            jobs(running).get_namespaced_custom_object(*GROUP, "a")
        assert ended.wait(120)
    looking.join()
    jobs(running).get_namespaced_custom_object(*GROUP, "a")


def test_an_account_may_do_what_its_role_says_and_nothing_else(running: Cluster) -> None:
    rules = [{"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": ["get", "create"]}]
    api = jobs(running, running.account("system:serviceaccount:team:launcher", rules, "team"))
    api.create_namespaced_custom_object(*GROUP, job())
    api.get_namespaced_custom_object(*GROUP, "a")
    error = refused(api.delete_namespaced_custom_object, *GROUP, "a")
    said = 'cannot delete resource "pytorchjobs" in API group "kubeflow.org" in the namespace "team"'
    assert said in json.loads(error.body)["message"]
    rights = {call.right for call in running.calls if call.code < 300}
    assert rights == {("kubeflow.org", "pytorchjobs", "create"), ("kubeflow.org", "pytorchjobs", "get")}


def test_a_right_for_one_name_is_a_right_to_list_that_name(running: Cluster) -> None:
    rule = {"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "resourceNames": ["a"]}
    api = jobs(running, running.account("somebody", [{**rule, "verbs": ["list"]}], "team"))
    api.list_namespaced_custom_object(*GROUP, field_selector="metadata.name=a")
    assert refused(api.list_namespaced_custom_object, *GROUP).status == 403
    assert refused(api.list_namespaced_custom_object, *GROUP, field_selector="metadata.name=b").status == 403


def test_a_token_that_was_taken_back_is_unauthorized(running: Cluster) -> None:
    token = running.account("system:serviceaccount:team:launcher", None)
    jobs(running, token).list_namespaced_custom_object(*GROUP)
    running.revoke(token)
    assert refused(jobs(running, token).list_namespaced_custom_object, *GROUP).status == 401


GROUP_operator = ("kubeflow.org", "v1", "team", "pytorchjobs")


@pytest.fixture
def without_processes(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, processes=False, backoff_s=0.05) as found:
        yield found


def test_an_elastic_job_whose_pods_end_unseen_is_succeeded_and_failed_at_once(
    without_processes: Cluster,
) -> None:
    without_processes.put(pytorchjob("Worker", "Worker", elasticPolicy={"minReplicas": 1, "maxReplicas": 2}))
    without_processes.settle()
    with without_processes.operator.outage():
        without_processes.nodes.end_together({"a-worker-0": 0, "a-worker-1": 1})
        without_processes.settle()
        error = refused_operator(without_processes, {"metadata": {"annotations": {"k": "v"}}})
        assert (error.status, "failed calling webhook" in error.body) == (500, True)
    without_processes.settle()
    assert holding(without_processes) == {"Created", "Succeeded", "Failed"}


def refused_operator(without_processes: Cluster, patch: Object) -> k8s.ApiException:
    api = k8s.CustomObjectsApi(without_processes.api_client())
    with pytest.raises(k8s.ApiException) as caught:
        api.patch_namespaced_custom_object(*GROUP_operator, "a", patch)
    return caught.value


def test_whether_a_master_or_its_worker_decides_when_both_end_unseen_is_chance(tmp_path: Path) -> None:
    ends = set()
    for seed in range(8):
        with cluster(tmp_path, processes=False, seed=seed) as found:
            found.put(pytorchjob("Master", "Worker"))
            found.settle()
            with found.operator.outage():
                found.nodes.end_together({"a-master-0": 0, "a-worker-0": 1})
                found.settle()
            found.settle()
            ends.add(frozenset(holding(found) - {"Created"}))
    assert ends == {frozenset({"Succeeded"}), frozenset({"Failed"})}


def test_a_deadline_is_only_seen_when_something_else_happens(without_processes: Cluster) -> None:
    without_processes.put(pytorchjob("Master", runPolicy={"activeDeadlineSeconds": 1}))
    without_processes.settle()
    long_ago = "2026-01-01T00:00:00Z"
    without_processes.operator.stop()
    without_processes.edit("PyTorchJob", "a", lambda body: body["status"].update(startTime=long_ago))
    without_processes.settle()
    without_processes.operator.start()
    without_processes.settle()
    assert "Failed" in holding(without_processes)


def test_a_deadline_alone_wakes_nobody(without_processes: Cluster) -> None:
    without_processes.put(pytorchjob("Master", runPolicy={"activeDeadlineSeconds": 1}))
    without_processes.settle()
    began = without_processes.store.number
    assert not without_processes.store.wait(lambda: without_processes.store.number != began, 1.3)
    assert holding(without_processes) == {"Created", "Running"}
    without_processes.edit("PyTorchJob", "a", lambda body: body["metadata"].update(annotations={"k": "v"}))
    without_processes.settle()
    assert holding(without_processes) == {"Created", "Failed"}


@pytest.mark.parametrize(("policy", "goes"), [("Never", True), ("ExitCode", False)])
def test_a_job_that_failed_by_an_exit_code_is_never_removed(
    without_processes: Cluster, policy: str, goes: bool
) -> None:
    without_processes.put(pytorchjob("Master", policy=policy, runPolicy={"ttlSecondsAfterFinished": 0}))
    without_processes.settle()
    without_processes.nodes.end("a-master-0", 1)
    assert (
        without_processes.store.wait(lambda: not without_processes.objects("PyTorchJob"), 60 if goes else 0.3)
        == goes
    )


def test_a_pod_without_an_image_a_secret_or_room_says_why_it_waits(without_processes: Cluster) -> None:
    without_processes.nodes.plan("a-worker-0", waits="ErrImagePull")
    body = pytorchjob("Worker", "Worker", "Worker", policy="OnFailure")
    container = body["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    without_processes.put(body)
    without_processes.settle()
    said = {event["reason"]: event["message"] for event in without_processes.objects("Event")}
    wanted = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes are available: "
    assert said["FailedScheduling"] == wanted + "2 No preemption victims found for incoming pod."
    without_processes.edit(
        "nodes", "node-0", lambda node: node["status"]["allocatable"].update({"nvidia.com/gpu": "3"})
    )
    without_processes.wait(lambda: _waits(without_processes, "a-worker-0") == {"ImagePullBackOff"})
    without_processes.wait(lambda: _waits(without_processes, "a-worker-0") == {"ErrImagePull"})
    assert _waits(without_processes, "a-worker-1") == set()
    without_processes.nodes.plans.clear()
    without_processes.wait(lambda: _waits(without_processes, "a-worker-0") == set())


def _waits(without_processes: Cluster, name: str) -> set[str]:
    told = (without_processes.find("Pod", name) or {"status": {}})["status"].get("containerStatuses") or []
    return {entry["state"]["waiting"]["reason"] for entry in told if "waiting" in entry["state"]}


@pytest.mark.parametrize(("user", "runs"), [(None, False), (65532, True)])
def test_a_worker_in_a_pod_that_must_not_be_root_needs_a_user_for_the_container_before_it(
    without_processes: Cluster, user: int | None, runs: bool
) -> None:
    """The operator's own container has an image whose user is root, and the node refuses to start it."""
    body = pytorchjob("Master", "Worker")
    context = {"runAsNonRoot": True} | ({"runAsUser": user} if user else {})
    for entry in body["spec"]["pytorchReplicaSpecs"].values():
        entry["template"]["spec"]["securityContext"] = context
    without_processes.put(body)
    without_processes.settle()
    told = without_processes.find("Pod", "a-worker-0")["status"]  # type: ignore[index]
    assert (told["phase"] == "Running") == runs
    (init,) = told["initContainerStatuses"]
    assert runs or init["state"]["waiting"]["reason"] == "CreateContainerConfigError"


def test_a_missing_secret_is_a_configuration_error(without_processes: Cluster) -> None:
    body = pytorchjob("Master")
    container = body["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "k"}}}]
    without_processes.put(body)
    without_processes.settle()
    assert _waits(without_processes, "a-master-0") == {"CreateContainerConfigError"}
    told = without_processes.find("Pod", "a-master-0")["status"]["containerStatuses"][0]  # type: ignore[index]
    assert told["state"]["waiting"]["message"] == 'secret "absent" not found'


def test_a_lost_node_keeps_its_pods_until_it_is_removed(without_processes: Cluster) -> None:
    without_processes.put(pytorchjob("Worker", "Worker", policy="OnFailure"))
    without_processes.settle()
    node = without_processes.find("Pod", "a-worker-0")["spec"]["nodeName"]  # type: ignore[index]
    without_processes.nodes.lose(node)
    without_processes.settle()
    pod = without_processes.find("Pod", "a-worker-0")
    assert pod is not None
    assert "deletionTimestamp" in pod["metadata"]
    assert "DeletionByTaintManager" in {entry.get("reason") for entry in pod["status"]["conditions"]}
    without_processes.nodes.remove(node)
    without_processes.settle()
    found = without_processes.find("Pod", "a-worker-0")
    assert found is not None
    assert found["spec"]["nodeName"] != node


def test_a_preempted_pod_is_made_again_and_one_without_disk_fails_where_it_is(
    without_processes: Cluster,
) -> None:
    without_processes.nodes.plan("*", process=False, on_term=137)
    without_processes.put(pytorchjob("Worker", "Worker", policy="OnFailure"))
    without_processes.settle()
    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in without_processes.objects("Pod")}
    seen: list[str] = []

    def see(change: Change) -> None:
        if change.resource.kind == "Pod":
            seen.append(pod_seen(change.body, change.type))

    without_processes.store.listen(see)
    without_processes.nodes.evict("a-worker-0", by="preemption")
    without_processes.settle()
    assert uids["a-worker-0"] != without_processes.objects("Pod")[0]["metadata"]["uid"]
    assert "Failed, terminated 137 Error after 0 restarts, PreemptionByScheduler, deleted" in seen
    without_processes.operator.stop()
    without_processes.nodes.starve("a-worker-1")
    without_processes.settle()
    pod = without_processes.objects("Pod")[1]
    assert (pod["metadata"]["uid"], pod["status"]["phase"]) == (uids["a-worker-1"], "Failed")
    assert pod["status"]["reason"] == "Evicted"
    assert "TerminationByKubelet" in {entry.get("reason") for entry in pod["status"]["conditions"]}


DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(60)"
)


@pytest.fixture
def with_processes(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, backoff_s=0.1) as found:
        yield found


def program(*command: str, **more: Any) -> dict[str, Any]:
    return {"command": ["python", *command], **more}


def log(with_processes: Cluster, pod: str = "a-master-0", **how: Any) -> str:
    found: str = k8s.CoreV1Api(with_processes.api_client()).read_namespaced_pod_log(pod, "team", **how)
    return found


def test_a_pod_that_does_not_listen_is_killed_with_all_that_it_started(with_processes: Cluster) -> None:
    child = f"[sys.executable, '-c', {DEAF!r}], start_new_session=True"
    starts = f"import subprocess, sys; print(subprocess.Popen({child}).pid)"
    with_processes.put(pytorchjob("Master", container=program("-uc", f"{starts}\n{DEAF}")))
    with_processes.wait(lambda: len(log_if_any(with_processes)) > 1)
    pids = [with_processes.nodes.pid("a-master-0"), int(log(with_processes).split()[0])]
    assert all(alive(pid) for pid in pids)
    k8s.CoreV1Api(with_processes.api_client()).delete_namespaced_pod("a-master-0", "team")
    with_processes.wait(lambda: not with_processes.objects("Pod"))
    assert gone(pids, 5)
    told = [
        event["reason"]
        for event in with_processes.objects("Event")
        if event["involvedObject"]["kind"] == "Pod"
    ]
    assert "Killing" in told


def log_if_any(with_processes: Cluster) -> list[str]:
    try:
        return [word for word in log(with_processes).split() if word]
    except k8s.ApiException:
        return []


def test_a_log_is_read_as_the_recorded_api_gives_it(with_processes: Cluster) -> None:
    with_processes.nodes.plan("b-master-0", waits="ErrImagePull")
    for name, code in (("a", "print('one'); print('two'); import time; time.sleep(60)"), ("b", "")):
        with_processes.put(pytorchjob("Master", name=name, container=program("-c", code)))
    with_processes.wait(lambda: len(log_if_any(with_processes)) == 2)
    assert log(with_processes) == "one\ntwo\n"
    assert log(with_processes, tail_lines=1) == "two\n"
    assert log(with_processes, limit_bytes=2) == "on"
    stamp, _, text = log(with_processes, timestamps=True).splitlines()[1].partition(" ")
    assert (stamp[10], stamp[-1], text) == ("T", "Z", "two")
    core = k8s.CoreV1Api(with_processes.api_client())
    for pod, how, said in (
        ("a-master-0", {"container": "nope"}, "container nope is not valid for pod a-master-0"),
        (
            "a-master-0",
            {"previous": True},
            'previous terminated container "pytorch" in pod "a-master-0" not found',
        ),
        ("b-master-0", {}, "is waiting to start: image can't be pulled"),
    ):
        error = refused(core.read_namespaced_pod_log, pod, "team", **how)
        assert (error.status, said in error.body.replace('\\"', '"')) == (400, True)
    assert refused(core.read_namespaced_pod_log, "c", "team").status == 404


def test_a_log_is_followed_to_its_end_over_the_end_of_the_container(with_processes: Cluster) -> None:
    wait = "import time\nfor i in range(5): print('line', i); time.sleep(0.05)"
    with_processes.put(pytorchjob("Master", container=program("-uc", wait)))
    with_processes.wait(lambda: log_if_any(with_processes))
    answer = k8s.CoreV1Api(with_processes.api_client()).read_namespaced_pod_log(
        "a-master-0", "team", follow=True, _preload_content=False
    )
    assert answer.data.decode().splitlines() == [f"line {index}" for index in range(5)]


def test_a_container_is_started_again_and_its_last_log_is_kept(
    with_processes: Cluster, tmp_path: Path
) -> None:
    fails = f"from pathlib import Path\np = Path({str(tmp_path / 'x')!r})\nprint(p.exists())\n"
    fails += "if not p.exists():\n  p.touch(); raise SystemExit(3)"
    with_processes.put(pytorchjob("Master", policy="OnFailure", container=program("-c", fails)))
    with_processes.wait(lambda: "Succeeded" in holding(with_processes))
    assert (log(with_processes), log(with_processes, previous=True)) == ("True\n", "False\n")
    told = with_processes.objects("Pod")[0]["status"]["containerStatuses"][0]
    assert (told["restartCount"], told["lastState"]["terminated"]["exitCode"]) == (1, 3)


def test_memory_that_is_used_up_is_told_from_other_kills(with_processes: Cluster) -> None:
    with_processes.put(pytorchjob("Worker", "Worker", container=program("-c", DEAF)))
    with_processes.wait(lambda: "Running" in holding(with_processes))
    with_processes.settle()
    with_processes.nodes.kill("a-worker-0", oom=True)
    with_processes.nodes.signal("a-worker-1")
    with_processes.wait(
        lambda: {pod["status"]["phase"] for pod in with_processes.objects("Pod")} == {"Failed"}
    )
    ends = [
        pod["status"]["containerStatuses"][0]["state"]["terminated"] for pod in with_processes.objects("Pod")
    ]
    assert [(end["exitCode"], end["reason"]) for end in ends] == [(137, "OOMKilled"), (137, "Error")]


def test_nothing_runs_on_when_the_cluster_is_gone(tmp_path: Path) -> None:
    with cluster(tmp_path) as with_processes:
        with_processes.put(pytorchjob("Master", container=program("-c", DEAF)))
        with_processes.wait(lambda: "Running" in holding(with_processes))
        pid = with_processes.nodes.pid("a-master-0")
    assert not alive(pid)

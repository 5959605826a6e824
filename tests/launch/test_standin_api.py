"""The stand-in for a cluster answers as the recorded one did, and as the real client expects."""

import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from kubernetes import client as k8s

from tests.launch.standin import Cluster, cluster, replicas
from tests.launch.standin.calling import GROUP, create, events, job, jobs, refused

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

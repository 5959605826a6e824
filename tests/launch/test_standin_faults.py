"""The stand-in's faults befall the calls that they are for, and its accounts may do what their Roles say."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3
from kubernetes import client as k8s

from tests.launch.standin import Cluster, cluster
from tests.launch.standin.calling import GROUP, create, events, job, jobs, refused


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, operator=False) as found:
        yield found


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

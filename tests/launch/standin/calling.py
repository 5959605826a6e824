"""Calls of the real client, for tests of the stand-in."""

from collections.abc import Iterator
from typing import Any

from kubernetes import client as k8s  # type: ignore[import-untyped]
from kubernetes import watch

from tests.launch.standin.clusters import ADMIN, Cluster
from tests.launch.standin.jobs import pytorchjob
from tests.launch.standin.resources import Object

GROUP = ("kubeflow.org", "v1", "team", "pytorchjobs")


def job(name: str = "a", **metadata: Any) -> Object:
    """Make a PyTorchJob of a Master and a Worker."""
    body = pytorchjob("Master", "Worker", name=name)
    body["metadata"] |= metadata
    return body


def jobs(running: Cluster, token: str = ADMIN) -> k8s.CustomObjectsApi:
    """Return a client of an account."""
    return k8s.CustomObjectsApi(running.api_client(token))


def create(running: Cluster, body: Object) -> Object:
    """Create a PyTorchJob with strict validation."""
    found: Object = jobs(running).create_namespaced_custom_object(*GROUP, body, field_validation="Strict")
    return found


def events(running: Cluster, seconds: int = 5, **more: Any) -> Iterator[Object]:
    """Look on at the PyTorchJobs."""
    look = jobs(running).list_namespaced_custom_object
    yield from watch.Watch().stream(look, *GROUP, timeout_seconds=seconds, **more)


def refused(call: Any, *arguments: Any, **more: Any) -> k8s.ApiException:
    """Make a call that has to be refused; return how."""
    try:
        call(*arguments, **more)
    except k8s.ApiException as error:
        return error
    raise AssertionError("it was not refused")

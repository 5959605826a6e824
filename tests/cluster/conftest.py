"""The cluster that ``KUBECONFIG`` names, and what the command line says of it."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.places import Place


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take what has to be known of the cluster."""
    group = parser.getgroup("cluster", "scenarios on a real cluster")
    group.addoption("--cluster-image", default="", help="Image of the pods: trainwright/torch for CPUs.")
    group.addoption("--cluster-namespace", default="default", help="Namespace of the jobs.")
    group.addoption("--cluster-claim", default="trainwright-shared", help="Claim of the shared volume.")
    group.addoption("--cluster-mount", default="/shared", help="Where pods and this machine see the volume.")
    group.addoption("--cluster-kind", default="pytorchjob", choices=["pytorchjob", "trainjob"])
    group.addoption("--cluster-queue", default="", help="Kueue's LocalQueue of the jobs; absent: none.")
    group.addoption("--cluster-service-account", default="", help="Identity of the pods.")
    group.addoption("--cluster-wait-s", type=float, default=600, help="Longest time to wait for anything.")


@pytest.fixture(scope="session")
def place(pytestconfig: pytest.Config) -> Iterator[Place]:
    """A folder of its own on the cluster's shared volume; skips without a cluster, and says why.

    The pods are another user than this process, and both write into one another's folders: so for as long as
    the scenarios run, whatever is made here may be written to by anybody. In the end nothing of it is left
    in the cluster, whatever failed.
    """
    told, image = os.environ.get("KUBECONFIG", ""), _told(pytestconfig, "image")
    mount = Path(_told(pytestconfig, "mount") or "/shared")
    if not told:
        pytest.skip("KUBECONFIG names no cluster")
    if not image:
        pytest.skip("--cluster-image names no image for the pods")
    if not os.access(mount, os.W_OK):
        pytest.skip(f"the volume of the cluster is not mounted at {mount} here (--cluster-mount)")
    before = os.umask(0)
    folder = mount / f"trainwright-tests-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    made = Place(
        kubeconfig=told,
        namespace=_told(pytestconfig, "namespace"),
        kind=_told(pytestconfig, "kind"),
        image=image,
        claim=_told(pytestconfig, "claim"),
        mount=str(mount),
        folder=str(folder),
        wait_s=float(_told(pytestconfig, "wait-s")),
        service_account=_told(pytestconfig, "service-account"),
        queue=_told(pytestconfig, "queue"),
    )
    try:
        yield made
    finally:
        os.umask(before)
        made.clear()


def _told(config: pytest.Config, name: str) -> str:
    """Return an option; empty where pytest was started without this folder, and so does not know it."""
    return str(config.getoption(f"--cluster-{name}", default=""))

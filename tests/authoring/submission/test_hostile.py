"""An API of Kubeflow Pipelines, or of its cluster, that answers as none should: every call ends."""

import pytest
from kubernetes import client as k8s

from tests.limits.hostile import NOISE, Behaviour, ends, every, fast, hostile
from trainwright.authoring.installation.cluster_reader import ClusterReader
from trainwright.authoring.submission.connection import Endpoint, connect
from trainwright.authoring.submission.failures import _tail
from trainwright.authoring.submission.follow import _nodes
from trainwright.errors import TrainwrightError
from trainwright.retries import RetryPolicy
from trainwright.summarize import workflow

__all__ = ["fast"]
pytestmark = pytest.mark.filterwarnings(NOISE)


@pytest.mark.covers("A19")
@every
def test_calls_of_kubeflow_and_its_cluster_end(behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow, "DEADLINE_S", 0.2)
    settings = k8s.Configuration()
    with hostile(behaviour) as server:
        settings.host, settings.retries = server.url, False
        api = connect(Endpoint(host=server.url), RetryPolicy(outage_s=0.2, first_s=0.05))
        with ends(TrainwrightError):
            api.profiles()
        with ends(TrainwrightError):
            ClusterReader(k8s.ApiClient(settings)).get("/api/v1/nodes")
        with ends():
            assert _nodes(api, "x")[0] == {}
        with ends():
            _tail(api, "/apis/v1alpha1/runs/x/nodes/y/log")
        with ends(TrainwrightError):
            workflow.read_workflow(workflow.WorkflowReader(server.url, "team", "token"), "x")


@pytest.mark.parametrize(
    "host",
    [
        "https://[fe80::1%25eth0]/",
        "https://host:99999/",
        "https://host:x/",
        "https:///pipeline",
        "https://a\0b/",
        "https://a\r\nX-Name: b/",
        "https://\ud800/",
        "https://" + "a" * 300 + "/",
        "https://xn--/",
        "https://bücher..example/",
        "https://[::1/",
        "https://%/",
    ],
)
def test_strange_address_is_a_typed_error(host: str) -> None:
    with pytest.raises(TrainwrightError):
        connect(Endpoint(host=host), RetryPolicy(outage_s=0.1)).profiles()

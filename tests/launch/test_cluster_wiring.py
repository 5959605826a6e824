"""What an experiment says of the launcher's own limits reaches the launcher that a pod of a cluster makes."""

import datetime
from pathlib import Path
from typing import Any, Self, cast

import pytest
from kubernetes.config import incluster_config

from trainwright.experiment import Resources
from trainwright.launch.cluster import launcher as module
from trainwright.launch.cluster.api import JOB_KINDS
from trainwright.launch.cluster.launcher import ClusterLauncher
from trainwright.train import submit


@pytest.fixture
def in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process what Kubernetes gives to every pod; nobody listens at that address."""
    places = {"token": "secret", "ca.crt": "certificate", "namespace": "team"}
    for name, text in places.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(module, "_NAMESPACE", tmp_path / "namespace")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")


@pytest.mark.usefixtures("in_a_pod")
def test_a_token_that_kubernetes_renews_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token lasts for an hour, and a training for days: the node puts a new one into the file."""

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Self:
            return super().now(tz) + datetime.timedelta(minutes=2)

    sent = ClusterLauncher.in_cluster(JOB_KINDS["pytorchjob"], workflow="run-1")._api.client.configuration
    assert sent.auth_settings()["BearerToken"]["value"] == "bearer secret"
    (tmp_path / "token").write_text("renewed")
    monkeypatch.setattr(incluster_config.datetime, "datetime", Later)
    assert sent.auth_settings()["BearerToken"]["value"] == "bearer renewed"


@pytest.mark.usefixtures("in_a_pod")
@pytest.mark.parametrize("name", list(JOB_KINDS))
def test_the_limits_of_the_section_resources_are_those_of_the_launcher(tmp_path: Path, name: str) -> None:
    resources = Resources.model_validate_json(f'{{"launcher": "{name}", "outage_s": 77, "pending_s": 88}}')
    request = submit.TrainRequest(
        training_set=tmp_path,
        data_version="",
        network="{}",
        training="{}",
        resources="{}",
        image="x",
        run="r",
        workflow="run-1",
    )
    unused = cast(Any, None)
    made = submit._make_launcher(submit._Submission(request, unused, resources, name, {}))
    assert isinstance(made, ClusterLauncher)
    assert (made.name, made._workflow, made._api.namespace) == (name, "run-1", "team")
    assert (made._api.policy.outage_s, made._settings.pending_s) == (77, 88)

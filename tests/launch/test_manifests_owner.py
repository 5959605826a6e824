"""What a job goes with, and that the section of an experiment says all that a placement can be."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from tests.launch.launching import api
from tests.launch.standin import cluster
from trainwright.errors import PermissionRefused
from trainwright.experiment import Resources
from trainwright.experiment import resources as section
from trainwright.launch import kubernetes_names, placement
from trainwright.launch.cluster.launcher import own_workflow
from trainwright.launch.job import Budget
from trainwright.launch.manifests.pods import Owner, find_workflow_owner, own_pod_name
from trainwright.train.submit import _placement

Object = dict[str, Any]
WORKFLOW = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run-1", "uid": "u-1"}


def pod(*owners: Object) -> Object:
    return {"metadata": {"name": "step", "ownerReferences": list(owners)}}


def test_a_step_belongs_to_the_workflow_that_its_pod_names() -> None:
    found, why = find_workflow_owner({"step": pod({"kind": "ReplicaSet"}, WORKFLOW)}.get, "step")
    assert found == Owner(api_version=WORKFLOW["apiVersion"], kind="Workflow", name="run-1", uid="u-1")
    assert why == ""


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ({}, "there is no pod step in this namespace"),
        ({"step": pod()}, "belongs to no workflow: it has no owner"),
        ({"step": pod({"kind": "Job", "uid": "x"})}, "belongs to no workflow: its owner is a Job"),
    ],
)
def test_without_an_owner_the_reason_is_told(pods: dict[str, Object], said: str) -> None:
    found, why = find_workflow_owner(pods.get, "step")
    assert found is None
    assert said in why


def test_a_right_that_is_missing_is_no_failure() -> None:
    def refuse(name: str) -> Object:
        raise PermissionRefused("pods may not be read")

    assert find_workflow_owner(refuse, "step") == (None, "pod step could not be read: pods may not be read")


def test_a_pod_knows_its_name_from_the_platform_even_if_its_host_name_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "train-and-register-" + "x" * 60
    monkeypatch.setenv("KFP_POD_NAME", name)
    assert own_pod_name() == name
    monkeypatch.delenv("KFP_POD_NAME")
    assert own_pod_name()


def test_a_launcher_finds_the_workflow_of_its_own_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFP_POD_NAME", "step")
    with cluster(tmp_path / "cluster", operator=False) as there:
        reference = {"apiVersion": WORKFLOW["apiVersion"], "kind": "Workflow"}
        made = there.put({**reference, "metadata": {"name": "run-1"}})
        owner = {**reference, "name": "run-1", "uid": made["metadata"]["uid"]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "step", "ownerReferences": [owner]}}
        there.put(
            {**body, "spec": {"nodeName": "node-0", "containers": []}, "status": {"phase": "Succeeded"}}
        )
        assert own_workflow(api(there)) == "run-1"


PAIRS = [
    (section.JobPlacement, placement.Placement),
    (section.JobToleration, placement.Toleration),
    (section.VolumeMount, placement.Volume),
    (section.JobVariable, placement.SecretVariable),
    (section.RetryBudget, Budget),
]


@pytest.mark.parametrize(("said", "made"), PAIRS, ids=lambda kind: kind.__module__ + kind.__name__)
def test_a_section_has_the_fields_and_the_defaults_of_what_it_becomes(said: Any, made: Any) -> None:
    fields = {entry.name: entry for entry in dataclasses.fields(made)}
    assert said.model_fields.keys() == fields.keys()
    for name, entry in said.model_fields.items():
        if not entry.is_required():
            field = fields[name]
            default = field.default_factory() if callable(field.default_factory) else field.default
            assert entry.get_default(call_default_factory=True) == default, name


def test_a_section_becomes_the_placement_that_it_says() -> None:
    said = {
        "queue": "training",
        "tolerations": [{"key": "a", "value": "b", "effect": "NoSchedule"}],
        "volumes": [{"path": "/data", "claim": "data"}],
        "env_from_secrets": [{"name": "TOKEN", "secret": "mlflow", "key": "token"}],
        "labels": {"team": "a"},
    }
    made = _placement(Resources.check({"placement": said}, "resources"))
    assert made.tolerations == (placement.Toleration(key="a", value="b", effect="NoSchedule"),)
    assert made.volumes == (placement.Volume(path="/data", claim="data"),)
    assert made.env_from_secrets[0].name == "TOKEN"
    assert (made.queue, made.labels) == ("training", {"team": "a"})
    assert list(made.problems()) == []


TEXTS = [
    "a",
    "A",
    "a-b",
    "a.b",
    "-a",
    "a-",
    "a_b",
    "",
    "a/b",
    "x/a.b",
    "X/a",
    "a" * 64,
    "a" * 63,
    "a b",
    "1",
    "a..b",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    ("kind", "holds"),
    [
        (section.ObjectName, kubernetes_names.is_subdomain),
        (section.LabelValue, kubernetes_names.is_label),
        (section.LabelKey, kubernetes_names.is_key),
        (section.VariableName, kubernetes_names.is_variable),
    ],
    ids=["object", "value", "key", "variable"],
)
def test_an_author_is_told_the_same_as_the_launcher_would_tell(kind: Any, holds: Any, text: str) -> None:
    try:
        TypeAdapter(kind).validate_python(text)
        taken = True
    except ValidationError:
        taken = False
    assert taken == holds(text)

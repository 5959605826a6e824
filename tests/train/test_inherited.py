"""What a pipeline's author sets on the step goes to its job; what is said twice has to agree."""

from typing import Any

import pytest

from trainwright.errors import InputError
from trainwright.experiment import Resources
from trainwright.train.submit.task_config import apply_task_config

AMOUNTS = {"limits": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "4"}, "requests": {"cpu": "1"}}


def resources(**said: Any) -> Resources:
    return Resources.check(said, "resources")


def refused(said: dict[str, Any], step: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        apply_task_config(resources(**said), step)
    return caught.value.what


def test_without_a_cluster_nothing_is_handed_on() -> None:
    nothing = dict.fromkeys(
        ("affinity", "tolerations", "node_selector", "env", "volumes", "volume_mounts", "resources")
    )
    found = apply_task_config(resources(nodes=2), nothing)
    assert found[0] == resources(nodes=2)
    assert found[1] == {}


def test_amounts_that_the_section_leaves_open_are_the_steps_limits() -> None:
    found = apply_task_config(resources(nodes=2), {"resources": AMOUNTS})[0]
    assert (found.cpu, found.memory_gib, found.gpus, found.processes) == (8, 32, 4, 4)


def test_amounts_that_the_section_names_win_and_the_log_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    found = apply_task_config(resources(cpu=2, memory_gib=4, gpus=0), {"resources": AMOUNTS})[0]
    assert (found.cpu, found.memory_gib, found.gpus) == (2, 4, 0)
    said = capsys.readouterr().err
    assert "The job does not get the task's cpu of 8: resources.cpu is 2" in said


def test_a_section_that_was_written_out_whole_wins_throughout() -> None:
    whole = Resources.parse(resources(nodes=2).to_json(), "resources")
    assert apply_task_config(whole, {"resources": AMOUNTS})[0] == whole


def test_nodes_are_chosen_by_both() -> None:
    toleration = {"key": "team", "operator": "Exists", "effect": "NoSchedule"}
    step = {"node_selector": {"zone": "a"}, "tolerations": [toleration, toleration], "affinity": {"x": {}}}
    said = {"node_selector": {"disk": "ssd"}}
    found = apply_task_config(resources(placement=said), step)[0].placement
    assert found.node_selector == {"disk": "ssd", "zone": "a"}
    assert [entry.key for entry in found.tolerations] == ["team"]
    assert found.affinity == {"x": {}}


def test_volumes_are_handed_on_but_for_the_one_that_both_have() -> None:
    step = {
        "volumes": [
            {"name": "s", "persistentVolumeClaim": {"claimName": "trainwright-shared"}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "k", "secret": {"secretName": "store", "optional": True}},
            {"name": "c", "configMap": {"name": "team"}},
        ],
        "volume_mounts": [
            {"name": "s", "mountPath": "/shared"},
            {"name": "d", "mountPath": "/data", "subPath": "2013", "readOnly": True},
            {"name": "k", "mountPath": "/var/run/secrets/store"},
            {"name": "c", "mountPath": "/etc/team"},
        ],
    }
    found = apply_task_config(resources(), step)[0].placement.volumes
    assert [(entry.path, entry.claim or entry.secret or entry.config) for entry in found] == [
        ("/data", "data"),
        ("/var/run/secrets/store", "store"),
        ("/etc/team", "team"),
    ]
    assert (found[0].sub_path, found[0].read_only, found[1].optional) == ("2013", True, True)


def test_variables_are_handed_on_and_secrets_by_reference_only() -> None:
    reference = {"secretKeyRef": {"name": "mlflow", "key": "token"}}
    step = {
        "env": [
            {"name": "HF_HUB_OFFLINE", "value": "1"},
            {"name": "MY_TOKEN", "valueFrom": reference},
            {"name": "MLFLOW_RUN_ID", "value": "of the step alone"},
            {"name": "KFP_POD_NAME", "value": "of the step alone"},
        ]
    }
    found = apply_task_config(resources(), step)
    assert found[1] == {"HF_HUB_OFFLINE": "1"}
    (variable,) = found[0].placement.env_from_secrets
    assert (variable.name, variable.secret, variable.key) == ("MY_TOKEN", "mlflow", "token")


def test_a_config_maps_variable_is_handed_on_by_reference() -> None:
    reference = {"configMapKeyRef": {"name": "trainwright-store", "key": "AWS_REGION", "optional": True}}
    found = apply_task_config(resources(), {"env": [{"name": "AWS_REGION", "valueFrom": reference}]})
    (variable,) = found[0].placement.env_from_secrets
    assert (variable.config, variable.secret, variable.optional) == ("trainwright-store", "", True)


def test_a_variable_of_the_section_wins_over_an_optional_one_of_the_step() -> None:
    mine = {"name": "AWS_ACCESS_KEY_ID", "secret": "mine", "key": "id"}
    reference = {"secretKeyRef": {"name": "trainwright-store", "key": "AWS_ACCESS_KEY_ID", "optional": True}}
    step = {"env": [{"name": "AWS_ACCESS_KEY_ID", "valueFrom": reference}]}
    found = apply_task_config(resources(placement={"env_from_secrets": [mine]}), step)
    assert [variable.secret for variable in found[0].placement.env_from_secrets] == ["mine"]


@pytest.mark.parametrize(
    ("said", "step", "why"),
    [
        ({}, {"env": [{"name": "API_TOKEN", "value": "x"}]}, "API_TOKEN has a secret as its value"),
        ({}, {"env": [{"name": "DB_PASSWORD", "value": "x"}]}, "DB_PASSWORD has a secret as its value"),
        ({}, {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]}, "refers to fieldRef"),
        ({}, {"env": [{"name": "WORLD_SIZE", "value": "1"}]}, "WORLD_SIZE is set by the operator"),
        ({}, {"resources": {"limits": {"amd.com/gpu": "1"}}}, "amd.com/gpu cannot be passed on"),
        ({}, {"resources": {"limits": {"cpu": "many"}}}, "'many' is not an amount"),
        (
            {"placement": {"node_selector": {"zone": "b"}}},
            {"node_selector": {"zone": "a"}},
            "zone is 'a', and resources.placement has 'b'",
        ),
        (
            {"placement": {"affinity": {"podAffinity": {}}}},
            {"affinity": {"nodeAffinity": {}}},
            "affinity differs",
        ),
        (
            {},
            {
                "volumes": [{"name": "e", "emptyDir": {}}],
                "volume_mounts": [{"name": "e", "mountPath": "/scratch"}],
            },
            "/scratch cannot be passed on",
        ),
        (
            {},
            {
                "volumes": [{"name": "s", "persistentVolumeClaim": {"claimName": "another"}}],
                "volume_mounts": [{"name": "s", "mountPath": "/shared"}],
            },
            "/shared is not the volume of resources.claim",
        ),
    ],
)
def test_what_cannot_be_handed_on_or_contradicts_is_refused(
    said: dict[str, Any], step: dict[str, Any], why: str
) -> None:
    assert why in refused(said, step)


def test_everything_wrong_is_said_at_once() -> None:
    step = {"env": [{"name": "API_TOKEN", "value": "x"}], "resources": {"limits": {"tpu": "1"}}}
    assert refused({}, step).count(";") == 1


def test_no_value_of_a_secret_is_in_the_message() -> None:
    assert "hunter2" not in refused({}, {"env": [{"name": "API_TOKEN", "value": "hunter2"}]})

"""Submission of a training: what is rejected before anything starts, and what a task's settings change."""

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.train.conftest import joined
from tests.train.problems import flights, request, write
from trainwright.artifacts import Record, Snapshot
from trainwright.errors import DataRefused, DependencyError, InputError
from trainwright.experiment import Mlp, Resources
from trainwright.launch.job import Job, Result
from trainwright.train.submit import TrainRequest, submit
from trainwright.train.submit.checks import check_snapshot
from trainwright.train.submit.task_config import apply_task_config


def refuse(asked: TrainRequest, folder: Path) -> str:
    with pytest.raises((InputError, DataRefused)) as caught:
        submit(asked, *(folder / name for name in ("model", "predictions", "summary.md", "report.html")))
    assert not folder.exists()
    return str(caught.value)


@pytest.mark.covers("B57")
def test_everything_wrong_with_the_parameters_is_said_at_once(training_set: Path, tmp_path: Path) -> None:
    asked = dataclasses.replace(
        request(training_set),
        network='{"hiden": [3]}',
        training='{"epochs": 0, "learning_rate": -1}',
        resources="{",
    )
    message = refuse(asked, tmp_path / "out")
    assert "hiden: unknown key; did you mean hidden?" in message
    assert "epochs" in message
    assert "learning_rate" in message
    assert "resources: expected a JSON object, found text that is not JSON" in message


@pytest.mark.covers("B59")
@pytest.mark.parametrize(
    "secret",
    [
        "hf_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9v",
        "AKIA" + "IOSFODNN7EXAMPLE",
        "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a",
        "s3://user:hunter2-PLANTED@bucket/x",
    ],
)
def test_a_credential_is_refused_by_its_place_and_not_repeated(
    training_set: Path, tmp_path: Path, secret: str
) -> None:
    network = {
        "kind": "module",
        "path": "package.module:Name",
        "options": {"list": ["fine", {"one": secret}]},
    }
    asked = dataclasses.replace(request(training_set), network=json.dumps(network), resources='{"nodes": 0}')
    message = refuse(asked, tmp_path / "out")
    assert "network.options.list.1.one" in message
    assert secret not in message
    assert "PLANTED" not in message


def test_a_name_that_only_begins_like_a_credential_is_none(training_set: Path, tmp_path: Path) -> None:
    network = {"kind": "lm", "vocabulary": 9, "tokens": "hf_tokenized_sequences_of_version_2"}
    asked = dataclasses.replace(request(training_set), network=json.dumps(network))
    assert "no column 'hf_tokenized_sequences_of_version_2' of tokens" in refuse(asked, tmp_path / "out")


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("ftp://host/folder", "scheme 'ftp' is not read here"),
        ("https://host/folder", "checkpoints cannot be written to https"),
        ("gs:/bucket", "gs://bucket"),
    ],
)
def test_a_store_that_nothing_can_be_copied_to_is_refused(
    training_set: Path, tmp_path: Path, store: str, said: str
) -> None:
    asked = request(training_set, training={"checkpoints": {"store": store}})
    assert said in refuse(asked, tmp_path / "out")


@pytest.mark.covers("B49")
def test_a_batch_smaller_than_the_number_of_processes_names_the_least_size(
    training_set: Path, tmp_path: Path
) -> None:
    asked = request(training_set, training={"batch_size": 2}, resources={"processes": 3})
    message = refuse(asked, tmp_path / "out")
    assert "batch_size 2 has no sample for each of 3 processes. Use 3 or more." in message


def test_a_changed_training_set_is_refused(training_set: Path, tmp_path: Path) -> None:
    asked = dataclasses.replace(request(training_set), data_version="0" * 64)
    assert "cached input changed" in refuse(asked, tmp_path / "out")


def test_a_training_set_that_is_gone_is_refused(training_set: Path, tmp_path: Path) -> None:
    asked = dataclasses.replace(request(training_set), training_set=tmp_path / "gone")
    assert "cached input is gone" in refuse(asked, tmp_path / "out")


def altered(training_set: Path, folder: Path, **changes: object) -> Path:
    """Write the manifest alone, changed: what is refused here is refused before a row is read."""
    snapshot = dataclasses.replace(Snapshot.read(training_set), **changes)
    folder.mkdir()
    snapshot.write(folder)
    return folder


def test_a_missing_label_column_is_named_with_close_matches(training_set: Path, tmp_path: Path) -> None:
    folder = altered(training_set, tmp_path / "set", roles={"key": "id", "time": "at", "label": "lat"})
    assert "no label column 'lat'; there are late" in refuse(request(folder), tmp_path / "out")


def test_a_label_of_text_is_refused(training_set: Path, tmp_path: Path) -> None:
    folder = altered(training_set, tmp_path / "set", roles={"key": "id", "time": "at", "label": "carrier"})
    assert "label 'carrier' is of type string" in refuse(request(folder), tmp_path / "out")


def test_a_missing_split_is_named_with_those_that_are_there(training_set: Path, tmp_path: Path) -> None:
    message = refuse(request(training_set, training={"predict": ["holdout"]}), tmp_path / "out")
    assert "no split 'holdout'; this training set has train (6,001 rows), evaluate (2,000 rows)" in message


def test_training_split_is_scored_for_overfitting_beside_another_and_not_alone(
    training_set: Path, tmp_path: Path
) -> None:
    message = refuse(request(training_set, training={"predict": ["train"]}), tmp_path / "out")
    assert "split 'train' is trained on, and no other is scored" in message
    snapshot = Snapshot.read(training_set)
    check_snapshot(snapshot, ["train", "evaluate", "train"], Mlp())


def test_an_empty_split_is_refused_as_data(tmp_path: Path) -> None:
    table = flights(10, 0)
    write(tmp_path / "set", {"train": table, "evaluate": table.slice(0, 0)})
    with pytest.raises(DataRefused, match="no rows in split 'evaluate'"):
        submit(request(tmp_path / "set"), tmp_path / "m", tmp_path / "p", tmp_path / "s", tmp_path / "r")


def test_columns_that_no_network_reads_are_named_with_their_types(tmp_path: Path) -> None:
    table = flights(10, 0).append_column("route", pa.array([[1, 2]] * 10))
    write(tmp_path / "set", {"train": table, "evaluate": table})
    message = refuse(request(tmp_path / "set"), tmp_path / "out")
    assert "route (list<" in message


def test_a_training_set_without_inputs_is_refused(tmp_path: Path) -> None:
    table = flights(10, 0).select(["id", "at", "late"])
    write(tmp_path / "set", {"train": table, "evaluate": table})
    assert "no input columns" in refuse(request(tmp_path / "set"), tmp_path / "out")


def test_a_column_named_score_is_refused(tmp_path: Path) -> None:
    table = flights(10, 0).rename_columns({"noise": "score"})
    write(tmp_path / "set", {"train": table, "evaluate": table})
    assert "has a column 'score'" in refuse(request(tmp_path / "set"), tmp_path / "out")


def test_a_step_without_the_shared_volume_is_refused_before_any_call(
    training_set: Path, tmp_path: Path
) -> None:
    resources = {"launcher": "pytorchjob", "mount": str(tmp_path / "nowhere")}
    asked = request(training_set, resources=resources)
    with pytest.raises(DependencyError, match="'trainwright-shared' is not mounted in this step"):
        submit(asked, *(tmp_path / name for name in ("model", "predictions", "summary.md", "report.html")))


class NoCluster:
    """A launcher whose cluster cannot be reached."""

    name = "pytorchjob"

    def run(self, job: Job) -> Result:
        raise DependencyError("no cluster", where=job.name)


def test_trainings_that_begin_together_share_one_copy_of_the_training_set(
    training_set: Path, tmp_path: Path
) -> None:
    """The trials of a study do; the record of the copy is that of this run's join."""
    own = joined(training_set, tmp_path / "set", verdict="of this run")
    copy = tmp_path / "shared" / "trainwright" / "snapshots" / Snapshot.read(training_set).digest
    joined(training_set, copy, verdict="of an earlier run")
    resources = {"launcher": "pytorchjob", "claim": "team", "mount": str(tmp_path / "shared")}
    asked = request(own, resources=resources)

    def begin(number: int) -> None:
        places = (tmp_path / f"{number}" / name for name in ("model", "predictions", "s.md", "r.html"))
        with pytest.raises(DependencyError, match="no cluster"):
            submit(dataclasses.replace(asked, run=f"trial {number}"), *places, launcher=NoCluster())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(begin, range(32)))
    assert Record.read(copy).outputs == {"verdict": "of this run"}
    assert Snapshot.open(copy, asked.data_version).digest == asked.data_version


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

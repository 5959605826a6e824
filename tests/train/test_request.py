"""What is refused before anything is started."""

import dataclasses
import json
from pathlib import Path

import pyarrow as pa
import pytest

from tests.train.problems import flights, request, write
from trainwright.artifacts import Snapshot
from trainwright.errors import DataRefused, DependencyError, InputError
from trainwright.train.submit import TrainRequest, submit


def refuse(asked: TrainRequest, folder: Path) -> str:
    with pytest.raises((InputError, DataRefused)) as caught:
        submit(asked, *(folder / name for name in ("model", "predictions", "summary.md", "report.html")))
    assert not folder.exists()
    return str(caught.value)


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


def test_a_batch_that_cannot_be_shared_names_the_nearest_sizes(training_set: Path, tmp_path: Path) -> None:
    asked = request(training_set, training={"batch_size": 500}, resources={"processes": 3})
    message = refuse(asked, tmp_path / "out")
    assert "batch_size 500 cannot be shared evenly by 3 processes" in message
    assert "Use 498 or 501." in message


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


def test_a_split_that_is_learned_from_is_not_scored_to_be_judged_on(
    training_set: Path, tmp_path: Path
) -> None:
    message = refuse(request(training_set, training={"predict": ["evaluate", "train"]}), tmp_path / "out")
    assert "split 'train' is trained on, so its scores would judge nothing" in message


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

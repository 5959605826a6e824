"""Score on Beam's runner of one machine, and on Flink with two task managers: ``make test-engines``."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.engines.beam_clusters import SEVERAL, BeamCluster, killing
from tests.score.production import score
from tests.storage.stores import Bucket
from tests.train.problems import ROLES, Outcome, flights, request, submitted
from tests.train.test_on_tokens import NETWORK, texts
from trainwright import storage
from trainwright.artifacts import Record, Snapshot, SnapshotFile
from trainwright.engine import reachable
from trainwright.errors import DependencyError, InputError
from trainwright.experiment import DataEngine
from trainwright.tables import Piece, write_snapshot

BEAM = importlib.util.find_spec("apache_beam") is not None
needs_beam = pytest.mark.skipif(not BEAM, reason="no Beam: make test-engines, which has its environment")
PROCESSES = DataEngine(name="DirectRunner", options=SEVERAL)


def write(folder: Path, table: pa.Table, rows: int = 500) -> Path:
    """Write a training set whose split to score has files of so many rows."""
    write_snapshot(folder, {"evaluate": [table]}, parents={}, roles=ROLES, rows_per_file=rows)
    return folder


def sparse() -> pa.Table:
    """Return 2,000 rows; the first 500, and 500 in the middle, have no label."""
    rows = flights(2000, 5)
    labels = [None if row // 500 in {0, 2} else label for row, label in enumerate(rows["late"].to_pylist())]
    return rows.set_column(rows.column_names.index("late"), "late", pa.array(labels, pa.int64()))


def published(folder: Path) -> Snapshot | None:
    """Return the manifest of predictions."""
    place = folder / "predictions"
    return Snapshot.read(place) if (place / Snapshot.FILE).exists() else None


@pytest.mark.skipif(BEAM, reason="for the plain image, which has no Beam")
def test_image_without_beam_is_an_error_that_names_the_variant_and_leaves_nothing(
    trained: Outcome, training_set: Path, tmp_path: Path
) -> None:
    engine = DataEngine(name="FlinkRunner", store=str(tmp_path / "results"))
    with pytest.raises(DependencyError, match="Apache Beam is not installed here") as caught:
        score(training_set, tmp_path, trained.model, engine=engine)
    assert caught.value.code == 21
    assert "VARIANT=engines" in caught.value.hint
    assert published(tmp_path) is None
    assert not list((tmp_path / "results").iterdir())


def test_other_machines_without_a_store_are_rejected(
    trained: Outcome, training_set: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="do not reach the predictions in this step's folder") as caught:
        score(training_set, tmp_path, trained.model, engine=DataEngine(name="FlinkRunner"))
    assert "engine.store" in caught.value.hint


def test_joined_columns_beside_rows_that_stay_in_place_are_read_from_the_artifact() -> None:
    beside = SnapshotFile(
        uri="data/evaluate/part-00000.parquet", size=1, checksum="", rows=1, split="evaluate"
    )
    stays = replace(beside, uri="s3://bucket/rows.parquet", version="1", companion=beside)
    (found,) = reachable([Piece(stays, 0, 1, 1, ())], "/shared/set")
    there = replace(beside, uri="/shared/set/data/evaluate/part-00000.parquet")
    assert found.entry == replace(stays, companion=there)


@needs_beam
def test_worker_processes_of_beam_give_the_manifest_of_one_process(trained: Outcome, tmp_path: Path) -> None:
    rows = write(tmp_path / "set", sparse())
    made = score(rows, tmp_path / "several", trained.model, engine=PROCESSES)
    alone = score(rows, tmp_path / "alone", trained.model)
    assert made == alone
    manifest = published(tmp_path / "several")
    assert manifest == published(tmp_path / "alone")
    assert manifest is not None
    assert [entry.rows > 0 for entry in manifest.files] == [False, True, True]
    assert Record.read(tmp_path / "several" / "predictions").config["protections"]


@needs_beam
@pytest.mark.parametrize(
    ("network", "table"), [({"kind": "trees", "rounds": 4}, flights), (NETWORK, texts)], ids=["trees", "lm"]
)
def test_trees_and_language_models_give_the_manifest_of_one_process(
    tmp_path: Path, network: dict[str, Any], table: Any
) -> None:
    splits = {"train": [table(600, 0)], "evaluate": [table(200, 1)]}
    roles = {role: name for role, name in ROLES.items() if name in splits["train"][0].column_names}
    write_snapshot(tmp_path / "set", splits, parents={}, roles=roles, rows_per_file=100)
    training = {} if network["kind"] == "trees" else {"epochs": 1, "batch_size": 32}
    asked = request(tmp_path / "set", training=training, resources={"processes": 1})
    asked = type(asked)(**vars(asked) | {"network": json.dumps(network)})
    model = submitted(asked, tmp_path / "trained").model
    made = score(tmp_path / "set", tmp_path / "several", model, engine=PROCESSES)
    assert made == score(tmp_path / "set", tmp_path / "alone", model)
    manifest = published(tmp_path / "several")
    assert manifest == published(tmp_path / "alone")
    assert manifest is not None
    assert len(manifest.files) == 2


@needs_beam
def test_a_model_that_cannot_read_the_rows_is_named_as_on_one_machine(
    trained: Outcome, tmp_path: Path
) -> None:
    rows = write(tmp_path / "set", flights(1000, 1).drop_columns(["wind"]))
    made = score(rows, tmp_path / "several", trained.model, engine=PROCESSES)
    assert made == score(rows, tmp_path / "alone", trained.model)
    assert "wind" in made.headline
    assert published(tmp_path / "several") is None


@needs_beam
def test_rows_without_labels_are_no_failure(trained: Outcome, tmp_path: Path) -> None:
    none = flights(1000, 1)
    none = none.set_column(none.column_names.index("late"), "late", pa.nulls(1000, pa.int64()))
    made = score(write(tmp_path / "set", none), tmp_path, trained.model, engine=PROCESSES)
    assert made.predictions_version == ""
    assert "no row of split 'evaluate' has a label" in made.headline


@needs_beam
def test_flink_reads_rows_in_a_bucket_and_leaves_nothing_in_its_store(
    trained: Outcome, tmp_path: Path, s3: Bucket, flink: BeamCluster
) -> None:
    rows, uri = write(tmp_path / "set", sparse()), f"{s3.uri}/set"
    for file in rows.rglob("*.*"):
        storage.create(f"{uri}/{file.relative_to(rows)}", file.read_bytes())
    alone = score(rows, tmp_path / "alone", trained.model)
    engine = flink.engine(tmp_path).model_copy(update={"store": f"{s3.uri}/results"})
    assert score(rows, tmp_path / "flink", trained.model, engine=engine, uri=uri) == alone
    assert published(tmp_path / "flink") == published(tmp_path / "alone")
    assert {file.uri for file in storage.list_files(s3.uri)} == {file.uri for file in storage.list_files(uri)}


@needs_beam
def test_killed_worker_on_flink_changes_nothing(trained: Outcome, tmp_path: Path, flink: BeamCluster) -> None:
    rows, results = write(tmp_path / "set", flights(600, 5), 100), tmp_path / "results"
    alone = score(rows, tmp_path / "alone", trained.model)
    with killing(flink.kill_worker, results):
        made = score(rows, tmp_path / "flink", trained.model, engine=flink.engine(results))
    assert made == alone
    assert published(tmp_path / "flink") == published(tmp_path / "alone")
    assert not list(results.glob("[!.]*")), "hidden: what the worker was writing when it was killed"


@needs_beam
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a thread of Beam's
def test_killed_job_server_is_a_typed_error_without_predictions(
    trained: Outcome, tmp_path: Path, flink: BeamCluster
) -> None:
    rows, results = write(tmp_path / "set", flights(600, 5), 100), tmp_path / "results"
    with (
        killing(flink.service.kill, results),
        pytest.raises(DependencyError, match="FlinkRunner did not finish the work") as caught,
    ):
        score(rows, tmp_path / "lost", trained.model, engine=flink.engine(results))
    assert caught.value.code == 21
    assert published(tmp_path / "lost") is None

"""Metadata of artifacts in Kubeflow's lists."""

from pathlib import Path
from types import SimpleNamespace

from trainwright.artifacts import Column, Model, ModelFile, Snapshot, SnapshotFile
from trainwright.artifacts.metadata import describe, metadata_of
from trainwright.tracking import Stopwatch
from trainwright.verdicts import AT_MOST, Rule, Verdict

DIGEST = "ab" * 32


def snapshot(folder: Path) -> Snapshot:
    made = Snapshot(
        files=(
            SnapshotFile(uri="a", rows=7, size=10, checksum=f"sha256:{DIGEST}", split="train"),
            SnapshotFile(uri="b", rows=3, size=5, checksum=f"sha256:{DIGEST}", split="evaluate"),
        ),
        columns=(Column(name="id", type="int64"), Column(name="late", type="bool")),
        parents={"source": DIGEST},
    )
    folder.mkdir()
    made.write(folder)
    return made


def test_metadata_of_a_dataset_has_version_rows_columns_and_parents(tmp_path: Path) -> None:
    made = snapshot(tmp_path / "training_set")
    Stopwatch().record(tmp_path / "training_set", "join", "10 rows", outputs={"training_set": made.digest})
    artifact = SimpleNamespace(path=str(tmp_path / "training_set"), name="training_set", metadata={})
    describe("join", artifact)
    assert artifact.metadata == {
        "display_name": f"training_set {made.digest[:12]}",
        "version": made.digest,
        "rows": 10,
        "rows_train": 7,
        "rows_evaluate": 3,
        "columns": 2,
        "files": 2,
        "bytes": 15,
        "from_source": DIGEST,
        "step": "join",
        "headline": "10 rows",
    }


def test_artifact_without_a_version_is_named_after_its_step_and_output(tmp_path: Path) -> None:
    (tmp_path / "verdict").mkdir()
    (tmp_path / "page").write_text("<!doctype html>")
    found = [
        SimpleNamespace(path=str(tmp_path / path), name=name, metadata={"auc": 0.7})
        for path, name in (("page", "report"), ("verdict", ""), ("nothing", "metrics"))
    ]
    describe("evaluate", *found)
    assert [artifact.metadata for artifact in found] == [
        {"auc": 0.7, "display_name": f"evaluate {name}"} for name in ("report", "verdict", "metrics")
    ]


def test_metadata_of_a_model_has_kind_version_data_and_metrics(tmp_path: Path) -> None:
    made = Model(
        files=(ModelFile(path="weights", size=1, sha256=DIGEST),),
        kind="mlp",
        inputs=("carrier", "hour"),
        label="late",
        training_data=DIGEST,
        config={},
        metrics={"train_loss": 0.45},
    )
    (tmp_path / "model").mkdir()
    made.write(tmp_path / "model")
    found = metadata_of(tmp_path / "model")
    assert found["display_name"] == f"mlp model {made.digest[:12]}"
    assert (found["version"], found["training_data"], found["inputs"]) == (made.digest, DIGEST, 2)
    assert found["train_loss"] == 0.45


def test_metadata_of_a_record_has_its_decision_and_no_name(tmp_path: Path) -> None:
    Stopwatch().record(tmp_path, "evaluate", "AUC 0.71", decision="PASS", outputs={"verdict": DIGEST})
    assert metadata_of(tmp_path) == {
        "step": "evaluate",
        "headline": "AUC 0.71",
        "decision": "PASS",
        "verdict": DIGEST,
    }


def test_decision_of_a_verdict_wins_over_that_of_the_step_that_carries_it_on(tmp_path: Path) -> None:
    Stopwatch().record(tmp_path, "join", "joined", decision="PASS")
    held = Rule(name="drift", value=2, limit=1, test=AT_MOST, broken="HOLD")
    Verdict(decision="HOLD", rules=(held,), judged={}).write(tmp_path)
    assert metadata_of(tmp_path) == {"step": "join", "headline": "joined", "decision": "HOLD"}


def test_folder_without_documents_has_no_metadata(tmp_path: Path) -> None:
    assert metadata_of(tmp_path) == {}

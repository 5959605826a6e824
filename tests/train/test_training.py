"""A training of two processes, seen from what it leaves behind."""

import html
import json
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from numpy.typing import NDArray

from tests.train.problems import Outcome, note_job, run
from trainwright import tables
from trainwright.artifacts import Model, Record, Snapshot
from trainwright.errors import Diverged, Hang, InternalError
from trainwright.launch.job import Job, Result
from trainwright.launch.job_directory import Completion
from trainwright.tracking.history import HISTORY_FILE as HISTORY
from trainwright.train.__main__ import _remove_partial_outputs


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.name.startswith("."))


def assert_only_the_home_is_there(folder: Path) -> None:
    """What a training that failed has left: its home, from which the next attempt goes on, and its page."""
    home, *others = sorted(path.name for path in folder.iterdir())
    assert home.startswith(".model.job-")
    assert set(others) <= {"report.html", "summary.md"}


def auc(label: NDArray[np.int64], score: NDArray[np.float64]) -> float:
    """Area under the curve as the share of pairs in the right order (no ties in the scores)."""
    ranks = np.empty(len(score))
    ranks[np.argsort(score)] = np.arange(1, len(score) + 1)
    positives = int(label.sum())
    return float(
        (ranks[label == 1].sum() - positives * (positives + 1) / 2) / (positives * (len(label) - positives))
    )


def logistic_scores(training: pa.Table, judged: pa.Table) -> NDArray[np.float64]:
    """Solve the same problem by Newton's method on the columns that the label was drawn from."""

    def design(table: pa.Table) -> NDArray[np.float64]:
        wind = table["wind"].to_numpy(zero_copy_only=False)
        gone = np.isnan(wind)
        carriers = [np.array(pc.equal(table["carrier"], f"c{code}")) for code in range(1, 4)]
        return np.column_stack([np.ones(len(wind)), np.where(gone, 0, (wind - 20) / 7), gone, *carriers])

    x, y = design(training), training["late"].to_numpy()
    weights = np.zeros(x.shape[1])
    for _ in range(20):
        p = 1 / (1 + np.exp(-x @ weights))
        weights += np.linalg.solve(x.T @ (x * (p * (1 - p))[:, None]), x.T @ (y - p))
    return 1 / (1 + np.exp(-design(judged) @ weights))


def labelled(folder: Path, split: str) -> pa.Table:
    table = tables.read_split(folder, Snapshot.read(folder), split)
    return table.filter(table["late"].is_valid())


def test_scores_are_as_good_as_the_exact_solution(trained: Outcome, training_set: Path) -> None:
    judged = labelled(trained.predictions, "evaluate")
    label, score = judged["late"].to_numpy(), judged["score"].to_numpy()
    exact = logistic_scores(labelled(training_set, "train"), judged)
    assert auc(label, exact) > 0.84
    assert auc(label, score) > auc(label, exact) - 0.01
    assert np.mean(np.abs(score - exact)) < 0.06


def test_predictions_are_all_rows_that_have_a_label(trained: Outcome, training_set: Path) -> None:
    expected, found = labelled(training_set, "evaluate"), labelled(trained.predictions, "evaluate")
    manifest = Snapshot.read(trained.predictions)
    assert found.drop_columns(["score"]).equals(expected)
    assert found.num_rows < 2000
    assert found.schema.field("score").type == pa.float64()
    assert pc.min_max(found["score"]).as_py()["min"] >= 0
    assert pc.min_max(found["score"]).as_py()["max"] <= 1
    assert manifest.roles == {"key": "id", "time": "at", "label": "late", "score": "score"}
    assert manifest.digest == trained.submitted.predictions_version
    assert manifest.parents == {
        "training_set": Snapshot.read(training_set).digest,
        "model": trained.submitted.model_version,
    }


def test_rows_without_a_label_are_counted_and_left_out(manifest: Model) -> None:
    assert manifest.metrics["rows_without_label"] == len(range(1, 6001, 40))
    assert manifest.metrics["rows"] == 6001 - manifest.metrics["rows_without_label"]


def test_the_model_names_its_inputs_and_not_what_tells_nothing(trained: Outcome, manifest: Model) -> None:
    assert manifest.digest == trained.submitted.model_version
    assert set(manifest.inputs) == {"wind", "noise", "carrier", "holiday"}
    unused = json.loads((trained.model / "transforms.json").read_text())["unused"]
    assert unused == {"year": "the same value in every row", "gate": "no value in any row"}
    assert {entry.path for entry in manifest.files} == {
        "README.md",
        "input_example.json",
        "program.pt2",
        "signature.json",
        "transforms.json",
        "weights.safetensors",
    }


@pytest.mark.covers("A1")
def test_the_model_holds_no_pickle_and_no_path_of_this_machine(trained: Outcome, training_set: Path) -> None:
    places = [str(path).encode() for path in (training_set, Path(__file__).parents[2], trained.folder)]
    for path in trained.model.iterdir():
        if path.name != Record.FILE:
            assert not any(place in path.read_bytes() for place in places), path
    with zipfile.ZipFile(trained.model / "program.pt2") as program:
        contents = {name: program.read(name) for name in program.namelist()}
    assert not [name for name, data in contents.items() if data[:2] in {b"\x80\x02", b"PK"}]
    assert not any(place in data for data in contents.values() for place in places)


def test_the_record_says_what_was_found_and_by_which_environment(trained: Outcome) -> None:
    record = Record.read(trained.model)
    assert record.headline.startswith("loss 0.")
    assert "after 72 steps" in record.headline
    assert record.environment.name == "torch"
    assert record.config["processes"] == 2
    assert record.config["launched_by"]["launcher"] == "local"
    assert record.config["hardware"].keys() >= {"cpu", "cores", "gpu"}
    assert record.config["hardware"]["gpu"] == "none" or record.config["hardware"]["driver"]
    assert record.outputs["model"] == trained.submitted.model_version
    assert Record.read(trained.predictions) == record
    assert record.headline in (trained.folder / "summary.md").read_text()


def test_nothing_of_the_attempt_is_left(trained: Outcome) -> None:
    assert leftovers(trained.folder) == []
    assert sorted(path.name for path in trained.folder.iterdir()) == [
        "model",
        "predictions",
        "report.html",
        "summary.md",
    ]


def test_the_same_training_over_a_shared_volume_gives_the_same_bytes(
    trained: Outcome, trained_again: Outcome, training_set: Path
) -> None:
    again, shared = trained_again, trained_again.folder.parent / "shared"
    assert again.submitted == trained.submitted
    for path in trained.model.iterdir():
        if path.name not in {Record.FILE, HISTORY, "usage.json"}:  # these have times in them
            assert path.read_bytes() == (again.model / path.name).read_bytes(), path.name
    record = Record.read(again.model)
    assert record.config["launched_by"]["launcher"] == "pytorchjob"
    assert [parent.outputs["verdict"] for parent in record.parents] == ["of this run"]
    digest = Snapshot.read(training_set).digest
    assert [path.name for path in (shared / "trainwright" / "snapshots").iterdir()] == [digest]
    (home,) = (shared / "trainwright" / "jobs").iterdir()
    assert (home / "attempts" / "0001" / Completion.FILE).exists(), "a step that is lost now finds it"
    assert not (home / "checkpoints").exists()


def test_the_summary_and_the_page_of_a_job_on_a_cluster_lead_to_it(trained_again: Outcome) -> None:
    summary = (trained_again.folder / "summary.md").read_text()
    (name,) = set(re.findall(r"PyTorchJob `team-a/(tw-train-[0-9a-f]{10})`", summary))
    assert f"- [logs](https://logs.example/team-a/pytorchjob?job={name})" in summary
    page = html.unescape((trained_again.folder / "report.html").read_text())
    for command in (
        "kubectl logs -n team-a -l training.kubeflow.org/job-name=",
        "kubectl describe tw-train-",
    ):
        assert command in summary
        assert command in page
    assert f"team-a/{name}" in page


def test_a_failed_job_on_a_cluster_names_the_pages_of_its_logs(training_set: Path, tmp_path: Path) -> None:
    class Failing:
        name = "pytorchjob"

        def run(self, job: Job) -> Result:
            note_job("tw-1", job.folder)
            raise Hang("no progress", hint="Look at it.")

    resources = {
        "launcher": "pytorchjob",
        "mount": str(tmp_path),
        "links": {"Loki": "https://l.example/{name}"},
    }
    with pytest.raises(Hang) as caught:
        run(training_set, tmp_path / "out", Failing(), resources=resources)
    assert caught.value.hint == "Look at it. Loki: https://l.example/tw-1"


class Harvested:
    """A launcher whose job left what another training made, but for what was changed since."""

    name = "local"

    def __init__(self, made: Outcome, changed: str) -> None:
        self._made, self._changed = made, changed

    def run(self, job: Job) -> Result:
        shutil.copytree(self._made.folder, job.folder, dirs_exist_ok=True)
        path = job.folder / self._changed
        path.write_bytes(path.read_bytes().replace(b'"kind": "mlp"', b'"kind": "other"') + b" ")
        versions = self._made.submitted
        outputs = {"model": versions.model_version, "predictions": versions.predictions_version}
        marker = Completion(attempt=job.attempt, outputs=outputs)
        return Result(folder=job.folder, completion=marker, launcher=self.name)


@pytest.mark.parametrize("changed", ["model/weights.safetensors", "model/model.json"])
def test_what_is_not_what_the_marker_says_is_not_published(
    changed: str, trained: Outcome, training_set: Path, tmp_path: Path
) -> None:
    with pytest.raises(InternalError, match="differ from the completion marker") as caught:
        run(training_set, tmp_path, Harvested(trained, changed))
    assert changed.removesuffix("/model.json") in caught.value.what
    assert_only_the_home_is_there(tmp_path)


def test_a_training_that_cannot_tell_of_its_end_keeps_its_home(
    trained: Outcome, training_set: Path, tmp_path: Path
) -> None:
    (tmp_path / "summary.md").mkdir()
    with pytest.raises(IsADirectoryError):
        run(training_set, tmp_path, Harvested(trained, "report.html"))
    assert [path.name for path in tmp_path.glob(".model.job-*")], "what the next attempt goes on from"


def test_what_an_earlier_round_left_half_written_is_written_again(
    trained: Outcome, trained_again: Outcome
) -> None:
    assert trained_again.submitted == trained.submitted
    assert not list(trained_again.folder.parent.rglob("half.parquet"))
    (attempt,) = trained_again.folder.parent.glob("shared/trainwright/jobs/*/attempts/0001")
    assert (attempt / "half-written").exists()


def test_what_is_written_again_does_not_count_before_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that is lost just after its end has left the marker, and the next one writes all again."""
    Completion(attempt=tmp_path.name, outputs={}).write(tmp_path)
    seen = []

    def remove(path: Path, *, ignore_errors: bool) -> None:
        assert ignore_errors
        seen.append((path.name, (tmp_path / Completion.FILE).exists()))

    monkeypatch.setattr(shutil, "rmtree", remove)
    _remove_partial_outputs(tmp_path)
    assert seen == [("model", False), ("predictions", False)]


def test_a_loss_that_is_not_finite_ends_the_step_with_exit_code_30(
    training_set: Path, tmp_path: Path
) -> None:
    with pytest.raises(Diverged, match="not finite at step") as caught:
        run(training_set, tmp_path, training={"learning_rate": 1e30}, resources={"processes": 1})
    assert caught.value.code == 30
    assert "Lower the learning rate" in str(caught.value)
    assert_only_the_home_is_there(tmp_path)

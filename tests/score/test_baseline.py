"""The model in production scores the rows of a candidate: the numbers that its own training wrote."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.score.production import score
from tests.train.odd import copied, forged
from tests.train.problems import Outcome, flights, write
from tests.train.test_trust import rewritten
from trainwright import tables
from trainwright.artifacts import Model, Record, Snapshot
from trainwright.errors import InputError
from trainwright.score.score import ScoreResult


@pytest.fixture(scope="module")
def scored(training_set: Path, trained: Outcome, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the predictions of the trained model, for rows by reference.

    The process that scores cannot read the files of the rows.
    """
    folder = tmp_path_factory.mktemp("scored")
    snapshot = Snapshot.read(training_set)
    files = tuple(replace(entry, uri=str(training_set / entry.uri)) for entry in snapshot.files)
    (folder / "set").mkdir()
    replace(snapshot, files=files).write(folder / "set")
    assert score(folder / "set", folder, trained.model).predictions_version
    return folder


def rows(folder: Path) -> list[dict[str, object]]:
    batches = tables.iter_batches(folder, Snapshot.read(folder), ["evaluate"])
    return [row for batch in batches for row in batch.to_pylist()]


def test_what_production_predicts_is_what_its_training_predicted(scored: Path, trained: Outcome) -> None:
    now, then = rows(scored / "predictions"), rows(trained.predictions)
    # The number of threads decides which kernel takes a row, and so the last bit of a float32 logit.
    assert [row.pop("score") for row in now] == pytest.approx([row.pop("score") for row in then], abs=1e-7)
    assert now == then
    written = Snapshot.read(scored / "predictions")
    assert written.roles == Snapshot.read(trained.predictions).roles
    assert written.parents["model"] == Model.read(trained.model).digest
    assert "1,950 rows scored by model" in (scored / "summary.md").read_text()


@pytest.mark.covers("B66")
def test_without_a_model_in_production_there_are_no_predictions(training_set: Path, tmp_path: Path) -> None:
    assert score(training_set, tmp_path, None) == ScoreResult(
        "", "no model is in production, so none is scored"
    )
    assert not (tmp_path / "predictions" / Snapshot.FILE).exists()


def test_a_model_that_cannot_read_the_rows_is_named_and_nothing_fails(
    trained: Outcome, tmp_path: Path
) -> None:
    other = flights(100, 1).drop_columns(["wind"])
    write(tmp_path / "set", {"train": other, "evaluate": other})
    scored = score(tmp_path / "set", tmp_path, trained.model)
    assert scored.predictions_version == ""
    assert "cannot score these rows" in scored.headline
    assert "wind" in scored.headline
    assert not (tmp_path / "predictions" / Snapshot.FILE).exists()


def test_files_that_are_not_what_was_registered_are_refused(
    training_set: Path, trained: Outcome, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="not 000000000000"):
        score(training_set, tmp_path, trained.model, "0" * 64)


def test_files_that_are_gone_are_said_to_be(training_set: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"RESOURCE_DOES_NOT_EXIST.*gone"):
        score(training_set, tmp_path, tmp_path / "gone", "0" * 64)


@pytest.mark.covers("A2")
def test_a_model_in_production_with_a_loop_writes_no_predictions_and_says_why(
    training_set: Path, trained: Outcome, tmp_path: Path
) -> None:
    def loop(members: dict[str, bytes], root: str) -> None:
        model = json.loads(members[f"{root}/models/model.json"])
        model["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.higher_order.while_loop"
        members[f"{root}/models/model.json"] = json.dumps(model).encode()

    folder = copied(trained.model, tmp_path)
    rewritten(folder / "program.pt2", loop)
    forged(folder)
    scored = score(training_set, tmp_path, folder)
    assert scored.predictions_version == ""
    assert "cannot score these rows: operator torch.ops.higher_order.while_loop of node" in scored.headline
    assert not (tmp_path / "predictions" / Snapshot.FILE).exists()
    assert Record.read(tmp_path / "predictions").config["protections"]

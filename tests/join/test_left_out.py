"""Rows in quarantine get no features, go no further, and are counted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.featurestore.repository import PRICES, make_repository
from tests.join.conftest import features_of, write_sales
from tests.join.sales import sale
from trainwright import tables
from trainwright.artifacts import Record, Snapshot
from trainwright.errors import InputError
from trainwright.join.join import make_training_set
from trainwright.storage import take_listing

Make = Callable[..., Snapshot]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Join to three sales of train and one of test, but for some in quarantine."""

    def run(keys: dict[str, list[str | None]], parent: str | None = None, **sales: Any) -> Snapshot:
        rows = {"train": [sale("a", 1), sale("b", 2), sale("c", 3)], "test": [sale("d", 4)]} | sales
        snapshot = write_sales(tmp_path / "sales", rows)
        out = {split: [pa.table({"sale": pa.array(some, pa.string())})] for split, some in keys.items()}
        parents = {"snapshot": parent or snapshot.digest}
        quarantine = tables.write_snapshot(tmp_path / "out", out, parents=parents, roles={"key": "sale"})
        features = features_of(make_repository(tmp_path / "repo", [PRICES]))
        version = take_listing(features.source).content_digest
        return make_training_set(
            tmp_path / "sales", snapshot.digest, features, version, tmp_path / "set", tmp_path / "summary.md",
            quarantine=tmp_path / "out", quarantine_version=quarantine.digest,
        )  # fmt: skip

    return run


def kept(folder: Path, made: Snapshot) -> dict[str, list[str]]:
    return {name: tables.read_split(folder, made, name)["sale"].to_pylist() for name in made.splits}


def test_rows_in_quarantine_are_left_out_of_their_splits_and_named_as_a_parent(
    make: Make, tmp_path: Path
) -> None:
    made = make({"train": ["b"], "test": []})
    assert kept(tmp_path / "set", made) == {"train": ["a", "c"], "test": ["d"]}
    quarantine = Snapshot.read(tmp_path / "out").digest
    assert made.parents["quarantine"] == quarantine
    assert made.quality["left_out.train"] == 1
    record = Record.read(tmp_path / "set")
    assert record.inputs["quarantine"] == quarantine
    assert "1 rows of the quarantine left out" in record.headline
    assert "1 rows are in quarantine and were left out: 1 of train" in (tmp_path / "summary.md").read_text()


def test_an_empty_quarantine_changes_nothing_and_is_no_parent(make: Make, tmp_path: Path) -> None:
    made = make({"train": []})
    assert kept(tmp_path / "set", made) == {"train": ["a", "b", "c"], "test": ["d"]}
    assert "quarantine" not in made.parents


def test_a_row_without_a_key_can_be_in_quarantine(make: Make, tmp_path: Path) -> None:
    made = make({"train": [None]}, train=[sale("a", 1), sale(None, 2)])
    assert kept(tmp_path / "set", made)["train"] == ["a"]


def test_the_quarantine_of_other_rows_is_refused(make: Make) -> None:
    with pytest.raises(InputError, match="the quarantine was taken from data 000000000000"):
        make({"train": ["b"]}, parent="0" * 64)


def test_a_row_in_quarantine_that_is_not_among_the_entities_is_refused(make: Make) -> None:
    with pytest.raises(InputError, match="2 rows are in quarantine, and 1 of the entities"):
        make({"train": ["b", "x"]})

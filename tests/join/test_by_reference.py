"""A training set of rows that stay where they are: only the joined columns are written beside them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.featurestore.repository import PRICES, ViewSpec, make_repository
from tests.join.conftest import features_of, write_sales
from tests.join.sales import random_sales, random_views
from trainwright import tables
from trainwright.artifacts import Record, Snapshot
from trainwright.experiment import Features
from trainwright.join.join import make_training_set
from trainwright.storage import take_listing

Make = Callable[..., Snapshot]
SALES, VIEWS = random_sales(7, 60), (*random_views(8), PRICES)
ROW_COLUMNS = ("sale", "sold", "returned", "shop", "pieces")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Join to sales in four files that are in place, or to their copy; without a service, with ``table``."""
    write_sales(tmp_path / "rows", {"train": SALES[:40], "evaluate": SALES[40:]}, rows_per_file=16)
    copied = Snapshot.read(tmp_path / "rows")
    files = tuple(replace(entry, uri=str(tmp_path / "rows" / entry.uri)) for entry in copied.files)
    (tmp_path / "sales").mkdir()
    replace(copied, files=files, protection="versioned").write(tmp_path / "sales")

    def made(
        place: str,
        *,
        table: bool = False,
        views: Sequence[ViewSpec] = VIEWS,
        quarantine: Sequence[str] = (),
        **changes: Any,
    ) -> Snapshot:
        repository = make_repository(tmp_path / "repo", [*views])
        features = features_of(repository, **changes)
        if table:
            features = Features(known_after=("refund",))
        places: dict[str, Any] = {}
        if quarantine:
            out = {"train": [pa.table({"sale": list(quarantine)})]}
            parents = {"snapshot": copied.digest}
            left = tables.write_snapshot(tmp_path / "out", out, parents=parents, roles={"key": "sale"})
            places = {"quarantine": tmp_path / "out", "quarantine_version": left.digest}
        version = "" if table else take_listing(features.source).content_digest
        folder = {"sales": "by reference", "rows": "rewritten"}[place]
        return make_training_set(
            tmp_path / place, copied.digest, features, version, tmp_path / folder, tmp_path / "summary.md",
            **places,
        )  # fmt: skip

    return made


def rows_of(folder: Path, made: Snapshot) -> dict[str, pa.Table]:
    return {split: tables.read_split(folder, made, split) for split in made.splits}


def names_of(snapshot: Snapshot) -> list[str]:
    return [column.name for column in snapshot.columns]


def written(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.parquet"))


def test_rows_by_reference_and_rewritten_rows_are_the_same(make: Make, tmp_path: Path) -> None:
    made, copy = make("sales"), make("rows")
    assert rows_of(tmp_path / "by reference", made) == rows_of(tmp_path / "rewritten", copy)
    assert (made.columns, made.roles, made.splits) == (copy.columns, copy.roles, copy.splits)
    assert (made.parents, made.quality, made.target) == (copy.parents, copy.quality, copy.target)
    assert made.protection == "versioned"
    assert Record.read(tmp_path / "by reference").headline.endswith("5 of 5 files by reference")
    for entry in made.files:
        assert entry.companion
        there = pq.read_schema(tmp_path / "by reference" / entry.companion.uri).names
        assert there == [name for name in names_of(copy) if name not in ROW_COLUMNS]


def test_data_version_depends_on_the_companions(make: Make) -> None:
    made = make("sales")
    first, *rest = made.files
    assert first.companion
    other = replace(first, companion=replace(first.companion, checksum="sha256:" + "0" * 64))
    assert replace(made, files=(other, *rest)).digest != made.digest
    assert replace(made, files=(replace(first, companion=None), *rest)).digest != made.digest


def test_a_choice_of_columns_writes_no_row(make: Make, tmp_path: Path) -> None:
    made, copy = make("sales", table=True), make("rows", table=True)
    assert rows_of(tmp_path / "by reference", made) == rows_of(tmp_path / "rewritten", copy)
    assert written(tmp_path / "by reference") == []
    assert "refund" not in names_of(made)


def test_only_files_with_quarantined_rows_are_rewritten(make: Make, tmp_path: Path) -> None:
    out = [SALES[17]["sale"], *(row["sale"] for row in SALES[40:56])]
    made, copy = make("sales", quarantine=out), make("rows", quarantine=out)
    assert rows_of(tmp_path / "by reference", made) == rows_of(tmp_path / "rewritten", copy)
    found = [(entry.split, entry.rows, entry.in_place, bool(entry.companion)) for entry in made.files]
    assert found == [
        ("train", 16, True, True),
        ("train", 15, False, False),
        ("train", 8, True, True),
        ("evaluate", 4, True, True),
    ]
    assert "3 of 4 files by reference" in Record.read(tmp_path / "by reference").headline


def test_a_feature_with_the_name_of_a_column_left_behind_rewrites_the_rows(
    make: Make, tmp_path: Path
) -> None:
    rows = [row | {"pieces": row["price"]} for row in PRICES.rows]
    view = replace(PRICES, features={"pieces": pa.float64()}, rows=rows)
    made = make("sales", views=[view], request=["shop"])
    assert not any(entry.in_place for entry in made.files)
    assert {*pc.unique(rows_of(tmp_path / "by reference", made)["train"]["pieces"]).to_pylist()} <= {
        *(row["price"] for row in PRICES.rows),
        None,
    }

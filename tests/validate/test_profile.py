"""What is known of a split, and which columns are read for it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from trainwright.artifacts import Snapshot
from trainwright.experiment import Runner
from trainwright.tables import write_snapshot
from trainwright.validate.columns import by_column
from trainwright.validate.profile import (
    Profile,
    Profiler,
    own_cuts,
    unreadable_columns,
)
from trainwright.validate.schema import parse_schema
from trainwright.validate.statistics import VALUES_KEPT, describe
from trainwright.validate.tfdv import schema_pb2

SCHEMA = 'feature { name: "x" type: FLOAT } feature { name: "w" type: BYTES }'


def table(rows: int, seed: int) -> pa.Table:
    draw = np.random.default_rng(seed)
    return pa.table(
        {
            "x": pa.array(draw.normal(seed, 1, rows), mask=draw.random(rows) < 0.1),
            "w": draw.choice(["a", "b"], rows),
            "new": draw.random(rows),
            "deep": pa.array([{"a": 1}] * rows),
        }
    )


@pytest.fixture
def snapshot(tmp_path: Path) -> tuple[Path, Snapshot]:
    tables = {"train": [table(5_000, 0)], "evaluate": [table(1_000, 1)]}
    return tmp_path, write_snapshot(tmp_path, tables, parents={}, roles={}, rows_per_file=700)


def test_both_splits_are_counted_in_the_bins_of_the_first(snapshot: tuple[Path, Snapshot]) -> None:
    folder, manifest = snapshot
    schema = parse_schema(SCHEMA, "test")
    found = Profiler(folder, manifest, schema).profiles(["train", "evaluate"], ["x", "w"])
    cuts = own_cuts(found["train"].statistics, ["x"])["x"]
    for name, rows in {"train": table(5_000, 0), "evaluate": table(1_000, 1)}.items():
        values = rows["x"].drop_null().to_numpy()
        by_hand = [np.sum((values > low) & (values <= high)) for low, high in bins(cuts)]
        assert found[name].counts["x"].tolist() == by_hand
        assert found[name].rows == by_column_rows(found[name]) == len(rows)
        assert set(found[name].counts) == {"x"}


def bins(cuts: np.ndarray) -> list[tuple[float, float]]:
    return list(zip([-np.inf, *cuts], [*cuts, np.inf], strict=True))


def by_column_rows(profile: Profile) -> int:
    return int(profile.statistics.datasets[0].num_examples)


def test_counts_in_anothers_bins_come_without_statistics(snapshot: tuple[Path, Snapshot]) -> None:
    folder, manifest = snapshot
    profiler = Profiler(folder, manifest, None, runner=Runner(workers=2))
    counts = profiler.counts("evaluate", {"x": np.array([0.0, 1.0])})
    values = table(1_000, 1)["x"].drop_null().to_numpy()
    assert counts["x"].tolist() == [
        np.sum(values <= 0),
        np.sum((values > 0) & (values <= 1)),
        np.sum(values > 1),
    ]
    assert Profiler(folder, manifest, None).counts("evaluate", {}) == {}


def test_one_split_alone_is_not_binned(snapshot: tuple[Path, Snapshot]) -> None:
    folder, manifest = snapshot
    found = Profiler(folder, manifest, parse_schema(SCHEMA, "test")).profiles(["train"], ["x"])
    assert found["train"].counts == {}


def test_columns_that_tfdv_cannot_read_are_skipped(snapshot: tuple[Path, Snapshot]) -> None:
    folder, manifest = snapshot
    assert unreadable_columns(folder, manifest, ["train"]) == {"deep": "struct<a: int64>"}
    assert Profiler(folder, manifest, None).skipped_columns([]) == {}
    found = Profiler(folder, manifest, parse_schema(SCHEMA, "test")).profiles(["train"], [])
    assert list(by_column(found["train"].statistics)) == ["x", "w", "new"]


def test_columns_that_the_schema_does_not_name_are_not_read(
    snapshot: tuple[Path, Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, manifest = snapshot
    schema = parse_schema(SCHEMA, "test")
    read: set[str] = set()
    from trainwright.validate import scan

    def reading(*asked: object) -> object:
        read.update(asked[2])  # type: ignore[call-overload]
        return scan_piece(*asked)

    scan_piece, alone = scan.read_piece, Runner(workers=1)
    monkeypatch.setattr(scan, "read_piece", reading)
    profiler = Profiler(folder, manifest, schema, runner=alone, new_columns=False)
    found = profiler.profiles(["train"], ["x"])
    assert list(by_column(found["train"].statistics)) == ["x", "w"]
    assert read == {"x", "w"}
    assert profiler.skipped_columns(["train"]) == {
        "deep": "struct<a: int64>",
        "new": "double",
    }


def profile(columns: dict[str, object], schema: object = None) -> Profile:
    rows = pa.table(columns)
    statistics = describe(rows.to_batches(), schema or schema_pb2.Schema())
    return Profile("train", rows.num_rows, statistics, {})


def test_missing_are_null_absent_and_not_a_number() -> None:
    known = profile({"x": pa.array([1.0, None, float("nan"), 2.0]), "w": pa.array(["", None, "b", "c"])})
    assert (known.missing("x"), known.missing("w"), known.missing("gone")) == (2, 1, 4)


def test_values_are_counted_up_to_the_limit_and_reported_beyond() -> None:
    few = profile({"w": [f"w{n}" for n in range(VALUES_KEPT)]})
    many = profile({"w": [f"w{n}" for n in range(VALUES_KEPT + 500)]})
    assert len(few.values("w")) == VALUES_KEPT
    assert few.uncounted("w") == ""
    assert "of which only the 10,000 commonest are counted" in many.uncounted("w")

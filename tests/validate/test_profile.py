"""What is known of a split, and which columns are read for it."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trainwright.artifacts import Snapshot
from trainwright.experiment import DataEngine
from trainwright.tables import write_snapshot
from trainwright.validate.profile import (
    Profile,
    Profiler,
    own_cuts,
    unreadable_columns,
)
from trainwright.validate.schema import parse_schema
from trainwright.validate.statistics import VALUES_KEPT, describe, packed
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
    profiler = Profiler(folder, manifest, parse_schema(SCHEMA, "test"))
    cuts = own_cuts(profiler.statistics("train"), ["x", "w"])
    assert set(cuts) == {"x"}
    for name, rows in {"train": table(5_000, 0), "evaluate": table(1_000, 1)}.items():
        values = rows["x"].drop_null().to_numpy()
        by_hand = [np.sum((values > low) & (values <= high)) for low, high in bins(cuts["x"])]
        assert profiler.counts(name, cuts)["x"].tolist() == by_hand
        assert profiler.profile(name).rows == by_column_rows(profiler.profile(name)) == len(rows)


def bins(cuts: np.ndarray) -> list[tuple[float, float]]:
    return list(zip([-np.inf, *cuts], [*cuts, np.inf], strict=True))


def by_column_rows(profile: Profile) -> int:
    return int(profile.statistics.datasets[0].num_examples)


def test_counts_in_anothers_bins_come_without_statistics(snapshot: tuple[Path, Snapshot]) -> None:
    folder, manifest = snapshot
    profiler = Profiler(folder, manifest, None, engine=DataEngine(workers=2))
    counts = profiler.counts("evaluate", {"x": np.array([0.0, 1.0])})
    values = table(1_000, 1)["x"].drop_null().to_numpy()
    assert counts["x"].tolist() == [
        np.sum(values <= 0),
        np.sum((values > 0) & (values <= 1)),
        np.sum(values > 1),
    ]
    assert Profiler(folder, manifest, None).counts("evaluate", {}) == {}


def test_columns_that_tfdv_cannot_read_are_skipped(snapshot: tuple[Path, Snapshot]) -> None:
    folder, manifest = snapshot
    assert unreadable_columns(folder, manifest, ["train"]) == {"deep": "struct<a: int64>"}
    assert Profiler(folder, manifest, None).skipped_columns([]) == {}
    schema = parse_schema(SCHEMA + 'feature { name: "deep" type: STRUCT }', "test")
    assert list(Profiler(folder, manifest, schema).profile("train").features) == ["x", "w"]


def test_columns_that_the_schema_does_not_name_are_not_read(
    snapshot: tuple[Path, Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, manifest = snapshot
    schema = parse_schema(SCHEMA, "test")
    read: set[str] = set()
    from trainwright.validate import statistics as scan

    def reading(*asked: object) -> object:
        read.update(asked[2])  # type: ignore[call-overload]
        return scan_piece(*asked)

    scan_piece, alone = scan.read_piece, DataEngine(workers=1)
    monkeypatch.setattr(scan, "read_piece", reading)
    profiler = Profiler(folder, manifest, schema, engine=alone)
    assert list(profiler.profile("train").features) == ["x", "w"]
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


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Snapshot]:
    draw = np.random.default_rng(0)
    tables = {
        name: [pa.table({"x": draw.normal(0, 1, rows), "w": draw.choice(["a", "b"], rows)})]
        for name, rows in {"train": 900, "evaluate": 300}.items()
    }
    return tmp_path / "data", write_snapshot(tmp_path / "data", tables, parents={}, roles={})


@pytest.fixture
def look(small: tuple[Path, Snapshot], tmp_path: Path) -> Callable[..., Profiler]:
    def profiler(schema: str = SCHEMA) -> Profiler:
        folder, manifest = small
        return Profiler(folder, manifest, parse_schema(schema, "test"), DataEngine(), str(tmp_path / "kept"))

    return profiler


def without_rows(folder: Path) -> None:
    """Leave of every file what the manifest is checked against before a row is read: nothing."""
    for path in (folder / "data").rglob("*.parquet"):
        path.unlink()


@pytest.fixture
def seen(look: Callable[..., Profiler]) -> tuple[bytes, dict[str, list[int]]]:
    """What was looked at, and kept, once."""
    statistics = look().statistics("train")
    counts = look().counts("train", own_cuts(statistics, ["x"]))
    return packed(statistics), {name: rows.tolist() for name, rows in counts.items()}


def test_cached_results_are_not_computed_again(
    look: Callable[..., Profiler],
    seen: tuple[bytes, dict[str, list[int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def scanned(*_: Any) -> None:
        raise AssertionError("the rows were looked at again")

    monkeypatch.setattr("trainwright.validate.profile.scan", scanned)
    statistics = look().statistics("train")
    assert packed(statistics) == seen[0]
    counts = look().counts("train", own_cuts(statistics, ["x"]))
    assert {name: rows.tolist() for name, rows in counts.items()} == seen[1]
    with pytest.raises(AssertionError, match="looked at again"):
        look().statistics("evaluate")


def test_entry_of_other_data_under_this_name_is_not_used(
    look: Callable[..., Profiler], seen: tuple[bytes, object], tmp_path: Path
) -> None:
    first, second = sorted((tmp_path / "kept").iterdir())
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    assert packed(look().statistics("train")) == seen[0]


def test_schema_limits_do_not_change_the_cache_key(
    look: Callable[..., Profiler], seen: object, tmp_path: Path
) -> None:
    before = sorted((tmp_path / "kept").iterdir())
    limited = SCHEMA.replace("type: FLOAT", "type: FLOAT presence { min_count: 1 } float_domain { max: 3 }")
    look(limited).statistics("train")
    assert sorted((tmp_path / "kept").iterdir()) == before
    uncounted = SCHEMA.replace("type: BYTES", "type: BYTES string_domain { is_categorical: CATEGORICAL_NO }")
    look(uncounted).statistics("train")
    assert len(list((tmp_path / "kept").iterdir())) == len(before) + 1


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda content: content[:-7],
    "an empty file": lambda content: content[:0],
    "a bit flipped": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "another's digest": lambda content: b"0" * 64 + content[64:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_cache_entries_are_reported_and_computed_again(
    damage: str,
    look: Callable[..., Profiler],
    seen: tuple[bytes, dict[str, list[int]]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for path in (tmp_path / "kept").iterdir():
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with caplog.at_level(logging.WARNING, "trainwright.validate"):
        statistics = look().statistics("train")
        counts = look().counts("train", own_cuts(statistics, ["x"]))
    assert packed(statistics) == seen[0]
    assert {name: rows.tolist() for name, rows in counts.items()} == seen[1]
    assert caplog.text.count("cached statistics are not used") == 2


def test_unwritable_cache_is_reported_and_blocks_nothing(
    small: tuple[Path, Snapshot], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    place = str(tmp_path / "file" / "below")
    folder, manifest = small
    schema = parse_schema(SCHEMA, "test")
    profiler = Profiler(folder, manifest, schema, store=place)
    assert profiler.profile("evaluate").rows == 300
    assert "statistics are not cached" in caplog.text

"""Statistics that are kept: used when they are whole and of this very data, and never otherwise."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trainwright.artifacts import Snapshot
from trainwright.experiment import Runner
from trainwright.tables import write_snapshot
from trainwright.validate.profile import CachedStatistics, Profiler, own_cuts
from trainwright.validate.schema import parse_schema
from trainwright.validate.statistics import packed

SCHEMA = 'feature { name: "x" type: FLOAT } feature { name: "w" type: BYTES }'


@pytest.fixture
def snapshot(tmp_path: Path) -> tuple[Path, Snapshot]:
    draw = np.random.default_rng(0)
    tables = {
        name: [pa.table({"x": draw.normal(0, 1, rows), "w": draw.choice(["a", "b"], rows)})]
        for name, rows in {"train": 900, "evaluate": 300}.items()
    }
    return tmp_path / "data", write_snapshot(tmp_path / "data", tables, parents={}, roles={})


@pytest.fixture
def look(snapshot: tuple[Path, Snapshot], tmp_path: Path) -> Callable[..., Profiler]:
    def profiler(schema: str = SCHEMA) -> Profiler:
        folder, manifest = snapshot
        return Profiler(folder, manifest, parse_schema(schema, "test"), Runner(), str(tmp_path / "kept"))

    return profiler


def without_rows(folder: Path) -> None:
    """Leave of every file what the manifest is checked against before a row is read: nothing."""
    for path in (folder / "data").rglob("*.parquet"):
        path.unlink()


@pytest.fixture
def seen(look: Callable[..., Profiler]) -> tuple[bytes, dict[str, list[int]]]:
    """What was looked at, and kept, once."""
    statistics, _ = look().both("train", {})
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


def test_schema_limits_do_not_change_the_cache_key(
    look: Callable[..., Profiler], seen: object, tmp_path: Path
) -> None:
    before = sorted((tmp_path / "kept").iterdir())
    limited = SCHEMA.replace("type: FLOAT", "type: FLOAT presence { min_count: 1 } float_domain { max: 3 }")
    look(limited).statistics("train")
    assert sorted((tmp_path / "kept").iterdir()) == before
    uncounted = SCHEMA.replace("type: BYTES", "type: BYTES string_domain { is_categorical: CATEGORICAL_NO }")
    look(uncounted).statistics("train")
    assert len(list((tmp_path / "kept").iterdir())) == len(before) + 2


def spoil_digits(path: Path) -> None:
    document = json.loads(path.read_text())
    if document["counts"]:
        document["counts"]["x"][3] += 1
        path.write_text(json.dumps(document))


def take_anothers(path: Path) -> None:
    document = json.loads(path.read_text())
    other = CachedStatistics.describe(document["of"] | {"data_version": "0" * 64}, b"", {})
    path.write_text(json.dumps(other.to_json()))


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "statistics cut short": ("*.pb", lambda path: path.write_bytes(path.read_bytes()[:-7])),
    "statistics gone": ("*.pb", lambda path: path.unlink()),
    "no JSON": ("*.json", lambda path: path.write_text("{")),
    "an empty file": ("*.json", lambda path: path.write_text("")),
    "another document": ("*.json", lambda path: path.write_text('{"schema_version": 1, "x": 2}')),
    "a later version": ("*.json", lambda path: path.write_text('{"schema_version": 99}')),
    "a digit changed": ("*.json", spoil_digits),
    "of other data": ("*.json", take_anothers),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_cache_entries_are_reported_and_computed_again(
    damage: str,
    look: Callable[..., Profiler],
    seen: tuple[bytes, dict[str, list[int]]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pattern, spoil = DAMAGES[damage]
    for path in (tmp_path / "kept").glob(pattern):
        spoil(path)
    with caplog.at_level(logging.WARNING, "trainwright.validate"):
        statistics = look().statistics("train")
        counts = look().counts("train", own_cuts(statistics, ["x"]))
    assert packed(statistics) == seen[0]
    assert {name: rows.tolist() for name, rows in counts.items()} == seen[1]
    assert "cached statistics of split train are not used" in caplog.text


def test_unwritable_cache_is_reported_and_blocks_nothing(
    snapshot: tuple[Path, Snapshot], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    place = str(tmp_path / "file" / "below")
    folder, manifest = snapshot
    schema = parse_schema(SCHEMA, "test")
    found = Profiler(folder, manifest, schema, store=place).profiles(["train", "evaluate"], ["x"])
    assert found["evaluate"].counts["x"].sum() == 300
    assert "the statistics of split train are not cached" in caplog.text


def test_cached_profiles_are_identical(snapshot: tuple[Path, Snapshot], tmp_path: Path) -> None:
    folder, manifest = snapshot
    schema, place = parse_schema(SCHEMA, "test"), str(tmp_path / "kept")
    plain, first, second = (
        Profiler(folder, manifest, schema, store=store).profiles(["train", "evaluate"], ["x"])
        for store in ("", place, place)
    )
    for name in ("train", "evaluate"):
        assert packed(plain[name].statistics) == packed(first[name].statistics)
        assert packed(plain[name].statistics) == packed(second[name].statistics)
        assert plain[name].counts["x"].tolist() == second[name].counts["x"].tolist()

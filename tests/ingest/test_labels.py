"""Every kind of label: its kind, its stored form, and the error where a guess could be wrong."""

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.ingest.taking import START, data, flights, put, take
from trainwright import tables
from trainwright.artifacts import Snapshot, SnapshotTarget
from trainwright.errors import InputError

EVERY = {"train": {"fraction": 0.7}, "evaluate": {"fraction": 0.3}}


def labelled(values: Any, folder: Path, **section: object) -> Snapshot:
    """Ingest 400 rows of which `late` repeats the values."""
    column = (
        values if isinstance(values, pa.Array) else pa.array([values[n % len(values)] for n in range(400)])
    )
    return take(put(folder / "in.parquet", flights(late=column)), folder, data(splits=EVERY, **section))


def stored(folder: Path, snapshot: Snapshot) -> dict[str, Any]:
    """Return the label of each row by its key."""
    found: dict[str, Any] = {}
    for split in snapshot.splits:
        read = tables.read_split(folder / "snapshot", snapshot, split)
        found |= dict(zip(read["id"].to_pylist(), read["late"].to_pylist(), strict=True))
    return found


@pytest.mark.parametrize(
    ("values", "section", "target", "type_name"),
    [
        ([True, False, None], {}, SnapshotTarget(), "int64"),
        ([1.0, 0.0, float("nan")], {}, SnapshotTarget(), "int64"),
        ([0, 1, 2, None], {}, SnapshotTarget(kind="multiclass", classes=("0", "1", "2")), "int64"),
        ([0.5, 1.0, None], {}, SnapshotTarget(kind="regression"), "double"),
        ([18, 90, None], {"label_kind": "regression"}, SnapshotTarget(kind="regression"), "double"),
        ([1, 2], {"classes": [1, 2]}, SnapshotTarget(kind="binary", classes=("1", "2")), "int64"),
        ([1.0, 2.0, None], {"classes": [1, 2]}, SnapshotTarget(kind="binary", classes=("1", "2")), "int64"),
        (
            [True, False],
            {"classes": [True, False]},
            SnapshotTarget(kind="binary", classes=("true", "false")),
            "int64",
        ),
        (
            ["b", "a", "c"],
            {"classes": ["a", "b", "c"]},
            SnapshotTarget(kind="multiclass", classes=("a", "b", "c")),
            "int64",
        ),
    ],
)
def test_label_of_each_kind_gives_its_target_and_type(
    tmp_path: Path, values: list[Any], section: dict[str, Any], target: SnapshotTarget, type_name: str
) -> None:
    snapshot = labelled(values, tmp_path, **section)
    assert snapshot.target == target
    assert {column.name: column.type for column in snapshot.columns}["late"] == type_name
    names = list(target.classes)

    def expected(value: Any) -> Any:
        if value is None or value != value:  # noqa: PLR0124 - NaN
            return None
        if names and section.get("classes"):
            return names.index(str(int(value)) if isinstance(value, float) else str(value).lower())
        return value

    assert stored(tmp_path, snapshot) == {f"f{n}": expected(values[n % len(values)]) for n in range(400)}


@pytest.mark.parametrize(
    ("values", "section", "what", "hint"),
    [
        ([0, 1, 137], {}, "found 137 in row 3, and in at least 132 more rows: 137", "label_kind: regression"),
        ([1, 2], {}, "from 0 to n-1, each in some row; found 1, 2", "classes: [1, 2]"),
        ([0, 2], {}, "found 0, 2", "classes: [0, 2]"),
        ([0.0, 1.0, 2.0], {}, "found 2.0 in row 3", "classes: [0, 1, 2]"),
        ([0, 1, 2], {"label_kind": "binary"}, "expected 0 or 1; found 2 in row 3", "classes: [0, 1, 2]"),
        (
            [0, 1, 3],
            {"label_kind": "multiclass"},
            "three or more classes from 0 to n-1",
            "classes: [0, 1, 3]",
        ),
        ([0, -1], {"label_kind": "multiclass"}, "found -1 in row 2", "classes: [-1, 0]"),
        ([0.5, float("inf")], {}, "expected a finite number; found inf in row 2", "leave it empty"),
        (["no", "yes", "007"], {}, "names its 3 values", 'classes: ["007", "no", "yes"]'),
        (["low", "high cost"], {"label_kind": "binary"}, "its 2 values", "classes: [high cost, low]"),
        (["a", "b", "x"], {"classes": ["a", "b"]}, "one of data.classes, a, b; found 'x' in row 3", "Add"),
        (["a"], {"label_kind": "regression"}, "holds string, not numbers: 'a'", "Name another column"),
        ([dt.date(2013, 1, 1)], {}, "holds date32[day], not classes or numbers", "Name another column"),
    ],
)
def test_label_that_is_not_clear_is_rejected_with_value_and_next_step(
    tmp_path: Path, values: list[Any], section: dict[str, Any], what: str, hint: str
) -> None:
    with pytest.raises(InputError) as caught:
        labelled(values, tmp_path, **section)
    assert what in caught.value.what
    assert hint in caught.value.hint
    assert not list((tmp_path / "snapshot").glob("*"))


def test_text_of_many_values_is_rejected_with_examples_only(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="more than 20 different values: 'f0', 'f1', 'f10'"):
        take(
            put(tmp_path / "in.parquet", flights(name=[f"f{n}" for n in range(400)])),
            tmp_path,
            data(label="name"),
        )


def test_summary_and_figures_follow_the_kind_of_the_label(tmp_path: Path) -> None:
    several = labelled(["b", "a", "c", None], tmp_path / "1", classes=["a", "b", "c"])
    counts = [several.quality[f"labels.train.{name}"] for name in "abc"]
    assert sum(counts) == several.quality["labels.train"]
    assert not [name for name in several.quality if name.startswith("positives")]
    page = (tmp_path / "1" / "summary.md").read_text()
    assert f"| a | {several.quality['labels.evaluate.a']:.0f} | {counts[0]:.0f} |" in page
    number = labelled([0.5, 2.5, None], tmp_path / "2")
    page = (tmp_path / "2" / "summary.md").read_text()
    assert "| split | rows | with label | least | mean | largest |" in page
    assert f"| train | {number.splits['train']} | {number.quality['labels.train']:.0f} | 0.5 |" in page
    assert (number.quality["min.late"], number.quality["max.late"]) == (0.5, 2.5)


def test_text_without_label_has_only_its_rows(tmp_path: Path) -> None:
    texts = tmp_path / "in.jsonl"
    texts.write_text("".join(f'{{"text": "line {n}"}}\n' for n in range(50)))
    section = data(key=None, time=None, label=None, splits=EVERY)
    snapshot = take(texts, tmp_path, section)
    assert snapshot.target == SnapshotTarget(kind="text")
    assert snapshot.roles == {"key": "row"}
    assert [column.name for column in snapshot.columns] == ["text", "row"]
    assert {name for name in snapshot.quality if "." not in name} == {"bytes"}
    assert "| split | rows |" in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize("shard_rows", [30, 1_000_000])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_row_numbers_are_positions_in_the_source_for_any_shards(
    tmp_path: Path, suffix: str, shard_rows: int
) -> None:
    sizes = {"a": 100, "b": 1, "c": 57}
    for name, size in sizes.items():
        table = pa.table(
            {"file": [name] * size, "place": list(range(size)), "late": [n % 2 for n in range(size)]}
        )
        if suffix == "parquet":
            put(tmp_path / "in" / f"{name}.parquet", table, row_group_size=40)
        else:
            (tmp_path / "in").mkdir(exist_ok=True)
            rows = "\n".join(f"{name},{n},{n % 2}" for n in range(size))
            (tmp_path / "in" / f"{name}.csv").write_text(f"file,place,late\n{rows}\n")
    section = data(key=None, time=None, splits=EVERY, shard_rows=shard_rows)
    snapshot = take(tmp_path / "in", tmp_path, section)
    assert snapshot.roles == {"key": "row", "label": "late"}
    found = {}
    for split in snapshot.splits:
        for row in tables.read_split(tmp_path / "snapshot", snapshot, split).to_pylist():
            found[row["row"]] = (row["file"], row["place"])
    places = [(name, place) for name, size in sizes.items() for place in range(size)]
    assert found == dict(enumerate(places))


def test_number_of_workers_changes_no_byte_of_numbered_rows(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text("x,late\n" + "".join(f"{n},{n % 3}\n" for n in range(50)))
    digests = set()
    for workers in (1, 3):
        section = data(key=None, time=None, splits=EVERY, shard_rows=20, runner={"workers": workers})
        snapshot = take(tmp_path / "*.csv", tmp_path / str(workers), section)
        assert snapshot.target.kind == "multiclass"
        digests.add(snapshot.digest)
    assert len(digests) == 1


def test_source_with_a_column_named_row_needs_a_key(tmp_path: Path) -> None:
    source = put(tmp_path / "in.parquet", flights(row=list(range(400))))
    with pytest.raises(InputError, match="the source has a column 'row'") as caught:
        take(source, tmp_path, data(key=None))
    assert "data.key" in caught.value.hint
    assert take(source, tmp_path, data(key="row")).roles["key"] == "row"


def test_split_by_and_disjoint_hold_without_key_and_time(tmp_path: Path) -> None:
    users = [f"u{n % 40}" for n in range(400)]
    section = data(key=None, time=None, splits=EVERY, split_by="user", disjoint=["user"], min_rows=50)
    snapshot = take(put(tmp_path / "in.parquet", flights(user=users)), tmp_path, section)
    found = {
        split: set(tables.read_split(tmp_path / "snapshot", snapshot, split)["user"].to_pylist())
        for split in snapshot.splits
    }
    assert not found["train"] & found["evaluate"]
    assert not [name for name in snapshot.quality if name.startswith("time.")]


@pytest.mark.parametrize(("values", "kind"), [([18, 90, 37], "int64"), ([0.5, 2.0, 7.25], "double")])
def test_reference_mode_reads_a_regression_from_integers_and_floats(
    tmp_path: Path, values: list[float], kind: str
) -> None:
    column = pa.array([values[n % 3] for n in range(400)], pa.float64() if kind == "double" else pa.int64())
    windows = {"train": {"start": START.isoformat(), "end": "2014-01-01"}}
    section = data(mode="reference", splits=windows, label_kind="regression")
    snapshot = take(put(tmp_path / "in.parquet", flights(late=column)), tmp_path, section)
    assert snapshot.target == SnapshotTarget(kind="regression")
    assert tables.read_split(tmp_path / "snapshot", snapshot, "train")["late"].to_pylist() == [
        float(values[n % 3]) for n in range(400)
    ]

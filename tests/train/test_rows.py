"""What is fitted on a split of rows, and what its encoded rows are."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.train.problems import ROWS, flights, source, write
from trainwright import tables
from trainwright.artifacts import Column, SnapshotTarget, TargetKind
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Mlp
from trainwright.serving.columns import to_values
from trainwright.train.config import input_kinds
from trainwright.train.feeding.rows import EncodedRows, RowSource, encode, fit
from trainwright.train.feeding.target import LabelStats, merge_labels
from trainwright.train.process_group import Ranks, gather_to_leader


def whole(rows: EncodedRows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch = rows.take(np.arange(len(rows)))
    return (*batch.inputs, batch.target)


def labelled(folder: Path, label: pa.Array, kind: TargetKind = "binary") -> RowSource:
    """A split of flights with another label."""
    table = flights(len(label), 0)
    table = table.set_column(table.schema.get_field_index("late"), "late", label)
    write(folder, {"train": table}, target=SnapshotTarget(kind=kind))
    return source(folder)


def test_encoded_rows_are_those_of_the_split_in_their_order(
    training_set: Path, tmp_path: Path, alone: Ranks
) -> None:
    transforms, labels = fit(source(training_set), Mlp(), alone)
    rows = encode(source(training_set), transforms, labels, tmp_path, alone)
    table = flights(ROWS["train"], 0)
    table = table.filter(table["late"].is_valid())
    numeric, categories, late = whole(rows)
    assert late.tolist() == table["late"].to_pylist() == rows.labels().tolist()
    noise = table["noise"].to_numpy().astype(float)
    np.testing.assert_allclose(
        numeric[:, 2].numpy(), (noise - noise.mean()) / noise.std(), rtol=1e-4, atol=1e-5
    )
    assert numeric.dtype == late.dtype == torch.float32
    carriers = dict(zip(table["carrier"].to_pylist(), categories[:, 0].tolist(), strict=True))
    assert [carriers[code] for code in table["carrier"].to_pylist()] == categories[:, 0].tolist()
    assert len(set(carriers.values())) == 4


def test_rows_are_returned_in_the_requested_order(training_set: Path, tmp_path: Path, alone: Ranks) -> None:
    transforms, labels = fit(source(training_set), Mlp(), alone)
    rows = encode(source(training_set), transforms, labels, tmp_path, alone)
    index = np.random.default_rng(0).integers(0, len(rows), 3000)
    numeric, categories, late = whole(rows)
    batch = rows.take(index)
    assert torch.equal(batch.inputs[0], numeric[index])
    assert torch.equal(batch.inputs[1], categories[index])
    assert torch.equal(batch.target, late[index])
    assert batch.ids.tolist() == index.tolist()
    assert len(rows.take(index[:0])) == 0


def test_a_file_of_several_row_groups_is_shared_by_the_processes(tmp_path: Path, alone: Ranks) -> None:
    """Pieces are cut at row groups, so one large file does not leave all but one process idle."""
    rows = 5 * tables.ROW_GROUP // 2
    table = pa.table({"id": np.arange(rows), "late": np.arange(rows) % 2, "x": np.arange(rows) * 0.5})
    snapshot = tables.write_snapshot(
        tmp_path / "set", {"train": [table]}, parents={}, roles={"key": "id", "label": "late"}
    )
    asked = RowSource(tmp_path / "set", snapshot, "train", input_kinds(snapshot))
    assert [piece.rows for piece in asked.pieces] == [2 * tables.ROW_GROUP, rows - 2 * tables.ROW_GROUP]
    transforms, labels = fit(asked, Mlp(), alone)
    encoded = encode(asked, transforms, labels, tmp_path / "encoded", alone)
    assert [part.rows for part in labels] == [piece.rows for piece in asked.pieces]
    numeric, _, late = whole(encoded)
    assert late.tolist() == table["late"].to_pylist()
    x = table["x"].to_numpy()
    np.testing.assert_allclose(numeric[:, 0].numpy(), (x - x.mean()) / x.std(), rtol=1e-4, atol=1e-5)


def test_integer_beyond_float64_is_rounded_to_the_nearest() -> None:
    """A key or a hash among the columns: what scales it rounds more than that."""
    column = pa.array([2**53 + 1, -(2**63), None, 2**63 - 1])
    found = to_values(pa.table({"x": column}), {"x": "number"})["x"]
    np.testing.assert_array_equal(found, [2.0**53, -(2.0**63), np.nan, 2.0**63])


def test_exchange_between_processes_holds_value_counts_once(
    tmp_path: Path, alone: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every process would hold them once for each of the thousands of pieces of a large split."""
    sizes = []

    def weighed(mine: object, group: Ranks) -> Iterator[object]:
        sizes.append(len(pickle.dumps(mine)))
        return gather_to_leader(mine, group)

    monkeypatch.setattr("trainwright.train.feeding.rows.gather_to_leader", weighed)
    for pieces in (1, 3):
        rows = pieces * 2 * tables.ROW_GROUP
        words = np.array([f"word {number}" for number in range(5000)])[np.arange(rows) % 5000]
        table = pa.table({"id": np.arange(rows), "late": np.arange(rows) % 2, "x": words})
        snapshot = tables.write_snapshot(
            tmp_path / f"{pieces}", {"train": [table]}, parents={}, roles={"key": "id", "label": "late"}
        )
        asked = RowSource(tmp_path / f"{pieces}", snapshot, "train", input_kinds(snapshot))
        assert len(asked.pieces) == pieces
        transforms, _ = fit(asked, Mlp(max_categories=9), alone)
        assert transforms.categories[0].values == tuple(sorted(words[: rows % 5000])[:9])
    assert sizes[1] < 1.1 * sizes[0]


def test_label_with_one_class_is_rejected_with_its_counts(tmp_path: Path, alone: Ranks) -> None:
    zeros = pa.array(np.zeros(100), pa.int64(), mask=np.arange(100) < 7)
    with pytest.raises(DataRefused, match="'late' has 0 ones and 93 zeros; 7 rows have none"):
        fit(labelled(tmp_path, zeros), Mlp(), alone)


@pytest.mark.covers("B58")
def test_label_outside_0_and_1_is_rejected_with_its_row(tmp_path: Path, alone: Ranks) -> None:
    label = np.arange(5000) % 2
    label[4321] = 7
    with pytest.raises(InputError, match=r"'late' lies in \[0, 7\]") as caught:
        fit(labelled(tmp_path, pa.array(label)), Mlp(), alone)
    assert caught.value.where == "split 'train', row 4,321"


def test_uninformative_inputs_are_rejected(tmp_path: Path, alone: Ranks) -> None:
    write(tmp_path / "set", {"train": flights(100, 0).select(["id", "at", "late", "year", "gate"])})
    with pytest.raises(InputError, match="no input column is informative"):
        fit(source(tmp_path / "set"), Mlp(), alone)


def test_a_boolean_label_is_learned_like_0_and_1(tmp_path: Path, alone: Ranks) -> None:
    late = pa.array([True, False, None, True] * 25)
    asked = labelled(tmp_path / "set", late)
    transforms, labels = fit(asked, Mlp(), alone)
    assert (labels[0].counts, labels[0].missing) == ({0: 25, 1: 50}, 25)
    assert encode(asked, transforms, labels, tmp_path / "encoded", alone).labels().tolist() == [1, 0, 1] * 25


def test_whole_numbers_are_classes_and_are_counted(tmp_path: Path, alone: Ranks) -> None:
    label = np.random.default_rng(0).choice(4, 5000, p=[0.1, 0.2, 0.3, 0.4])
    asked = labelled(tmp_path / "set", pa.array(label, mask=np.arange(5000) % 10 == 0), "multiclass")
    transforms, labels = fit(asked, Mlp(), alone)
    found = merge_labels(labels)
    there = label[np.arange(5000) % 10 != 0]
    assert found.kind == "classes"
    assert found.counts == dict(enumerate(np.bincount(there)))
    assert found.rates == pytest.approx(np.bincount(there) / len(there))
    rows = encode(asked, transforms, labels, tmp_path / "encoded", alone, weights=[1, 2, 3, 4])
    batch = rows.take(np.arange(len(rows)))
    assert batch.target.dtype == torch.int64
    assert batch.target.tolist() == there.tolist()
    assert batch.weight.tolist() == (there + 1).tolist()


def test_other_numbers_are_regressed_with_their_mean_and_deviation(tmp_path: Path, alone: Ranks) -> None:
    label = np.random.default_rng(0).normal(1e6, 3, 5000)
    label[::10] = np.nan
    asked = labelled(tmp_path / "set", pa.array(label), "regression")
    transforms, labels = fit(asked, Mlp(), alone)
    found = merge_labels(labels)
    assert (found.kind, found.rows, found.missing) == ("regression", 4500, 500)
    assert found.rates == pytest.approx((np.nanmean(label), np.nanstd(label)), rel=1e-9)
    rows = encode(asked, transforms, labels, tmp_path / "encoded", alone)
    assert rows.labels().tolist() == label[~np.isnan(label)].astype(np.float32).tolist()


@pytest.mark.parametrize(
    ("label", "asked", "kind", "said"),
    [
        (np.arange(100) - 1, "multiclass", InputError, r"lies in \[-1, 98\]; classes are numbered from 0"),
        (
            np.arange(100) * 1000,
            "multiclass",
            InputError,
            r"lies in \[0, 99000\]; there may be 10,000 classes",
        ),
        (np.where(np.arange(100) == 5, np.inf, 1.5), "regression", InputError, "not finite"),
        (np.arange(100) * 0.5, "multiclass", InputError, "they are whole numbers"),
        (np.full(100, 2.5), "regression", DataRefused, "is 2.5 in 100 rows; 0 rows have none"),
        (np.full(100, 3), "multiclass", DataRefused, "100 of class 3"),
        (np.full(100, np.nan), "regression", DataRefused, "has no value; 100 rows have none"),
    ],
)
def test_unlearnable_labels_are_rejected(
    label: np.ndarray, asked: TargetKind, kind: type[Exception], said: str, tmp_path: Path, alone: Ranks
) -> None:
    with pytest.raises(kind, match=said):
        fit(labelled(tmp_path, pa.array(label), asked), Mlp(), alone)


def test_label_statistics_of_parts_merge_to_those_of_the_whole() -> None:
    values = np.random.default_rng(1).normal(5, 2, 1000)
    parts = [
        LabelStats.of(pa.array(part), classes=False) for part in np.array_split(values, [0, 3, 500, 999])
    ]
    found, once = merge_labels(parts), LabelStats.of(pa.array(values), classes=False)
    assert (found.low, found.high) == ((values.min(), values.argmin()), (values.max(), values.argmax()))
    assert found.rates == pytest.approx(once.rates, rel=1e-12)


def test_changed_column_types_give_other_shard_keys(training_set: Path, tmp_path: Path, alone: Ranks) -> None:
    """The same bytes read as another type would be encoded to other values."""
    asked = source(training_set)
    transforms, labels = fit(asked, Mlp(), alone)
    encode(asked, transforms, labels, tmp_path, alone)
    made = {path.name for path in tmp_path.iterdir()}
    types = {column.name: column.type for column in asked.snapshot.columns} | {"noise": "double"}
    columns = tuple(Column(name=name, type=kind) for name, kind in types.items())
    other = RowSource(asked.folder, replace(asked.snapshot, columns=columns), asked.split, asked.kinds)
    encode(other, transforms, labels, tmp_path, alone)
    assert len({path.name for path in tmp_path.iterdir()}) == 2 * len(made)


def test_cached_fit_is_equal_and_reads_nothing(training_set: Path, tmp_path: Path, alone: Ranks) -> None:
    asked = source(training_set)

    class Unread(RowSource):
        def read(self, piece: int) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
            raise AssertionError(piece)

    unread = Unread(asked.folder, asked.snapshot, asked.split, asked.kinds)
    for network in (Mlp(), Mlp(scaling="quantile")):
        found = fit(asked, network, alone, tmp_path)
        assert fit(unread, network, alone, tmp_path) == found
    with pytest.raises(AssertionError):
        fit(unread, Mlp(max_categories=3), alone, tmp_path)
    for path in tmp_path.iterdir():
        path.write_text("{")
    assert fit(asked, Mlp(), alone, tmp_path) == fit(asked, Mlp(), alone)


def test_cached_fit_includes_pieces_without_labels(tmp_path: Path, alone: Ranks) -> None:
    label = pa.array(np.arange(5000) % 2, mask=np.arange(5000) < 2000)
    asked = labelled(tmp_path / "set", label)
    found = fit(asked, Mlp(), alone, tmp_path)
    assert fit(asked, Mlp(), alone, tmp_path) == found
    assert [part.rows for part in found[1]] == [0, 2000, 1000]
    assert encode(asked, *found, tmp_path / "cache", alone).labels().tolist() == [0, 1] * 1500

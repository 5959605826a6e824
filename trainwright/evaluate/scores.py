"""The scores of a model beside the truth, checked before anything is computed from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.artifacts import Snapshot
from trainwright.errors import InputError
from trainwright.tables import read_split, require_columns


@dataclass(frozen=True)
class Scores:
    """The rows of one split that have a label.

    Attributes:
        label: 0 or 1, shape (rows,); both occur.
        score: In [0, 1], shape (rows,).
        columns: What slices are cut from, by name; each of shape (rows,).
        label_name: Column of the label.
        unlabelled: Rows that were left out because they have no label.
    """

    label: NDArray[np.int64]
    score: NDArray[np.float64]
    columns: dict[str, Any]
    label_name: str
    unlabelled: int

    @property
    def rows(self) -> int:
        """Rows that are judged."""
        return len(self.label)

    @property
    def positives(self) -> int:
        """Rows of label 1."""
        return int(self.label.sum())


def read_scores(folder: Path, snapshot: Snapshot, split: str, slices: Sequence[str]) -> Scores:
    """Read the predictions of one split.

    Args:
        folder: Folder of the predictions.
        snapshot: Its manifest, with the roles ``label`` and ``score``.
        split: Split to judge.
        slices: Columns that slices are cut from.

    Raises:
        InputError: The predictions are not of a label of 0 and 1, a column or the split is missing, no row
            has a label, all have the same, a key occurs twice, or a score is missing or outside [0, 1].
    """
    where = f"predictions, split {split!r}"
    _require_binary(snapshot, where)
    roles = {"label": "label", "score": "score"} | snapshot.roles
    label, score = roles["label"], roles["score"]
    require_columns(snapshot, {label, score, *slices}, where)
    key = [roles["key"]] if "key" in roles else []
    table = read_split(folder, snapshot, split, list(dict.fromkeys([*key, label, score, *slices])))
    _require_once(table, key, where)
    known = table.filter(pc.is_valid(table[label]))
    if not known.num_rows:
        raise InputError(
            f"none of the {table.num_rows:,} rows has a label in {label!r}", where=where, hint=_LABELS
        )
    return Scores(
        label=_labels(known[label], label, where),
        score=_unit_scores(known[score], score, where),
        columns={name: known[name] for name in slices},
        label_name=label,
        unlabelled=table.num_rows - known.num_rows,
    )


def _require_binary(snapshot: Snapshot, where: str) -> None:
    """Refuse predictions of several classes or of a number: the roles of their columns tell."""
    classes = [role for role in snapshot.roles if role.startswith("score_")]
    what = f"of {len(classes)} classes" if classes else "of a number" if "estimate" in snapshot.roles else ""
    if what:
        raise InputError(
            f"these are predictions {what}; evaluate judges those of a label of 0 and 1",
            where=where,
            hint="Judge them elsewhere, or train with training.objective.kind: binary.",
        )


_LABELS = "Judge a split whose labels are known, and that has both outcomes."


def _require_once(table: Any, key: Sequence[str], where: str) -> None:
    """Refuse rows that were scored twice, as a sampler that pads its last batch does."""
    for name in key:
        distinct = pc.count_distinct(table[name], mode="all").as_py()
        if distinct != table.num_rows:
            raise InputError(
                f"{table.num_rows:,} rows have {distinct:,} keys in {name!r}: some were scored twice",
                where=where,
                hint="Score every row once; a distributed sampler pads its last batch with repeats.",
            )


def _labels(column: Any, name: str, where: str) -> NDArray[np.int64]:
    if not (pa.types.is_boolean(column.type) or pa.types.is_integer(column.type) or _is_float(column)):
        raise InputError(f"label {name!r} has type {column.type}; a label is 0 or 1", where=where)
    values: NDArray[np.float64] = column.cast(pa.float64()).to_numpy()
    found = np.unique(values)
    if not np.isin(found, (0, 1)).all():
        raise InputError(f"label {name!r} holds {found[:5].tolist()}; a label is 0 or 1", where=where)
    if len(found) == 1:
        raise InputError(
            f"all {len(values):,} rows have label {int(found[0])} in {name!r}: nothing can be ranked",
            where=where,
            hint=_LABELS,
        )
    return values.astype(np.int64)


def _is_float(column: Any) -> bool:
    return bool(pa.types.is_floating(column.type))


def _unit_scores(column: Any, name: str, where: str) -> NDArray[np.float64]:
    if not _is_float(column):
        raise InputError(f"score {name!r} has type {column.type}; a score is a float in [0, 1]", where=where)
    values: NDArray[np.float64] = column.cast(pa.float64()).to_numpy()
    if missing := int(np.isnan(values).sum()):
        raise InputError(
            f"{missing:,} of {len(values):,} scores in {name!r} are not numbers",
            where=where,
            hint="The training diverged, or an input is missing where the model cannot take it.",
        )
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1:
        raise InputError(
            f"scores in {name!r} lie in [{low:.4g}, {high:.4g}]; a score is a probability in [0, 1]",
            where=where,
            hint="Write probabilities, not logits.",
        )
    return values

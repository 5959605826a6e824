"""What a model said of the rows of one split, beside the truth: checked before anything is computed."""

import re
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
from trainwright.evaluate.findings import Floats, Kind
from trainwright.tables import read_split, require_columns

THRESHOLD = "threshold"
"""Figure of a predictions' manifest: where the model that made them says that label 1 begins."""

_LABELS = "Judge a split whose labels are known, and that has both outcomes."
_SUM_TO_ONE = 1e-4


@dataclass(frozen=True)
class Predictions:
    """The rows of one split that have a label.

    Attributes:
        kind: What was predicted.
        label: Class from 0 on, number, or 0 of a language model, shape (rows,).
        scores: Probability of label 1 (one column), of every class, an estimate, or a mean loss a token;
            shape (rows, columns).
        weight: Of each row, at least 0; of a language model its tokens; None where all count alike.
        bounds: Low and high end of an interval around the estimate, shape (rows, 2); None without.
        key: Column of Arrow that tells rows apart; None without.
        columns: What slices are cut from, by name; of Arrow, each of shape (rows,).
        label_name: Column of the label; empty of a language model.
        unlabelled: Rows that were left out because they have no label.
        threshold: Where the model says that label 1 begins; None where it does not.
        snapshot: The manifest.
    """

    kind: Kind
    label: NDArray[Any]
    scores: Floats
    weight: Floats | None
    bounds: Floats | None
    key: Any
    columns: dict[str, Any]
    label_name: str
    unlabelled: int
    threshold: float | None
    snapshot: Snapshot

    @property
    def rows(self) -> int:
        """Rows with a label."""
        return len(self.label)


@dataclass(frozen=True)
class _Roles:
    """Which columns hold what."""

    kind: Kind
    scores: tuple[str, ...]
    label: str
    key: str
    weight: str
    bounds: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        named = (self.key, self.label, self.weight, *self.scores, *self.bounds)
        return [name for name in named if name]


def read_predictions(
    folder: Path, snapshot: Snapshot, split: str, columns: Sequence[str], where: str = "predictions"
) -> Predictions:
    """Read the predictions of one split.

    Args:
        folder: Folder of the predictions.
        snapshot: Its manifest; roles say what its columns are.
        split: Split to judge.
        columns: Further columns: what slices, groups and clusters are made of.
        where: What errors call these predictions.

    Raises:
        InputError: A column or the split is missing, no row has a label, all have the same class, a key
            occurs twice, a weight is negative, or a score is missing or is not what its kind allows.
    """
    where = f"{where}, split {split!r}"
    roles = _roles(snapshot)
    wanted = list(dict.fromkeys([*roles.names, *columns]))
    require_columns(snapshot, set(wanted), where)
    table = read_split(folder, snapshot, split, wanted)
    _require_once(table, roles.key, where)
    known = table.filter(pc.is_valid(table[roles.label])) if roles.label else table
    if not known.num_rows:
        name = roles.label or roles.scores[0]
        raise InputError(
            f"none of the {table.num_rows:,} rows has a label in {name!r}", where=where, hint=_LABELS
        )
    label = _label(known, roles, where)
    return Predictions(
        kind=roles.kind,
        label=label,
        scores=_scores(known, roles, label, where),
        weight=_weight(known, roles, where),
        bounds=_numbers(known, roles.bounds, where) if roles.bounds else None,
        key=known[roles.key] if roles.key else None,
        columns={name: known[name] for name in columns},
        label_name=roles.label,
        unlabelled=table.num_rows - known.num_rows,
        threshold=snapshot.quality.get(THRESHOLD),
        snapshot=snapshot,
    )


def _roles(snapshot: Snapshot) -> _Roles:
    """Find out what was predicted: the roles of the columns tell."""
    roles = snapshot.roles
    classes = sorted((role for role in roles if re.fullmatch(r"score_\d+", role)), key=lambda x: int(x[6:]))
    weight = roles.get("weight", "")
    bounds: tuple[str, ...] = ()
    names = {column.name for column in snapshot.columns}
    label = roles.get("label", "label")
    kind: Kind = "binary"
    scores: tuple[str, ...] = (roles.get("score", "score"),)
    if "loss" in roles:
        tokens = roles.get("tokens_scored", "tokens_scored" if "tokens_scored" in names else weight)
        kind, scores, label, weight = "language_model", (roles["loss"],), "", tokens
    elif classes:
        kind, scores = "multiclass", tuple(roles[role] for role in classes)
    elif "estimate" in roles:
        kind, scores = "regression", (roles["estimate"],)
        bounds = tuple(roles[end] for end in ("estimate_low", "estimate_high") if end in roles)
    return _Roles(kind, scores, label, roles.get("key", ""), weight, bounds if len(bounds) > 1 else ())


def _require_once(table: Any, key: str, where: str) -> None:
    """Refuse rows that were scored twice, as a sampler that pads its last batch does."""
    if not key:
        return
    distinct = pc.count_distinct(table[key], mode="all").as_py()
    if distinct != table.num_rows:
        raise InputError(
            f"{table.num_rows:,} rows have {distinct:,} keys in {key!r}: some were scored twice",
            where=where,
            hint="Score every row once; a distributed sampler pads its last batch with repeats.",
        )


def _label(known: Any, roles: _Roles, where: str) -> NDArray[Any]:
    name = roles.label
    if not name:
        return np.zeros(known.num_rows, np.int64)
    values = _numeric(known[name], f"label {name!r}", _meaning(roles), where)
    if roles.kind == "regression":
        return values
    allowed = len(roles.scores) if roles.kind == "multiclass" else 2
    found = np.unique(values)
    if not np.isin(found, np.arange(allowed)).all():
        wrong = int(np.flatnonzero(~np.isin(values, np.arange(allowed)))[0])
        raise InputError(
            f"label {name!r} holds {found[:5].tolist()}; a label is {_meaning(roles)}",
            where=f"{where}, row {wrong:,}",
        )
    if len(found) == 1:
        raise InputError(
            f"all {len(values):,} rows have label {int(found[0])} in {name!r}: nothing can be ranked",
            where=where,
            hint=_LABELS,
        )
    return values.astype(np.int64)


def _meaning(roles: _Roles) -> str:
    if roles.kind == "regression":
        return "a number"
    return "0 or 1" if roles.kind == "binary" else f"a class from 0 to {len(roles.scores) - 1}"


def _numeric(column: Any, what: str, meaning: str, where: str) -> Floats:
    kind = column.type
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise InputError(f"{what} has type {kind}; it is {meaning}", where=where)
    values: Floats = column.cast(pa.float64()).to_numpy().astype(np.float64)
    if missing := int((~np.isfinite(values)).sum()):
        raise InputError(f"{missing:,} of {len(values):,} values of {what} are not numbers", where=where)
    return values


def _numbers(known: Any, names: Sequence[str], where: str) -> Floats:
    """Read columns of floats, all finite, shape (rows, columns)."""
    columns = []
    for name in names:
        column = known[name]
        if not pa.types.is_floating(column.type):
            raise InputError(f"score {name!r} has type {column.type}; a score is a float", where=where)
        values: Floats = column.cast(pa.float64()).to_numpy()
        wrong = np.flatnonzero(~np.isfinite(values))
        if len(wrong):
            raise InputError(
                f"{len(wrong):,} of {len(values):,} scores in {name!r} are not numbers",
                where=f"{where}, first in row {int(wrong[0]):,}",
                hint="The training diverged, or an input is missing where the model cannot take it.",
            )
        columns.append(values)
    return np.stack(columns, axis=1)


def _scores(known: Any, roles: _Roles, label: NDArray[Any], where: str) -> Floats:
    scores = _numbers(known, roles.scores, where)
    low, high = float(scores.min()), float(scores.max())
    if roles.kind == "language_model" and low < 0:
        raise InputError(f"losses in {roles.scores[0]!r} begin at {low:.4g}; none is below 0", where=where)
    if roles.kind not in ("binary", "multiclass"):
        return scores
    if low < 0 or high > 1:
        wrong = int(np.flatnonzero(((scores < 0) | (scores > 1)).any(axis=1))[0])
        named = roles.scores[0] if len(roles.scores) == 1 else f"{roles.scores[0]} to {roles.scores[-1]}"
        raise InputError(
            f"scores in {named!r} lie in [{low:.4g}, {high:.4g}]; a score is a probability in [0, 1]",
            where=f"{where}, first in row {wrong:,}",
            hint="Write probabilities, not logits.",
        )
    total = scores.sum(axis=1)
    off = np.flatnonzero(np.abs(total - 1) > _SUM_TO_ONE)
    if roles.kind == "multiclass" and len(off):
        raise InputError(
            f"the scores of {len(off):,} of {len(label):,} rows do not add up to 1; the first to "
            f"{total[off[0]]:.4g}",
            where=f"{where}, row {int(off[0]):,}",
            hint="Write the probabilities of all classes.",
        )
    return scores


def _weight(known: Any, roles: _Roles, where: str) -> Floats | None:
    if not roles.weight:
        return None
    weight = _numeric(known[roles.weight], f"weight {roles.weight!r}", "a number of at least 0", where)
    if negative := int((weight < 0).sum()):
        raise InputError(
            f"{negative:,} of {len(weight):,} weights in {roles.weight!r} are negative; the smallest is "
            f"{weight.min():.4g}",
            where=f"{where}, first in row {int(np.flatnonzero(weight < 0)[0]):,}",
        )
    if not weight.sum() > 0:
        raise InputError(f"all weights in {roles.weight!r} are 0", where=where)
    return weight


def require_varied(predictions: Predictions) -> None:
    """Refuse scores of which every row has the same: they tell no row from another.

    Raises:
        InputError: They are all equal.
    """
    scores = predictions.scores
    if len(scores) > 1 and bool((scores == scores[0]).all()):
        raise InputError(
            f"all {len(scores):,} rows have the same scores {scores[0].tolist()}: nothing can be ranked",
            where="predictions",
            hint="The training did not learn, or every input was the same: look at the train step's report.",
        )

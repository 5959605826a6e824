"""Candidate and baseline on the same rows: joined by key, or not compared at all."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.errors import InputError
from trainwright.evaluate.predictions import Predictions

MIN_OVERLAP = 0.999
"""Smallest share of either model's rows that the other must have scored too."""

_WHERE = "baseline"
_AGAIN = "Let the baseline score the rows of the candidate: the step score does."


@dataclass(frozen=True)
class Pairs:
    """The rows that both models scored, in the candidate's order; without a baseline all of them.

    Attributes:
        candidate: What the candidate said of them.
        baseline: What the baseline said; None without one.
        unmatched: Rows of either that the other did not score.
    """

    candidate: Predictions
    baseline: Predictions | None = None
    unmatched: int = 0


def pair(candidate: Predictions, baseline: Predictions | None) -> Pairs:
    """Put two models' predictions of the same rows side by side.

    Raises:
        InputError: They are of different data, another kind, or rows without a key; too few rows are in
            both; or the same row has two labels.
    """
    if baseline is None:
        return Pairs(candidate)
    _require_comparable(candidate, baseline)
    if not candidate.key.type.equals(baseline.key.type):
        raise InputError(
            f"keys of type {baseline.key.type} cannot be matched with keys of type {candidate.key.type}",
            where=_WHERE,
        )
    place = pc.index_in(candidate.key.combine_chunks(), value_set=baseline.key.combine_chunks())
    matched = place.is_valid().to_numpy(zero_copy_only=False)
    both, most = int(matched.sum()), max(candidate.rows, baseline.rows)
    if both < MIN_OVERLAP * most:
        raise InputError(
            f"only {both:,} of {most:,} rows ({both / most:.2%}) were scored by both models; "
            f"{MIN_OVERLAP:.1%} are needed to compare them",
            where=_WHERE,
            hint=_AGAIN,
        )
    ours = take(candidate, np.flatnonzero(matched))
    theirs = take(baseline, place.drop_null().to_numpy().astype(np.int64))
    _require_same_labels(ours, theirs)
    theirs = replace(theirs, weight=ours.weight)  # it is the rows that have weights, not the models
    return Pairs(ours, theirs, candidate.rows + baseline.rows - 2 * both)


def _require_comparable(candidate: Predictions, baseline: Predictions) -> None:
    if candidate.kind != baseline.kind or candidate.scores.shape[1] != baseline.scores.shape[1]:
        raise InputError(
            f"the baseline predicts {_kind(baseline)}, the candidate {_kind(candidate)}", where=_WHERE
        )
    ours, theirs = candidate.snapshot.parents, baseline.snapshot.parents
    name = "training_set"
    if name in ours and name in theirs and ours[name] != theirs[name]:
        raise InputError(
            f"the baseline scored rows of data {theirs[name][:12]}, the candidate of {ours[name][:12]}; "
            "numbers of different data are never compared",
            where=_WHERE,
            hint=_AGAIN,
        )
    if candidate.key is None or baseline.key is None:
        raise InputError(
            "predictions without a key cannot be matched row by row",
            where=_WHERE,
            hint="Name the key: data.key, or the role key of the snapshot.",
        )


def _kind(predictions: Predictions) -> str:
    many = f" of {predictions.scores.shape[1]} classes" if predictions.kind == "multiclass" else ""
    return f"{predictions.kind}{many}"


def _require_same_labels(ours: Predictions, theirs: Predictions) -> None:
    what = "labels"
    differ = np.flatnonzero(ours.label != theirs.label)
    if ours.kind == "language_model":
        one, two = (np.ones(entry.rows) if entry.weight is None else entry.weight for entry in (ours, theirs))
        what, differ = "numbers of tokens", np.flatnonzero(one != two)
    if len(differ):
        first = int(differ[0])
        raise InputError(
            f"{len(differ):,} of {ours.rows:,} rows have other {what} in the baseline's predictions; "
            f"the first has key {ours.key[first].as_py()!r}",
            where=_WHERE,
            hint=_AGAIN,
        )


def take(predictions: Predictions, rows: NDArray[np.int64]) -> Predictions:
    """Return some rows of predictions, in the order given."""
    if len(rows) == predictions.rows and bool((rows == np.arange(len(rows))).all()):
        return predictions
    index = pa.array(rows)

    def taken(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value[rows]
        if isinstance(value, pa.ChunkedArray):
            return value.take(index)
        return {name: taken(column) for name, column in value.items()} if isinstance(value, dict) else value

    changed = ("label", "scores", "weight", "bounds", "key", "columns")
    parts = {entry.name: getattr(predictions, entry.name) for entry in fields(predictions)}
    return replace(predictions, **{name: taken(parts[name]) for name in changed})

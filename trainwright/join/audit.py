"""The leakage audit: every joined value is verified again, and a sample is joined again by another way."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.artifacts import TargetKind
from trainwright.documents import Document
from trainwright.experiment import JoinLimits
from trainwright.featurestore import View
from trainwright.join.history import NOTHING, AsOfResult, History, Ints, differing_rows

if TYPE_CHECKING:  # it imports Feast, which a training set without a service does not need
    from trainwright.join.reference import ReferenceValues

MIN_CLASS_ROWS = 30
"""With fewer rows of a class, a high score can be chance: it is ignored."""

MIN_VALUES, UNIQUE_SHARE = 100, 0.9
"""Text with so many values of which a larger share is different names the rows, and not groups of them."""

BIN_ROWS, MAX_BINS = 20, 50
"""Size and number of the bins of a numeric column that is scored against several classes."""

Floats: TypeAlias = NDArray[np.float64]

_SECOND_US = 1_000_000


def single_column_scores(
    rows: pa.Table, label: str, columns: list[str], kind: TargetKind = "binary"
) -> Mapping[str, float]:
    """Compute how well each column alone orders the labels, in either direction, in [0.5, 1].

    That is its AUC; of several classes the smallest AUC of one against the rest, over those with enough rows,
    because many honest columns separate one class from all others; of a number (1 + |rho|) / 2 with
    Spearman's rank correlation rho, which is on the same scale. A null counts as the lowest value.
    Categories, and of several classes also bins of numbers, are scored by the label's mean on every other
    row, and judged on the rest. Rows without a label are left out. Columns of other types, and labels that
    are all equal, give no score.
    """
    known = rows.filter(_labelled(rows[label]))
    truths = _truths(known[label].cast(pa.float64(), safe=False).to_numpy(), kind)
    scores = {}
    for name in columns:
        found = [
            _score(values, judged, kind)
            for values, judged in _ordered(known[name], truths, kind)
            if judged.size and judged.min() < judged.max()
        ]
        if found:
            scores[name] = min(found)
    return scores


def _labelled(label: pa.ChunkedArray) -> pa.ChunkedArray:
    """Tell which rows have a label: it is neither null nor NaN."""
    valid = label.is_valid()
    return pc.and_(valid, pc.invert(pc.is_nan(label))) if pa.types.is_floating(label.type) else valid


def _truths(label: Floats, kind: TargetKind) -> list[Floats]:
    """Return what a column is to order: the label, or each class with enough rows against the rest."""
    if kind != "multiclass":
        return [label]
    classes, rows = np.unique(label, return_counts=True)
    enough = np.minimum(rows, label.size - rows) >= MIN_CLASS_ROWS
    return [(label == each).astype(np.float64) for each in classes[enough]]


def _ordered(
    column: pa.ChunkedArray, truths: list[Floats], kind: TargetKind
) -> Iterator[tuple[Floats, Floats]]:
    """Yield the column as ranks, and the labels of the same rows, for each truth."""
    of = pa.types
    if of.is_string(column.type):
        codes = column.combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
        yield from ((_ranks(_category_means(codes, truth)), truth[1::2]) for truth in truths)
        return
    if of.is_temporal(column.type) and not of.is_duration(column.type):
        column = column.cast(pa.int32() if of.is_date32(column.type) else pa.int64())
    if any(check(column.type) for check in (of.is_integer, of.is_floating, of.is_boolean, of.is_decimal)):
        # Integers beyond 2^53 may equal their neighbours.
        values = pc.fill_null(column.cast(pa.float64(), safe=False), np.nan).to_numpy()
        ranks = _ranks(np.nan_to_num(values, nan=-np.inf))
        if kind == "multiclass":  # a class may lie between two others
            codes = _bins(ranks)
            yield from ((_ranks(_category_means(codes, truth)), truth[1::2]) for truth in truths)
        else:
            yield from ((ranks, truth) for truth in truths)


def _bins(ranks: Floats) -> Ints:
    """Number bins of about equally many rows, at least :data:`BIN_ROWS`; equal values share one."""
    count = min(max(ranks.size // BIN_ROWS, 2), MAX_BINS)
    edges = np.unique(np.quantile(ranks, np.linspace(0, 1, count + 1)[1:-1])) if ranks.size else ranks
    return np.searchsorted(edges, ranks, side="left")


def _category_means(codes: Ints, truth: Floats) -> Floats:
    """Return the label's mean over the even rows of the same category, for the odd rows."""
    size = int(codes.max(initial=0)) + 1
    count = np.bincount(codes[::2], minlength=size)
    totals = np.bincount(codes[::2], weights=truth[::2], minlength=size)
    overall = totals.sum() / max(count.sum(), 1)
    means: Floats = (totals + overall) / (count + 1)
    return means[codes[1::2]]


def _ranks(values: Floats) -> Floats:
    """Return the ranks from 1 on; equal values share the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(count) - (count - 1) / 2)[place]
    return ranks


def _score(ranks: Floats, truth: Floats, kind: TargetKind) -> float:
    """Return the AUC in either direction, or (1 + |rho|) / 2; ``truth`` holds different values."""
    if kind == "regression":
        if ranks.min() == ranks.max():
            return 0.5
        return (1 + abs(float(np.corrcoef(ranks, _ranks(truth))[0, 1]))) / 2
    positives = int(truth.sum())
    wins = ranks[truth == 1].sum() - positives * (positives + 1) / 2  # Mann-Whitney
    auc = float(wins / (positives * (truth.size - positives)))
    return max(auc, 1 - auc)


def scored_rows(rows: pa.Table, label: str, kind: TargetKind) -> tuple[int, ...]:
    """Count the rows of each class; of a number the rows that have one."""
    known = rows[label].filter(_labelled(rows[label]))
    if kind == "regression":
        return (len(known),)
    counts = np.bincount(known.cast(pa.int64()).to_numpy(), minlength=2)
    return tuple(int(count) for count in counts)


def missing_values(column: pa.ChunkedArray) -> int:
    """Count the rows without a value: null or NaN."""
    nan = pc.sum(pc.is_nan(column)).as_py() or 0 if pa.types.is_floating(column.type) else 0
    return int(column.null_count) + int(nan)


def nearly_unique(rows: pa.Table, columns: Iterable[str]) -> list[str]:
    """Return the text columns in which more than :data:`UNIQUE_SHARE` of the values are different."""
    found = []
    for name in columns:
        if name in rows.column_names and pa.types.is_string(rows[name].type):
            values = rows[name].drop_null()
            if len(values) >= MIN_VALUES and len(values.unique()) > UNIQUE_SHARE * len(values):
                found.append(name)
    return found


@dataclass
class ViewAudit:
    """Findings about one view, over all rows so far.

    On an engine, ``expired`` and ``held_back`` are estimated from the rows that are joined again. ``missing``
    counts the rows without a value (null or NaN) by feature; ``ages`` samples the ages of joined values.
    """

    view: View
    rows: int = 0
    matched: int = 0
    expired: int = 0
    held_back: int = 0
    leaks: int = 0
    differ: int = 0
    checked: int = 0
    unusable: int = 0
    example: str = ""
    missing: dict[str, int] = field(default_factory=dict)
    oldest_us: int = 0
    ages: list[Ints] = field(default_factory=list)

    def add(
        self, source: History, found: AsOfResult, rows: pa.Table, at: Ints, joined: pa.Table, every: int
    ) -> None:
        """Verify the joined values of a chunk of rows at times ``at``; sample one age in ``every``."""
        wrong = np.flatnonzero(source.wrong(found, rows, at))
        if wrong.size and not self.example:
            self.example = _example(rows, joined, int(wrong[0]))
        ages = source.ages(found, at)
        self.unusable = source.unusable
        self.rows += at.size
        self.matched += int((found.position != NOTHING).sum())
        self.expired += int(found.expired.sum())
        self.held_back += int(found.held_back.sum())
        self.leaks += wrong.size
        self.oldest_us = max(self.oldest_us, int(ages.max(initial=0)))
        self.ages.append(ages[::every].copy())
        for name, column in zip(joined.column_names, joined.columns, strict=True):
            self.missing[name] = self.missing.get(name, 0) + missing_values(column)

    def compare(self, again: "ReferenceValues", rows: pa.Table, joined: pa.Table) -> None:
        """Compare the values of some entity rows with those of the reference join."""
        if again.found is not None:  # the engine does not report this for all rows
            self.expired = round(float(again.found.expired.mean()) * self.rows)
            self.held_back = round(float(again.found.held_back.mean()) * self.rows)
        differ = np.flatnonzero(differing_rows(again.values, joined))
        self.checked, self.differ = rows.num_rows, differ.size
        if differ.size and not self.example:
            place = int(differ[0])
            other = again.values.slice(place, 1).to_pylist()[0]
            self.example = f"{_example(rows, joined, place)}, {again.by} gives {other}"

    def figures(self) -> "ViewFigures":
        """Return the figures: shares of all rows, and ages in seconds."""
        rows = max(self.rows, 1)
        ages = np.concatenate([np.empty(0, np.int64), *self.ages])
        return ViewFigures(
            view=self.view.name,
            matched_share=self.matched / rows,
            expired_share=self.expired / rows,
            held_back_share=self.held_back / rows,
            held_back_rows=self.held_back,
            created_known=bool(self.view.created),
            leaks=self.leaks,
            checked_by_feast=self.checked,
            differing_from_feast=self.differ,
            median_age_s=float(np.median(ages)) / _SECOND_US if ages.size else 0.0,
            max_age_s=self.oldest_us / _SECOND_US,
            unusable_rows=self.unusable,
        )


def _example(rows: pa.Table, joined: pa.Table, place: int) -> str:
    """Format a row and its values; the first column of the rows is their key."""
    return f"{rows.column(0)[place]} has {joined.slice(place, 1).to_pylist()[0]}"


@dataclass(frozen=True, kw_only=True)
class ViewFigures:
    """Figures of one view.

    Attributes:
        view: Its name.
        matched_share: Share of rows that got a value row.
        expired_share: Share of rows whose newest known value was older than the TTL.
        held_back_share: Share of rows for which a newer value was created only after the row's time.
        held_back_rows: Their number.
        created_known: False without creation times: then the two above prove nothing.
        leaks: Rows with a value of another key, of a later time, created later, or past its TTL.
        checked_by_feast: Rows that Feast joined again.
        differing_from_feast: Those of them with another value.
        median_age_s: Median age of the joined values, of a sample where there are many.
        max_age_s: Largest age of a joined value.
        unusable_rows: Rows of the view's files without a key or a creation time; 0 on an engine.
    """

    view: str
    matched_share: float
    expired_share: float
    held_back_share: float
    held_back_rows: int
    created_known: bool
    leaks: int
    checked_by_feast: int
    differing_from_feast: int
    median_age_s: float
    max_age_s: float
    unusable_rows: int = 0


@dataclass(frozen=True, kw_only=True)
class FeatureFigures:
    """Figures of one column that a model may read; a column of the rows themselves has no view.

    ``auc`` says how well the column alone orders the labels (see :func:`single_column_scores`), in [0.5, 1];
    0 without a score.
    """

    column: str
    view: str
    missing_share: float
    auc: float


@dataclass(frozen=True, kw_only=True)
class Audit(Document):
    """The audit's result; written before anything is rejected.

    ``scored_on`` is the scored split, empty if the rows have no label; ``scored_rows`` are those of each
    class, or all with a number. Without a feature service, ``service`` is empty and there are no views.
    ``refusals`` are the limits that do not hold.
    """

    FILE: ClassVar[str] = "audit.json"
    rows: int
    views: tuple[ViewFigures, ...]
    columns: tuple[FeatureFigures, ...]
    scored_on: str
    scored_rows: tuple[int, ...]
    service: str
    view_digests: dict[str, str]
    refusals: tuple[str, ...] = ()

    @property
    def leaks(self) -> int:
        """Wrong values of all views."""
        return sum(view.leaks + view.differing_from_feast for view in self.views)

    @property
    def unproven(self) -> list[str]:
        """Views without creation times."""
        return [view.view for view in self.views if not view.created_known]

    def figures(self) -> dict[str, float]:
        """Return all figures by name, for the snapshot's quality."""
        found: dict[str, float] = {}
        for view in self.views:
            named = {name: value for name, value in vars(view).items() if name != "view"}
            found |= {f"{name}.{view.view}": round(float(value), 6) for name, value in named.items()}
        for column in self.columns:
            if column.view or column.missing_share:
                found[f"missing_share.{column.column}"] = round(column.missing_share, 6)
            if column.auc:
                found[f"auc.{column.column}"] = round(column.auc, 6)
        return found


def column_figures(
    views: Mapping[str, ViewAudit], missing: Mapping[str, int], rows: int, scores: Mapping[str, float]
) -> tuple[FeatureFigures, ...]:
    """Return the figures of every carried column and feature; ``missing`` counts those of carried columns."""
    shares = [(name, "", count / max(rows, 1)) for name, count in missing.items()]
    for view, audit in views.items():
        shares += [(name, view, count / max(audit.rows, 1)) for name, count in audit.missing.items()]
    return tuple(
        FeatureFigures(column=name, view=view, missing_share=share, auc=scores.get(name, 0.0))
        for name, view, share in shares
    )


def refusals(audit: Audit, limits: JoinLimits, kind: TargetKind) -> Iterator[str]:
    """Yield a line for every limit that does not hold, with the figure and the limit."""
    for view in audit.views:
        name = view.view
        most, oldest = limits.max_expired.get(name), limits.max_age_s.get(name)
        if most is not None and view.expired_share > most:
            yield f"view {name}: newest value past its TTL in {view.expired_share:.2%} of rows > {most:.2%}"
        if oldest is not None and view.max_age_s > oldest:
            yield f"view {name}: oldest joined value {view.max_age_s:,.0f} s > {oldest:,.0f} s"
    for column in audit.columns:
        name, key = column.column, "max_missing"
        share = limits.max_missing.get(name)
        if share is None and column.view:
            share, key = limits.max_missing_default, "max_missing_default"
        if share is not None and column.missing_share > share:
            yield (
                f"{name}: no value in {column.missing_share:.2%} of the rows > {key} {share:.2%}; if that is "
                f"right, set features.limits.max_missing: {{{name}: {_next_percent(column.missing_share)}}}"
            )
    for name, score in suspicious(audit, limits, kind).items():
        shown, limit = displayed(score, kind), displayed(limits.max_single_feature_auc, kind)
        measure = MEASURES[kind]
        yield f"{name}: alone orders the labels of {audit.scored_on} with {measure} {shown:.4f} > {limit:g}"


def _next_percent(share: float) -> float:
    """Return a limit just above a share."""
    return min(math.floor(share * 100 + 1) / 100, 1.0)


MEASURES: Mapping[TargetKind, str] = {
    "binary": "AUC",
    "multiclass": "AUC",
    "regression": "rank correlation",
}
"""Name of the score of a single column, by the kind of target."""


def displayed(score: float, kind: TargetKind) -> float:
    """Return a score, or the limit of it, as it is shown: an AUC, or the size of a rank correlation."""
    return round(2 * score - 1, 12) if kind == "regression" else score


def suspicious(audit: Audit, limits: JoinLimits, kind: TargetKind) -> dict[str, float]:
    """Return the score of the columns that alone predict the label too well, if enough rows were scored.

    Of several classes, only those with enough rows were scored.
    """
    rows = audit.scored_rows
    if kind != "multiclass" and min(rows, default=0) < MIN_CLASS_ROWS:
        return {}
    most = limits.max_single_feature_auc
    return {column.column: column.auc for column in audit.columns if column.auc > most}

"""The leakage audit: every joined value is found again by another road and compared."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.featurestore import View
from trainwright.join.asof import NOTHING, Found, Ints
from trainwright.join.source import Source, differing_rows

SUSPICIOUS_AUC = 0.99
"""A column that alone orders the labels this well usually knows the answer."""

_HOUR_US = 3_600_000_000


@dataclass
class ViewAudit:
    """What was found about one view, over all rows looked at so far.

    Attributes:
        view: The view.
        rows: Rows joined.
        matched: Rows that got a value row.
        expired: Rows whose newest known value was older than the view's TTL.
        held_back: Rows for which a newer value existed, but was created only later.
        leaks: Rows that hold another value than the newest known one.
        example: The first of them, as text; empty if there is none.
        oldest_us: Largest age of a joined value, in microseconds.
        total_us: Sum of the ages.
    """

    view: View
    rows: int = 0
    matched: int = 0
    expired: int = 0
    held_back: int = 0
    leaks: int = 0
    example: str = ""
    oldest_us: int = 0
    total_us: float = 0.0

    def add(self, source: Source, found: Found, at: Ints, joined: pa.Table, names: pa.ChunkedArray) -> None:
        """Compare what was joined with what was found in the view's files.

        Args:
            source: The view's rows.
            found: Which of them was the newest known one for each row; shape (rows,).
            at: The rows' times in microseconds.
            joined: What was joined to the rows, of the same length.
            names: The rows' keys, for the example.
        """
        matched = found.position != NOTHING
        expected = source.values.take(pa.array(found.position, mask=~matched))
        leaked = np.flatnonzero(differing_rows(expected, joined))
        if leaked.size and not self.leaks:
            place = int(leaked[0])
            self.example = (
                f"{names[place]} has {joined.slice(place, 1).to_pylist()[0]}, "
                f"known was {expected.slice(place, 1).to_pylist()[0]}"
            )
        ages = at[matched] - source.event[found.position[matched]]
        self.rows += at.size
        self.matched += int(matched.sum())
        self.expired += int(found.expired.sum())
        self.held_back += int(found.held_back.sum())
        self.leaks += leaked.size
        self.oldest_us = max(self.oldest_us, int(ages.max(initial=0)))
        self.total_us += float(ages.sum())

    def figures(self) -> dict[str, float]:
        """Return the figures by name, shares of all rows and ages in hours."""
        rows = max(self.rows, 1)
        return {
            "matched_share": self.matched / rows,
            "expired_share": self.expired / rows,
            "held_back_share": self.held_back / rows,
            "leaks": float(self.leaks),
            "mean_age_h": self.total_us / max(self.matched, 1) / _HOUR_US,
            "oldest_age_h": self.oldest_us / _HOUR_US,
        }


@dataclass(frozen=True)
class Audit:
    """What the audit found.

    Attributes:
        views: One a view.
        scores: AUC of each column alone, by name; columns that cannot be scored are missing.
        scored_on: The split that the scores were taken on; empty if the rows have no label.
    """

    views: tuple[ViewAudit, ...]
    scores: Mapping[str, float]
    scored_on: str

    @property
    def leaks(self) -> int:
        """Joined values that are not the newest known ones, over all views."""
        return sum(view.leaks for view in self.views)

    @property
    def unproven(self) -> list[str]:
        """Views whose rows do not say since when they are known."""
        return [view.view.name for view in self.views if not view.view.created]

    @property
    def suspicious(self) -> dict[str, float]:
        """Columns that alone predict the label too well."""
        return {name: auc for name, auc in self.scores.items() if auc > SUSPICIOUS_AUC}

    def figures(self) -> dict[str, float]:
        """Return all figures by name, for the snapshot's quality."""
        found = {f"auc.{name}": round(auc, 6) for name, auc in self.scores.items()}
        for audit in self.views:
            found |= {f"{name}.{audit.view.name}": round(value, 6) for name, value in audit.figures().items()}
        return found


def single_column_scores(rows: pa.Table, label: str, columns: list[str]) -> Mapping[str, float]:
    """Measure how well each column alone orders the labels: its AUC, whichever way round.

    A null counts as the lowest value. Categories are scored by the label's mean on every other row, and
    judged on the rest. Columns of other types, and labels of one kind only, give no score.

    Args:
        rows: Rows with the label, 0 or 1, and the columns.
        label: The label's column; rows without it are left out.
        columns: The columns to score.

    Returns:
        AUC in [0.5, 1] by column.
    """
    known = rows.filter(rows[label].is_valid())
    truth = known[label].cast(pa.int64()).to_numpy()
    scores = {}
    for name in columns:
        column = known[name]
        if pa.types.is_string(column.type):
            values, judged = _category_means(column, truth)
        elif (
            pa.types.is_integer(column.type)
            or pa.types.is_floating(column.type)
            or pa.types.is_boolean(column.type)
        ):
            values, judged = np.nan_to_num(_numbers(column), nan=-np.inf), truth
        else:
            continue
        if 0 < judged.sum() < judged.size:
            auc = _auc(values, judged)
            scores[name] = max(auc, 1 - auc)
    return scores


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    numbers: NDArray[np.float64] = pc.fill_null(column.cast(pa.float64()), np.nan).to_numpy()
    return numbers


def _category_means(
    column: pa.ChunkedArray, truth: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    codes = column.combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
    size = int(codes.max(initial=0)) + 1
    count = np.bincount(codes[::2], minlength=size)
    positives = np.bincount(codes[::2], weights=truth[::2], minlength=size)
    overall = positives.sum() / max(count.sum(), 1)
    means = (positives + overall) / (count + 1)
    return means[codes[1::2]], truth[1::2]


def _auc(score: NDArray[np.float64], truth: NDArray[np.int64]) -> float:
    """Area under the ROC curve from midranks (Mann-Whitney); ``truth`` holds both 0 and 1."""
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    midrank = np.cumsum(count) - (count - 1) / 2
    positives = int(truth.sum())
    wins = midrank[place][truth == 1].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * (truth.size - positives)))

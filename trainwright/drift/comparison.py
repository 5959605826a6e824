"""Distances between two samples of every column, and the decision which of them are more than chance."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainwright.drift.findings import (
    JENSEN_SHANNON,
    L_INFINITY,
    MEASURES,
    TOO_FEW,
    Against,
    DataFinding,
    Limit,
)
from trainwright.drift.null_distribution import (
    NoChance,
    NullDistribution,
    divergence_terms,
    of_bins,
    of_divergence,
    of_largest_share,
    of_share,
    of_unseen,
)
from trainwright.verdicts import NotJudged

Cuts: TypeAlias = NDArray[np.float64]
"""Where a numeric column is cut into bins."""

Counts: TypeAlias = NDArray[np.int64]
"""Rows by bin."""


class SampleCounts(Protocol):
    """The rows of one split, counted column by column."""

    @property
    def split(self) -> str:
        """Its name."""

    @property
    def rows(self) -> int:
        """The number of its rows."""

    @property
    def counts(self) -> Mapping[str, Counts]:
        """The rows by bin of numeric columns."""

    def missing(self, column: str) -> int:
        """Return the rows in which a column has no value."""

    def values(self, column: str) -> dict[str, float]:
        """Return the rows by value of a column whose values were counted; empty if they were not."""

    def uncounted(self, column: str) -> str:
        """Return why the counts of a column's values are incomplete; empty if they are complete."""


def edges(cuts: Cuts) -> list[float]:
    """Return the bounds of the bins, shape (bins + 1,), for drawing; the outer ones are infinite."""
    first = float(np.nextafter(cuts[0], np.inf))  # cuts[0] lies just below the smallest value
    return [-math.inf, first, *(float(cut) for cut in cuts[1:]), math.inf]


S_co = TypeVar("S_co", bound=SampleCounts, covariant=True)


@dataclass(frozen=True)
class SamplePair(Generic[S_co]):
    """Two samples that are compared; their counts are in the same bins, those of ``cuts``."""

    against: Against
    current: S_co
    reference: S_co
    cuts: Mapping[str, Cuts] = field(default_factory=dict)


@dataclass(frozen=True)
class ColumnCounts:
    """Rows of one column in both samples: by value, or by bin between ``bounds``; the other is empty."""

    values: Sequence[str]
    bounds: Sequence[float]
    current: Sequence[float]
    previous: Sequence[float]

    def shares(self) -> list[tuple[str, float, float]]:
        """Return the name of each value or bin, and its share of both samples."""
        names = list(self.values)
        if self.bounds and not names:
            inner = [f"{a:g} to {b:g}" for a, b in zip(self.bounds[1:-2], self.bounds[2:-1], strict=True)]
            names = [f"less than {self.bounds[1]:g}", *inner, f"more than {self.bounds[-2]:g}"]
        now, before = sum(self.current) or 1, sum(self.previous) or 1
        pairs = zip(names, self.current, self.previous, strict=True)
        return [(name, a / now, b / before) for name, a, b in pairs]

    def plotted(self, most: int) -> "ColumnCounts":
        """Return what to plot: the commonest values with the others together, or the bins that are not empty.

        Whole numbers are put in their order, if there are few enough to show them all.
        """
        if self.bounds:
            first = 0 if self.current[0] or self.previous[0] else 1
            last = len(self.current) - (0 if self.current[-1] or self.previous[-1] else 1)
            kept = slice(first, last)
            return ColumnCounts((), self.bounds[first : last + 1], self.current[kept], self.previous[kept])
        if (others := len(self.values) - (most - 1)) > 1:
            values = (*self.values[: most - 1], f"{others} others")
            counts = ((*rows[: most - 1], sum(rows[most - 1 :])) for rows in (self.current, self.previous))
            return ColumnCounts(values, (), *counts)
        if all(value.lstrip("-").isdecimal() for value in self.values):
            rows = sorted(zip(self.values, self.current, self.previous, strict=True), key=lambda x: int(x[0]))
            return ColumnCounts([x[0] for x in rows], (), [x[1] for x in rows], [x[2] for x in rows])
        return self


def column_counts(column: str, pair: SamplePair[SampleCounts]) -> ColumnCounts:
    """Return the counts of both samples in a column; values come in the order of their larger share."""
    current, reference = pair.current, pair.reference
    if column in pair.cuts and column in current.counts and column in reference.counts:
        now, then = ([float(rows) for rows in profile.counts[column]] for profile in (current, reference))
        return ColumnCounts((), edges(pair.cuts[column]), now, then)
    after, before = current.values(column), reference.values(column)
    now_total, before_total = sum(after.values()) or 1, sum(before.values()) or 1

    def order(name: str) -> tuple[float, str]:
        return -max(after.get(name, 0) / now_total, before.get(name, 0) / before_total), name

    names = sorted(after | before, key=order)
    counts = ([rows.get(name, 0.0) for name in names] for rows in (after, before))
    return ColumnCounts(names, (), *counts)


_DIGITS = 10

MISSING, UNSEEN = "missing share", "new values"
"""The measures beside the distances: how many rows have no value, and how many one never seen before."""

KINDS = {
    MEASURES[JENSEN_SHANNON]: "COMPARATOR_JENSEN_SHANNON_DIVERGENCE_HIGH",
    MEASURES[L_INFINITY]: "COMPARATOR_L_INFTY_HIGH",
    MISSING: "MISSING_SHARE_HIGH",
    UNSEEN: "NEW_VALUES_HIGH",
}
"""The kind of finding of a measure that is beyond its limit."""

_GROUPS = {MISSING: "missing", UNSEEN: "new"}
_SUFFIXES = {MISSING: ", missing", UNSEEN: ", new values"}
_PREFIXES: dict[Against, str] = {"baseline": "baseline/", "serving": "serving/"}


@dataclass(frozen=True)
class ColumnComparison:
    """One distance between two samples of a column.

    Attributes:
        measure: Name of the distance.
        value: The distance, a fraction in [0, 1].
        chance: Its distribution when nothing has moved.
        rows: Rows of both samples.
        floor: What chance alone stays below, at these numbers of rows and this many comparisons; set by
            :func:`decide`.
    """

    column: str
    measure: str
    against: Against
    value: float
    limit: float
    chance: NullDistribution
    rows: tuple[int, int]
    floor: float = 0.0

    @property
    def name(self) -> str:
        """The column, and the measure if it is not the distribution."""
        return self.column + _SUFFIXES.get(self.measure, "")

    @property
    def rule(self) -> str:
        """Its name among the rules of the verdict, such as ``drift/hour`` or ``baseline/missing/hour``."""
        return rule_name(self.column, self.measure, self.against)

    @property
    def is_distance(self) -> bool:
        """True for a distance of two distributions, false for one of two shares of rows."""
        return self.measure not in _GROUPS

    @property
    def effective(self) -> float:
        """The limit that is applied: never below what chance alone reaches."""
        return max(self.limit, self.floor)

    @property
    def moved(self) -> bool:
        """True if the value is above the applied limit."""
        return self.value > self.effective

    @property
    def is_undecided(self) -> bool:
        """True if the rows are too few to tell: above the configured limit, and within what chance reaches.

        At a limit of 0 chance alone decides.
        """
        return 0 < self.limit < self.value <= self.floor

    @property
    def rows_needed(self) -> int:
        """Rows with which chance would stay below the limit, two digits; 0 where that is not known.

        The reference grows in proportion. A divergence of two samples falls with their rows, a difference of
        shares with the square root of them. New values follow no such law.
        """
        if not self.is_undecided or self.measure == UNSEEN:
            return 0
        power = 1 if self.measure == MEASURES[JENSEN_SHANNON] else 2
        rows: float = self.rows[0] * (self.floor / self.limit) ** power
        unit = 10.0 ** max(0, int(math.log10(rows)) - 1)
        return int(math.ceil(rows / unit) * unit)

    @property
    def ratio(self) -> float:
        """The value as a share of the applied limit."""
        if self.effective:
            return self.value / self.effective
        return math.inf if self.value else 0.0

    def written(self, digits: int) -> tuple[str, str]:
        """Write the value and the applied limit, with as many digits as it takes to tell them apart."""
        pairs = ((f"{self.value:.{n}f}", f"{self.effective:.{n}f}") for n in range(digits, _DIGITS))
        exact = (repr(self.value), repr(self.effective))
        return next((pair for pair in pairs if pair[0] != pair[1] or self.value == self.effective), exact)

    def finding(self) -> DataFinding:
        """Return the finding for a comparison beyond its limit."""
        value, limit = self.written(4)
        return DataFinding(
            column=self.column,
            kind=KINDS[self.measure],
            against=self.against,
            rule=self.rule,
            what=f"{self.name} moved by {value} ({self.measure}) against {self.against}, limit {limit}",
        )

    def too_few_rows(self) -> DataFinding:
        """Return the finding for a comparison that the rows cannot decide."""
        value, limit = f"{self.value:.4f}", f"{self.limit:g}"
        needed = f"; about {self.rows_needed:,} rows would tell" if self.rows_needed else ""
        return DataFinding(
            column=self.column,
            kind="TOO_FEW_ROWS",
            against=self.against,
            rule=self.rule,
            what=f"{self.name}: {TOO_FEW} whether {value} ({self.measure}) against {self.against} "
            f"is more than chance, which reaches {self.floor:.4f}; limit {limit}, {self.rows[0]:,} rows "
            f"against {self.rows[1]:,}{needed}",
        )

    def not_judged(self) -> NotJudged:
        """Return what the verdict says of a comparison that the rows cannot decide."""
        reason = f"{TOO_FEW}: {self.rows[0]:,} against {self.rows[1]:,}"
        return NotJudged(name=self.rule, reason=reason, needed=self.rows_needed)


def rule_name(column: str, measure: str, against: Against) -> str:
    """Name a comparison as the verdict does."""
    return f"{_PREFIXES.get(against, '')}{_GROUPS.get(measure, 'drift')}/{column}"


def decide(measured: Sequence[ColumnComparison], rate: float) -> tuple[ColumnComparison, ...]:
    """Judge all distances of a run together, so that chance raises any false alarm at most this often.

    Holm's step-down procedure (Scandinavian Journal of Statistics 6, 1979): the least probable distance is
    held to ``rate`` shared by all, the next to ``rate`` shared by all but one, and so on until one could be
    chance; so are then all that are more probable. It bounds the chance of any false alarm however the
    columns depend on each other, as sharing the rate evenly does, and finds at least as much. What a
    distance is held to is its floor.

    Distances that chance cannot move, such as the missing values of a column that has none on either side,
    raise no false alarm and take no part of the rate (Tarone, Biometrics 46, 1990).
    """
    tails = [entry.chance.tail(entry.value) for entry in measured]
    open_to_chance = [place for place, entry in enumerate(measured) if not isinstance(entry.chance, NoChance)]
    levels = [rate] * len(measured)
    stopped: float | None = None
    for rank, place in enumerate(sorted(open_to_chance, key=lambda index: tails[index])):
        level = stopped or rate / (len(open_to_chance) - rank)
        levels[place] = level
        if stopped is None and tails[place] > level:
            stopped = level
    return tuple(
        replace(entry, floor=entry.chance.floor(level)) for entry, level in zip(measured, levels, strict=True)
    )


@dataclass(frozen=True)
class Drift:
    """The outcome of a comparison of two samples; ``account`` is TFDV's own (``Anomalies``)."""

    measured: tuple[ColumnComparison, ...]
    not_judged: tuple[NotJudged, ...] = ()
    account: Any = None


def obstacle(limit: Limit, pair: SamplePair[SampleCounts]) -> str:
    """Return why two samples cannot be compared in a column; empty if they can."""
    if limit.kind in ("text", "nested"):
        if limit.kind == "text":
            return "it is text, as the schema says: its values are not counted"
        return "it is a struct, as the schema says; put it under validation.ignore"
    for profile in (pair.reference, pair.current):
        if limit.kind == "numbers" and not sum(profile.counts.get(limit.column, ())):
            return f"no numbers of it in split {profile.split}"
        if limit.kind == "categories" and (reason := profile.uncounted(limit.column)):
            return reason
    return ""


def compared(
    column: str, name: str, pair: SamplePair[SampleCounts], value: float, limit: float, rows: ColumnCounts
) -> ColumnComparison:
    """Put a measured distance beside what chance alone reaches with these counts."""
    if name == UNSEEN:
        chance = of_unseen(rows.current, rows.previous)
    elif name == MEASURES[L_INFINITY]:
        chance = of_largest_share(rows.current, rows.previous)
    elif rows.bounds:
        chance = of_bins(sum(rows.current), rows.previous)
    else:
        chance = of_divergence(rows.current, rows.previous)
    counts = (int(sum(rows.current)), int(sum(rows.previous)))
    return ColumnComparison(column, name, pair.against, value, limit, chance, counts)


def measure_counts(pair: SamplePair[SampleCounts], limits: Sequence[Limit]) -> Drift:
    """Measure how far the distributions moved, by the counts; every limit ends measured or not judged."""
    measured, not_judged = [], []
    for limit in limits:
        name = MEASURES[limit.comparator]
        if reason := obstacle(limit, pair):
            rule = rule_name(limit.column, name, pair.against)
            not_judged.append(NotJudged(name=rule, reason=reason))
            continue
        rows = column_counts(limit.column, pair)
        p, q = (np.asarray(counts, np.float64) / sum(counts) for counts in (rows.current, rows.previous))
        distance = divergence_terms(p, q).sum() if limit.comparator == JENSEN_SHANNON else abs(p - q).max()
        measured.append(compared(limit.column, name, pair, float(distance), limit.threshold, rows))
    return Drift(tuple(measured), tuple(not_judged))


def measure_missing(pair: SamplePair[SampleCounts], columns: Sequence[str], *, threshold: float) -> Drift:
    """Measure how far the share of rows without a value moved; TFDV leaves such rows out."""
    rows = (pair.current.rows, pair.reference.rows)
    measured = []
    for column in columns:
        missing = (pair.current.missing(column), pair.reference.missing(column))
        value = abs(missing[0] / rows[0] - missing[1] / rows[1])
        chance = of_share(missing, rows)
        measured.append(ColumnComparison(column, MISSING, pair.against, value, threshold, chance, rows))
    return Drift(tuple(measured))


def measure_unseen(pair: SamplePair[SampleCounts], limits: Sequence[Limit], *, threshold: float) -> Drift:
    """Measure the share of rows whose value the reference never had; numbers and text have none to count."""
    measured, not_judged = [], []
    for limit in (limit for limit in limits if limit.kind == "categories"):
        if reason := obstacle(limit, pair):
            name = rule_name(limit.column, UNSEEN, pair.against)
            not_judged.append(NotJudged(name=name, reason=reason))
            continue
        rows = column_counts(limit.column, pair)
        unseen = sum(now for now, before in zip(rows.current, rows.previous, strict=True) if not before)
        value = unseen / sum(rows.current)
        measured.append(compared(limit.column, UNSEEN, pair, value, threshold, rows))
    return Drift(tuple(measured), tuple(not_judged))

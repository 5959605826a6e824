"""Compare two samples of every column, and decide which distances are more than chance.

TFDV measures. A comparison that yields no number, or whose counts are not complete, is reported as not
judged; TFDV would pass over it in silence.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainwright.validate.columns import Cuts, edges, with_bins
from trainwright.validate.null_distribution import (
    NoChance,
    NullDistribution,
    of_bins,
    of_divergence,
    of_largest_share,
    of_share,
    of_unseen,
)
from trainwright.validate.policy import (
    JENSEN_SHANNON,
    L_INFINITY,
    MEASURES,
    Against,
    DataFinding,
    Limit,
)
from trainwright.validate.profile import Profile
from trainwright.validate.schema import environment
from trainwright.validate.tfdv import anomalies_pb2, schema_pb2, tfdv
from trainwright.verdicts import NotJudged


@dataclass(frozen=True)
class SamplePair:
    """Two samples that are compared.

    Attributes:
        current: The sample that is judged; its counts are in the bins of ``cuts``.
        reference: The sample it is compared with; its counts are in the same bins.
    """

    against: Against
    current: Profile
    reference: Profile
    cuts: Mapping[str, Cuts] = field(default_factory=dict)
    known: dict[str, "ColumnCounts"] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class ColumnCounts:
    """One column in both samples.

    Attributes:
        values: The values, if they were counted one by one; else empty.
        bounds: The bounds of the bins, one more than there are bins; empty if values were counted.
    """

    values: Sequence[str]
    bounds: Sequence[float]
    current: Sequence[float]
    previous: Sequence[float]

    def shares(self) -> list[tuple[str, float, float]]:
        """Return the name of each value or bin, and its share of both samples."""
        now, before = sum(self.current) or 1, sum(self.previous) or 1
        pairs = zip(self.names(), self.current, self.previous, strict=True)
        return [(name, a / now, b / before) for name, a, b in pairs]

    def names(self) -> list[str]:
        """Return what to call each value or bin."""
        if self.values or not self.bounds:
            return list(self.values)
        low, high = self.bounds[1], self.bounds[-2]
        inner = [f"{a:g} to {b:g}" for a, b in zip(self.bounds[1:-2], self.bounds[2:-1], strict=True)]
        return [f"less than {low:g}", *inner, f"more than {high:g}"]

    def drawn(self, most: int) -> "ColumnCounts":
        """Return what to draw: the commonest values with the others together, or the bins that are not empty.

        Values that are whole numbers are put in their order, if there are few enough to show them all.

        Args:
            most: Values to show, at least 2.
        """
        if self.bounds:
            first = 0 if self.current[0] or self.previous[0] else 1
            last = len(self.current) - (0 if self.current[-1] or self.previous[-1] else 1)
            kept = slice(first, last)
            return ColumnCounts((), self.bounds[first : last + 1], self.current[kept], self.previous[kept])
        if len(self.values) > most:
            return self._with_others(most - 1)
        if all(value.lstrip("-").isdecimal() for value in self.values):
            return self._ordered(sorted(range(len(self.values)), key=lambda place: int(self.values[place])))
        return self

    def _with_others(self, kept: int) -> "ColumnCounts":
        return ColumnCounts(
            (*self.values[:kept], f"{len(self.values) - kept} others"),
            (),
            (*self.current[:kept], sum(self.current[kept:])),
            (*self.previous[:kept], sum(self.previous[kept:])),
        )

    def _ordered(self, places: Sequence[int]) -> "ColumnCounts":
        columns = (self.values, self.current, self.previous)
        values, now, before = ([column[place] for place in places] for column in columns)
        return ColumnCounts(values, (), now, before)  # type: ignore[arg-type]


def column_counts(column: str, pair: SamplePair) -> ColumnCounts:
    """Put together what both samples hold in a column; values come in the order of their larger share."""
    if column not in pair.known:
        pair.known[column] = _put_together(column, pair)
    return pair.known[column]


def _put_together(column: str, pair: SamplePair) -> ColumnCounts:
    current, reference = pair.current, pair.reference
    if column in pair.cuts and column in current.counts and column in reference.counts:
        now, then = ([float(rows) for rows in profile.counts[column]] for profile in (current, reference))
        return ColumnCounts((), edges(pair.cuts[column]), now, then)
    after, before = current.values(column), reference.values(column)
    now_total, before_total = sum(after.values()) or 1, sum(before.values()) or 1
    most = {
        name: max(after.get(name, 0) / now_total, before.get(name, 0) / before_total)
        for name in after | before
    }
    names = sorted(most, key=lambda name: (-most[name], name))
    return ColumnCounts(
        names, (), [after.get(name, 0.0) for name in names], [before.get(name, 0.0) for name in names]
    )


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
class Distance:
    """One distance between two samples of a column.

    Attributes:
        measure: Name of the distance.
        value: The distance, a fraction in [0, 1].
    """

    column: str
    measure: str
    against: Against
    value: float
    limit: float
    chance: NullDistribution
    rows: tuple[int, int]


@dataclass(frozen=True)
class ColumnComparison:
    """One distance that was judged.

    Attributes:
        measure: Name of the distance.
        value: The distance, a fraction in [0, 1].
        floor: What chance alone stays below, at these numbers of rows and this many comparisons.
        probability: How probable a distance this large is when nothing has moved; for this column alone.
    """

    column: str
    measure: str
    value: float
    limit: float
    floor: float
    rows: tuple[int, int]
    against: Against = "previous"
    probability: float = 1.0

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
    def ratio(self) -> float:
        """The value as a share of the applied limit."""
        if self.effective:
            return self.value / self.effective
        return math.inf if self.value else 0.0

    def written(self, digits: int) -> tuple[str, str]:
        """Write the value and the applied limit, with as many digits as it takes to tell them apart.

        Args:
            digits: Digits after the point, at least.
        """
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


def rule_name(column: str, measure: str, against: Against) -> str:
    """Name a comparison as the verdict does."""
    return f"{_PREFIXES.get(against, '')}{_GROUPS.get(measure, 'drift')}/{column}"


def decide(measured: Sequence[Distance], rate: float) -> tuple[ColumnComparison, ...]:
    """Judge all distances of a run together, so that chance raises any false alarm at most this often.

    Holm's step-down procedure (Scandinavian Journal of Statistics 6, 1979): the least probable distance is
    held to ``rate`` shared by all, the next to ``rate`` shared by all but one, and so on until one could be
    chance; so are then all that are more probable. It bounds the chance of any false alarm however the
    columns depend on each other, as sharing the rate evenly does, and finds at least as much. What a
    distance is held to is its floor.

    Distances that chance cannot move, such as the missing values of a column that has none on either side,
    raise no false alarm and take no part of the rate (Tarone, Biometrics 46, 1990).

    Args:
        rate: Accepted chance of one or more false alarms among them, in (0, 1).
    """
    tails = [entry.chance.tail(entry.value) for entry in measured]
    open_to_chance = [place for place, entry in enumerate(measured) if not isinstance(entry.chance, NoChance)]
    levels = [rate] * len(measured)
    for place, level in zip(open_to_chance, _levels([tails[x] for x in open_to_chance], rate), strict=True):
        levels[place] = level
    return tuple(
        ColumnComparison(
            column=entry.column,
            measure=entry.measure,
            against=entry.against,
            value=entry.value,
            limit=entry.limit,
            floor=entry.chance.floor(level),
            probability=tail,
            rows=entry.rows,
        )
        for entry, tail, level in zip(measured, tails, levels, strict=True)
    )


def _levels(tails: Sequence[float], rate: float) -> list[float]:
    """Return the level that Holm's procedure holds each test to, in the order given."""
    levels = [rate] * len(tails)
    stopped: float | None = None
    for rank, place in enumerate(sorted(range(len(tails)), key=lambda index: tails[index])):
        level = stopped or rate / (len(tails) - rank)
        levels[place] = level
        if stopped is None and tails[place] > level:
            stopped = level
    return levels


_TYPES = {
    JENSEN_SHANNON: anomalies_pb2.DriftSkewInfo.Measurement.JENSEN_SHANNON_DIVERGENCE,
    L_INFINITY: anomalies_pb2.DriftSkewInfo.Measurement.L_INFTY,
}


@dataclass(frozen=True)
class Drift:
    """The outcome of a comparison of two samples.

    Attributes:
        account: TFDV's own account (``Anomalies``); None if nothing was compared.
    """

    measured: tuple[Distance, ...]
    not_judged: tuple[NotJudged, ...]
    account: Any


def measure(pair: SamplePair, schema: Any, limits: Sequence[Limit]) -> Drift:
    """Measure how far the distributions moved.

    Args:
        limits: What to compare; every one ends as measured or as not judged.
    """
    reasons = {limit: _obstacle(limit, pair) for limit in limits}
    possible = [limit for limit, reason in reasons.items() if not reason]
    account = tfdv.validate_statistics(
        with_bins(pair.current.statistics, pair.current.counts),
        _with_comparators(schema, possible),
        environment(schema),
        previous_statistics=with_bins(pair.reference.statistics, pair.reference.counts),
    )
    found = {
        (info.path.step[0], measurement.type): measurement.value
        for info in account.drift_skew_info
        for measurement in info.drift_measurements
    }
    measured = []
    for limit in possible:
        value = found.get((limit.column, _TYPES[limit.comparator]), math.nan)
        if math.isfinite(value):
            measured.append(_measured(limit, value, pair))
        else:
            reasons[limit] = "TFDV gave no number for it"
    not_judged = tuple(
        NotJudged(name=rule_name(x.column, MEASURES[x.comparator], pair.against), reason=why)
        for x, why in reasons.items()
        if why
    )
    return Drift(tuple(measured), not_judged, account)


def _obstacle(limit: Limit, pair: SamplePair) -> str:
    """Return why two samples cannot be compared in a column; empty if they can."""
    if limit.kind in ("text", "nested"):
        kept = "its values are not counted" if limit.kind == "text" else "it is a struct"
        return f"{kept}, as the schema says; put it under validation.ignore"
    for profile in (pair.reference, pair.current):
        if limit.kind == "numbers" and not sum(profile.counts.get(limit.column, ())):
            return f"no numbers of it in split {profile.split}"
        if limit.kind == "categories" and (reason := profile.uncounted(limit.column)):
            return reason
    return ""


def _with_comparators(schema: Any, limits: Sequence[Limit]) -> Any:
    """Return a copy of the schema in which exactly these comparisons are asked for."""
    copy = schema_pb2.Schema.FromString(schema.SerializeToString())
    wanted = {limit.column: limit for limit in limits}
    for feature in copy.feature:
        if limit := wanted.get(feature.name):
            getattr(feature.drift_comparator, limit.comparator).threshold = limit.threshold
    return copy


def _measured(limit: Limit, value: float, pair: SamplePair) -> Distance:
    rows = column_counts(limit.column, pair)
    return Distance(
        column=limit.column,
        measure=MEASURES[limit.comparator],
        against=pair.against,
        value=value,
        limit=limit.threshold,
        chance=_chance(limit, rows),
        rows=(int(sum(rows.current)), int(sum(rows.previous))),
    )


def _chance(limit: Limit, rows: ColumnCounts) -> NullDistribution:
    if limit.comparator == L_INFINITY:
        return of_largest_share(rows.current, rows.previous)
    if rows.bounds:
        return of_bins(sum(rows.current), rows.previous)
    return of_divergence(rows.current, rows.previous)


def measure_missing(pair: SamplePair, columns: Sequence[str], *, threshold: float) -> tuple[Distance, ...]:
    """Measure how far the share of rows without a value moved. TFDV leaves such rows out of every distance.

    Args:
        threshold: Largest accepted difference of the two shares, in [0, 1].
    """
    rows = (pair.current.rows, pair.reference.rows)
    measured = []
    for column in columns:
        missing = (pair.current.missing(column), pair.reference.missing(column))
        value = abs(missing[0] / rows[0] - missing[1] / rows[1])
        chance = of_share(missing, rows)
        measured.append(Distance(column, MISSING, pair.against, value, threshold, chance, rows))
    return tuple(measured)


def measure_unseen(pair: SamplePair, limits: Sequence[Limit], *, threshold: float) -> Drift:
    """Measure the share of rows whose value the reference never had.

    Args:
        limits: What is compared; numbers and text have no values to count.
        threshold: Largest accepted share, in [0, 1].
    """
    measured, not_judged = [], []
    for limit in (limit for limit in limits if limit.kind == "categories"):
        if reason := _obstacle(limit, pair):
            name = rule_name(limit.column, UNSEEN, pair.against)
            not_judged.append(NotJudged(name=name, reason=reason))
            continue
        rows = column_counts(limit.column, pair)
        counts = (sum(rows.current), sum(rows.previous))
        unseen = sum(now for now, before in zip(rows.current, rows.previous, strict=True) if not before)
        measured.append(
            Distance(
                column=limit.column,
                measure=UNSEEN,
                against=pair.against,
                value=unseen / counts[0],
                limit=threshold,
                chance=of_unseen(rows.current, rows.previous),
                rows=(int(counts[0]), int(counts[1])),
            )
        )
    return Drift(tuple(measured), tuple(not_judged), None)

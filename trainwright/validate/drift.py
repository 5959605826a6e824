"""How far each column moved from the previous split to the current one.

TFDV measures. What it would do in silence is done aloud here: a comparison that yields no number, or whose
counts are not complete, is reported as not judged, and the noise of small splits is told from drift.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainwright.artifacts import NotJudged
from trainwright.validate.bins import with_bins
from trainwright.validate.chance import divergence_floor, largest_share_floor, share_floor
from trainwright.validate.distribution import distribution
from trainwright.validate.limits import JENSEN_SHANNON, L_INFINITY, MEASURES, Limit
from trainwright.validate.profile import Profile
from trainwright.validate.schema import environment
from trainwright.validate.tfdv import anomalies_pb2, schema_pb2, tfdv

_DIGITS = 10

MISSING = "missing share"
"""The measure of how many rows have no value."""

_TYPES = {
    JENSEN_SHANNON: anomalies_pb2.DriftSkewInfo.Measurement.JENSEN_SHANNON_DIVERGENCE,
    L_INFINITY: anomalies_pb2.DriftSkewInfo.Measurement.L_INFTY,
}


@dataclass(frozen=True)
class Comparison:
    """One distance between the two splits.

    Attributes:
        column: The column.
        measure: Name of the distance.
        value: The distance, a fraction in [0, 1].
        limit: The largest that is accepted, as configured.
        floor: What chance alone stays below, at these numbers of rows.
        rows: Rows with a value in the current and in the previous split.
    """

    column: str
    measure: str
    value: float
    limit: float
    floor: float
    rows: tuple[int, int]

    @property
    def name(self) -> str:
        """What to call it: the column, and that it is about missing values if it is."""
        return f"{self.column}, missing" if self.measure == MISSING else self.column

    @property
    def effective(self) -> float:
        """The limit that is applied: never below what chance alone reaches."""
        return max(self.limit, self.floor)

    @property
    def moved(self) -> bool:
        """Whether it is further than accepted; equal passes."""
        return self.value > self.effective

    def written(self, digits: int) -> tuple[str, str]:
        """Write the value and the applied limit, with as many digits as it takes to tell them apart.

        Args:
            digits: Digits after the point, at least.
        """
        pairs = ((f"{self.value:.{n}f}", f"{self.effective:.{n}f}") for n in range(digits, _DIGITS))
        exact = (repr(self.value), repr(self.effective))
        return next((pair for pair in pairs if pair[0] != pair[1] or self.value == self.effective), exact)

    @property
    def ratio(self) -> float:
        """The value as a share of the applied limit."""
        if self.effective:
            return self.value / self.effective
        return math.inf if self.value else 0.0


@dataclass(frozen=True)
class Drift:
    """What a comparison of two splits gave.

    Attributes:
        comparisons: Those that yielded a number.
        not_judged: Those that did not, and why.
        account: TFDV's own account (``Anomalies``); None if nothing was compared.
    """

    comparisons: tuple[Comparison, ...]
    not_judged: tuple[NotJudged, ...]
    account: Any


def measure(
    current: Profile, previous: Profile, schema: Any, limits: Sequence[Limit], *, level: float
) -> Drift:
    """Measure how far the distributions moved.

    Args:
        current: The split that is judged.
        previous: The split it is compared with.
        schema: The reviewed schema.
        limits: What to compare; every one ends as a comparison or as not judged.
        level: Accepted chance of a single false alarm, in (0, 1).
    """
    reasons = {limit: _obstacle(limit, current, previous) for limit in limits}
    possible = [limit for limit, reason in reasons.items() if not reason]
    account = tfdv.validate_statistics(
        with_bins(current.statistics, current.counts),
        _with_comparators(schema, possible),
        environment(schema),
        previous_statistics=with_bins(previous.statistics, previous.counts),
    )
    found = {
        (info.path.step[0], measurement.type): measurement.value
        for info in account.drift_skew_info
        for measurement in info.drift_measurements
    }
    comparisons = []
    for limit in possible:
        value = found.get((limit.column, _TYPES[limit.comparator]), math.nan)
        if math.isfinite(value):
            comparisons.append(_comparison(limit, value, current, previous, level))
        else:
            reasons[limit] = "TFDV gave no number for it"
    not_judged = tuple(NotJudged(name=f"drift/{x.column}", reason=why) for x, why in reasons.items() if why)
    return Drift(tuple(comparisons), not_judged, account)


def _obstacle(limit: Limit, current: Profile, previous: Profile) -> str:
    """Say why two splits cannot be compared in a column; empty if they can."""
    if limit.kind in ("text", "nested"):
        kept = "its values are not counted" if limit.kind == "text" else "it is a struct"
        return f"{kept}, as the schema says; put it under validation.ignore"
    for profile in (previous, current):
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


def _comparison(limit: Limit, value: float, current: Profile, previous: Profile, level: float) -> Comparison:
    rows = distribution(limit.column, current, previous)
    floor = divergence_floor if limit.comparator == JENSEN_SHANNON else largest_share_floor
    return Comparison(
        column=limit.column,
        measure=MEASURES[limit.comparator],
        value=value,
        limit=limit.threshold,
        floor=floor(rows.current, rows.previous, level),
        rows=(int(sum(rows.current)), int(sum(rows.previous))),
    )


def measure_missing(
    current: Profile, previous: Profile, columns: Sequence[str], *, threshold: float, level: float
) -> tuple[Comparison, ...]:
    """Measure how far the share of rows without a value moved. TFDV leaves such rows out of every distance.

    Args:
        current: The split that is judged.
        previous: The split it is compared with.
        columns: The columns to compare.
        threshold: Largest accepted difference of the two shares, in [0, 1].
        level: Accepted chance of a single false alarm, in (0, 1).
    """
    rows = (current.rows, previous.rows)
    comparisons = []
    for column in columns:
        missing = (current.missing(column), previous.missing(column))
        value = abs(missing[0] / rows[0] - missing[1] / rows[1])
        floor = share_floor(missing, rows, level)
        comparisons.append(Comparison(column, MISSING, value, threshold, floor, rows))
    return tuple(comparisons)

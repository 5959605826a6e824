"""How far each column moved between two samples.

TFDV measures. What it would do in silence is done aloud here: a comparison that yields no number, or whose
counts are not complete, is reported as not judged, and the noise of small samples is told from drift.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainwright.validate.bins import with_bins
from trainwright.validate.chance import (
    Chance,
    of_bins,
    of_divergence,
    of_largest_share,
    of_share,
    of_unseen,
)
from trainwright.validate.comparison import MISSING, UNSEEN, Measured, rule_name
from trainwright.validate.distribution import Distribution, Pair, distribution
from trainwright.validate.limits import JENSEN_SHANNON, L_INFINITY, MEASURES, Limit
from trainwright.validate.schema import environment
from trainwright.validate.tfdv import anomalies_pb2, schema_pb2, tfdv
from trainwright.verdicts import NotJudged

_TYPES = {
    JENSEN_SHANNON: anomalies_pb2.DriftSkewInfo.Measurement.JENSEN_SHANNON_DIVERGENCE,
    L_INFINITY: anomalies_pb2.DriftSkewInfo.Measurement.L_INFTY,
}


@dataclass(frozen=True)
class Drift:
    """What a comparison of two samples gave.

    Attributes:
        measured: Those that yielded a number.
        not_judged: Those that did not, and why.
        account: TFDV's own account (``Anomalies``); None if nothing was compared.
    """

    measured: tuple[Measured, ...]
    not_judged: tuple[NotJudged, ...]
    account: Any


def measure(pair: Pair, schema: Any, limits: Sequence[Limit]) -> Drift:
    """Measure how far the distributions moved.

    Args:
        pair: The two samples.
        schema: The reviewed schema.
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


def _obstacle(limit: Limit, pair: Pair) -> str:
    """Say why two samples cannot be compared in a column; empty if they can."""
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


def _measured(limit: Limit, value: float, pair: Pair) -> Measured:
    rows = distribution(limit.column, pair)
    return Measured(
        column=limit.column,
        measure=MEASURES[limit.comparator],
        against=pair.against,
        value=value,
        limit=limit.threshold,
        chance=_chance(limit, rows),
        rows=(int(sum(rows.current)), int(sum(rows.previous))),
    )


def _chance(limit: Limit, rows: Distribution) -> Chance:
    if limit.comparator == L_INFINITY:
        return of_largest_share(rows.current, rows.previous)
    if rows.bounds:
        return of_bins(sum(rows.current), rows.previous)
    return of_divergence(rows.current, rows.previous)


def measure_missing(pair: Pair, columns: Sequence[str], *, threshold: float) -> tuple[Measured, ...]:
    """Measure how far the share of rows without a value moved. TFDV leaves such rows out of every distance.

    Args:
        pair: The two samples.
        columns: The columns to compare.
        threshold: Largest accepted difference of the two shares, in [0, 1].
    """
    rows = (pair.current.rows, pair.reference.rows)
    measured = []
    for column in columns:
        missing = (pair.current.missing(column), pair.reference.missing(column))
        value = abs(missing[0] / rows[0] - missing[1] / rows[1])
        chance = of_share(missing, rows)
        measured.append(Measured(column, MISSING, pair.against, value, threshold, chance, rows))
    return tuple(measured)


def measure_unseen(pair: Pair, limits: Sequence[Limit], *, threshold: float) -> Drift:
    """Measure the share of rows whose value the reference never had.

    Args:
        pair: The two samples.
        limits: What is compared; numbers and text have no values to count.
        threshold: Largest accepted share, in [0, 1].
    """
    measured, not_judged = [], []
    for limit in (limit for limit in limits if limit.kind == "categories"):
        if reason := _obstacle(limit, pair):
            name = rule_name(limit.column, UNSEEN, pair.against)
            not_judged.append(NotJudged(name=name, reason=reason))
            continue
        rows = distribution(limit.column, pair)
        counts = (sum(rows.current), sum(rows.previous))
        unseen = sum(now for now, before in zip(rows.current, rows.previous, strict=True) if not before)
        measured.append(
            Measured(
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

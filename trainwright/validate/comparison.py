"""Compare the distributions of two samples by TFDV.

A comparison that yields no number, or whose counts are not complete, is reported as not judged; TFDV would
pass over it in silence.
"""

import math
from collections.abc import Sequence
from typing import Any

from trainwright.drift.comparison import Drift, SamplePair, column_counts, compared, obstacle, rule_name
from trainwright.drift.findings import JENSEN_SHANNON, L_INFINITY, MEASURES, Limit
from trainwright.validate.columns import with_bins
from trainwright.validate.profile import Profile
from trainwright.validate.schema import environment
from trainwright.validate.tfdv import anomalies_pb2, schema_pb2, tfdv
from trainwright.verdicts import NotJudged

_TYPES = {
    JENSEN_SHANNON: anomalies_pb2.DriftSkewInfo.Measurement.JENSEN_SHANNON_DIVERGENCE,
    L_INFINITY: anomalies_pb2.DriftSkewInfo.Measurement.L_INFTY,
}


def measure(pair: SamplePair[Profile], schema: Any, limits: Sequence[Limit]) -> Drift:
    """Measure how far the distributions moved; every limit ends as measured or as not judged."""
    reasons = {limit: obstacle(limit, pair) for limit in limits}
    possible = [limit for limit, reason in reasons.items() if not reason]
    wanted = schema_pb2.Schema.FromString(schema.SerializeToString())
    by_name = {limit.column: limit for limit in possible}
    for feature in wanted.feature:
        if limit := by_name.get(feature.name):
            getattr(feature.drift_comparator, limit.comparator).threshold = limit.threshold
    account = tfdv.validate_statistics(
        with_bins(pair.current.statistics, pair.current.counts),
        wanted,
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
            rows = column_counts(limit.column, pair)
            measured.append(
                compared(limit.column, MEASURES[limit.comparator], pair, value, limit.threshold, rows)
            )
        else:
            reasons[limit] = "TFDV gave no number for it"
    not_judged = tuple(
        NotJudged(name=rule_name(x.column, MEASURES[x.comparator], pair.against), reason=why)
        for x, why in reasons.items()
        if why
    )
    return Drift(tuple(measured), not_judged, account)

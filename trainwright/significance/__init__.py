"""Intervals and tests that more than one verb needs, each with its source.

All intervals are two-sided. Nothing here draws at random but what is seeded.
"""

from trainwright.significance.estimate import (
    CONFIDENCE,
    Estimate,
    apart,
    beyond,
    gamma_quantile,
    gamma_tail,
    independent_difference,
    mean_bounds,
    normal_quantile,
    rows_needed,
)
from trainwright.significance.proportions import (
    Rest,
    gap_to_whole,
    holm,
    largest_gap,
    mcnemar,
    paired_difference,
    ratio_to_whole,
    smallest_ratio,
    wilson,
)
from trainwright.significance.ranking import (
    Cells,
    Placements,
    Ranking,
    ValueDistribution,
    delong_covariance,
    effective_count,
    rank,
    roc_area,
    units_covariance,
)
from trainwright.significance.resampling import Resampler, intervals

__all__ = [
    "CONFIDENCE",
    "Cells",
    "Estimate",
    "Placements",
    "Ranking",
    "Resampler",
    "Rest",
    "ValueDistribution",
    "apart",
    "beyond",
    "delong_covariance",
    "effective_count",
    "gamma_quantile",
    "gamma_tail",
    "gap_to_whole",
    "holm",
    "independent_difference",
    "intervals",
    "largest_gap",
    "mcnemar",
    "mean_bounds",
    "normal_quantile",
    "paired_difference",
    "rank",
    "ratio_to_whole",
    "roc_area",
    "rows_needed",
    "smallest_ratio",
    "units_covariance",
    "wilson",
]

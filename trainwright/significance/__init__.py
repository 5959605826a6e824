"""Intervals and tests that more than one verb needs, each with its source.

All intervals are two-sided. Nothing here draws at random but what is seeded.
"""

from trainwright.significance.estimate import (
    CONFIDENCE,
    POWER,
    Estimate,
    Floats,
    apart,
    beyond,
    normal_quantile,
    rows_needed,
)
from trainwright.significance.gamma import gamma_quantile, gamma_tail
from trainwright.significance.proportions import (
    Gap,
    Rest,
    gap_to_whole,
    holm,
    largest_gap,
    mcnemar,
    newcombe,
    paired_difference,
    ratio_to_whole,
    smallest_ratio,
    wilson,
)
from trainwright.significance.ranking import Placements, delong, delong_difference, placements
from trainwright.significance.resampling import Resampler, bootstrap, intervals

__all__ = [
    "CONFIDENCE",
    "POWER",
    "Estimate",
    "Floats",
    "Gap",
    "Placements",
    "Resampler",
    "Rest",
    "apart",
    "beyond",
    "bootstrap",
    "delong",
    "delong_difference",
    "gamma_quantile",
    "gamma_tail",
    "gap_to_whole",
    "holm",
    "intervals",
    "largest_gap",
    "mcnemar",
    "newcombe",
    "normal_quantile",
    "paired_difference",
    "placements",
    "ratio_to_whole",
    "rows_needed",
    "smallest_ratio",
    "wilson",
]

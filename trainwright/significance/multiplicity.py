"""Several tests at once."""

import itertools
from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values of several tests, so that any false alarm at all stays as rare as one was.

    Holm, Scandinavian Journal of Statistics 6 (1979). Returned in the order given, each in [0, 1].
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    raised = ((len(p_values) - rank) * p_values[index] for rank, index in enumerate(order))
    adjusted = dict(zip(order, itertools.accumulate(raised, max), strict=True))
    return [min(1.0, adjusted[index]) for index in range(len(p_values))]

"""How unequal the proportions of several groups are, whichever groups are the extreme ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainwright.errors import InternalError
from trainwright.significance.estimate import CONFIDENCE, Estimate, Floats, normal_quantile
from trainwright.significance.proportions import newcombe_ends, wilson_ends


@dataclass(frozen=True)
class Gap:
    """The largest difference between the proportions of several groups.

    Attributes:
        highest: Index of the group with the largest proportion.
        lowest: Index of the group with the smallest.
        size: The difference, with an interval that is right whichever groups are truly extreme.
    """

    highest: int
    lowest: int
    size: Estimate


def largest_gap(successes: Sequence[float], trials: Sequence[float], confidence: float = CONFIDENCE) -> Gap:
    """Estimate the largest difference between the proportions of two or more groups.

    The extremes of many groups lie apart by chance alone, so every pair is given the hybrid score interval
    of Newcombe (Statistics in Medicine 17, 1998, method 10) at Bonferroni's confidence. All hold at once
    with ``confidence``; then the largest true difference lies between the largest of their lower ends and
    the largest of their upper ends.

    Args:
        successes: By group.
        trials: By group, each greater than 0.
        confidence: In (0, 1).
    """
    count = len(trials)
    if count < 2 or len(successes) != count or min(trials) <= 0:  # noqa: PLR2004
        raise InternalError(f"a gap needs two groups with trials, got {list(successes)} of {list(trials)}")
    pairs = count * (count - 1) / 2
    hits, total = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    low, high = newcombe_ends(hits, total, normal_quantile(1 - (1 - confidence) / pairs))
    share = hits / total
    highest, lowest = int(share.argmax()), int(share.argmin())
    size = Estimate(float(share[highest] - share[lowest]), max(0.0, float(low.max())), float(high.max()))
    return Gap(highest, lowest, size)


def smallest_ratio(
    successes: Sequence[float], trials: Sequence[float], confidence: float = CONFIDENCE
) -> Estimate | None:
    """Estimate the smallest of several proportions divided by the largest; None if none has a success.

    Every pair has the interval of Donner and Zou (Statistical Methods in Medical Research 21, 2012: MOVER of
    a ratio, from Wilson's intervals) at Bonferroni's confidence, as in :func:`largest_gap`; the smallest true
    ratio lies between the smallest of their lower and the smallest of their upper ends.

    Args:
        successes: By group.
        trials: By group, each greater than 0; two groups at least.
        confidence: In (0, 1).
    """
    hits, total = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    share = hits / total
    if not share.max() > 0:
        return None
    pairs = len(share) * (len(share) - 1) / 2
    low, high = wilson_ends(hits, total, normal_quantile(1 - (1 - confidence) / pairs))
    lower, upper = _ratio_ends(share, low, high)
    np.fill_diagonal(lower, 1.0)
    np.fill_diagonal(upper, 1.0)
    value = float(share.min() / share.max())
    return Estimate(value, min(value, float(lower.min())), max(value, min(1.0, float(upper.min()))))


def _ratio_ends(share: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Bound every ratio share[i] / share[j]; shape (groups, groups)."""
    over, under = np.meshgrid(np.arange(len(share)), np.arange(len(share)), indexing="ij")
    product = share[over] * share[under]
    below = low[over] * high[under] * (2 * share[over] - low[over]) * (2 * share[under] - high[under])
    above = high[over] * low[under] * (2 * share[over] - high[over]) * (2 * share[under] - low[under])
    widest = high[under] * (2 * share[under] - high[under])
    closest = low[under] * (2 * share[under] - low[under])
    root = np.sqrt(np.maximum(product**2 - below, 0)), np.sqrt(np.maximum(product**2 - above, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        lower = np.where(widest > 0, (product - root[0]) / widest, 0.0)
        upper = np.where(closest > 0, (product + root[1]) / closest, np.inf)
    return lower, upper


@dataclass(frozen=True)
class Rest:
    """What is outside of each of several groups, and how much of the whole each is.

    Attributes:
        successes: Outside of each group.
        trials: Outside of each group, each greater than 0.
        own: Each group's share of the whole, in (0, 1).
    """

    successes: Sequence[float]
    trials: Sequence[float]
    own: Sequence[float]

    @classmethod
    def of(cls, hits: Floats, total: Floats) -> "Rest":
        """Return the other groups together, where there is nothing else."""
        others = hits.sum() - hits, total.sum() - total
        return cls(others[0].tolist(), others[1].tolist(), (total / total.sum()).tolist())


def gap_to_whole(
    successes: Sequence[float],
    trials: Sequence[float],
    confidence: float = CONFIDENCE,
    rest: Rest | None = None,
) -> Gap:
    """Estimate the largest distance of a group's proportion from that of the whole.

    A group is part of the whole, so its distance is its difference from the rest times the rest's share of
    the whole; that difference has Newcombe's interval at Bonferroni's confidence.

    Args:
        successes: By group.
        trials: By group, each greater than 0; two groups at least.
        confidence: In (0, 1).
        rest: What is outside of each group; the other groups if None.

    Returns:
        The gap; ``highest`` and ``lowest`` are the groups farthest above and below the whole.
    """
    hits, total = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    rest = rest or Rest.of(hits, total)
    z = normal_quantile(1 - (1 - confidence) / len(total))
    away, low, high = np.empty(len(total)), np.empty(len(total)), np.empty(len(total))
    for index in range(len(total)):
        pair = np.array([hits[index], rest.successes[index]])
        of = np.array([total[index], rest.trials[index]])
        lower, upper = newcombe_ends(pair, of, z)
        other = 1 - rest.own[index]
        away[index] = other * (pair[0] / of[0] - pair[1] / of[1])
        low[index], high[index] = other * lower[0, 1], other * upper[0, 1]
    least, most = np.maximum(np.maximum(low, -high), 0), np.maximum(high, -low)
    size = Estimate(float(np.abs(away).max()), float(least.max()), float(most.max()))
    return Gap(int(away.argmax()), int(away.argmin()), size)


def ratio_to_whole(
    successes: Sequence[float],
    trials: Sequence[float],
    confidence: float = CONFIDENCE,
    rest: Rest | None = None,
) -> Estimate | None:
    """Estimate the smallest ratio of a group's proportion and the whole's, or the whole's and a group's.

    As :func:`gap_to_whole`, with Donner and Zou's interval of the ratio to the rest; None where no group
    has a success. Arguments as there.
    """
    hits, total = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    rest = rest or Rest.of(hits, total)
    if not hits.sum() > 0:
        return None
    z = normal_quantile(1 - (1 - confidence) / len(total))
    values, lows, highs = [], [], []
    for index, own in enumerate(rest.own):
        of = np.array([total[index], rest.trials[index]])
        share = np.array([hits[index], rest.successes[index]]) / of
        low, high = wilson_ends(share * of, of, z)
        lower, upper = _ratio_ends(share, low, high)
        values.append(float(share[0] / (own * share[0] + (1 - own) * share[1])))
        ends = _to_whole(float(lower[0, 1]), own), _to_whole(float(upper[0, 1]), own)
        lows.append(min(ends[0], 1 / ends[1] if ends[1] > 0 else 0.0))
        highs.append(1.0 if ends[0] <= 1 <= ends[1] else max(min(end, 1 / end) for end in ends if end > 0))
    value = min(min(entry, 1 / entry) if entry > 0 else 0.0 for entry in values)
    return Estimate(value, min(value, *lows), max(value, min(highs)))


def _to_whole(to_rest: float, own: float) -> float:
    """Turn a ratio to the rest into one to the whole, of which the group is this share."""
    return 1 / own if np.isinf(to_rest) else to_rest / (own * to_rest + 1 - own)

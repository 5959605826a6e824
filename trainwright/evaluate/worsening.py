"""By how much a candidate treats groups more unequally than the baseline."""

from collections.abc import Iterator

import numpy as np

from trainwright.evaluate.findings import Floats
from trainwright.evaluate.formulas import ratio
from trainwright.evaluate.inequality import CALIBRATION, RATES, RATIO, counted, rates, size, spread_of
from trainwright.evaluate.partition import Partition, Tally
from trainwright.evaluate.subject import Integers
from trainwright.significance import Estimate, intervals, normal_quantile

Pair = tuple[Floats, Floats]


def worsened(partition: Partition, measure: str, kept: Integers, against: str) -> Estimate | None:
    """Return by how much the candidate treats groups more unequally than the baseline, on the same draws.

    The low end is that of the draws. The high one cannot be: where the baseline's groups are alike, every
    draw finds a gap all the same, and takes it from the candidate's. See :func:`_at_most`.
    """
    confidence = partition.subject.evaluation.confidence
    sign = -1.0 if measure == RATIO else 1.0
    ours, theirs = partition.tallies
    value = sign * (
        float(spread_of(measure, ours.total, kept, against))
        - float(spread_of(measure, theirs.total, kept, against))
    )
    drawn = sign * (
        spread_of(measure, ours.drawn, kept, against) - spread_of(measure, theirs.drawn, kept, against)
    )
    low, _ = intervals(np.array([value]), drawn[:, None], None, confidence)
    if np.isnan(low[0]):
        return None
    return Estimate(value, min(value, float(low[0])), _at_most(partition, measure, kept, against))


def _at_most(partition: Partition, measure: str, kept: Integers, against: str) -> float:
    """Return what a worsening is surely not above: the better of two bounds, each at half the level.

    The extreme of the candidate lies between some two groups, and the baseline's is at least as far as these
    two are apart in it. So a worsening is at most the change of those two; which they are is not known, but
    every pair's own bound has to be below the limit, so none has to be adjusted (an intersection-union test:
    Berger, Technometrics 24, 1982). Where groups have come closer that says little; there the candidate's
    whole interval less the baseline's says more.
    """
    evaluation, exact = partition.subject.evaluation, partition.subject.exact
    wrong = 1 - evaluation.confidence
    reach = normal_quantile(1 - wrong / 2)
    bounds = np.concatenate(
        [change + reach * spread for change, spread in _changes(partition, measure, kept, against, reach)]
    )
    change = float(np.max(bounds[~np.isnan(bounds)], initial=-np.inf))
    ours, theirs = (
        size(measure, tally, kept, against, 1 - wrong / 4, exact=exact) for tally in partition.tallies
    )
    if ours is None or theirs is None:
        return change
    return min(change, theirs.high - ours.low if measure == RATIO else ours.high - theirs.low)


def _changes(
    partition: Partition, measure: str, kept: Integers, against: str, reach: float
) -> Iterator[tuple[Floats, Floats]]:
    """Give by how much more is apart what a measure compares, and the standard deviation of that.

    Some comparisons at a time, each of shape (comparisons,).
    """
    tallies, exact = partition.tallies, partition.subject.exact
    for name in RATES[measure]:
        found = [_apart(rates(tally.total)[name], kept, measure, against) for tally in tallies]
        draws = [_apart(rates(tally.drawn)[name], kept, measure, against) for tally in tallies]
        hidden = [_hidden(tally, name, kept, measure, against, reach, exact=exact) for tally in tallies]
        for first, second, drawn, other, more, again in zip(*found, *draws, *hidden, strict=True):
            change = second - first if measure == RATIO else np.abs(first - second)
            yield change, np.sqrt(np.nanvar(drawn - other, axis=0) + more + again)


def _apart(over_under: Pair, kept: Integers, measure: str, against: str) -> Iterator[Floats]:
    """Give how far each group is from those after it, or from the whole: shape (..., comparisons)."""
    over, under = over_under
    share = ratio(over[..., kept], under[..., kept])
    whole = ratio(over.sum(axis=-1), under.sum(axis=-1))[..., None]
    for index in range(share.shape[-1] - (against == "groups")):
        one, others = share[..., index, None], whole if against == "overall" else share[..., index + 1 :]
        if measure != RATIO:
            yield one - others
            continue
        yield ratio(np.broadcast_to(one, others.shape), others)
        yield ratio(others, np.broadcast_to(one, others.shape))


def _hidden(
    tally: Tally, name: str, kept: Integers, measure: str, against: str, reach: float, *, exact: bool
) -> Iterator[Floats]:
    """Give the variance that draws do not show, in the order of :func:`_apart`, shape (comparisons,).

    A share near all or nothing varies less from draw to draw than it is uncertain; not at all where all
    rows are alike. What is missing is the variance with half of ``reach`` squared added to successes and
    failures, less the plain one (Agresti and Coull, The American Statistician 52, 1998). The whole counts as
    known: it is large, and no share of it alone.
    """
    over, under = rates(tally.total)[name]
    share, more = ratio(over[kept], under[kept]), np.zeros(len(kept))
    whole, none = ratio(over.sum(), under.sum())[None], np.zeros(1)
    if measure != CALIBRATION:
        hits, trials = map(np.asarray, counted(tally, name, kept, exact=exact))
        middle = (hits + reach**2 / 2) / (trials + reach**2)
        plain = hits / trials * (1 - hits / trials) / trials
        more = np.maximum(middle * (1 - middle) / (trials + reach**2) - plain, 0)
    for index in range(len(kept) - (against == "groups")):
        overall = against == "overall"
        others, beside = (whole, none) if overall else (share[index + 1 :], more[index + 1 :])
        if measure != RATIO:
            yield more[index] + beside
            continue
        one, own = np.full(len(others), share[index]), np.full(len(others), more[index])
        yield ratio(own + ratio(one, others) ** 2 * beside, others**2)
        yield ratio(beside + ratio(others, one) ** 2 * own, one**2)

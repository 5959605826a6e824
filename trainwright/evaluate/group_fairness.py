"""Disparities between groups, with confidence intervals, and their change against the baseline."""

from collections.abc import Iterator, Sequence

import numpy as np

from trainwright.evaluate.evaluation_data import Sums, ratio
from trainwright.evaluate.findings import MIN_UNITS, Disparity, Floats, Integers
from trainwright.evaluate.groupings import Grouping
from trainwright.evaluate.partition import ModelSums, Partition
from trainwright.significance import (
    Estimate,
    Rest,
    gap_to_whole,
    intervals,
    largest_gap,
    normal_quantile,
    ratio_to_whole,
    smallest_ratio,
)

DIFFERENCE, RATIO = "selection_rate_difference", "selection_rate_ratio"
OPPORTUNITY, ODDS, CALIBRATION = "equal_opportunity", "equalized_odds", "calibration_gap"
MEASURES = (DIFFERENCE, RATIO, OPPORTUNITY, ODDS, CALIBRATION)

RATES = {
    DIFFERENCE: ("selection",),
    RATIO: ("selection",),
    OPPORTUNITY: ("true positive",),
    ODDS: ("true positive", "false positive"),
    CALIBRATION: ("score less label",),
}


def rates(sums: Sums) -> dict[str, tuple[Floats, Floats]]:
    """Return what groups are compared by: what is counted, and of how much; arrays of any shape."""
    return {
        "selection": (sums["selected"], sums["rows"]),
        "true positive": (sums["hits"], sums["positives"]),
        "false positive": (sums["selected"] - sums["hits"], sums["rows"] - sums["positives"]),
        "score less label": (sums["score"] - sums["positives"], sums["rows"]),
    }


def size(
    measure: str, tally: ModelSums, kept: Integers, against: str, confidence: float, *, exact: bool
) -> Estimate | None:
    """Return one disparity of one model, with an interval that allows for every pair of groups."""
    value = float(spread_of(measure, tally.total, kept, against))
    if np.isnan(value):
        return None
    if measure == CALIBRATION:
        return _of_means(tally, kept, against, confidence, value)
    names = RATES[measure]
    parts = [counted(tally, name, kept, exact=exact) for name in names]
    rest = [_rest(tally, name, kept, exact=exact) for name in names] if against == "overall" else []
    if measure == RATIO:
        if rest:
            found = ratio_to_whole(*parts[0], rest[0], confidence)
        else:
            found = smallest_ratio(*parts[0], confidence)
        return found and Estimate(value, min(value, found.low), max(value, found.high))
    shared = 1 - (1 - confidence) / len(parts)
    if rest:
        gaps = [gap_to_whole(*part, other, shared) for part, other in zip(parts, rest, strict=True)]
    else:
        gaps = [largest_gap(*part, shared) for part in parts]
    low, high = max(entry.low for entry in gaps), max(entry.high for entry in gaps)
    return Estimate(value, min(value, low), max(value, high))


def spread_of(measure: str, sums: Sums, kept: Integers, against: str) -> Floats:
    """Return a measure of sums of shape (..., groups): what :func:`size` puts an interval around."""
    each = []
    for name in RATES[measure]:
        over, under = rates(sums)[name]
        share = ratio(over[..., kept], under[..., kept])
        whole = ratio(over.sum(axis=-1), under.sum(axis=-1))[..., None]
        each.append(_extreme(share, whole, measure, against))
    found: Floats = np.max(np.stack(each), axis=0)
    return found


def _extreme(share: Floats, whole: Floats, measure: str, against: str) -> Floats:
    if measure == RATIO:
        if against == "groups":
            return ratio(share.min(axis=-1), share.max(axis=-1))
        part = ratio(share, np.broadcast_to(whole, share.shape))
        with np.errstate(divide="ignore"):
            smaller: Floats = np.minimum(part, 1 / part).min(axis=-1)
        return smaller
    if against == "groups":
        widest: Floats = share.max(axis=-1) - share.min(axis=-1)
        return widest
    farthest: Floats = np.abs(share - whole).max(axis=-1)
    return farthest


def counted(tally: ModelSums, name: str, kept: Integers, *, exact: bool) -> tuple[list[float], list[float]]:
    """Return successes and trials of each group; effective ones where rows do not count alike and alone."""
    over, under = (column[kept] for column in rates(tally.total)[name])
    drawn = None if exact else tuple(column[..., kept] for column in rates(tally.drawn)[name])
    return _effective(tally, over, under, drawn)


def _rest(tally: ModelSums, name: str, kept: Integers, *, exact: bool) -> Rest:
    """Return what is outside of each group, those that are too small to be compared among it."""
    over, under = rates(tally.total)[name]
    drawn = None
    if not exact:
        drawn = tuple(column.sum(axis=-1)[:, None] - column[..., kept] for column in rates(tally.drawn)[name])
    others = _effective(tally, over.sum() - over[kept], under.sum() - under[kept], drawn)
    hits, trials = (np.asarray(entry) for entry in others)
    return Rest(hits, trials, own=under[kept] / under.sum())


def _effective(
    tally: ModelSums, over: Floats, under: Floats, drawn: tuple[Floats, ...] | None
) -> tuple[list[float], list[float]]:
    """Return successes and trials; with draws of them as many independent rows as would vary as much.

    Korn and Graubard, Survey Methodology 24, 1998.
    """
    if drawn is None:
        return over.tolist(), under.tolist()
    share = np.clip(ratio(over, under), 0, 1)
    variance = np.nanvar(ratio(drawn[0], drawn[1]), axis=0)
    alike = tally.effective(under, drawn[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        trials = np.where((variance > 0) & (share * (1 - share) > 0), share * (1 - share) / variance, alike)
    return (share * trials).tolist(), trials.tolist()


def _of_means(tally: ModelSums, kept: Integers, against: str, confidence: float, value: float) -> Estimate:
    """Return the gap of mean score less label; normal, with the spread of the draws."""
    total, drawn = (rates(sums)["score less label"] for sums in (tally.total, tally.drawn))
    mean = ratio(total[0], total[1])[kept]
    varied = ratio(drawn[0], drawn[1])[..., kept]
    if against == "groups":
        first, second = np.triu_indices(len(kept), 1)
        away, apart = mean[first] - mean[second], varied[:, first] - varied[:, second]
    else:
        whole = ratio(drawn[0].sum(axis=-1), drawn[1].sum(axis=-1))
        away, apart = mean - float(total[0].sum() / total[1].sum()), varied - whole[:, None]
    reach = normal_quantile(1 - (1 - confidence) / len(away)) * np.nanstd(apart, axis=0)
    low, high = float(np.max(np.abs(away) - reach)), float(np.max(np.abs(away) + reach))
    return Estimate(value, float(f"{max(0.0, low):.12g}"), float(f"{max(value, high):.12g}"))


Pair = tuple[Floats, Floats]


def worsened(partition: Partition, measure: str, kept: Integers, against: str) -> Estimate | None:
    """Return by how much the candidate treats groups more unequally than the baseline, on the same draws.

    The low end is that of the draws. The high one cannot be: where the baseline's groups are alike, every
    draw finds a gap all the same, and takes it from the candidate's. See :func:`_at_most`.
    """
    confidence = partition.data.evaluation.confidence
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
    evaluation, exact = partition.data.evaluation, partition.data.exact
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
    tallies, exact = partition.tallies, partition.data.exact
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
    tally: ModelSums, name: str, kept: Integers, measure: str, against: str, reach: float, *, exact: bool
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


def compare_groups(
    partition: Partition, grouping: Grouping, against: str, measures: Sequence[str] = MEASURES
) -> list[Disparity]:
    """Measure disparities of the groups that are large enough, against each other or the whole."""
    section = partition.data.evaluation
    rows, negatives, positives = (_count(partition, label) for label in (None, 0, 1))
    if grouping.pooled:
        # The rarest values are no group: their own members may differ as much as any.
        rows[list(grouping.names).index(grouping.pooled)] = 0
    found = []
    for measure in measures:
        enough = rows >= section.min_rows
        if measure in (OPPORTUNITY, ODDS):
            enough = enough & (positives >= section.min_positives)
        if measure == ODDS:
            enough = enough & (negatives >= section.min_negatives)
        kept = np.flatnonzero(enough)
        if len(kept) < 2:  # noqa: PLR2004
            reason = f"{len(kept)} of {partition.parts} groups are large enough; two are needed"
            found.append(Disparity(measure, grouping.columns, against, None, reason=reason))
        else:
            found.append(_disparity(partition, measure, grouping, kept, against))
    return found


def _count(partition: Partition, label: int | None) -> Integers:
    """Return the rows of a class, or all, by group; 0 where they are of too few clusters."""
    count = partition.rows if label is None else partition.counts[:, label]
    if not partition.data.clustered:
        return count.copy()
    return np.where(partition.units(label) < MIN_UNITS, 0, count)


def _disparity(
    partition: Partition, measure: str, grouping: Grouping, kept: Integers, against: str
) -> Disparity:
    confidence, exact = partition.data.evaluation.confidence, partition.data.exact
    values = [size(measure, tally, kept, against, confidence, exact=exact) for tally in partition.tallies]
    if values[0] is None:
        reason = "no group has a row that is selected"
        return Disparity(measure, grouping.columns, against, None, reason=reason)
    total = partition.tallies[0].total
    shares = [ratio(over[kept], under[kept]) for over, under in (rates(total)[n] for n in RATES[measure])]
    # Of several rates, the one in which groups differ most.
    share = max(shares, key=lambda found: float(np.nanmax(found) - np.nanmin(found)))
    low, high = int(np.nanargmin(share)), int(np.nanargmax(share))
    both = len(values) > 1
    return Disparity(
        measure=measure,
        columns=grouping.columns,
        against=against,
        value=values[0],
        baseline=values[1] if both else None,
        worsening=worsened(partition, measure, kept, against) if both else None,
        lowest=grouping.names[kept[low]],
        highest=grouping.names[kept[high]],
        rates=(float(share[low]), float(share[high])),
    )

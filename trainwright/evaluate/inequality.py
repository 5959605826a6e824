"""How unequally groups are treated, as a number with its interval.

The measures are Fairlearn's: ``MetricFrame.difference`` and ``ratio`` of selection rate, true and
false positive rate, between groups or to the whole. Hardt, Price and Srebro, NeurIPS 2016, for equal
opportunity and equalized odds; the four-fifths rule is the selection rates' ratio (29 CFR 1607.4 D).
"""

import numpy as np

from trainwright.evaluate.findings import Floats
from trainwright.evaluate.formulas import Sums, ratio
from trainwright.evaluate.partition import Tally
from trainwright.evaluate.subject import Integers
from trainwright.significance import (
    Estimate,
    Rest,
    gap_to_whole,
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
    measure: str, tally: Tally, kept: Integers, against: str, confidence: float, *, exact: bool
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
        found = (
            ratio_to_whole(*parts[0], confidence, rest[0]) if rest else smallest_ratio(*parts[0], confidence)
        )
        return found and Estimate(value, min(value, found.low), max(value, found.high))
    shared = 1 - (1 - confidence) / len(parts)
    if rest:
        gaps = [gap_to_whole(*part, shared, other).size for part, other in zip(parts, rest, strict=True)]
    else:
        gaps = [largest_gap(*part, shared).size for part in parts]
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


def counted(tally: Tally, name: str, kept: Integers, *, exact: bool) -> tuple[list[float], list[float]]:
    """Return successes and trials of each group; effective ones where rows do not count alike and alone."""
    over, under = (column[kept] for column in rates(tally.total)[name])
    drawn = None if exact else tuple(column[..., kept] for column in rates(tally.drawn)[name])
    return _effective(tally, over, under, drawn)


def _rest(tally: Tally, name: str, kept: Integers, *, exact: bool) -> Rest:
    """Return what is outside of each group, those that are too small to be compared among it."""
    over, under = rates(tally.total)[name]
    drawn = None
    if not exact:
        drawn = tuple(column.sum(axis=-1)[:, None] - column[..., kept] for column in rates(tally.drawn)[name])
    others = _effective(tally, over.sum() - over[kept], under.sum() - under[kept], drawn)
    return Rest(*others, own=(under[kept] / under.sum()).tolist())


def _effective(
    tally: Tally, over: Floats, under: Floats, drawn: tuple[Floats, ...] | None
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


def _of_means(tally: Tally, kept: Integers, against: str, confidence: float, value: float) -> Estimate:
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

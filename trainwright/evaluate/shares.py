"""Shares that are all or nothing: right up to rounding, and never certain."""

import numpy as np

from trainwright.evaluate.findings import Floats
from trainwright.experiment.metrics import METRICS, known
from trainwright.significance import Estimate, apart, wilson

_CLOSE = 1e-12


def is_share(name: str) -> bool:
    """Whether a metric lies in [0, 1]."""
    metric = METRICS.get(name) or known(name)
    return metric is not None and metric.fraction


def snapped(share: Floats) -> Floats:
    """Take shares for 0 or 1 that are so but for the rounding of sums of weights."""
    found: Floats = np.where(share > 1 - _CLOSE, 1.0, np.where(share < _CLOSE, 0.0, share))
    return found


def known_no_better(
    gain: Estimate | None, better: Estimate | None, worse: Estimate | None
) -> Estimate | None:
    """Where a model's share is all or nothing, its gain is no surer than that share itself."""
    if gain is None or better is None or worse is None or not {better.value, worse.value} & {0.0, 1.0}:
        return gain
    return apart(gain, better, worse)


def never_certain(entry: Estimate | None, units: float, confidence: float) -> Estimate | None:
    """Where every draw gives the same share, all or nothing, take Wilson's interval of as many units."""
    if entry is None or entry.low < entry.high or 0 < entry.value < 1:
        return entry
    return wilson(entry.value * units, units, confidence)

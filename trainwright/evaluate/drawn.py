"""What is drawn of a model: curves, bins and histograms, thinned to what a page can show."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """A curve, thinned to at most 200 points; arrays of shape (points,).

    Attributes:
        x: Ascending.
        y: In [0, 1].
        threshold: Where a score counts as the class, finite.
    """

    x: Floats
    y: Floats
    threshold: Floats


@dataclass(frozen=True)
class Bins:
    """Scores against what was observed, in bins of about as many rows; arrays of shape (bins,).

    Attributes:
        score: Mean score, or mean estimate, ascending.
        observed: Share of the class, or mean of the label.
        low: Lower end of the 95 % interval of ``observed``.
        high: Its upper end.
        rows: Rows of each bin.
    """

    score: Floats
    observed: Floats
    low: Floats
    high: Floats
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class Histogram:
    """Counts between ``edges``; a series a class, or one of errors; shape (edges - 1,) each."""

    edges: Floats
    series: dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Curves:
    """What is drawn of one model; a part that its kind does not have is None.

    Attributes:
        roc: By class (one for two classes): true over false positive rate.
        precision_recall: By class: precision over recall.
        calibration: By class, or one of a number: scores against what was observed.
        histogram: Scores by outcome, errors of a number, or losses of a language model.
    """

    roc: dict[str, Line] = field(default_factory=dict)
    precision_recall: dict[str, Line] = field(default_factory=dict)
    calibration: dict[str, Bins] = field(default_factory=dict)
    histogram: Histogram | None = None

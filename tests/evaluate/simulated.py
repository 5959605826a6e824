"""Worlds whose truth is known, and rows drawn from them: what the study of the gates is made of."""

import math
from statistics import NormalDist

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainwright.artifacts import Snapshot
from trainwright.evaluate.predictions import Predictions

Draw = np.random.Generator
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
NOTHING = Snapshot(files=(), columns=())


def distance(area: float) -> float:
    """How far apart two normals of one spread lie whose area under the curve is this: sqrt(2) z(area)."""
    return math.sqrt(2) * NormalDist().inv_cdf(area)


def unit(values: Floats) -> Floats:
    """Put any scores into (0, 1) in their order."""
    return 1 / (1 + np.exp(-values))


def labels(draw: Draw, rows: int, share: float) -> Integers:
    """Labels of which at least two of either kind occur, as in any set that is judged."""
    found = (draw.random(rows) < share).astype(np.int64)
    found[:4] = (0, 0, 1, 1)
    return found


def scores(draw: Draw, label: Integers, areas: tuple[float, ...], tied: float = 0.7) -> list[Floats]:
    """Scores of several models with these areas, which find the same rows hard: correlation ``tied``."""
    shared = draw.normal(0, 1, len(label))
    return [
        distance(area) * label
        + math.sqrt(tied) * shared
        + math.sqrt(1 - tied) * draw.normal(0, 1, len(label))
        for area in areas
    ]


def together(draw: Draw, rows: int, shares: tuple[float, float], both: float) -> tuple[Integers, Integers]:
    """Two columns of 0 and 1 with these shares, of which ``both`` are 1 together."""
    place = draw.random(rows)
    first = place < shares[0]
    second = (place < both) | ((place >= shares[0]) & (place < shares[0] + shares[1] - both))
    return first.astype(np.int64), second.astype(np.int64)


def said(draw: Draw, selected: Integers) -> Floats:
    """Scores that are at least 0.5 where a row is selected."""
    spread = draw.random(len(selected)) * 0.49
    return np.where(selected == 1, 0.5 + spread, spread)


def predictions(
    label: Integers | Floats,
    score: Floats,
    *,
    kind: str = "binary",
    columns: dict[str, NDArray[np.generic]] | None = None,
    weight: Floats | None = None,
) -> Predictions:
    """Predictions as they are read from a snapshot, with keys 0, 1, 2 and so on."""
    return Predictions(
        kind=kind,  # type: ignore[arg-type]
        label=label,
        scores=score.reshape(len(label), -1),
        weight=weight,
        bounds=None,
        key=pa.chunked_array([pa.array(np.arange(len(label)))]),
        columns={name: pa.chunked_array([pa.array(column)]) for name, column in (columns or {}).items()},
        label_name="late",
        unlabelled=0,
        threshold=None,
        snapshot=NOTHING,
    )

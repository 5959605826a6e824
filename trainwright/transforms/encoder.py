"""The fitted transforms as a torch module, which is exported with the model.

Only operations that IEEE 754 defines to the last bit are used, each a kernel of its own: no library's sine,
no fused or reordered sums. So a value gets the same bits as in training, on every machine and device.
The names of these classes and of their buffers are part of the exported program, and so of a model's digest.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainwright.transforms.encoding import (
    CLIP,
    CYCLES_S,
    FIRST,
    LARGEST,
    MISSING,
    MISSING_CATEGORY,
    MISSING_TIME,
    SINE,
    UNKNOWN,
    Category,
    Number,
    Ranked,
    Transforms,
    fingerprint,
)


class Encoder(nn.Module):
    """Encodes raw columns, as tensors. Inside, columns come first and rows second."""

    order: Tensor

    def __init__(self, transforms: Transforms) -> None:
        super().__init__()
        self.standard = Standard(transforms.numbers)
        self.places = Places(transforms.ranked)
        self.cycles = Cycles(len(transforms.times))
        self.codes = Codes(transforms.categories)
        self._standard, self._ranked = len(transforms.numbers), len(transforms.ranked)
        self._times = len(transforms.times)
        # `forward` computes all values first and then all indicators; each indicator follows its column.
        waves = 2 * len(CYCLES_S)
        widths = [1] * len(transforms.scaled) + [waves] * len(transforms.times)
        first, indicator = 0, sum(widths)
        order: list[int] = []
        for column, width in zip((*transforms.scaled, *transforms.times), widths, strict=True):
            order += range(first, first + width)
            order += [indicator] if column.indicator else []
            first, indicator = first + width, indicator + 1
        self.register_buffer("order", torch.tensor(order, dtype=torch.int64))

    def forward(self, numbers: Tensor, times: Tensor, categories: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``Encoded.numeric`` and ``Encoded.categories`` of the arrays of a ``Raw``."""
        values, moments = numbers.t().contiguous(), times.t().contiguous()
        known = values.abs() <= LARGEST  # false for NaN
        dated = moments != MISSING_TIME
        features: list[Tensor] = []
        if self._standard:
            features.append(self.standard(values[: self._standard], known[: self._standard]))
        if self._ranked:
            features.append(self.places(values[self._standard :], known[self._standard :]))
        if self._times:
            features.append(self.cycles(moments, dated))
        gaps = (known.logical_not().float(), dated.logical_not().float())
        numeric = torch.cat([*features, *gaps]).index_select(0, self.order)
        return numeric.t().contiguous(), self.codes(categories.t().contiguous()).t().contiguous()


class Standard(nn.Module):
    """Scales numbers by mean and deviation."""

    mean: Tensor
    scale: Tensor

    def __init__(self, columns: Sequence[Number]) -> None:
        super().__init__()
        for name in ("mean", "scale"):
            values = [getattr(column, name) for column in columns]
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64).unsqueeze(1))

    def forward(self, values: Tensor, known: Tensor) -> Tensor:
        """Return (columns, rows), float32, of float64 values and a mask of the usable ones."""
        usable = torch.where(known, values, self.mean)
        return usable.sub_(self.mean).mul_(self.scale).clamp_(-CLIP, CLIP).float()


class Places(nn.Module):
    """Maps numbers to their place in the distribution of the training rows, linear between two points.

    The points of all columns are concatenated; the slope after the last one of a column is 0.
    """

    points: Tensor
    heights: Tensor
    slopes: Tensor

    def __init__(self, columns: Sequence[Ranked]) -> None:
        super().__init__()
        self._sizes = [len(column.points) for column in columns]
        points = [torch.tensor(column.points, dtype=torch.float64) for column in columns]
        heights = [
            (torch.tensor(column.levels, dtype=torch.float64) - 0.5) * math.sqrt(12) for column in columns
        ]
        # Finite also between neighbours as near as the smallest float64.
        most, flat = torch.finfo(torch.float64).max, torch.zeros(1, dtype=torch.float64)
        slopes = [
            torch.cat([(height.diff() / point.diff()).clamp(max=most), flat])
            for point, height in zip(points, heights, strict=True)
        ]
        self.register_buffer("points", _joined(points))
        self.register_buffer("heights", _joined(heights))
        self.register_buffer("slopes", _joined(slopes))

    def forward(self, values: Tensor, known: Tensor) -> Tensor:
        """Return (columns, rows), float32, of float64 values and a mask of the usable ones."""
        usable = torch.where(known, values, 0.0)
        # The first point bounds nothing: values below it get its feature.
        bounds = [column[1:] for column in torch.split(self.points, self._sizes)]
        place = _places(bounds, usable, self._sizes, right=True)
        beyond = usable.sub_(_at(self.points, place)).clamp_(min=0)
        feature = beyond.mul_(_at(self.slopes, place)).add_(_at(self.heights, place))
        return torch.where(known, feature, 0.0).float()


def _places(bounds: Sequence[Tensor], values: Tensor, sizes: Sequence[int], *, right: bool) -> Tensor:
    """Search each row of ``values`` among the bounds of its column; places count through all columns."""
    first = itertools.accumulate(sizes, initial=0)
    return torch.stack(
        [
            torch.searchsorted(column, row, right=right) + start
            for column, row, start in zip(bounds, values.unbind(), first, strict=False)
        ]
    )


def _at(table: Tensor, place: Tensor) -> Tensor:
    """Return ``table[place]``, for a table of one dimension."""
    return table.expand(place.shape[0], -1).gather(1, place)


def _joined(columns: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(columns)) if columns else torch.empty(0)


class Cycles(nn.Module):
    """Maps times to sine and cosine within each cycle."""

    cycle_us: Tensor
    turns_per_us: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__()
        cycles = torch.tensor([cycle * 1_000_000 for cycle in CYCLES_S] * columns, dtype=torch.int64)
        self.register_buffer("cycle_us", cycles.unsqueeze(1))
        self.register_buffer("turns_per_us", 1 / cycles.double().unsqueeze(1))

    def forward(self, moments: Tensor, dated: Tensor) -> Tensor:
        """Return (columns * cycles * 2, rows), float32, of times and a mask of the known ones."""
        repeated = moments.repeat_interleave(len(CYCLES_S), 0)
        turn = torch.remainder(repeated, self.cycle_us).double() * self.turns_per_us
        # The angle, in turns, folded into a quarter turn round 0: sin(2 pi turn) = sin(2 pi u).
        sine = torch.minimum(turn, torch.maximum(0.5 - turn, turn - 1))
        cosine = (turn - 0.5).abs() - 0.25
        # Not `flatten`, for which torch before 2.13 wants to know more of the number of rows when it exports.
        waves = _sine(torch.stack([wave for pair in zip(sine, cosine, strict=True) for wave in pair]))
        return torch.where(dated.repeat_interleave(2 * len(CYCLES_S), 0), waves, 0.0).float()


def _sine(turn: Tensor) -> Tensor:
    """Return sin(2 pi u) for u in [-1/4, 1/4], float64, by Horner's rule."""
    square = turn * turn
    total = square * SINE[-1] + SINE[-2]
    for coefficient in SINE[-3::-1]:
        total = total * square + coefficient
    return total * turn


class Codes(nn.Module):
    """Maps fingerprints to codes, by a search among the learned ones; those of all columns are concatenated.

    Those of a column are sorted, with those of no value and the largest number, so every search finds one.
    """

    learned: Tensor
    codes: Tensor
    unknown: Tensor

    def __init__(self, columns: Sequence[Category]) -> None:
        super().__init__()
        tables = []
        for column in columns:
            codes = {fingerprint(value): code for code, value in enumerate(column.values, start=FIRST)}
            end = torch.iinfo(torch.int64).max
            tables.append(sorted({end: UNKNOWN, MISSING_CATEGORY: MISSING, **codes}.items()))
        self._sizes = [len(table) for table in tables]
        first = list(itertools.accumulate((column.size for column in columns), initial=0))[:-1]
        self.register_buffer(
            "learned", _joined([torch.tensor([mark for mark, _ in table]) for table in tables])
        )
        shifted = [
            torch.tensor([code + start for _, code in table])
            for table, start in zip(tables, first, strict=True)
        ]
        self.register_buffer("codes", _joined(shifted))
        self.register_buffer("unknown", torch.tensor(first, dtype=torch.int64).unsqueeze(1) + UNKNOWN)

    def forward(self, values: Tensor) -> Tensor:
        """Return (columns, rows), int64, of as many fingerprints."""
        if not self._sizes:
            return values
        place = _places(torch.split(self.learned, self._sizes), values, self._sizes, right=False)
        return torch.where(_at(self.learned, place) == values, _at(self.codes, place), self.unknown)

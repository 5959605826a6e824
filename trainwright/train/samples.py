"""Samples by number, and batches of them: what an order is taken over and what a model is shown."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Some samples, as tensors with the samples first.

    Attributes:
        inputs: What the model's ``forward`` takes, in order, each of shape (samples, ...).
        target: What it is to predict, shape (samples, ...).
        weight: Weight of each sample in the loss, shape (samples,), float32, at least 0, 1 on average.
        ids: Number of each sample in its split, shape (samples,), int64: what evidence names.
    """

    inputs: tuple[Tensor, ...]
    target: Tensor
    weight: Tensor
    ids: Tensor

    def __len__(self) -> int:
        """Number of samples; may be 0 on a process that has no share of a small batch."""
        return len(self.ids)

    def to(self, device: torch.device) -> Self:
        """Return the batch on a device; the copy may still be under way."""
        inputs = tuple(entry.to(device, non_blocking=True) for entry in self.inputs)
        target, weight = (entry.to(device, non_blocking=True) for entry in (self.target, self.weight))
        return replace(self, inputs=inputs, target=target, weight=weight)

    def pinned(self) -> Self:
        """Return the batch in pinned memory, from which a GPU copies while it computes."""
        inputs = tuple(entry.pin_memory() for entry in self.inputs)
        return replace(self, inputs=inputs, target=self.target.pin_memory(), weight=self.weight.pin_memory())

    def part(self, first: int, last: int) -> Self:
        """Return the samples [first, last)."""
        if first <= 0 and last >= len(self):
            return self
        inputs = tuple(entry[first:last] for entry in self.inputs)
        return replace(
            self,
            inputs=inputs,
            target=self.target[first:last],
            weight=self.weight[first:last],
            ids=self.ids[first:last],
        )


class Samples(Protocol):
    """A split, encoded, that gives any of its samples by number."""

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def take(self, index: NDArray[np.int64]) -> Batch:
        """Return some samples, in the order of ``index``, shape (samples,), each in [0, len)."""
        ...

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Take note that samples of these ranges [first, last) are about to be taken."""
        ...

"""Batches in their order, prepared ahead of the step that needs them."""

from trainwright.train.order import Order
from trainwright.train.samples import Batch, Samples


class Loader:
    """Gives one process its share of every batch.

    Args:
        samples: The split.
        order: The order in which it is seen.
        part: Number of this process among the data-parallel ones.
        parts: Number of those.
    """

    def __init__(self, samples: Samples, order: Order, part: int, parts: int) -> None:
        self._samples, self.order = samples, order
        self._part, self._parts = part, parts
        self._step = 0

    def begin(self, step: int) -> None:
        """Start at a step, whatever was given before."""
        self._step = step

    def next(self) -> Batch:
        """Return this process's share of the next batch."""
        index = self.order.share(self._step, self._part, self._parts)
        self._step += 1
        return self._samples.take(index)

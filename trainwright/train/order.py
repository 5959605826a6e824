"""The order in which a training sees its samples: a function of the seed alone.

The samples of an epoch are moved in blocks of neighbours, which are shuffled; the sequence is cut into
``streams`` of equal length, and each stream is shuffled once more within windows. A global batch takes an
equal share from every stream. So

- every sample is seen once an epoch, exactly;
- the order does not depend on the number of processes, as long as that divides the number of streams
  (the idea of MosaicML Streaming's canonical nodes);
- a process reads few places at a time, however large the split is;
- the state of the order is the number of the step: there is nothing to save but that.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import InputError

_EIGHT = 8


def default_streams(parts: int) -> int:
    """Return how many streams a training has if none are asked for: the same for 1, 2, 4 and 8 processes."""
    return math.lcm(_EIGHT, parts)


@dataclass(frozen=True)
class Order:
    """The order of one training.

    Attributes:
        samples: Samples of the split.
        batch_size: Samples of a global batch; the last of an epoch may be smaller.
        streams: Parts that are read side by side.
        seed: Any number from 0.
        block: Neighbours that are moved together.
        window: Samples of a stream that are shuffled with one another.
    """

    samples: int
    batch_size: int
    streams: int
    seed: int
    block: int = 4096
    window: int = 262_144

    @property
    def batches(self) -> int:
        """Number of batches of an epoch."""
        return math.ceil(self.samples / self.batch_size)

    def size(self, number: int) -> int:
        """Return the samples of batch ``number`` of an epoch, over all processes."""
        return min(self.batch_size, self.samples - number * self.batch_size)

    def share(self, step: int, part: int, parts: int) -> NDArray[np.int64]:
        """Return the samples of a step that belong to one of several data-parallel processes.

        Args:
            step: Number of the step since the training began, from 0.
            part: Number of the process, from 0.
            parts: Number of processes.

        Returns:
            Shape (samples,): numbers of samples, each in [0, ``samples``); the parts of a batch one after
            another are the batch.

        Raises:
            InputError: The number of processes does not divide the number of streams.
        """
        if self.streams % parts:
            raise InputError(
                f"{self.streams} streams cannot be shared evenly by {parts} data-parallel processes",
                where="training.feeding.streams",
                hint=f"Use a multiple of {parts}, such as {math.lcm(self.streams, parts)}.",
            )
        epoch, number = divmod(step, self.batches)
        each = self.streams // parts
        mine = [self._of_stream(epoch, number, stream) for stream in range(part * each, (part + 1) * each)]
        return np.concatenate(mine)

    def _of_stream(self, epoch: int, number: int, stream: int) -> NDArray[np.int64]:
        """Return what one stream gives to one batch."""
        before = number * self._quota(self.batch_size, stream)
        count = self._quota(self.size(number), stream)
        found = []
        while count:
            window, offset = divmod(before, self.window)
            order = self._window(epoch, stream, window)
            found.append(order[offset : offset + count])
            before, count = before + len(found[-1]), count - len(found[-1])
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def _quota(self, size: int, stream: int) -> int:
        """Return how many samples of a batch of a size come from a stream: as even as whole numbers are."""
        return (stream + 1) * size // self.streams - stream * size // self.streams

    def _span(self, stream: int) -> tuple[int, int]:
        """Return the first place of a stream in the sequence of an epoch, and its length."""
        full, rest = divmod(self.samples, self.batch_size)
        lengths = [
            full * self._quota(self.batch_size, each) + self._quota(rest, each) for each in range(stream + 1)
        ]
        return sum(lengths[:stream]), lengths[stream]

    @lru_cache(maxsize=4096)  # noqa: B019 - an order lives as long as its training
    def _window(self, epoch: int, stream: int, window: int) -> NDArray[np.int64]:
        """Return the samples of one window of a stream, shuffled."""
        start, length = self._span(stream)
        first = start + window * self.window
        last = min(first + self.window, start + length)
        places = self._places(epoch, first, last)
        return self._generator(epoch, 1, stream, window).permutation(places)

    def _places(self, epoch: int, first: int, last: int) -> NDArray[np.int64]:
        """Return the samples at places [first, last) of the sequence of shuffled blocks."""
        blocks, starts = self._blocks(epoch)
        low, high = np.searchsorted(starts, (first, last - 1), side="right") - 1
        parts = []
        for index in range(low, high + 1):
            block = int(blocks[index]) * self.block
            begin = max(first - int(starts[index]), 0)
            end = min(last - int(starts[index]), self.block, self.samples - block)
            parts.append(np.arange(block + begin, block + end))
        return np.concatenate(parts)

    @lru_cache(maxsize=2)  # noqa: B019 - an order lives as long as its training
    def _blocks(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the blocks of an epoch in their order, and the place where each begins."""
        blocks = self._generator(epoch, 0).permutation(math.ceil(self.samples / self.block))
        sizes = np.minimum(self.block, self.samples - blocks * self.block)
        return blocks, np.cumsum(sizes) - sizes

    def _generator(self, *place: int) -> np.random.Generator:
        """Return a generator of its own for each place, so that nothing random elsewhere matters."""
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, *place])))

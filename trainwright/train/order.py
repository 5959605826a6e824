"""The order in which a training sees its samples: a function of the seed alone.

The samples of an epoch are moved in blocks of neighbours, which are shuffled; the sequence is cut into
``streams`` of equal length, and each stream is shuffled once more within windows. A global batch takes an
equal share from every stream. So

- every sample is seen once an epoch, exactly;
- the order does not depend on the number of processes, as long as that divides the number of streams
  (the idea of MosaicML Streaming's canonical nodes);
- a process reads few places at a time, however large the split is;
- the state of the order is the number of the step: there is nothing to save but that.

Batches that are left out are numbers in a set, so the order stays a function: of the seed and of that set.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import InputError
from trainwright.experiment import Training

_EIGHT = 8


def default_streams(parts: int) -> int:
    """Return how many streams a training has if none are asked for: the same for 1, 2, 4 and 8 processes."""
    return math.lcm(_EIGHT, parts)


@dataclass(frozen=True)
class Order:
    """The order of one training.

    What is held is one shuffled window a stream that is read (2 MiB each by default), however many epochs
    and windows there are. Not for several threads at a time.

    Attributes:
        samples: Samples of the split.
        batch_size: Samples of a global batch; the last of an epoch may be smaller.
        streams: Parts that are read side by side.
        seed: Any number from 0.
        block: Neighbours that are moved together.
        window: Samples of a stream that are shuffled with one another.
        skip: Numbers of batches that are left out, counted from the beginning of the training.
    """

    samples: int
    batch_size: int
    streams: int
    seed: int
    block: int = 4096
    window: int = 262_144
    skip: frozenset[int] = frozenset()
    _live: dict[int, tuple[int, int, NDArray[np.int64]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _sequence: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def batches(self) -> int:
        """Number of batches of an epoch."""
        return math.ceil(self.samples / self.batch_size)

    def position(self, step: int) -> int:
        """Return the number of the batch that a step sees: its own, or later by those left out before it."""
        number = step
        for skipped in sorted(self.skip):
            if skipped > number:
                break
            number += 1
        return number

    def size(self, number: int) -> int:
        """Return the samples of batch ``number`` of an epoch, over all processes."""
        return min(self.batch_size, self.samples - number * self.batch_size)

    def size_at(self, step: int) -> int:
        """Return the samples that a step sees, over all processes."""
        return self.size(self.position(step) % self.batches)

    def epoch_at(self, step: int) -> int:
        """Return the number of the pass over the data that a step belongs to, from 0."""
        return self.position(step) // self.batches

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
        epoch, number = divmod(self.position(step), self.batches)
        return np.concatenate([self._of_stream(epoch, number, each) for each in self._mine(part, parts)])

    def ahead(self, step: int, part: int, parts: int) -> Iterator[tuple[int, int]]:
        """Give the ranges of samples [first, last) that the windows live at a step are drawn from.

        Raises:
            InputError: The number of processes does not divide the number of streams.
        """
        epoch, number = divmod(self.position(step), self.batches)
        for stream in self._mine(part, parts):
            if quota := self._quota(self.batch_size, stream):
                first, last = self._bounds(stream, number * quota // self.window)
                yield from self._ranges(epoch, first, last)

    def _mine(self, part: int, parts: int) -> range:
        """Return the streams of one process."""
        if self.streams % parts:
            raise InputError(
                f"{self.streams} streams cannot be shared evenly by {parts} data-parallel processes",
                where="training.feeding.streams",
                hint=f"Use a multiple of {parts}, such as {math.lcm(self.streams, parts)}.",
            )
        each = self.streams // parts
        return range(part * each, (part + 1) * each)

    def _of_stream(self, epoch: int, number: int, stream: int) -> NDArray[np.int64]:
        """Return what one stream gives to one batch."""
        before = number * self._quota(self.batch_size, stream)
        count = self._quota(self.size(number), stream)
        found = []
        while count:
            window, offset = divmod(before, self.window)
            found.append(self._window(epoch, stream, window)[offset : offset + count])
            before, count = before + len(found[-1]), count - len(found[-1])
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def _quota(self, size: int, stream: int) -> int:
        """Return how many samples of a batch of a size come from a stream: as even as whole numbers are."""
        return (stream + 1) * size // self.streams - stream * size // self.streams

    def _bounds(self, stream: int, window: int) -> tuple[int, int]:
        """Return the places [first, last) of a window of a stream in the sequence of an epoch.

        The shares of a batch add up along the streams, so those of the streams before a stream are
        ``stream * size // streams`` of each batch.
        """
        full, rest = divmod(self.samples, self.batch_size)
        start, end = (
            full * (edge * self.batch_size // self.streams) + edge * rest // self.streams
            for edge in (stream, stream + 1)
        )
        first = start + window * self.window
        return min(first, end), min(first + self.window, end)

    def _window(self, epoch: int, stream: int, window: int) -> NDArray[np.int64]:
        """Return the samples of one window of a stream, shuffled; the last one of each stream is kept."""
        held = self._live.get(stream)
        if held is None or held[:2] != (epoch, window):
            places = self._places(epoch, *self._bounds(stream, window))
            held = epoch, window, self._generator(epoch, 1, stream, window).permutation(places)
            self._live[stream] = held
        return held[2]

    def _places(self, epoch: int, first: int, last: int) -> NDArray[np.int64]:
        """Return the samples at places [first, last) of the sequence of shuffled blocks."""
        return np.concatenate([np.arange(*ends) for ends in self._ranges(epoch, first, last)])

    def _ranges(self, epoch: int, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Give the ranges of samples at places [first, last) of the sequence of shuffled blocks."""
        if first >= last:
            return
        blocks, starts = self._blocks(epoch)
        low, high = np.searchsorted(starts, (first, last - 1), side="right") - 1
        for index in range(low, high + 1):
            block = int(blocks[index]) * self.block
            begin = max(first - int(starts[index]), 0)
            end = min(last - int(starts[index]), self.block, self.samples - block)
            yield block + begin, block + end

    def _blocks(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the blocks of an epoch in their order, and the place where each begins."""
        if epoch not in self._sequence:
            blocks = self._generator(epoch, 0).permutation(math.ceil(self.samples / self.block))
            sizes = np.minimum(self.block, self.samples - blocks * self.block)
            while len(self._sequence) > 1:  # this epoch and the one before or after it
                del self._sequence[next(iter(self._sequence))]
            self._sequence[epoch] = blocks, np.cumsum(sizes) - sizes
        return self._sequence[epoch]

    def _generator(self, *place: int) -> np.random.Generator:
        """Return a generator of its own for each place, so that nothing random elsewhere matters."""
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, *place])))


_MOST_MEMBERS = 2**32
"""Samples that a number of 32 bits can tell apart."""


@dataclass(frozen=True, eq=False)
class BalancedOrder(Order):
    """An order in which every class comes equally often: its samples are drawn with replacement.

    The classes take turns within a batch, so every batch, and every process's share of it, holds as many of
    each as whole numbers allow. An epoch is as many draws as the split has samples. It reads all over the
    split, and takes 4 bytes of memory a sample in every process. Make one with :meth:`of`.

    Attributes:
        members: Samples sorted by their class, shape (samples,).
        counts: Samples of each class, shape (classes,), at least 1.
    """

    members: NDArray[np.uint32] = field(kw_only=True, repr=False)
    counts: NDArray[np.int64] = field(kw_only=True)

    @classmethod
    def of(cls, labels: NDArray[np.integer], batch_size: int, seed: int) -> Self:
        """Make the order of a split.

        Args:
            labels: Class of each sample, shape (samples,), whole numbers from 0.
            batch_size: Samples of a global batch; the last of an epoch may be smaller.
            seed: Any number from 0.

        Raises:
            InputError: A class below the largest one has no sample.
        """
        counts = np.bincount(labels)
        if not counts.all():
            empty = ", ".join(map(str, np.flatnonzero(counts == 0)[:5]))
            raise InputError(
                f"of some classes there is no sample to draw: {empty}", where="training.objective.sampling"
            )
        if len(labels) > _MOST_MEMBERS:
            raise InputError(
                f"{len(labels):,} samples cannot be drawn by class, at most {_MOST_MEMBERS:,} can",
                where="training.objective.sampling",
                hint="Use class_weights: balanced.",
            )
        members = np.argsort(labels, kind="stable").astype(np.uint32)
        return cls(len(labels), batch_size, 1, seed, members=members, counts=counts)

    def share(self, step: int, part: int, parts: int) -> NDArray[np.int64]:
        """Return the samples of a step that belong to one of several data-parallel processes."""
        size, random = self.size_at(step), self._generator(3, self.position(step))
        turn = (np.arange(size) + random.integers(len(self.counts))) % len(self.counts)
        places = np.cumsum(self.counts)[turn] - 1 - random.integers(self.counts[turn])
        mine = places[part * size // parts : (part + 1) * size // parts]
        found: NDArray[np.int64] = self.members[mine].astype(np.int64)
        return found

    def ahead(self, step: int, part: int, parts: int) -> Iterator[tuple[int, int]]:  # noqa: ARG002
        """Give nothing: the draws are from all over the split, always."""
        yield from ()


def order_of(
    samples: int, training: Training, parts: int, labels: Callable[[], NDArray[np.generic]]
) -> Order:
    """Return the order that a training asks for.

    Args:
        samples: Samples of the split.
        training: What is asked for.
        parts: Data-parallel processes.
        labels: Gives the class of each sample, where classes are to come equally often.

    Raises:
        InputError: Classes are to come equally often, and there is no sample of one.
    """
    feeding, seed = training.feeding, training.seed
    if training.objective.sampling == "balanced":
        return BalancedOrder.of(labels().astype(np.int64), training.batch_size, seed)
    streams = feeding.streams or default_streams(parts)
    return Order(samples, training.batch_size, streams, seed, feeding.block, feeding.window)

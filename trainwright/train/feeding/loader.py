"""The order of samples, batches of them, and a loader that prepares batches ahead of the step."""

import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainwright.errors import InputError
from trainwright.experiment import ResolvedTraining

_MOST_MEMBERS = 2**32
"""Samples that 32 bits can number."""


@dataclass(frozen=True)
class SampleOrder:
    """The order in which a training sees its samples: a function of the seed alone. Not thread-safe.

    Each epoch shuffles blocks of neighbouring samples, splits the sequence into ``streams`` of equal length,
    and shuffles each stream once more within windows. A global batch takes an equal share from every stream.
    So

    - every sample is seen exactly once per epoch;
    - a batch does not depend on the number of processes, each of which takes a slice of it (the idea of
      MosaicML Streaming's canonical nodes);
    - a process reads from few places at a time, however large the split is;
    - the state of the order is the number of the step: nothing else needs saving.

    Skipped batches are a set of numbers, so the order stays a function of the seed and that set. One shuffled
    window per stream that is read is in memory (2 MiB each by default).

    Attributes:
        samples: Samples of the split.
        batch_size: Samples of a global batch; the last of an epoch may be smaller.
        streams: Parts that are read in parallel.
        seed: Any number from 0.
        block: Neighbours that stay together.
        window: Samples of a stream that are shuffled together.
        skip: Numbers of skipped batches since the beginning of the training.
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
        """Return the number of the batch that a step sees: its own, shifted by those skipped before it."""
        number = step
        for skipped in sorted(self.skip):
            if skipped > number:
                break
            number += 1
        return number

    def size(self, number: int) -> int:
        """Return the number of samples of batch ``number`` of an epoch, over all processes."""
        return min(self.batch_size, self.samples - number * self.batch_size)

    def size_at(self, step: int) -> int:
        """Return the number of samples that a step sees, over all processes."""
        return self.size(self.position(step) % self.batches)

    def share(self, step: int, part: int, parts: int) -> NDArray[np.int64]:
        """Return the samples of a step, from 0, that belong to one of several data-parallel processes.

        Returns:
            Numbers of samples, shape (samples,); the concatenated parts are the batch. Their sizes differ by
            at most 1.
        """
        epoch, number = divmod(self.position(step), self.batches)
        size = self.size(number)
        first, last = part * size // parts, (part + 1) * size // parts
        found = [np.empty(0, dtype=np.int64)]
        for stream in range(self.streams):
            start, end = stream * size // self.streams, (stream + 1) * size // self.streams
            low, high = max(first, start), min(last, end)
            if low < high:
                found.append(self._of_stream(epoch, number, stream, low - start, high - low))
        return np.concatenate(found)

    def _of_stream(self, epoch: int, number: int, stream: int, first: int, count: int) -> NDArray[np.int64]:
        """Return some of the samples of a batch that come from one stream, from number ``first`` on."""
        before = number * self._quota(self.batch_size, stream) + first
        found = []
        while count:
            window, offset = divmod(before, self.window)
            found.append(self._window(epoch, stream, window)[offset : offset + count])
            before, count = before + len(found[-1]), count - len(found[-1])
        return np.concatenate(found)

    def _quota(self, size: int, stream: int) -> int:
        """Return how many samples of a batch come from a stream: as even as whole numbers allow."""
        return (stream + 1) * size // self.streams - stream * size // self.streams

    def _window(self, epoch: int, stream: int, window: int) -> NDArray[np.int64]:
        """Return the shuffled samples of one window of a stream; caches the last one of each stream."""
        held = self._live.get(stream)
        if held is None or held[:2] != (epoch, window):
            # Shares of a batch add up along the streams: those before one have stream * size // streams.
            full, rest = divmod(self.samples, self.batch_size)
            start, end = (
                full * (edge * self.batch_size // self.streams) + edge * rest // self.streams
                for edge in (stream, stream + 1)
            )
            first = start + window * self.window
            samples = self._sequence_of(epoch, first, min(first + self.window, end))
            held = epoch, window, self._generator(epoch, 1, stream, window).permutation(samples)
            self._live[stream] = held
        return held[2]

    def _sequence_of(self, epoch: int, first: int, last: int) -> NDArray[np.int64]:
        """Return the samples at positions [first, last) of the sequence of shuffled blocks of an epoch."""
        if epoch not in self._sequence:
            blocks = self._generator(epoch, 0).permutation(math.ceil(self.samples / self.block))
            sizes = np.minimum(self.block, self.samples - blocks * self.block)
            self._sequence.clear()
            self._sequence[epoch] = blocks, np.cumsum(sizes) - sizes
        blocks, starts = self._sequence[epoch]
        low, high = np.searchsorted(starts, (first, last - 1), side="right") - 1
        found = []
        for block, start in zip(blocks[low : high + 1] * self.block, starts[low : high + 1], strict=True):
            begin, end = max(first - start, 0), min(last - start, self.block, self.samples - block)
            found.append(np.arange(block + begin, block + end))
        return np.concatenate(found)

    def _generator(self, *place: int) -> np.random.Generator:
        """Return a generator for one purpose, independent of all others."""
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, *place])))


@dataclass(frozen=True, eq=False)
class BalancedOrder(SampleOrder):
    """An order that draws every class equally often, with replacement.

    The classes take turns within a batch, so every batch, and every process's share of it, is balanced. An
    epoch is as many draws as the split has samples. It reads all over the split, and takes 4 bytes of memory
    per sample in every process. Create one with :meth:`of`.

    Attributes:
        members: Samples sorted by class, shape (samples,).
        counts: Samples of each class, shape (classes,), at least 1.
    """

    members: NDArray[np.uint32] = field(kw_only=True, repr=False)
    counts: NDArray[np.int64] = field(kw_only=True)

    @classmethod
    def of(cls, labels: NDArray[np.integer], batch_size: int, seed: int) -> Self:
        """Create the order of a split from the class of each sample, shape (samples,), numbered from 0."""
        counts = np.bincount(labels)
        if not counts.all():
            empty = ", ".join(map(str, np.flatnonzero(counts == 0)[:5]))
            raise InputError(
                f"balanced sampling needs a sample of every class; there is none of {empty}",
                where="training.objective.sampling",
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


def order_of(
    samples: int, training: ResolvedTraining, labels: Callable[[], NDArray[np.generic]]
) -> SampleOrder:
    """Return the configured order; ``labels`` returns the class of each sample, for balanced sampling."""
    feeding, seed = training.feeding, training.seed
    if training.objective.sampling == "balanced":
        return BalancedOrder.of(labels().astype(np.int64), training.batch_size, seed)
    return SampleOrder(samples, training.batch_size, feeding.streams, seed, feeding.block, feeding.window)


@dataclass(frozen=True)
class Batch:
    """Some samples, as tensors with the samples first.

    Attributes:
        inputs: Arguments of the model's ``forward``, each of shape (samples, ...).
        target: Target of each sample, shape (samples, ...).
        weight: Weight of each sample in the loss, shape (samples,), float32, at least 0, 1 on average.
        ids: Number of each sample in its split, shape (samples,), int64.
    """

    inputs: tuple[Tensor, ...]
    target: Tensor
    weight: Tensor
    ids: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device) -> Self:
        """Return the batch on a device; the copy may still be in progress."""
        return self._mapped(lambda entry: entry.to(device, non_blocking=True))

    def pinned(self) -> Self:
        """Return the batch in pinned memory, from which a GPU copies while it computes."""
        return self._mapped(lambda entry: entry.pin_memory())

    def part(self, first: int, last: int) -> Self:
        """Return the samples [first, last)."""
        if first <= 0 and last >= len(self):
            return self
        return replace(self._mapped(lambda entry: entry[first:last]), ids=self.ids[first:last])

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Self:
        inputs = tuple(change(entry) for entry in self.inputs)
        return replace(self, inputs=inputs, target=change(self.target), weight=change(self.weight))


class SampleSource(Protocol):
    """An encoded split that returns samples by number."""

    def __len__(self) -> int: ...

    def take(self, index: NDArray[np.int64]) -> Batch:
        """Return some samples, in the order of ``index``, shape (samples,), each in [0, len)."""
        ...


class Loader:
    """Gives one process its share of every batch; a thread prepares the next ones.

    ``waited_s`` has the seconds that :meth:`next` waited for samples.

    Gathering a batch is a handful of calls to numpy and torch, which release the GIL. The process is number
    ``part`` of ``parts`` data-parallel ones; ``pin`` puts batches into pinned memory.
    """

    def __init__(
        self,
        samples: SampleSource,
        order: SampleOrder,
        part: int,
        parts: int,
        *,
        prefetch: int = 4,
        pin: bool = False,
    ) -> None:
        self.order, self.waited_s = order, 0.0
        self._samples, self._part, self._parts = samples, part, parts
        self._prefetch, self._pin = prefetch, pin
        self._thread: ThreadPoolExecutor | None = None
        self._ahead: deque[Future[Batch]] = deque()
        self._prepared = [0, 0.0]  # samples, and the seconds that the thread worked for them

    def begin(self, step: int, skip: frozenset[int] | None = None) -> None:
        """Start at a step, whatever was given before."""
        self.close()
        if skip is not None:
            self.order = replace(self.order, skip=skip)
        self._thread = ThreadPoolExecutor(1, "batches")
        self._step, self._thread_order = step, replace(self.order)  # orders are not thread-safe
        for _ in range(self._prefetch):
            self._submit()

    def next(self) -> Batch:
        """Return this process's share of the next batch."""
        if self._thread is None:
            self.begin(0)
        began = time.monotonic()
        batch = self._ahead[0].result()
        self.waited_s += time.monotonic() - began
        self._ahead.popleft()
        self._submit()
        return batch

    @property
    def given_per_s(self) -> float:
        """Samples per second that all processes could get, if each prepares them as fast as this one."""
        samples, busy_s = self._prepared
        return samples * self._parts / max(busy_s, 1e-9)

    def close(self) -> None:
        """Stop preparing batches."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._ahead.clear()
            self._thread = None

    def _submit(self) -> None:
        assert self._thread is not None  # noqa: S101 - begun
        samples, order, pin = self._samples, self._thread_order, self._pin
        number, part, parts, prepared = self._step, self._part, self._parts, self._prepared

        def prepare() -> Batch:
            began = time.monotonic()
            batch = samples.take(order.share(number, part, parts))
            batch = batch.pinned() if pin else batch
            prepared[0] += len(batch)
            prepared[1] += time.monotonic() - began
            return batch

        self._ahead.append(self._thread.submit(prepare))
        self._step += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

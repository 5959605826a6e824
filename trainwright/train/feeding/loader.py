"""Samples by number, batches of them, and a loader that prepares batches ahead of the step."""

import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainwright.train.feeding.order import SampleOrder

_LOOK_AHEAD = 32
"""Steps before its first use that a shard begins to be encoded, if the cache does not hold all of them."""


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

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Announce that samples of these ranges [first, last) will be taken soon."""
        ...


class Loader:
    """Gives one process its share of every batch; a thread prepares the next ones.

    Gathering a batch is a handful of calls to numpy and torch, which release the GIL.

    Args:
        samples: The split.
        order: The order of samples.
        part: Number of this process among the data-parallel ones.
        parts: Number of those.
        prefetch: Batches that are prepared ahead.
        pin: Use pinned memory, from which a GPU copies while it computes.
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
        self.order = order
        self._samples, self._part, self._parts = samples, part, parts
        self._prefetch, self._pin = prefetch, pin
        self._ahead: _Prefetcher | None = None
        self._finalizer: weakref.finalize[[], Loader]

    def begin(self, step: int, skip: frozenset[int] | None = None) -> None:
        """Start at a step, whatever was given before.

        Args:
            step: The step that sees the next batch.
            skip: Numbers of batches to skip from now on; unchanged if absent.
        """
        self.close()
        if skip is not None:
            self.order = replace(self.order, skip=skip)
        order = replace(self.order)  # an order of its own for the thread: they are not thread-safe
        samples, part, parts, pin = self._samples, self._part, self._parts, self._pin

        def prepare(number: int) -> Batch:
            samples.expect(order.ahead(number + _LOOK_AHEAD, part, parts))
            batch = samples.take(order.share(number, part, parts))
            return batch.pinned() if pin else batch

        self._ahead = _Prefetcher(prepare, step, self._prefetch)
        self._finalizer = weakref.finalize(self, self._ahead.request_stop)

    def next(self) -> Batch:
        """Return this process's share of the next batch.

        Raises:
            TrainwrightError: The error of preparing it; each further call raises it again.
        """
        if self._ahead is None:
            self.begin(0)
        assert self._ahead is not None  # noqa: S101 - begun
        return self._ahead.next()

    def close(self) -> None:
        """Stop preparing batches."""
        if self._ahead is not None:
            self._finalizer.detach()
            self._ahead.stop()
            self._ahead = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Prefetcher:
    """A thread that prepares one batch after another, up to ``most`` ahead."""

    def __init__(self, prepare: Callable[[int], Batch], first: int, most: int) -> None:
        self._prepare, self._first = prepare, first
        self._ready: SimpleQueue[Batch | BaseException] = SimpleQueue()
        self._free = threading.Semaphore(most)
        self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    def next(self) -> Batch:
        if self._error is None:
            found = self._ready.get()
            if not isinstance(found, BaseException):
                self._free.release()
                return found
            self._error = found
        raise self._error

    def request_stop(self) -> None:
        self._stopped = True
        self._free.release()

    def stop(self) -> None:
        self.request_stop()
        self._thread.join()

    def _work(self) -> None:
        number = self._first
        try:
            while True:
                self._free.acquire()
                if self._stopped:
                    return
                self._ready.put(self._prepare(number))
                number += 1
        except BaseException as error:  # raised by the step that needs the batch
            self._ready.put(error)

"""Samples by number, batches of them, and a loader that prepares batches ahead of the step."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainwright.train.feeding.order import SampleOrder


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

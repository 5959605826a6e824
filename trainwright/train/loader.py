"""Batches in their order, prepared ahead of the step that needs them."""

import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Self

from trainwright.train.order import Order
from trainwright.train.samples import Batch, Samples


class Loader:
    """Gives one process its share of every batch; a thread of its own prepares those that are due next.

    Gathering a batch is a handful of calls of numpy and torch, which let other threads run.

    Args:
        samples: The split.
        order: The order in which it is seen.
        part: Number of this process among the data-parallel ones.
        parts: Number of those.
        prefetch: Batches that are prepared ahead.
        pin: Put them into pinned memory, from which a GPU copies while it computes.
    """

    def __init__(
        self, samples: Samples, order: Order, part: int, parts: int, *, prefetch: int = 4, pin: bool = False
    ) -> None:
        self.order = order
        self._samples, self._part, self._parts = samples, part, parts
        self._prefetch, self._pin = prefetch, pin
        self._ahead: _Ahead | None = None
        self._forgotten: weakref.finalize[[], Loader]

    def begin(self, step: int, skip: frozenset[int] | None = None) -> None:
        """Start at a step, whatever was given before.

        Args:
            step: The step that sees the next batch.
            skip: Numbers of batches that are left out from now on; as before if absent.
        """
        self.close()
        if skip is not None:
            self.order = replace(self.order, skip=skip)
        order = replace(self.order)  # the thread has one of its own: an order is for one thread at a time
        samples, part, parts, pin = self._samples, self._part, self._parts, self._pin

        def prepare(number: int) -> Batch:
            samples.expect(order.ahead(number + _LOOK_AHEAD, part, parts))
            batch = samples.take(order.share(number, part, parts))
            return batch.pinned() if pin else batch

        self._ahead = _Ahead(prepare, step, self._prefetch)
        self._forgotten = weakref.finalize(self, self._ahead.leave)

    def next(self) -> Batch:
        """Return this process's share of the next batch.

        Raises:
            TrainwrightError: What went wrong while it was prepared; each further call raises it again.
        """
        if self._ahead is None:
            self.begin(0)
        assert self._ahead is not None  # noqa: S101 - begun
        return self._ahead.next()

    def close(self) -> None:
        """Stop preparing batches; does nothing if none are prepared."""
        if self._ahead is not None:
            self._forgotten.detach()
            self._ahead.stop()
            self._ahead = None

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop preparing batches."""
        self.close()


_LOOK_AHEAD = 32
"""Steps before its first use that a shard begins to be made, where the cache does not hold all of them."""


class _Ahead:
    """A thread that prepares one batch after another, some of them before they are asked for."""

    def __init__(self, prepare: Callable[[int], Batch], first: int, most: int) -> None:
        self._prepare, self._first = prepare, first
        self._ready: SimpleQueue[Batch | BaseException] = SimpleQueue()
        self._room = threading.Semaphore(most)
        self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    def next(self) -> Batch:
        """Return the next batch."""
        if self._error is None:
            found = self._ready.get()
            if not isinstance(found, BaseException):
                self._room.release()
                return found
            self._error = found
        raise self._error

    def leave(self) -> None:
        """Tell the thread to end after the batch that it is at."""
        self._stopped = True
        self._room.release()

    def stop(self) -> None:
        """End the thread."""
        self.leave()
        self._thread.join()

    def _work(self) -> None:
        number = self._first
        try:
            while True:
                self._room.acquire()
                if self._stopped:
                    return
                self._ready.put(self._prepare(number))
                number += 1
        except BaseException as error:  # whatever it is, the step that needs the batch raises it
            self._ready.put(error)

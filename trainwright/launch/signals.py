"""Handle SIGTERM and SIGINT, so that the job is stopped before this process ends.

Handlers can be set in the main thread only; any other thread keeps the caller's.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(BaseException):
    """This process received a stop signal. Not an ``Exception``: no handler may take it for a failure."""

    def __init__(self, number: int) -> None:
        self.name = signal.Signals(number).name
        super().__init__(self.name)


@contextmanager
def collect_signals() -> Iterator[list[int]]:
    """Collect the signals that come, for a caller that polls."""
    received: list[int] = []
    with _handlers(received.append):
        yield received


@contextmanager
def raise_on_signal() -> Iterator[None]:
    """Raise :class:`Stopped` at once, wherever the main thread is, when the first signal comes."""
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        if len(received) == 1:
            raise Stopped(number)

    with _handlers(stop):
        yield


@contextmanager
def _handlers(react: Callable[[int], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda got, _frame: react(got)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

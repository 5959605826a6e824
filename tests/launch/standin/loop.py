"""One thread that does what falls due: work that was put in line, timers, and files that can be read.

The controllers of a cluster share it: each does one small thing at a time, and none waits for another.
"""

import heapq
import itertools
import os
import selectors
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable

Work = Callable[[], None]


class Loop:
    """The thread.

    Attributes:
        problems: Tracebacks of what went wrong in it: there should be none.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._lock, self._open, self._count = threading.Lock(), True, itertools.count()
        self._line: deque[tuple[Hashable, Work]] = deque()
        self._waiting: set[Hashable] = set()
        self._timers: list[tuple[float, int, Work]] = []
        self._selector = selectors.DefaultSelector()
        self._ear, self._voice = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._ear, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, daemon=True, name="controllers")
        self._thread.start()

    def do(self, work: Work, key: Hashable = None) -> None:
        """Put work in line, unless work of that key is in line already."""
        with self._lock:
            if key is not None and key in self._waiting:
                return
            if key is not None:
                self._waiting.add(key)
            self._line.append((key, work))
        self._wake()

    def after(self, seconds: float, work: Work) -> None:
        """Do something in so many seconds."""
        with self._lock:
            heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._count), work))
        self._wake()

    def read(self, fd: int, work: Work) -> None:
        """Do something whenever a file can be read; only from within the thread."""
        self._selector.register(fd, selectors.EVENT_READ, work)

    def forget(self, fd: int) -> None:
        """Read a file no more; only from within the thread."""
        self._selector.unregister(fd)

    def now(self, work: Work) -> None:
        """Do something in the thread, and return when it is done."""
        done = threading.Event()

        def told() -> None:
            try:
                work()
            finally:
                done.set()

        self.do(told)
        assert done.wait(30), "the controllers' thread is stuck"

    def close(self) -> None:
        """Stop."""
        self._open = False
        self._wake()
        self._thread.join()
        self._selector.close()
        os.close(self._ear)
        os.close(self._voice)

    def _wake(self) -> None:
        try:
            os.write(self._voice, b"x")
        except BlockingIOError:
            return

    def _run(self) -> None:
        while self._open:
            for key, _ in self._selector.select(self._until_next()):
                if key.data is None:
                    os.read(self._ear, 4096)
                else:
                    self._guarded(key.data)
            for work in self._due():
                self._guarded(work)

    def _until_next(self) -> float | None:
        with self._lock:
            if self._line:
                return 0
            return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _due(self) -> list[Work]:
        with self._lock:
            due = [work for _, work in self._line]
            self._line.clear()
            self._waiting.clear()
            while self._timers and self._timers[0][0] <= time.monotonic():
                due.append(heapq.heappop(self._timers)[2])
        return due

    def _guarded(self, work: Work) -> None:
        try:
            work()
        except Exception:
            self.problems.append(traceback.format_exc())

"""The processes of one run. Each step has a session of its own, and none outlives the run.

A signal to the run reaches every step, which then has time to save its state. If the run itself is killed,
:mod:`trainwright.local.process_reaper` stops the steps.
"""

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from trainwright.local import process_reaper
from trainwright.local.process_reaper import send_signal

GRACE_S = 30.0
"""Seconds between asking a step to stop and killing it; the default of a pod."""

LINGER_S = 1.0
"""Seconds that the helpers of a task which has ended are waited for."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Ended:
    """The exit code of a process (negative: the signal that killed it), and whether it timed out."""

    code: int
    late: bool


def tail(log: Path, count: int) -> str:
    """Return the last bytes of a log as text."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - count))
        return stream.read().decode(errors="replace")


class Processes:
    """Start the processes of a run, and stop them with it.

    Attributes:
        grace_s: Seconds between asking a step to stop and killing it.
        lock: Descriptor that holds the run's folder; a reaper keeps it until the last step has ended.
        cancelled: Set when the run is to stop.
        hurried: Set when that was said twice: not even an exit handler runs any more.
        observers: Called when the run is to stop, with whether that was said before; each returns at once.
    """

    def __init__(self, grace_s: float = GRACE_S, lock: int | None = None) -> None:
        self.grace_s, self.lock = grace_s, lock
        self.cancelled, self.hurried = threading.Event(), threading.Event()
        self.observers: list[Callable[[bool], None]] = []
        self._live: set[int] = set()
        self._scratch = ""
        self._reaper: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Forward signals to the steps; a second signal kills them.

        Outside the main thread, where Python allows no signal handler, the caller handles signals.
        """
        handled = SIGNALS if threading.current_thread() is threading.main_thread() else ()
        before = {number: signal.signal(number, self._stop) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for group in tuple(self._live):
                send_signal(group, signal.SIGKILL)
            if self._reaper and self._reaper.stdin:
                self._reaper.stdin.close()
                self._reaper.wait()
            if self._scratch:
                shutil.rmtree(self._scratch, ignore_errors=True)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[str]:
        """Yield a folder for a step's temporary files, removed with the step or with a killed run."""
        if not self._scratch:
            self._scratch = tempfile.mkdtemp(prefix="trainwright-")
        folder = tempfile.mkdtemp(dir=self._scratch)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def must_stop(self, *, closing: bool) -> bool:
        """Tell whether a step must not run any more; ``closing`` is that of an exit handler."""
        return self.hurried.is_set() if closing else self.cancelled.is_set()

    def _stop(self, number: int, _: FrameType | None) -> None:
        again = self.cancelled.is_set()
        self.cancelled.set()
        if again:
            self.hurried.set()
        self._end(tuple(self._live), signal.SIGKILL if again else number)
        for notify in self.observers:
            notify(again)

    def _end(self, groups: Sequence[int], number: int) -> None:
        """Send a signal to process groups, and kill the remaining ones after the grace period."""

        def kill() -> None:
            for group in groups:
                if group in self._live:
                    send_signal(group, signal.SIGKILL)

        for group in groups:
            send_signal(group, number)
        if groups and number != signal.SIGKILL:
            last = threading.Timer(self.grace_s, kill)
            last.daemon = True
            last.start()

    def run(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        log: Path,
        timeout_s: float = 0.0,
        *,
        closing: bool = False,
    ) -> Ended:
        """Run a command to its end and append its output to a log.

        ``variables`` are its complete environment; a ``timeout_s`` of 0 is none; one that is ``closing`` also
        runs in a cancelled run. Background processes that it
        left in its session are stopped, as the end of a container would.
        """
        late = threading.Event()
        with log.open("ab") as stream:
            process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=dict(variables),
                start_new_session=True,
            )
        self._watch(process.pid)

        def expire() -> None:
            late.set()
            self._end((process.pid,), signal.SIGTERM)

        timer = threading.Timer(timeout_s, expire)
        timer.daemon = True
        if timeout_s:
            timer.start()
        if self.must_stop(closing=closing):
            self._end((process.pid,), signal.SIGTERM)
        try:
            code = process.wait()
        finally:
            timer.cancel()
            self._clear(process.pid, gently=late.is_set() or self.cancelled.is_set())
        return Ended(code, late.is_set())

    def _watch(self, group: int) -> None:
        self._live.add(group)
        if self._reaper is None:
            self._reaper = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-S", process_reaper.__file__, str(self.grace_s), self._scratch],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=() if self.lock is None else (self.lock,),
                bufsize=0,
            )
        self._tell_reaper(f"+{group}\n")

    def _clear(self, group: int, *, gently: bool) -> None:
        """Stop background processes that a step left in its session."""
        until = time.monotonic() + (LINGER_S if gently else 0.0)
        while send_signal(group, 0) and time.monotonic() < until:
            time.sleep(0.02)
        send_signal(group, signal.SIGKILL)
        self._live.discard(group)
        self._tell_reaper(f"-{group}\n")

    def _tell_reaper(self, line: str) -> None:
        if self._reaper and self._reaper.stdin:
            with contextlib.suppress(OSError):  # a killed reaper must not fail the run
                self._reaper.stdin.write(line.encode())

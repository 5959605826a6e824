"""The processes of one run. Each step has a session of its own, and none outlives the run.

A signal to the run reaches every step, which then has time to save its state. If the run itself is killed,
:mod:`trainwright.local.process_reaper` stops the steps.
"""

import contextlib
import os
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


class Processes:
    """Start the processes of a run, and stop them with it."""

    def __init__(self, grace_s: float = GRACE_S, lock: int | None = None) -> None:
        """Prepare; start nothing.

        Args:
            grace_s: Seconds between asking a step to stop and killing it.
            lock: Descriptor that holds the run's folder; the reaper keeps it until the last step has ended.
        """
        self.cancelled = threading.Event()
        self.told: list[Callable[[bool], None]] = []
        """Called when the run is to stop, with whether that was said before; each must return at once."""
        self._grace_s = grace_s
        self._kept = () if lock is None else (lock,)
        self._live: set[int] = set()
        self._scratch = ""
        self._guard: subprocess.Popen[bytes] | None = None

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
                _signal(group, signal.SIGKILL)
            if self._guard and self._guard.stdin:
                self._guard.stdin.close()
                self._guard.wait()
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

    def _stop(self, number: int, _: FrameType | None) -> None:
        again = self.cancelled.is_set()
        self.cancelled.set()
        self._end(tuple(self._live), signal.SIGKILL if again else number)
        for tell in self.told:
            tell(again)

    def _end(self, groups: Sequence[int], number: int) -> None:
        """Send a signal to process groups, and kill the remaining ones after the grace period."""
        for group in groups:
            _signal(group, number)
        if groups and number != signal.SIGKILL:
            last = threading.Timer(self._grace_s, self._kill, [groups])
            last.daemon = True
            last.start()

    def _kill(self, groups: Sequence[int]) -> None:
        for group in groups:
            if group in self._live:
                _signal(group, signal.SIGKILL)

    def run(
        self, command: Sequence[str], variables: Mapping[str, str], log: Path, timeout_s: float = 0.0
    ) -> Ended:
        """Run a command to its end and append its output to a log.

        Args:
            command: Program and arguments.
            variables: Its complete environment.
            log: File for its output and errors, in order.
            timeout_s: Time limit in seconds; 0 for none.
        Stop background processes that a step left in its session, as the end of a container would.
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
        timer = threading.Timer(timeout_s, self._expire, [process.pid, late]) if timeout_s else None
        if timer:
            timer.daemon = True
            timer.start()
        if self.cancelled.is_set():
            self._end((process.pid,), signal.SIGTERM)
        try:
            code = process.wait()
        finally:
            if timer:
                timer.cancel()
            self._clear(process.pid, gently=late.is_set() or self.cancelled.is_set())
        return Ended(code, late.is_set())

    def _expire(self, group: int, late: threading.Event) -> None:
        late.set()
        self._end((group,), signal.SIGTERM)

    def _watch(self, group: int) -> None:
        self._live.add(group)
        if self._guard is None:
            self._guard = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-S", process_reaper.__file__, str(self._grace_s), self._scratch],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=self._kept,
                bufsize=0,
            )
        self._tell(f"+{group}\n")

    def _clear(self, group: int, *, gently: bool) -> None:
        """Stop background processes that a step left in its session, as the end of a container would."""
        until = time.monotonic() + (LINGER_S if gently else 0.0)
        while _signal(group, 0) and time.monotonic() < until:
            time.sleep(0.02)
        _signal(group, signal.SIGKILL)
        self._live.discard(group)
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        if self._guard and self._guard.stdin:
            with contextlib.suppress(OSError):  # a killed reaper must not fail the run
                self._guard.stdin.write(line.encode())


def _signal(group: int, number: int) -> bool:
    """Send a signal to a process group; return False if it does not exist."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True

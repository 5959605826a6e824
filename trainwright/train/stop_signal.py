"""Stop signals: the current step is finished and saved first, and all processes stop together."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from trainwright.errors import Preempted, PreemptedUnsaved
from trainwright.launch.launcher import signal_handlers

_HINT = "Run the step again: nothing was lost."


class StopSignal:
    """Records SIGTERM and SIGINT.

    Before the first step and after the last one, a signal ends the process at once. In between it is only
    recorded: the loop asks at each step, and sums the answers over all processes.
    """

    def __init__(self) -> None:
        self._received, self._stepping, self._saved = "", False, False

    def requested(self) -> bool:
        """Return whether this process received a stop signal."""
        self._stepping = True
        return bool(self._received)

    def finish(self) -> None:
        """Record that all steps are taken and saved; raise Preempted after a signal."""
        self._stepping, self._saved = False, True
        self._end_if_received()

    def handle(self, number: int) -> None:
        """Handle a signal; further ones change nothing."""
        if not self._received:
            self._received = signal.Signals(number).name
            if not self._stepping:
                self._end_if_received()

    def _end_if_received(self) -> None:
        if not self._received:
            return
        if self._saved:
            raise Preempted(f"stopped by {self._received} after the last step, which is saved", hint=_HINT)
        raise PreemptedUnsaved(f"stopped by {self._received} before the first step", hint=_HINT)


@contextmanager
def exit_without_threads() -> Iterator[None]:
    """Make an exit of the body end the process without waiting for its threads.

    A thread that saves may wait for hours for a process that does not answer.
    """
    try:
        yield
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 1)


@contextmanager
def handle_stop_signals() -> Iterator[StopSignal]:
    """Handle SIGTERM and SIGINT."""
    stop = StopSignal()
    with signal_handlers(stop.handle):
        yield stop

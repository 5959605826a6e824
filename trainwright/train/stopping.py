"""Being told to stop: the step is finished and saved first, and all processes leave together."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from trainwright.errors import Preempted, PreemptedUnsaved

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_AGAIN = "Run the step again: nothing was lost."


class Stop:
    """Knows whether this process was told to stop.

    Before the first step there is nothing to finish, so a signal ends the process there and then. From the
    first question on it is only noted: the loop asks at each step, and sums the answers over all processes.
    After the last step, which is saved, a signal ends the process at once again.
    """

    def __init__(self) -> None:
        self._told, self._stepping, self._saved = "", False, False

    def asked(self) -> bool:
        """Tell whether this process was told to stop."""
        self._stepping = True
        return bool(self._told)

    def finish(self) -> None:
        """Take note that all steps are taken and saved.

        Raises:
            Preempted: This process was told to stop in the meantime.
        """
        self._stepping, self._saved = False, True
        if self._told:
            raise self._error()

    def tell(self, number: int, _frame: FrameType | None = None) -> None:
        """Take note of a signal; further ones change nothing.

        Raises:
            PreemptedUnsaved: No step has begun yet.
            Preempted: All steps are taken and saved.
        """
        if self._told:
            return
        self._told = signal.Signals(number).name
        if not self._stepping:
            raise self._error()

    def _error(self) -> Preempted | PreemptedUnsaved:
        if self._saved:
            return Preempted(f"stopped by {self._told} after the last step, which is saved", hint=_AGAIN)
        return PreemptedUnsaved(f"stopped by {self._told} before the first step", hint=_AGAIN)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Make an exit of the body the end of this process, without waiting for its threads.

    One that saves may be waiting, for hours, for a process that does not answer any more; this process has
    told why it ends, and its agent acts when it has.
    """
    try:
        yield
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 1)


@contextmanager
def listening() -> Iterator[Stop]:
    """Take note of SIGTERM and SIGINT. For the main thread."""
    stop = Stop()
    before = {number: signal.signal(number, stop.tell) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""How an outage of the API is sat out: growing, jittered pauses, until it has lasted too long."""

import math
import secrets
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from trainwright.launch.cluster.answers import Passing

_T = TypeVar("_T")
_RANDOM = secrets.SystemRandom()
_QUIET_S = 30.0
"""Outages are told once they last this long, and from then on as often."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long calls that fail for a passing reason are made again.

    Attributes:
        outage_s: Longest outage that is sat out, in seconds.
        first_s: The first pause.
        longest_s: The longest one.
    """

    outage_s: float = 900.0
    first_s: float = 0.5
    longest_s: float = 20.0

    def __call__(self, call: Callable[[], _T], stopped: threading.Event | None = None) -> _T:
        """Make a call until it succeeds, or fails for good.

        Raises:
            TransientError: The outage lasts too long, or ``stopped`` was set.
        """
        outage = Outage(self, stopped)
        while True:
            try:
                return call()
            except Passing as passing:
                outage.sit_out(passing)


class Outage:
    """One row of failures; the next success ends it.

    Args:
        patience: How long it may last.
        stopped: Set when nobody waits any more.
    """

    def __init__(self, patience: Patience, stopped: threading.Event | None = None) -> None:
        self._patience, self._stopped = patience, stopped or threading.Event()
        self.over()

    def over(self) -> None:
        """Begin afresh after a success."""
        self._since: float | None = None
        self._told_s, self._pause_s = 0.0, self._patience.first_s

    def sit_out(self, passing: Passing) -> None:
        """Wait a while.

        Raises:
            TransientError: It has lasted too long, or nobody waits any more.
        """
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        lasted = now - self._since
        pause = max(self._pause_s * _RANDOM.uniform(0.5, 1.0), passing.pause_s)
        if lasted + pause > self._patience.outage_s:
            raise passing.error from passing
        if lasted - self._told_s >= _QUIET_S:
            self._told_s = lasted
            rest = self._patience.outage_s - lasted
            until = "until it answers" if math.isinf(rest) else f"for {rest:.0f} s more"
            sys.stderr.write(f"{passing.error.what}; for {lasted:.0f} s now, asking again {until}\n")
        if self._stopped.wait(pause):
            raise passing.error from passing
        self._pause_s = min(2 * self._pause_s, self._patience.longest_s)

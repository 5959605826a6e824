"""The time by the API's clock: what it and the nodes write down is compared with nothing else."""

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

_APART_S = 30.0
"""Seconds up to which two clocks count as one: an answer tells whole seconds, and takes a while."""


class Clock:
    """This machine's clock, put right by what the API's answers say the time is.

    A node's clock can be wrong by hours. Then a job that was created a moment ago would have been pending for
    hours, and a lease would have run out when it is written.

    Args:
        ours: This machine's time, in seconds since 1970.

    Attributes:
        ahead_s: How far the API's clock is ahead of ours, in seconds; 0 while they tell about the same.
    """

    def __init__(self, ours: Callable[[], float] = time.time) -> None:
        self._ours, self.ahead_s = ours, 0.0

    def now(self) -> float:
        """Return the time, in seconds since 1970."""
        return self._ours() + self.ahead_s

    def hear(self, said: str | None) -> None:
        """Take the time that an answer tells (RFC 9110, ``Date``); one that tells none changes nothing."""
        try:
            ahead_s = parsedate_to_datetime(said or "").timestamp() - self._ours()
        except ValueError:
            return
        self.ahead_s = ahead_s if abs(ahead_s) > _APART_S else 0.0

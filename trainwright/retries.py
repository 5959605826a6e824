"""The retry policy of every call to a server: jittered exponential backoff until a deadline.

A failure that may pass is retried inside the step, because the platform cannot be relied on for it: the
manifests of Kubeflow Pipelines 2.17 give Argo ``retryPolicy: OnError``, and then a step that fails has one
attempt, whatever its exit code (kubeflow/pipelines#13485).
"""

import logging
import math
import secrets
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

OUTAGE_S = 600.0
"""How long a server may be away, unless a section of the experiment says otherwise."""

FIRST_S, LONGEST_S = 0.25, 32.0
"""Pauses of :func:`retry`: the first one at most, and the longest."""

LOUD_S = 5.0
"""A pause of so many seconds is announced in the log; shorter ones are counted at the end."""

PATIENT_S, QUIET_S = 3.0, 30.0
"""Seconds before the first line of a :class:`Backoff` about an outage, and between later ones."""

_RANDOM = secrets.SystemRandom()
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Longest outage to wait for, and the first and the longest pause, in seconds."""

    outage_s: float = 900.0
    first_s: float = 0.5
    longest_s: float = 20.0


class Backoff:
    """The jittered, growing pauses of one outage; ``stopped`` ends a pause. For loops such as a watch."""

    def __init__(self, policy: RetryPolicy, stopped: threading.Event | None = None) -> None:
        self._policy, self._stopped = policy, stopped or threading.Event()
        self.reset()

    def reset(self) -> None:
        """End the outage, after a success."""
        self._since: float | None = None
        self._next_line_s, self._pause_s = PATIENT_S, self._policy.first_s

    def wait(self, error: Exception, least_s: float = 0.0) -> None:
        """Wait before the next attempt, at least as long as the server asked for.

        Raises:
            Exception: ``error``, if the outage has lasted too long or ``stopped`` is set.
        """
        lasted, pause = self.next_pause(error, least_s)
        if lasted >= self._next_line_s:
            self._next_line_s = lasted + QUIET_S
            rest = self._policy.outage_s - lasted
            until = "until it answers" if math.isinf(rest) else f"for {rest:.0f} s more"
            said = getattr(error, "what", error)
            sys.stderr.write(f"{said}; for {lasted:.0f} s now, retrying {until}\n")
        if self._stopped.wait(pause):
            raise error

    def next_pause(self, error: Exception, least_s: float = 0.0) -> tuple[float, float]:
        """Return how long the outage has lasted, and the next pause; the last one ends at the deadline.

        Raises:
            Exception: ``error``, if the next attempt could only start after the deadline.
        """
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        lasted = now - self._since
        left = self._policy.outage_s - lasted
        if least_s >= left:
            raise error
        pause = least_s + min(self._pause_s * _RANDOM.uniform(0.5, 1.0), left - least_s)
        self._pause_s = min(2 * self._pause_s, self._policy.longest_s)
        return lasted, pause


class GaveUp(Exception):
    """The deadline has passed: the last failure, how many there were, and how long they took."""

    def __init__(self, error: Exception, attempts: int, seconds: float) -> None:
        super().__init__(str(error))
        self.error, self.attempts, self.seconds = error, attempts, seconds


def retry(
    call: Callable[[], _T],
    is_transient: Callable[[Exception], bool],
    what: str,
    deadline_s: float = OUTAGE_S,
    wait_s: Callable[[Exception], float] = lambda _: 0.0,
) -> _T:
    """Call until it succeeds, fails for good, or the deadline passes. How often it took is logged.

    Args:
        call: One attempt; doing it twice must be the same as doing it once.
        is_transient: Whether the next attempt may succeed after this failure, whose text is logged; any other
            failure is raised as it is.
        what: What is being done and where, for the log.
        deadline_s: No attempt starts later than so many seconds after the first transient failure. How long
            the first attempt worked before it failed does not count.
        wait_s: The least wait that the server asked for.

    Raises:
        GaveUp: The deadline has passed, and the last failure was transient.
    """
    backoff = Backoff(RetryPolicy(outage_s=deadline_s, first_s=FIRST_S, longest_s=LONGEST_S))
    started, attempts, said = time.monotonic(), 0, ""
    while True:
        attempts += 1
        try:
            result = call()
        except Exception as error:
            if not is_transient(error):
                raise
            try:
                _, pause = backoff.next_pause(error, wait_s(error))
            except Exception:
                raise GaveUp(error, attempts, time.monotonic() - started) from error
            # Two lines, since of a database's error the second has the reason.
            said = " ".join(str(error).splitlines()[:2])[:300] or type(error).__name__
            if pause >= LOUD_S:
                _log.warning("%s: attempt %d failed, again in %.0f s: %s", what, attempts, pause, said)
            time.sleep(pause)
        else:
            if said:
                _log.warning("%s took %d tries, %.1f s: %s", what, attempts, time.monotonic() - started, said)
            return result

"""The retry policy of every call to a server: jittered exponential backoff until a deadline.

A failure that may pass is retried inside the step, because the platform cannot be relied on for it: the
manifests of Kubeflow Pipelines 2.17 give Argo ``retryPolicy: OnError``, and then a step that fails has one
attempt, whatever its exit code (kubeflow/pipelines#13485).

:func:`retry` retries one call. :class:`Backoff` paces a loop that never ends by itself, such as a watch of
Kubernetes objects, and can be interrupted; it needs no other library.
"""

import logging
import math
import secrets
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import tenacity

OUTAGE_S = 600.0
"""How long a server may be away, unless a section of the experiment says otherwise."""

FIRST_S, LONGEST_S = 0.25, 32.0
"""The first wait is drawn from up to FIRST_S, each next from up to twice as much, at most LONGEST_S."""

LOUD_S = 5.0
"""A pause of so many seconds is announced in the log; shorter ones are counted at the end."""

QUIET_S = 30.0
"""Seconds between two lines of a :class:`Backoff` about the same outage."""

_RANDOM = secrets.SystemRandom()
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class GaveUp(Exception):
    """The deadline has passed.

    Args:
        error: The last failure.
        attempts: How many there were.
        seconds: How long they took.
    """

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
    import tenacity

    outage = _Outage(is_transient, what, deadline_s, wait_s)
    policy = tenacity.Retrying(
        retry=tenacity.retry_if_exception(outage.is_transient),
        wait=outage.next_wait,
        stop=outage.is_over,
        before_sleep=outage.log,
    )
    try:
        result = policy(call)
    except tenacity.RetryError as error:
        last = error.last_attempt
        found = last.exception()
        assert isinstance(found, Exception)  # noqa: S101 - a result is never retried
        raise GaveUp(found, last.attempt_number, outage.seconds) from found
    if outage.failures:
        tries, said = len(outage.failures) + 1, outage.failures[-1]
        _log.warning("%s took %d tries, %.1f s: %s", what, tries, outage.seconds, said)
    return result


class _Outage:
    """The transient failures of one call, and the time since the first one."""

    def __init__(
        self,
        passes: Callable[[Exception], bool],
        what: str,
        deadline_s: float,
        wait_s: Callable[[Exception], float],
    ) -> None:
        import tenacity

        self._passes, self._what, self._deadline_s, self._wait_s = passes, what, deadline_s, wait_s
        self._jitter = tenacity.wait_random_exponential(multiplier=FIRST_S, max=LONGEST_S)
        self._started, self._first_failure = time.monotonic(), 0.0
        self.failures: list[str] = []

    @property
    def seconds(self) -> float:
        """Seconds since the first attempt started."""
        return time.monotonic() - self._started

    def is_transient(self, error: BaseException) -> bool:
        """Tell whether the call is retried after a failure; the first such failure starts the clock."""
        transient = isinstance(error, Exception) and self._passes(error)
        if transient and not self._first_failure:
            self._first_failure = time.monotonic()
        return transient

    def next_wait(self, state: "tenacity.RetryCallState") -> float:
        """Return how long to wait: the last attempt starts at the deadline, not after it."""
        requested = self._wait_s(_failure(state))
        return min(self._jitter(state), max(self._left_s() - requested, 0.0)) + requested

    def is_over(self, state: "tenacity.RetryCallState") -> bool:
        """Tell whether the next attempt could only start after the deadline."""
        return self._wait_s(_failure(state)) >= self._left_s()

    def log(self, state: "tenacity.RetryCallState") -> None:
        """Note a failure, and log it before a long wait."""
        self.failures.append(_line(_failure(state)))
        if (pause := state.upcoming_sleep) >= LOUD_S:
            count = state.attempt_number
            _log.warning(
                "%s: attempt %d failed, again in %.0f s: %s", self._what, count, pause, self.failures[-1]
            )

    def _left_s(self) -> float:
        return self._deadline_s - (time.monotonic() - self._first_failure)


def _failure(state: "tenacity.RetryCallState") -> Exception:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, Exception)  # noqa: S101 - asked only after a failure
    return error


def _line(error: Exception) -> str:
    """Return what an error says: two lines, since of a database's error the second has the reason."""
    return " ".join(str(error).splitlines()[:2])[:300] or type(error).__name__


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Duration and pauses of a :class:`Backoff`.

    Attributes:
        outage_s: Longest outage to wait for, in seconds.
        first_s: The first pause.
        longest_s: The longest pause.
    """

    outage_s: float = 900.0
    first_s: float = 0.5
    longest_s: float = 20.0


class Backoff:
    """The jittered, growing pauses of one outage.

    Args:
        policy: How long the outage may last.
        stopped: Ends a pause when it is set.
    """

    def __init__(self, policy: RetryPolicy, stopped: threading.Event | None = None) -> None:
        self._policy, self._stopped = policy, stopped or threading.Event()
        self.reset()

    def reset(self) -> None:
        """End the outage, after a success."""
        self._since: float | None = None
        self._logged_s, self._pause_s = 0.0, self._policy.first_s

    def wait(self, error: Exception, least_s: float = 0.0) -> None:
        """Wait before the next attempt, at least as long as the server asked for.

        Raises:
            Exception: ``error``, if the outage has lasted too long or ``stopped`` is set.
        """
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        lasted = now - self._since
        pause = max(self._pause_s * _RANDOM.uniform(0.5, 1.0), least_s)
        if lasted + pause > self._policy.outage_s:
            raise error
        if lasted - self._logged_s >= QUIET_S:
            self._logged_s = lasted
            rest = self._policy.outage_s - lasted
            until = "until it answers" if math.isinf(rest) else f"for {rest:.0f} s more"
            sys.stderr.write(f"{_summary(error)}; for {lasted:.0f} s now, retrying {until}\n")
        if self._stopped.wait(pause):
            raise error
        self._pause_s = min(2 * self._pause_s, self._policy.longest_s)


def _summary(error: Exception) -> str:
    return str(getattr(error, "what", error))

"""The retry policy of every call to a server: jittered exponential backoff until a deadline.

A failure that may pass is retried inside the step, because the platform cannot be relied on for it: the
manifests of Kubeflow Pipelines 2.17 give Argo ``retryPolicy: OnError``, and then a step that fails has one
attempt, whatever its exit code (kubeflow/pipelines#13485).
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

OUTAGE_S = 600.0
"""How long a server may be away, unless a section of the experiment says otherwise."""

FIRST_S, LONGEST_S = 0.25, 32.0
"""The first wait is drawn from up to FIRST_S, each next from up to twice as much, at most LONGEST_S."""

LOUD_S = 5.0
"""A pause of so many seconds is announced in the log; shorter ones are counted at the end."""

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
        deadline_s: No attempt starts after so many seconds.
        wait_s: The least wait that the server asked for.

    Raises:
        GaveUp: The deadline has passed, and the last failure was transient.
    """
    import tenacity

    started, failures = time.monotonic(), list[str]()
    jitter = tenacity.wait_random_exponential(multiplier=FIRST_S, max=LONGEST_S)

    def failure(state: tenacity.RetryCallState) -> Exception:
        error = state.outcome.exception() if state.outcome else None
        assert isinstance(error, Exception)  # noqa: S101 - asked only after a failure
        return error

    def wait(state: tenacity.RetryCallState) -> float:
        left = deadline_s - (time.monotonic() - started)  # the last attempt is at the deadline, not after it
        return min(jitter(state), max(left, 0.0)) + wait_s(failure(state))

    def stop(state: tenacity.RetryCallState) -> bool:
        return time.monotonic() - started + wait_s(failure(state)) >= deadline_s

    def log(state: tenacity.RetryCallState) -> None:
        failures.append(_line(failure(state)))
        if (pause := state.upcoming_sleep) >= LOUD_S:
            count = state.attempt_number
            _log.warning("%s: attempt %d failed, again in %.0f s: %s", what, count, pause, failures[-1])

    policy = tenacity.Retrying(
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, Exception) and is_transient(error)),
        wait=wait,
        stop=stop,
        before_sleep=log,
    )
    try:
        result = policy(call)
    except tenacity.RetryError as error:
        last = error.last_attempt
        found = last.exception()
        assert isinstance(found, Exception)  # noqa: S101 - a result is never retried
        raise GaveUp(found, last.attempt_number, time.monotonic() - started) from found
    if failures:
        seconds = time.monotonic() - started
        _log.warning("%s took %d tries, %.1f s: %s", what, len(failures) + 1, seconds, failures[-1])
    return result


def _line(error: Exception) -> str:
    """Return what an error says: two lines, since of a database's error the second has the reason."""
    return " ".join(str(error).splitlines()[:2])[:300] or type(error).__name__

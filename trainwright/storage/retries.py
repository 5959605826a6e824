"""One policy of retries for every store: growing, jittered waits that obey the store, within one patience."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from trainwright.errors import DependencyError, TrainwrightError, TransientError
from trainwright.storage.store import Passing
from trainwright.storage.uris import redacted

PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP answers that may be another the next time."""

FIRST_S, LONGEST_S = 0.25, 32.0
"""The first wait is drawn from up to FIRST_S, each next from up to twice as much, at most LONGEST_S."""

_T = TypeVar("_T")
_log = logging.getLogger("trainwright.storage")


def retrying(call: Callable[[], _T], what: str, where: str, patience_s: float) -> _T:
    """Call until it succeeds, fails for good, or patience ends. How often it took is logged.

    Args:
        call: One try; raises :class:`Passing` if the next may succeed.
        what: What is being done, such as ``reading``; for messages.
        where: The URI.
        patience_s: Seconds after which no further try starts.

    Raises:
        TransientError: The store answered, but kept failing until patience ended.
        DependencyError: Nothing ever answered.
    """
    import tenacity

    started, failures = time.monotonic(), list[Passing]()
    jitter = tenacity.wait_random_exponential(multiplier=FIRST_S, max=LONGEST_S)

    def once() -> _T:
        try:
            return call()
        except Passing as failure:
            failures.append(failure)
            raise

    def wait(state: tenacity.RetryCallState) -> float:
        return jitter(state) + (failures[-1].wait_s or 0.0)

    def stop(_: tenacity.RetryCallState) -> bool:
        return time.monotonic() - started + (failures[-1].wait_s or 0.0) >= patience_s

    passing = tenacity.retry_if_exception_type(Passing)
    try:
        result = tenacity.Retrying(retry=passing, wait=wait, stop=stop, reraise=True)(once)
    except Passing:
        raise _gave_up(failures, what, where, time.monotonic() - started) from None
    if failures:
        seconds, why = time.monotonic() - started, redacted(str(failures[-1]))
        _log.warning(
            "%s %s took %d tries, %.1f s: %s", what, redacted(where), len(failures) + 1, seconds, why
        )
    return result


def wait_asked(value: str | None) -> float | None:
    """Read a ``Retry-After`` header: seconds, or a date. What cannot be read counts as not there."""
    from email.utils import parsedate_to_datetime

    if not value:
        return None
    try:
        if value.strip().isdigit():
            return float(value)
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _gave_up(failures: list[Passing], what: str, where: str, seconds: float) -> TrainwrightError:
    answered = any(failure.answered for failure in failures)
    said = redacted(str(failures[-1]))
    return (TransientError if answered else DependencyError)(
        f"{what} failed {len(failures)} times in {seconds:.0f} s and was given up"
        f"{'' if answered else '; nothing answers there'}: {said}",
        where=redacted(where),
        hint="Run the step again later; if it stays, look at the store's status and quota."
        if answered
        else "Look at the endpoint, the network and the proxy.",
    )

"""Retries of every store, by the policy of :mod:`trainwright.retries`; the store may ask for longer waits."""

import time
from collections.abc import Callable
from typing import TypeVar

from trainwright.errors import DependencyError, TrainwrightError, TransientError
from trainwright.retries import GaveUp, retry
from trainwright.storage.store import Passing
from trainwright.storage.uris import redacted

PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP answers that may be another the next time."""

_T = TypeVar("_T")


def retrying(call: Callable[[], _T], what: str, where: str, patience_s: float) -> _T:
    """Call until it succeeds, fails for good, or patience ends. How often it took is logged.

    Args:
        call: One try; raises :class:`Passing` if the next may succeed.
        what: What is being done, such as ``reading``; for messages.
        where: The URI.
        patience_s: Seconds after the first failure, after which no further try starts.

    Raises:
        TransientError: The store answered, but kept failing until patience ended.
        DependencyError: Nothing ever answered.
    """
    failures = list[Passing]()

    def passes(error: Exception) -> bool:
        if isinstance(error, Passing):
            failures.append(error)
        return isinstance(error, Passing)

    try:
        return retry(call, passes, f"{what} {redacted(where)}", patience_s, _asked)
    except GaveUp as end:
        raise _gave_up(failures, what, where, end.seconds) from None


def _asked(error: Exception) -> float:
    return (error.wait_s or 0.0) if isinstance(error, Passing) else 0.0


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

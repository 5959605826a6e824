"""Retries of Feast's stores and registries. Many libraries are behind them, so failures are told by name."""

import re
import ssl
from collections.abc import Callable, Iterator
from typing import TypeVar

from trainwright.errors import DependencyError
from trainwright.retries import GaveUp, retry

_T = TypeVar("_T")

TRANSIENT = frozenset(
    {
        *(
            "ConnectionError",
            "TimeoutError",
            "BusyLoadingError",
            "ClusterDownError",
            "MasterDownError",
        ),  # redis
        *("ReadOnlyError", "TryAgainError", "MasterNotFoundError"),  # redis, while another node takes over
        *("OperationalError", "InterfaceError"),  # psycopg, SQLAlchemy, SQLite
        *("EndpointConnectionError", "HTTPClientError", "ConnectionClosedError"),  # boto3
        *(
            "ServiceUnavailable",
            "DeadlineExceeded",
            "TooManyRequests",
            "GatewayTimeout",
            "TransportError",
        ),  # Google
        *("NoHostAvailable", "OperationTimedOut", "Unavailable"),  # Cassandra
        "SSLError",  # a TLS connection that was cut off; a certificate is final
    }
)
"""Names of exceptions, of any library, after which the same call may succeed; their subclasses too."""

FINAL = frozenset(
    {
        *("AuthenticationError", "AuthorizationError", "InvalidPassword", "InsufficientPrivilege"),
        *("DiskFull", "QueryCanceled", "LockNotAvailable"),  # a server's own time limit has passed already
        "SSLCertVerificationError",
    }
)
"""Subclasses of those that stay as they are."""

_FINAL_TEXT = re.compile(
    r"authentication|password|pg_hba|certificate|does not exist|no such|readonly|read-only|not a database"
    r"|unable to open|disk is full|no space left",
    re.IGNORECASE,
)


def is_transient(error: BaseException | None) -> bool:
    """Tell whether a failure may pass, by it and by what it was raised from."""
    chain = list(_chain(error))
    if any(isinstance(link, ssl.SSLCertVerificationError) or _FINAL_TEXT.search(str(link)) for link in chain):
        return False
    names = [{kind.__name__ for kind in type(link).__mro__} for link in chain]
    return any(found & TRANSIENT and not found & FINAL for found in names)


def sit_out(call: Callable[[], _T], what: str, retry_s: float) -> _T:
    """Retry a call that talks to Feast's stores while what it depends on is away.

    Args:
        call: One attempt; raises :class:`DependencyError` from what the store's library raised.
        what: What is being done, for the log.
        retry_s: No attempt starts later than so many seconds after the first failure.

    Raises:
        DependencyError: It failed for good, or was away all that time.
    """

    def passes(error: Exception) -> bool:
        return isinstance(error, DependencyError) and is_transient(error.__cause__)

    try:
        return retry(call, passes, what, retry_s)
    except GaveUp as end:
        last = end.error
        assert isinstance(last, DependencyError)  # noqa: S101 - nothing else is retried
        raise DependencyError(
            f"{last.what} ({end.attempts} attempts in {end.seconds:.0f} s)", where=last.where, hint=last.hint
        ) from last.__cause__


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)

"""What a call of the API can end in, and for how long it is tried again.

A failure that may pass (no connection, an answer lost, 408, 429, 5xx) is told apart from one that will not.
Only looks are repeated as they are; whoever makes something looks first whether it is there, see
:meth:`trainwright.authoring.submission.connection.Connection.made`.
"""

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import kfp_server_api
import urllib3

from trainwright.authoring.submission.answers import Unreadable, document
from trainwright.errors import DependencyError, InputError, PermissionRefused, TrainwrightError

PASSING = frozenset({0, 408, 425, 429, 500, 502, 503, 504})
"""Answers that may be others later; 0 is what the generated client says of a broken TLS connection."""

UNAUTHENTICATED, NOT_FOUND, CONFLICT = 401, 404, 409
REFUSED, ELSEWHERE = frozenset({401, 403}), range(300, 400)
SHOWN = 300
FAILURES = (
    kfp_server_api.ApiException,
    urllib3.exceptions.HTTPError,
    OSError,
    Unreadable,
    UnicodeDecodeError,
)
"""What the generated client raises for a call that did not succeed."""

RIGHTS = (
    "The identity needs rights on pipelines, experiments, runs and jobs of pipelines.kubeflow.org in the "
    "namespace: docs/submitting.md has the Role."
)


_ERRORS = urllib3.exceptions
_WORDS: tuple[tuple[type[BaseException], str], ...] = (
    (_ERRORS.NameResolutionError, "there is no host of that name"),
    (_ERRORS.NewConnectionError, "no server takes the connection"),
    (_ERRORS.ConnectTimeoutError, "the host does not answer"),
    (_ERRORS.ReadTimeoutError, "the answer took too long"),
    (_ERRORS.SSLError, "its certificate is not trusted, or it speaks no TLS"),
    (_ERRORS.ProtocolError, "the connection was cut"),
)
"""Why no answer came, most specific first."""

_OWN = frozenset({"code", "message", "error", "error_message"})
"""What an error of the API has at least one of."""

ELSEWHERE_HINT = (
    "The address may be that of another server, or lack a path: the UI's own address ends in /pipeline on a "
    "full Kubeflow."
)


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Why a call did not succeed.

    Attributes:
        error: The same in our words.
        status: The HTTP status; 0 when no answer came.
        passing: The same call may succeed later.
        foreign: Something else than the API answered: a gateway in front of it.
        after_s: Seconds that the server asks to be left alone, else 0.
    """

    error: TrainwrightError
    status: int = 0
    passing: bool = False
    foreign: bool = False
    after_s: float = 0.0

    @property
    def missing(self) -> bool:
        """The API itself says that there is no such thing."""
        return self.status == NOT_FOUND and not self.foreign

    @property
    def gateway(self) -> bool:
        """A gateway that worked before may do so again: a token is replaced, a route is set up anew."""
        return self.status == UNAUTHENTICATED or (self.foreign and self.status not in REFUSED)


def trouble(failure: Exception, what: str, host: str) -> Trouble:
    """Say what a failed call means.

    Args:
        failure: One of :data:`FAILURES`.
        what: The call in words, such as ``reading the run``.
        host: Address of the API, for the message.
    """
    if isinstance(failure, Unreadable | UnicodeDecodeError):
        said = failure if isinstance(failure, Unreadable) else "the answer is no text"
        hint = "Look whether the address is the API's, and whether its gateway takes the token."
        unread = DependencyError(f"{what}: {said}", where=host, hint=hint)
        return Trouble(error=unread, passing=True, foreign=True)
    if not isinstance(failure, kfp_server_api.ApiException):
        text = f"{what} got no answer: {_said(failure)}"
        hint = "Look whether the address is right and the API is up."
        return Trouble(error=DependencyError(text, where=host, hint=hint), passing=True)
    status = int(failure.status or 0)
    body = document(failure.body)
    foreign = not isinstance(body, dict) or body.keys().isdisjoint(_OWN)
    text = f"{what} was answered with {status}: {message(failure)}"
    if status in REFUSED:
        error = PermissionRefused(text, where=host, hint=RIGHTS)
        return Trouble(error=error, status=status, foreign=foreign)
    if status in ELSEWHERE:
        text = f"{what} was sent elsewhere ({status}): to a page to log in, most likely"
        hint = "Name a token that the gateway accepts: --token-file."
        return Trouble(error=PermissionRefused(text, where=host, hint=hint), status=status, foreign=True)
    if status in PASSING:
        after_s = _seconds((failure.headers or {}).get("Retry-After", ""))
        return Trouble(error=DependencyError(text, where=host), status=status, passing=True, after_s=after_s)
    hint = ELSEWHERE_HINT if status == NOT_FOUND and foreign else ""
    return Trouble(error=InputError(text, where=host, hint=hint), status=status, foreign=foreign)


def _said(failure: BaseException) -> str:
    """Say in plain words why no answer came; names of classes are for programmers."""
    innermost: BaseException = failure
    while isinstance(reason := getattr(innermost, "reason", None), BaseException):
        innermost = reason
    for kind, words in _WORDS:
        if isinstance(innermost, kind):
            return words
    return os.strerror(code) if (code := getattr(innermost, "errno", None)) else "the connection failed"


def message(failure: kfp_server_api.ApiException) -> str:
    """Return the one sentence of an error's body, or its reason; never headers, which hold cookies."""
    data = document(failure.body)
    said = data.get("message") or data.get("error_message") if isinstance(data, dict) else ""
    return str(said or failure.reason or "").split("\n", 1)[0][:SHOWN]


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() else 0.0


@dataclass(kw_only=True)
class Patience:
    """For how long, and how often, something is tried again: backing off, with jitter, within a budget.

    Full jitter: Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

    Attributes:
        budget_s: Seconds from the first failure after which the last one is raised.
        first_s: Longest first wait.
        longest_s: Longest wait.
        now: A clock that only goes forward, in seconds.
        sleep: Waits for seconds.
    """

    budget_s: float = 60.0
    first_s: float = 0.5
    longest_s: float = 30.0
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _since: float | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)

    @property
    def failing_s(self) -> float:
        """Seconds since the first of the failures in a row; 0 if the last call succeeded."""
        return 0.0 if self._since is None else self.now() - self._since

    def renewed(self) -> None:
        """A call has succeeded: the budget is whole again."""
        self._since, self._failures = None, 0

    def wait(self, met: Trouble) -> None:
        """Wait before the next try.

        Raises:
            TrainwrightError: That of the trouble: it will not pass, or the budget is spent.
        """
        if self._since is None:
            self._since = self.now()
        pause = random.uniform(0, min(self.first_s * 2**self._failures, self.longest_s))  # noqa: S311
        pause = max(pause, met.after_s)
        self._failures += 1
        if not met.passing or self.failing_s + pause > self.budget_s:
            raise met.error
        self.sleep(pause)

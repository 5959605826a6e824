"""A connection to the API of Kubeflow Pipelines: endpoint, token, timeouts, retries.

The calls are those of ``kfp_server_api``, which is generated from the published OpenAPI description. Its own
retries are off: only looks are repeated as they are, and whatever makes something looks first whether it is
there (:meth:`Connection.made`).

Answers are read strictly. A gateway may answer in place of the API: a page to log in with status 200, an
empty 404 while it is changed, half of a body. The generated client takes such a text for an empty object, and
an empty list for "there is none", so that something would be made a second time.
"""

import contextlib
import dataclasses
import json
import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import kfp_server_api
import urllib3

from trainwright.errors import DependencyError, InputError, PermissionRefused, TrainwrightError


class Unreadable(Exception):
    """An answer with a good status that the API cannot have given."""


class Client(kfp_server_api.ApiClient):  # type: ignore[misc]
    """The generated client, which takes no answer but an object of the description."""

    def deserialize(self, response: Any, response_type: Any) -> Any:
        """Read an answer.

        Raises:
            Unreadable: It is no JSON object, or a field in it is not what the description says.
        """
        data = document(response.data)
        known = getattr(getattr(kfp_server_api.models, response_type, None), "attribute_map", {}).values()
        if not isinstance(data, dict) or (known and data and data.keys().isdisjoint(known)):
            raise Unreadable("what answers is not the API: it sends none of what was asked for")
        try:
            return super().deserialize(response, response_type)
        except (ValueError, TypeError, AttributeError, kfp_server_api.ApiException) as error:
            raise Unreadable(f"the answer cannot be read: {type(error).__name__}") from None


def document(body: Any) -> Any:
    """Return what a body of JSON holds; None for any other."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body
    try:
        return json.loads(text or "")
    except ValueError:
        return None


TRANSIENT_STATUSES = frozenset({0, 408, 425, 429, 500, 502, 503, 504})
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
class CallFailure:
    """The failure of a call.

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


def classify(failure: Exception, what: str, host: str) -> CallFailure:
    """Say what a failed call means.

    Args:
        failure: One of :data:`FAILURES`.
        what: The call in words, such as ``reading the run``.
        host: Address of the API, for the message.
    """
    if isinstance(failure, Unreadable | UnicodeDecodeError):
        said = failure if isinstance(failure, Unreadable) else "the answer is not text"
        hint = "Look whether the address is the API's, and whether its gateway takes the token."
        unread = DependencyError(f"{what}: {said}", where=host, hint=hint)
        return CallFailure(error=unread, passing=True, foreign=True)
    if not isinstance(failure, kfp_server_api.ApiException):
        text = f"{what} got no answer: {_said(failure)}"
        hint = "Look whether the address is right and the API is up."
        return CallFailure(error=DependencyError(text, where=host, hint=hint), passing=True)
    status = int(failure.status or 0)
    body = document(failure.body)
    foreign = not isinstance(body, dict) or body.keys().isdisjoint(_OWN)
    text = f"{what} was answered with {status}: {message(failure)}"
    if status in REFUSED:
        error = PermissionRefused(text, where=host, hint=RIGHTS)
        return CallFailure(error=error, status=status, foreign=foreign)
    if status in ELSEWHERE:
        text = f"{what} was sent elsewhere ({status}): to a page to log in, most likely"
        hint = "Name a token that the gateway accepts: --token-file."
        return CallFailure(error=PermissionRefused(text, where=host, hint=hint), status=status, foreign=True)
    if status in TRANSIENT_STATUSES:
        after_s = _seconds((failure.headers or {}).get("Retry-After", ""))
        return CallFailure(
            error=DependencyError(text, where=host), status=status, passing=True, after_s=after_s
        )
    hint = ELSEWHERE_HINT if status == NOT_FOUND and foreign else ""
    return CallFailure(error=InputError(text, where=host, hint=hint), status=status, foreign=foreign)


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
class CallRetries:
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

    def wait(self, met: CallFailure) -> None:
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


CLUSTER_TOKEN = Path("/var/run/secrets/kubeflow/pipelines/token")
"""Where Kubeflow mounts a pod's token for the API; kfp's own client takes it from there as well."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Address and credentials of the API.

    Attributes:
        host: Its address, such as ``https://kubeflow.example/pipeline``.
        namespace: The profile's namespace; empty for an installation without profiles.
        token_file: File of the token, read again at every call; None for the one Kubeflow mounts, if any.
        ca_file: Certificates to trust; None for the public ones.
        connect_s: Seconds to wait for a connection.
        answer_s: Seconds to wait for an answer.
    """

    host: str
    namespace: str = ""
    token_file: Path | None = None
    ca_file: Path | None = None
    connect_s: float = 5.0
    answer_s: float = 60.0

    def link(self, run_id: str) -> str:
        """Return the page of a run in the UI."""
        return f"{self.host.rstrip('/')}/#/runs/details/{run_id}"


@dataclass(frozen=True, kw_only=True)
class Connection:
    """The services of the API, and how they are called.

    Attributes:
        place: Where they are.
        client: The generated client.
        patience: How long a call is tried; each call starts with a fresh one.
    """

    place: Endpoint
    client: kfp_server_api.ApiClient
    patience: CallRetries = field(default_factory=CallRetries)

    @property
    def pipelines(self) -> kfp_server_api.PipelineServiceApi:
        """Pipelines and their versions."""
        return kfp_server_api.PipelineServiceApi(self.client)

    @property
    def uploads(self) -> kfp_server_api.PipelineUploadServiceApi:
        """Packages."""
        return kfp_server_api.PipelineUploadServiceApi(self.client)

    @property
    def experiments(self) -> kfp_server_api.ExperimentServiceApi:
        """Experiments."""
        return kfp_server_api.ExperimentServiceApi(self.client)

    @property
    def runs(self) -> kfp_server_api.RunServiceApi:
        """Runs."""
        return kfp_server_api.RunServiceApi(self.client)

    @property
    def recurring(self) -> kfp_server_api.RecurringRunServiceApi:
        """Recurring runs."""
        return kfp_server_api.RecurringRunServiceApi(self.client)

    def once(self, call: Callable[..., T], *given: Any, **named: Any) -> T:
        """Call once; :data:`FAILURES` has what can go wrong."""
        limits = (self.place.connect_s, self.place.answer_s)
        return call(*given, _request_timeout=limits, **named)

    def read(self, what: str, call: Callable[..., T], *given: Any, **named: Any) -> T:
        """Look something up, as often as patience has it.

        Raises:
            TrainwrightError: It was refused, or no good answer came in time.
        """
        patience = dataclasses.replace(self.patience)
        while True:
            try:
                return self.once(call, *given, **named)
            except FAILURES as failure:
                patience.wait(classify(failure, what, self.place.host))

    def read_if_there(self, what: str, call: Callable[..., T], *given: Any, **named: Any) -> T | None:
        """Look something up; None if there is no such thing."""
        patience = dataclasses.replace(self.patience)
        while True:
            try:
                return self.once(call, *given, **named)
            except FAILURES as failure:
                met = classify(failure, what, self.place.host)
                if met.missing:
                    return None
                elsewhere = met.status == NOT_FOUND  # of a gateway that does not know its routes yet
                patience.wait(dataclasses.replace(met, passing=met.passing or elsewhere))

    def pages(self, what: str, call: Callable[..., Any], entries: str, **named: Any) -> list[Any]:
        """Return all entries of a list, whatever the number of its pages.

        Raises:
            TrainwrightError: It was refused, no good answer came in time, or the list has no end.
        """
        found: list[Any] = []
        token, seen = "", {""}
        while True:
            page = self.read(what, call, page_token=token, page_size=100, **named)
            found += getattr(page, entries) or []
            token = page.next_page_token or ""
            if not token:
                return found
            if token in seen:
                raise DependencyError(f"{what}: the list has no end", where=self.place.host)
            seen.add(token)

    def made(
        self, what: str, look: Callable[[], T | None], call: Callable[..., Any], *given: Any, **named: Any
    ) -> tuple[T, bool]:
        """Return what is there, or else make it: once, even if the answer to the making is lost.

        Args:
            what: The making in words.
            look: Finds what is to be made; None if it is not there.
            call: Makes it.
            given: What the call is given.
            named: What it is given by name.

        Returns:
            What is there now, and whether making it was tried: that it was there before is certain if not.

        Raises:
            TrainwrightError: It was refused, or it is not there in time.
        """
        patience, tried, made = dataclasses.replace(self.patience), False, False
        while True:
            if (there := look()) is not None:
                return there, tried
            if made:  # never a second time
                text = f"{what} succeeded, and what was made is not to be found"
                patience.wait(CallFailure(error=DependencyError(text, where=self.place.host), passing=True))
                continue
            tried = True
            try:
                self.once(call, *given, **named)
                made = True
            except FAILURES as failure:
                met = classify(failure, what, self.place.host)
                # A refusal may come because it is so already: a run that ended before it was stopped.
                refused = not met.passing and met.status not in REFUSED
                if refused and (there := look()) is not None:
                    return there, tried
                # A conflict says that somebody else has made it just now: it will be found.
                patience.wait(dataclasses.replace(met, passing=met.passing or met.status == CONFLICT))

    def check(self) -> tuple[str, ...]:
        """Ask the API whether it is there, and is what it should be.

        Returns:
            What is not wrong, and not as the caller may think.

        Raises:
            TrainwrightError: It is not; or it has profiles, and no namespace is named.
        """
        if self.profiles() or not self.place.namespace:
            return ()
        return (f"this installation has no profiles: --namespace {self.place.namespace} has no effect",)

    def profiles(self) -> bool:
        """Say whether the installation has profiles (multi-user mode).

        Raises:
            TrainwrightError: What answers is not the API; or it has profiles, and no namespace is named.
        """
        health = kfp_server_api.HealthzServiceApi(self.client)
        answer = self.read("asking for its health", health.healthz_service_get_healthz)
        if answer.multi_user is None:
            raise PermissionRefused(
                "what answers is not the API of Kubeflow Pipelines: it may be a page to log in",
                where=self.place.host,
                hint="Name the address of the API, and a token that its gateway accepts (--token-file).",
            )
        if answer.multi_user and not self.place.namespace:
            raise InputError(
                "this installation has profiles, and no namespace is named",
                where=self.place.host,
                hint="Name your profile's: --namespace team-a.",
            )
        return bool(answer.multi_user)


def connect(place: Endpoint, patience: CallRetries | None = None) -> Connection:
    """Connect to an API; nothing is asked yet.

    Raises:
        InputError: The address is none, the token cannot be read, or it would travel in the clear.
    """
    scheme, name = _address(place.host)
    settings = kfp_server_api.Configuration(host=place.host.rstrip("/"))
    settings.retries = urllib3.Retry(0, redirect=False, raise_on_redirect=False)
    settings.ssl_ca_cert = os.fspath(place.ca_file) if place.ca_file else None
    source = place.token_file or (CLUSTER_TOKEN if CLUSTER_TOKEN.exists() else None)
    if source:
        if scheme == "http" and not _stays_inside(name):
            hint = "Use https://, or port-forward the API to this machine."
            raise InputError("the token would travel unencrypted", where="--host", hint=hint)
        settings.api_key_prefix["authorization"] = "Bearer"
        settings.api_key["authorization"] = _token(source)
        settings.refresh_api_key_hook = lambda changed: _renew(changed, source)
    return Connection(place=place, client=Client(settings), patience=patience or CallRetries())


def _address(host: str) -> tuple[str, str]:
    """Return scheme and name of an address, which is not repeated if it is none: it may hold a secret."""
    with contextlib.suppress(ValueError):  # unclosed brackets, an invalid port
        parts = urlsplit(host)
        beside = parts.username or parts.query or parts.fragment or parts.port == 0
        if parts.scheme in {"http", "https"} and parts.hostname and not beside and host.isprintable():
            return parts.scheme, parts.hostname
    raise InputError(
        "--host is no address of an API",
        where="--host",
        hint="Write it as https://HOST/PATH, without a name, a password or a query.",
    )


def _stays_inside(host: str) -> bool:
    """Say whether what is sent to a host stays on this machine or in this cluster."""
    return host in LOOPBACK or host.endswith((".svc", ".svc.cluster.local"))


def _renew(settings: kfp_server_api.Configuration, source: Path) -> None:
    """Read the token again; while its file is being written anew, the last one stays."""
    with contextlib.suppress(InputError):
        settings.api_key["authorization"] = _token(source)


def _token(path: Path) -> str:
    """Read a token; the file may be replaced while a run is followed.

    A header takes no other text: the error of the HTTP library would repeat it.
    """
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if re.fullmatch(r"[!-~]+", token := path.read_text().strip()):
            return token
    raise InputError(
        "there is no token in this file", where=str(path), hint="One line of ASCII, nothing else."
    )

"""A connection to the API of Kubeflow Pipelines: endpoint, token, timeouts, retries.

The calls are those of ``kfp_server_api``, generated from the published OpenAPI description, with its own
retries off. Answers are read strictly: a gateway may answer in place of the API, with a login page and status
200, an empty 404, or half of a body. The generated client takes such a text for an empty object, and an empty
list for "there is none", so that something would be created a second time.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import kfp_server_api
import urllib3
from urllib3 import exceptions as http

from trainwright.documents import read_json
from trainwright.errors import DependencyError, InputError, PermissionRefused, TrainwrightError
from trainwright.http_limits import limited
from trainwright.retries import Backoff, RetryPolicy

TIMEOUTS_S = (5.0, 60.0)
"""Seconds to wait for a connection, and for an answer."""

RETRIES = RetryPolicy(outage_s=60.0, longest_s=30.0)
"""For how long one call is retried."""

CLUSTER_TOKEN = Path("/var/run/secrets/kubeflow/pipelines/token")
"""Where Kubeflow mounts a pod's token for the API; kfp's own client takes it from there as well."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
TRANSIENT_STATUSES = frozenset({0, 408, 425, 429, 500, 502, 503, 504})
"""The generated client reports 0 for a broken TLS connection."""

UNAUTHENTICATED, NOT_FOUND, CONFLICT = 401, 404, 409
REFUSED, REDIRECTS = frozenset({401, 403}), range(300, 400)
_ERROR_FIELDS = frozenset({"code", "message", "error", "error_message"})
"""An error of the API has at least one of these fields."""

RIGHTS = (
    "The identity needs rights on pipelines, experiments, runs and jobs of pipelines.kubeflow.org in the "
    "namespace: docs/submitting.md has the Role."
)

_CAUSES: tuple[tuple[type[BaseException], str], ...] = (
    (http.NameResolutionError, "there is no host of that name"),
    (http.NewConnectionError, "no server takes the connection"),
    (http.ConnectTimeoutError, "the host does not answer"),
    (http.ReadTimeoutError, "the answer took too long"),
    (http.SSLError, "its certificate is not trusted, or it speaks no TLS"),
    (http.ProtocolError, "the connection was cut"),
)
"""Why no answer came, most specific first."""

T = TypeVar("T")


class Unreadable(Exception):
    """An answer with a good status that the API cannot have given."""


FAILURES = (kfp_server_api.ApiException, http.HTTPError, OSError, Unreadable, UnicodeDecodeError)
"""Exceptions of a failed call."""


class Client(kfp_server_api.ApiClient):  # type: ignore[misc]
    """The generated client, which accepts no answer but an object of the description."""

    def deserialize(self, response: Any, response_type: Any) -> Any:
        """Read an answer."""
        data = document(response.data)
        known = getattr(getattr(kfp_server_api.models, response_type, None), "attribute_map", {}).values()
        if not isinstance(data, dict) or (known and data and data.keys().isdisjoint(known)):
            raise Unreadable("what answers is not the API: it sends none of what was asked for")
        try:
            return super().deserialize(response, response_type)
        except (ValueError, TypeError, AttributeError, kfp_server_api.ApiException) as error:
            raise Unreadable(f"the answer cannot be read: {type(error).__name__}") from None


def document(body: Any) -> Any:
    """Return the content of a JSON body; None for any other body."""
    try:
        return read_json((body.decode(errors="replace") if isinstance(body, bytes) else body) or "")
    except InputError:
        return None


@dataclass(frozen=True, kw_only=True)
class CallFailure:
    """The failure of a call."""

    error: TrainwrightError
    status: int = 0  # the HTTP status; 0 when no answer came
    transient: bool = False  # the same call may succeed later
    foreign: bool = False  # something else than the API answered, such as a gateway in front of it
    after_s: float = 0.0  # seconds that the server asked to wait, else 0

    @property
    def missing(self) -> bool:
        """The API itself answered that the object does not exist."""
        return self.status == NOT_FOUND and not self.foreign

    @property
    def gateway(self) -> bool:
        """A gateway that worked before may work again: a token is replaced, a route is restored."""
        return self.status == UNAUTHENTICATED or (self.foreign and self.status not in REFUSED)


def classify(failure: Exception, what: str, host: str) -> CallFailure:
    """Return what one of :data:`FAILURES` means.

    Args:
        failure: The exception.
        what: The call in words, such as ``reading the run``.
        host: Address of the API, for the message.
    """
    if isinstance(failure, Unreadable | UnicodeDecodeError):
        said = failure if isinstance(failure, Unreadable) else "the answer is not text"
        hint = "Look whether the address is the API's, and whether its gateway takes the token."
        error: TrainwrightError = DependencyError(f"{what}: {said}", where=host, hint=hint)
        return CallFailure(error=error, transient=True, foreign=True)
    if not isinstance(failure, kfp_server_api.ApiException):
        hint = "Look whether the address is right and the API is up."
        error = DependencyError(f"{what} got no answer: {_cause(failure)}", where=host, hint=hint)
        return CallFailure(error=error, transient=True)
    status, body = int(failure.status or 0), document(failure.body)
    fields: Mapping[str, Any] = body if isinstance(body, dict) else {}
    foreign = fields.keys().isdisjoint(_ERROR_FIELDS)
    said = fields.get("message") or fields.get("error_message") or failure.reason or ""
    # Never the headers, which hold cookies.
    text = f"{what} was answered with {status}: {str(said).split(chr(10), 1)[0][:300]}"
    if status in REFUSED:
        error = PermissionRefused(text, where=host, hint=RIGHTS)
        return CallFailure(error=error, status=status, foreign=foreign)
    if status in REDIRECTS:
        text = f"{what} was sent elsewhere ({status}): to a page to log in, most likely"
        hint = "Name a token that the gateway accepts: --token-file."
        error = PermissionRefused(text, where=host, hint=hint)
        return CallFailure(error=error, status=status, foreign=True)
    if status in TRANSIENT_STATUSES:
        after = str((failure.headers or {}).get("Retry-After", ""))
        after_s = float(after) if after.isascii() and after.isdigit() else 0.0
        error = DependencyError(text, where=host)
        return CallFailure(error=error, status=status, transient=True, after_s=after_s)
    hint = ""
    if status == NOT_FOUND and foreign:
        hint = (
            "The address may be that of another server, or lack a path: the UI's own address ends in "
            "/pipeline on a full Kubeflow."
        )
    return CallFailure(error=InputError(text, where=host, hint=hint), status=status, foreign=foreign)


def _cause(failure: BaseException) -> str:
    """Return in plain words why no answer came."""
    innermost: BaseException = failure
    while isinstance(reason := getattr(innermost, "reason", None), BaseException):
        innermost = reason
    for kind, words in _CAUSES:
        if isinstance(innermost, kind):
            return words
    return os.strerror(code) if (code := getattr(innermost, "errno", None)) else "the connection failed"


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Address and credentials of the API."""

    host: str  # such as https://kubeflow.example/pipeline
    namespace: str = ""  # the profile's; empty for an installation without profiles
    token_file: Path | None = None  # read again at every call; None for the one Kubeflow mounts, if any
    ca_file: Path | None = None  # certificates to trust; None for the public ones

    def link(self, run_id: str) -> str:
        """Return the page of a run in the UI."""
        return f"{self.host.rstrip('/')}/#/runs/details/{run_id}"


class Connection:
    """The services of the API, and how they are called.

    Args:
        place: Where they are.
        client: The generated client.
        retries: For how long one call is retried.
    """

    def __init__(
        self, place: Endpoint, client: kfp_server_api.ApiClient, retries: RetryPolicy = RETRIES
    ) -> None:
        self.place, self.client, self.retries = place, client, retries
        self.scope = {"namespace": place.namespace} if place.namespace else {}
        self.pipelines = kfp_server_api.PipelineServiceApi(client)
        self.uploads = kfp_server_api.PipelineUploadServiceApi(client)
        self.experiments = kfp_server_api.ExperimentServiceApi(client)
        self.runs = kfp_server_api.RunServiceApi(client)
        self.recurring = kfp_server_api.RecurringRunServiceApi(client)

    def once(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call once; a failure raises one of :data:`FAILURES`."""
        with limited():
            return call(*args, _request_timeout=TIMEOUTS_S, **options)

    def get(self, path: str) -> urllib3.BaseHTTPResponse:
        """Return the unread answer of a path that the generated client does not have."""
        options = {"auth_settings": ["Bearer"], "_preload_content": False, "_return_http_data_only": True}
        answer: urllib3.BaseHTTPResponse = self.once(self.client.call_api, path, "GET", **options)
        return answer

    def read(self, what: str, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """Look something up, with retries."""
        backoff = Backoff(self.retries)
        while True:
            try:
                return self.once(call, *args, **options)
            except FAILURES as error:
                self._wait(backoff, classify(error, what, self.place.host))

    def read_if_there(self, what: str, call: Callable[..., T], *args: Any, **options: Any) -> T | None:
        """Look something up, with retries; return None if it does not exist."""
        backoff = Backoff(self.retries)
        while True:
            try:
                return self.once(call, *args, **options)
            except FAILURES as error:
                failure = classify(error, what, self.place.host)
            if failure.missing:
                return None
            # 404 of a gateway that does not know its routes yet
            self._wait(backoff, failure, transient=failure.status == NOT_FOUND)

    @staticmethod
    def _wait(backoff: Backoff, failure: CallFailure, *, transient: bool = False) -> None:
        """Wait before the next attempt; raise the error of a permanent failure, or at the deadline."""
        if not (failure.transient or transient):
            raise failure.error
        backoff.wait(failure.error, failure.after_s)

    def pages(self, what: str, call: Callable[..., Any], entries: str, **options: Any) -> list[Any]:
        """Return all entries of a list."""
        found: list[Any] = []
        token, seen = "", {""}
        while True:
            page = self.read(what, call, page_token=token, page_size=100, **options)
            found += getattr(page, entries) or []
            token = page.next_page_token or ""
            if not token:
                return found
            if token in seen:
                raise DependencyError(f"{what}: the list has no end", where=self.place.host)
            seen.add(token)

    def ensure(
        self, what: str, find: Callable[[], T | None], create: Callable[..., Any], *args: Any, **options: Any
    ) -> tuple[T, bool]:
        """Return what is there, or else create it: once, even if the answer to the creation is lost.

        Args:
            what: The creation in words.
            find: Finds the object; None if it is not there.
            create: Creates it, called with ``args`` and ``options``.

        Returns:
            The object, and whether its creation was tried. It certainly existed before only if not.
        """
        backoff, tried, created = Backoff(self.retries), False, False
        while True:
            if (there := find()) is not None:
                return there, tried
            if created:  # never a second time
                text = f"{what} succeeded, and what was made is not to be found"
                backoff.wait(DependencyError(text, where=self.place.host))
                continue
            tried = True
            try:
                self.once(create, *args, **options)
                created = True
            except FAILURES as error:
                failure = classify(error, what, self.place.host)
                # The API also refuses what is so already: to stop a run that has just ended.
                refused = not failure.transient and failure.status not in REFUSED
                if refused and (there := find()) is not None:
                    return there, tried
                # Somebody else has created it just now: it will be found.
                self._wait(backoff, failure, transient=failure.status == CONFLICT)

    def check(self) -> tuple[str, ...]:
        """Ask the API for its health, and return notes about the endpoint."""
        if self.profiles() or not self.place.namespace:
            return ()
        return (f"this installation has no profiles: --namespace {self.place.namespace} has no effect",)

    def profiles(self) -> bool:
        """Return whether the installation has profiles (multi-user mode); forget the namespace if not.

        Without profiles Kubeflow ignores the namespace of a run and rejects that of a recurring run.
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
        if not answer.multi_user:
            self.scope = {}
        return bool(answer.multi_user)


def matching(key: str, value: str, operation: str = "EQUALS") -> str:
    """Return the filter of a list by one field."""
    return json.dumps({"predicates": [{"operation": operation, "key": key, "string_value": value}]})


def connect(place: Endpoint, retries: RetryPolicy = RETRIES) -> Connection:
    """Return a connection to an API, before any call."""
    scheme, name = _address(place.host)
    settings = kfp_server_api.Configuration(host=place.host.rstrip("/"))
    settings.retries = urllib3.Retry(0, redirect=False, raise_on_redirect=False)
    settings.ssl_ca_cert = os.fspath(place.ca_file) if place.ca_file else None
    source = place.token_file or (CLUSTER_TOKEN if CLUSTER_TOKEN.exists() else None)
    if source:
        inside = name in LOOPBACK or name.endswith((".svc", ".svc.cluster.local"))
        if scheme == "http" and not inside:
            hint = "Use https://, or port-forward the API to this machine."
            raise InputError("the token would travel unencrypted", where="--host", hint=hint)

        def renew(changed: kfp_server_api.Configuration) -> None:
            with contextlib.suppress(InputError):  # while the file is being replaced, the last token stays
                changed.api_key["authorization"] = _token(source)

        settings.api_key_prefix["authorization"] = "Bearer"
        settings.api_key["authorization"] = _token(source)
        settings.refresh_api_key_hook = renew
    return Connection(place, Client(settings), retries)


def _address(host: str) -> tuple[str, str]:
    """Return scheme and name of an address; the error does not repeat it, since it may hold a secret."""
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


def _token(path: Path) -> str:
    """Read a token; the HTTP library would repeat a text that no header can hold in its error."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if re.fullmatch(r"[!-~]+", token := path.read_text().strip()):
            return token
    raise InputError(
        "there is no token in this file", where=str(path), hint="One line of ASCII, nothing else."
    )

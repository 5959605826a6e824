"""Calls of the Kubernetes API, their answers, and the errors that other answers become."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import urllib3
from kubernetes import client as k8s  # type: ignore[import-untyped]

from trainwright.documents import read_json
from trainwright.errors import DependencyError, InputError, PermissionRefused, TransientError

Object = dict[str, Any]

_LONGEST_PAUSE_S = 120.0
_PIECE, _LONGEST_LINE = 1 << 16, 4 << 20
_CONFLICT, _EXPIRED = 409, 410
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_NO_RUNTIME = re.compile(r"TrainingRuntime\b.*\bnot found")
_RUNTIME_HINT = (
    "kubectl apply -f deploy/trainer/runtime.yaml, by the cluster's administrator, makes the runtime "
    "trainwright-torch; or name one that exists in resources.placement.runtime."
)


@dataclass(frozen=True, kw_only=True)
class ApiCall:
    """A call of the API, in the terms of a Role; ``operator`` has to be installed for its resource."""

    verb: str
    resource: str
    namespace: str
    group: str = ""
    version: str = "v1"
    name: str = ""
    operator: str = ""

    def __str__(self) -> str:
        """Return verb, resource and group."""
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")

    @property
    def path(self) -> str:
        """The path of its URL."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        resource, _, part = self.resource.partition("/")
        pieces = (base, "namespaces", self.namespace, resource, self.name, part)
        return "/".join(piece for piece in pieces if piece)

    @property
    def rule(self) -> str:
        """The rule of a Role that allows it."""
        group = self.group or '""'
        return f"{{apiGroups: [{group}], resources: [{self.resource}], verbs: [{self.verb}]}}"


class ApiNotFound(Exception):
    """No object of that name exists (404)."""


class ApiConflict(Exception):
    """The object exists already, or has changed (409)."""


class ApiGone(Exception):
    """The requested version is too old: list again (410)."""


class ApiInvalid(InputError):
    """The API rejects the content of a call (400, 422)."""


class ApiUnavailable(Exception):
    """A call failed that may succeed later, after ``pause_s`` seconds if the API asks for that.

    ``error`` is raised when the outage lasts too long.
    """

    def __init__(self, error: TransientError, pause_s: float = 0.0) -> None:
        self.error, self.pause_s = error, pause_s
        super().__init__(error.what)


def transport_error(error: Exception) -> Exception:
    """Return the error for a call without an answer."""
    reason = f"{type(error).__name__}: {error}"
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return DependencyError(
            f"the certificate of the Kubernetes API is not trusted: {reason:.300}",
            hint="Look at the certificate authority of the configuration.",
        )
    return ApiUnavailable(TransientError(f"cannot reach the Kubernetes API: {reason:.300}"))


def foreign_answer(answer: object, call: ApiCall) -> ApiUnavailable:
    """Return the error for an answer that is not the API's, such as the login page of a proxy."""
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
    what = f"what answers to {call} is not the Kubernetes API: {' '.join(text.split()):.200}"
    hint = "Look at the address of the API, and at what stands between it and this step."
    return ApiUnavailable(TransientError(what, hint=hint))


def parse_object(data: bytes | str, call: ApiCall, *fields: str) -> Object:
    """Return an answer that is an object with such fields, which are objects themselves.

    Raises:
        ApiUnavailable: It is not.
    """
    try:
        answer = read_json(data)
    except InputError:
        answer = None
    if isinstance(answer, dict) and all(isinstance(answer.get(name), dict) for name in fields):
        return answer
    raise foreign_answer(data, call)


def rejection(error: k8s.ApiException, call: ApiCall) -> Exception:
    """Return the error for an answer with an error status: one of this module, or a permanent one."""
    message = _message_of(error)
    match error.status:
        case 0 | None:
            found = transport_error(error)
        case 400 | 405 | 406 | 413 | 415 | 422:
            found = ApiInvalid(f"the Kubernetes API refuses to {call}: {message}", where="job for a cluster")
        case 401:
            found = PermissionRefused(
                f"the Kubernetes API does not know this step: {message}",
                where=str(call),
                hint="Look at the step's service account and its token.",
            )
        case 403:
            found = _forbidden(message, call)
        case 404:
            found = _not_found(error, message, call)
        case 409 | 410:
            found = ApiConflict(message) if error.status == _CONFLICT else ApiGone(message)
        case _:
            retry_after = urllib3.HTTPHeaderDict(error.headers or {}).get("Retry-After", "")
            pause_s = min(float(retry_after), _LONGEST_PAUSE_S) if retry_after.isdecimal() else 0.0
            what = f"the Kubernetes API answers {error.status} to {call}: {message}"
            found = ApiUnavailable(TransientError(what), pause_s)
    return found


def _message_of(error: k8s.ApiException) -> str:
    body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else error.body
    try:
        return str(read_json(str(body))["message"])
    except (TypeError, InputError, KeyError):
        return (str(body or "").strip() or str(error.reason or ""))[:300]


def _forbidden(message: str, call: ApiCall) -> Exception:
    """Return the error for a 403, whose several causes only the message tells apart."""
    if "admission webhook" in message or "violates PodSecurity" in message:
        hint = _RUNTIME_HINT if _NO_RUNTIME.search(message) else ""
        return InputError(f"the cluster refuses to {call}: {message}", where="job for a cluster", hint=hint)
    if "being terminated" in message:
        what = f"namespace {call.namespace} is being removed: {message}"
        return DependencyError(what, hint="Use another namespace.")
    if "exceeded quota" in message:
        what = f"the namespace's quota is used up: {message}"
        return DependencyError(what, hint="Wait, or ask for a larger one.")
    return PermissionRefused(
        f"this step is not allowed to {call} in namespace {call.namespace}: {message}",
        where=f"Role rule {call.rule}",
        hint=f"kubectl apply -n {call.namespace} -f deploy/base/train.yaml grants all that this step needs.",
    )


def _not_found(error: k8s.ApiException, message: str, call: ApiCall) -> Exception:
    if "page not found" in message or "could not find the requested resource" in message:
        return DependencyError(
            f"the cluster knows no {call.resource}: {message}",
            where=str(call),
            hint=f"Install {call.operator}, or choose another resources.launcher." if call.operator else "",
        )
    if call.verb == "create":
        what = f"cannot {call} in namespace {call.namespace}: {message}"
        return DependencyError(what, hint="Look at the namespace's name.")
    return ApiNotFound(message or str(error))


def read_lines(response: urllib3.BaseHTTPResponse) -> Iterator[str]:
    """Yield the lines of an open response as they arrive; cut those that are too long.

    Empty lines are left out, and a last one without an end, where the connection broke. ``iter_resp_lines``
    of kubernetes holds a whole chunk and a line of any length in memory.
    """
    rest = b""
    try:
        while part := response.read1(_PIECE):
            *lines, rest = (rest + part).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            yield from (line.decode(errors="replace") for line in lines if line)
    except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
        # The last two are raised by a response that another thread has closed.
        raise transport_error(error) from error


def split_timestamp(line: str) -> tuple[str, str]:
    """Split a log line into its time and text; lines of the node itself have no time."""
    stamp, _, text = line.partition(" ")
    return (stamp, text) if _TIMESTAMP.fullmatch(stamp) else ("", line)


def watch_events(response: urllib3.BaseHTTPResponse, call: ApiCall) -> Iterator[Object]:
    """Yield the events of a watch.

    Raises:
        ApiGone: The version that it started from is too old.
        ApiUnavailable: It broke.
    """
    for line in read_lines(response):
        change = parse_object(line, call, "object")
        if change.get("type") == "ERROR":
            status = change["object"]
            if status.get("code") == _EXPIRED:
                raise ApiGone(status.get("message", ""))
            found = k8s.ApiException(status=status.get("code") or 500, reason=status.get("message", ""))
            raise rejection(found, call)
        if "type" not in change:
            raise foreign_answer(line, call)
        yield change

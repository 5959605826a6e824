"""Answers of the Kubernetes API: objects, streams of lines, and the errors that other answers become."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import urllib3
from kubernetes import client as k8s  # type: ignore[import-untyped]
from kubernetes.watch.watch import iter_resp_lines  # type: ignore[import-untyped]

from trainwright.errors import (
    DependencyError,
    InputError,
    PermissionRefused,
    TrainwrightError,
    TransientError,
)

_LONGEST_PAUSE_S = 120.0
_UNAUTHORIZED, _CONFLICT = 401, 409
_NO_RUNTIME = re.compile(r"TrainingRuntime\b.*\bnot found")
_RUNTIME_HINT = (
    "kubectl apply -f deploy/trainer/runtime.yaml, by the cluster's administrator, makes the runtime "
    "trainwright-torch; or name one that exists in resources.placement.runtime."
)


@dataclass(frozen=True, kw_only=True)
class ApiCall:
    """A call of the API, in the terms of a Role.

    Attributes:
        verb: Such as ``create``.
        resource: Such as ``pytorchjobs`` or ``pods/log``.
        namespace: The namespace.
        group: The API group; empty for the core.
        name: The object, where it is one.
        operator: The operator that has to be installed for it; empty for the API's own objects.
    """

    verb: str
    resource: str
    namespace: str
    group: str = ""
    name: str = ""
    operator: str = ""

    def __str__(self) -> str:
        """Return verb, resource and group."""
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")

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


class ApiUnavailable(Exception):
    """A call failed that may succeed later.

    Args:
        error: The error to raise when the outage lasts too long.
        pause_s: The pause that the API asks for, in seconds.
    """

    def __init__(self, error: TransientError, pause_s: float = 0.0) -> None:
        self.error, self.pause_s = error, pause_s
        super().__init__(error.what)


class ApiInvalid(InputError):
    """The API rejects the content of a call (400, 422)."""


def transport_error(error: Exception) -> Exception:
    """Return the error for a call without an answer."""
    told = f"{type(error).__name__}: {error}"
    if "CERTIFICATE_VERIFY_FAILED" in told:
        return DependencyError(
            f"the certificate of the Kubernetes API is not trusted: {told:.300}",
            hint="Look at the certificate authority of the configuration.",
        )
    return ApiUnavailable(TransientError(f"cannot reach the Kubernetes API: {told:.300}"))


def foreign_answer(said: object, call: ApiCall) -> ApiUnavailable:
    """Return the error for an answer that is not the API's, such as the login page of a proxy."""
    text = " ".join((said.decode(errors="replace") if isinstance(said, bytes) else str(said)).split())
    told = f"what answers to {call} is not the Kubernetes API: {text:.200}"
    hint = "Look at the address of the API, and at what stands between it and this step."
    return ApiUnavailable(TransientError(told, hint=hint))


def parse_object(data: bytes, call: ApiCall) -> dict[str, Any]:
    """Return the object, the list or the status of an answer.

    Raises:
        ApiUnavailable: The answer is none of these.
    """
    try:
        answer = json.loads(data)
    except ValueError:
        answer = None
    if isinstance(answer, dict) and isinstance(answer.get("metadata"), dict):
        return answer
    raise foreign_answer(data, call)


def rejection(error: k8s.ApiException, call: ApiCall) -> Exception:
    """Return the error for an answer with an error status: one of this module, or a permanent one."""
    message = message_of(error.body, str(error.reason or ""))
    match error.status:
        case 0 | None:
            return transport_error(error)
        case 400 | 405 | 406 | 413 | 415 | 422:
            return ApiInvalid(f"the Kubernetes API refuses to {call}: {message}", where="job for a cluster")
        case 401 | 403:
            return _forbidden(message, call, known=error.status != _UNAUTHORIZED)
        case 404:
            return _not_found(error, message, call)
        case 409 | 410:
            return ApiConflict(message) if error.status == _CONFLICT else ApiGone(message)
    told = TransientError(f"the Kubernetes API answers {error.status} to {call}: {message}")
    return ApiUnavailable(told, _retry_after_s(error.headers))


def _forbidden(message: str, call: ApiCall, *, known: bool) -> TrainwrightError:
    """Return the error for a 401 or a 403, whose several causes only the message tells apart."""
    if not known:
        return PermissionRefused(
            f"the Kubernetes API does not know this step: {message}",
            where=str(call),
            hint="Look at the step's service account and its token.",
        )
    if "admission webhook" in message or "violates PodSecurity" in message:
        hint = _RUNTIME_HINT if _NO_RUNTIME.search(message) else ""
        return InputError(f"the cluster refuses to {call}: {message}", where="job for a cluster", hint=hint)
    if "being terminated" in message:
        return DependencyError(
            f"namespace {call.namespace} is being removed: {message}", hint="Use another namespace."
        )
    if "exceeded quota" in message:
        return DependencyError(
            f"the namespace's quota is used up: {message}", hint="Wait, or ask for a larger one."
        )
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
        return DependencyError(
            f"cannot {call} in namespace {call.namespace}: {message}", hint="Look at the namespace's name."
        )
    return ApiNotFound(message or str(error))


def message_of(body: object, otherwise: str = "") -> str:
    """Return the message in the body of an answer."""
    if isinstance(body, bytes):
        body = body.decode(errors="replace")
    try:
        return str(json.loads(str(body))["message"])
    except (TypeError, ValueError, KeyError):
        return (str(body or "").strip() or otherwise)[:300]


def _retry_after_s(headers: Mapping[str, str] | None) -> float:
    """Return the pause that the API asks for, in seconds."""
    asked = urllib3.HTTPHeaderDict(headers or {}).get("Retry-After", "")
    return min(float(asked), _LONGEST_PAUSE_S) if asked.isdigit() else 0.0


Object = dict[str, Any]
_EXPIRED = 410
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def read_lines(response: urllib3.BaseHTTPResponse) -> Iterator[str]:
    """Yield the lines of an open response as they arrive."""
    try:
        for line in iter_resp_lines(response):
            if line:
                yield line
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
        change = _watch_event(line, call)
        if change["type"] == "ERROR":
            status = change["object"]
            if status.get("code") == _EXPIRED:
                raise ApiGone(status.get("message", ""))
            told = k8s.ApiException(status=status.get("code") or 500, reason=status.get("message", ""))
            raise rejection(told, call)
        yield change


def _watch_event(line: str, call: ApiCall) -> Object:
    """Return one event of a watch."""
    try:
        change = json.loads(line)
    except ValueError:
        change = None
    if isinstance(change, dict) and "type" in change and isinstance(change.get("object"), dict):
        return change
    raise foreign_answer(line, call)

"""The calls of the Kubernetes API that a launcher makes: jobs of one kind, their pods, logs and events."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import urllib3
from kubernetes import client as k8s  # type: ignore[import-untyped]

from trainwright.errors import PermissionRefused, TransientError
from trainwright.http_limits import ANSWER, FOLLOWED, HttpLimits, limited
from trainwright.launch.cluster import responses
from trainwright.launch.cluster.responses import (
    ApiCall,
    ApiConflict,
    ApiInvalid,
    ApiNotFound,
    ApiUnavailable,
    Object,
    rejection,
    transport_error,
)
from trainwright.retries import Backoff, RetryPolicy

FOREGROUND, BACKGROUND = "Foreground", "Background"
"""Deletion of an object after its dependents, or before them."""

_T = TypeVar("_T")
_METHODS = {"create": "POST", "delete": "DELETE", "patch": "PATCH"}
_EXTENSIONS = {
    "workloads": ("kueue.x-k8s.io", "v1beta2", ""),  # since Kueue 0.15; 0.20 knows no older
    "workflows": ("argoproj.io", "v1alpha1", "Argo Workflows"),
}
"""Group, version and operator of resources outside the core API."""

_CONNECT_S, _ANSWER_S = 5.0, 30.0
_IDLE_S = 300.0
"""Seconds without a line after which a log that is followed is opened anew: connections die silently."""

_LOG_BYTES = 4_194_304
"""The API counts from the first of the requested lines: with fewer bytes the last lines are cut off."""

_NO_DRY_RUN = "does not support dry run"
"""The API server's words for the rejection of a dry run because of a webhook with side effects."""

_SAME_TIME_S = 30.0
"""Seconds up to which two clocks count as one: an answer names whole seconds, and takes a while."""

_SETTLING_S = 60.0
"""Seconds in which a server that rejects everything, ``/readyz`` too, is believed to be starting."""


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """A kind of jobs.

    Attributes:
        pods: Label of its pods whose value is the job's name.
        propagation: Deletion policy. Trainer 2.3 creates the JobSet of a TrainJob again for as long as the
            object exists, and a deletion in the foreground keeps it.
        inner_job: Suffix of the batch Job which creates the pods; empty where the operator creates them.
    """

    kind: str
    group: str
    version: str
    pods: str
    container: str
    operator: str
    removes_itself: bool
    propagation: str = FOREGROUND
    inner_job: str = ""

    @property
    def name(self) -> str:
        """The name of its launcher."""
        return self.kind.lower()

    @property
    def plural(self) -> str:
        """Its name in URLs and in the rules of a Role."""
        return f"{self.name}s"


PYTORCHJOB = JobKind(
    kind="PyTorchJob",
    group="kubeflow.org",
    version="v1",
    pods="training.kubeflow.org/job-name",
    container="pytorch",
    operator="the Kubeflow training operator v1",
    removes_itself=True,
)
TRAINJOB = JobKind(
    kind="TrainJob",
    group="trainer.kubeflow.org",
    version="v1alpha1",
    pods="jobset.sigs.k8s.io/jobset-name",
    container="node",
    operator="Kubeflow Trainer v2",
    removes_itself=False,
    propagation=BACKGROUND,
    inner_job="-node-0",
)
JOB_KINDS = {kind.name: kind for kind in (PYTORCHJOB, TRAINJOB)}


class ServerClock:
    """The API server's time, from this machine's clock and the ``Date`` of the server's answers.

    A node's clock can be wrong by hours: a new job would count as pending for hours, and a lease would have
    expired when it is written. ``ahead_s`` is 0 below half a minute.
    """

    def __init__(self, local: Callable[[], float] = time.time) -> None:
        self._local, self.ahead_s = local, 0.0

    def now(self) -> float:
        """Return the time, in seconds since 1970."""
        return self._local() + self.ahead_s

    def adjust(self, date: str | None) -> None:
        """Set the clock by the ``Date`` of an answer (RFC 9110), if it has one."""
        with contextlib.suppress(ValueError):
            ahead_s = parsedate_to_datetime(date or "").timestamp() - self._local()
            self.ahead_s = ahead_s if abs(ahead_s) > _SAME_TIME_S else 0.0


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Objects that are listed or watched together: ``job``, ``pods``, ``events`` or ``workloads``."""

    kind: str
    fields: str = ""
    labels: str = ""

    @property
    def query(self) -> dict[str, str]:
        """The query parameters that select them."""
        pairs = {"fieldSelector": self.fields, "labelSelector": self.labels}
        return {name: value for name, value in pairs.items() if value}


class Api:
    """Access to jobs of one kind, and what belongs to them, in one namespace.

    A method that says "Not retried" raises ``ApiUnavailable`` where a later call may succeed; the others
    retry for as long as the policy allows. ``client`` makes each call once (``retries = False``).
    """

    def __init__(
        self,
        client: k8s.ApiClient,
        namespace: str,
        kind: JobKind,
        policy: RetryPolicy | None = None,
        clock: ServerClock | None = None,
    ) -> None:
        self.client, self.namespace, self.kind = client, namespace, kind
        self.policy, self.clock = policy or RetryPolicy(), clock or ServerClock()
        self._rejected_s: dict[tuple[str, str], float] = {}

    def retry(self, call: Callable[[], _T]) -> _T:
        """Make a call until it succeeds or fails for good."""
        backoff = Backoff(self.policy)
        while True:
            try:
                return call()
            except ApiUnavailable as outage:
                backoff.wait(outage.error, outage.pause_s)

    def create(self, body: Object, **options: str) -> Object:
        """Create a job. It may exist although no reply came.

        Raises:
            ApiConflict: A job of that name exists.
            TrainwrightError: The server rejects it.
        """
        query = {"fieldValidation": "Strict", **options}
        return self.retry(lambda: self._request(self._call("create", "job"), query, body))

    def validate(self, body: Object) -> None:
        """Have the server validate a job without creating it: schema, webhooks, quota and rights.

        A webhook that does not support dry runs makes the server reject each of them; then only the creation
        tells. Raises what :meth:`create` raises.
        """
        try:
            self.create(body, dryRun="All")
        except ApiInvalid as error:
            if _NO_DRY_RUN not in error.what:
                raise

    def job(self, name: str) -> Object | None:
        """Return a job; None if none has that name."""
        return self._get("job", name)

    def workflow(self, name: str) -> Object | None:
        """Return an Argo workflow; None if none has that name."""
        return self._get("workflows", name)

    def _get(self, resource: str, name: str) -> Object | None:
        with contextlib.suppress(ApiNotFound):
            return self.retry(lambda: self._request(self._call("get", resource, name)))
        return None

    def delete(self, name: str, uid: str = "", version: str = "", *, answer_s: float = _ANSWER_S) -> None:
        """Delete a job and all that belongs to it; it may be gone already.

        Raises:
            ApiConflict: The job has another version by now; with ``version`` only.
        """
        same = {key: value for key, value in (("uid", uid), ("resourceVersion", version)) if value}
        options = _delete_options(same) | {"propagationPolicy": self.kind.propagation}
        call = self._call("delete", "job", name)
        with contextlib.suppress(*((ApiNotFound,) if version else (ApiNotFound, ApiConflict))):
            self.retry(lambda: self._request(call, body=options, answer_s=answer_s))

    def annotate(
        self, name: str, uid: str, values: Mapping[str, str], *, unless_changed: Mapping[str, str]
    ) -> Object:
        """Set annotations of a job atomically, if those in ``unless_changed`` have these values. Not retried.

        Raises:
            ApiInvalid: One of these has another value, or another job has that name by now.
            ApiNotFound: No such job exists.
        """
        tests = {"/metadata/uid": uid} | {_json_pointer(key): value for key, value in unless_changed.items()}
        sets = {_json_pointer(key): value for key, value in values.items()}
        steps = [
            {"op": op, "path": path, "value": value}
            for op, entries in (("test", tests), ("add", sets))
            for path, value in entries.items()
        ]
        return self._request(self._call("patch", "job", name), body=steps)

    def select(self, selection: Selection) -> tuple[list[Object], str]:
        """Return objects and the version of the list. Not retried."""
        call = self._call("list", selection.kind)
        answer = self._request(call, selection.query)
        version = answer["metadata"].get("resourceVersion", "")
        if not version:  # otherwise all objects would count as gone
            raise responses.foreign_answer(answer, call)
        return answer.get("items") or [], version

    @contextlib.contextmanager
    def watch(
        self, selection: Selection, version: str, seconds: int
    ) -> Iterator[tuple[urllib3.BaseHTTPResponse, Iterator[Object]]]:
        """Open a watch from a version on; yield the open response and its events. Not retried.

        Raises:
            ApiGone: The version is too old.
        """
        query = selection.query | {
            "watch": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
            "allowWatchBookmarks": "true",
        }
        call = self._call("watch", selection.kind)
        limits = HttpLimits(seconds=seconds + 15)  # the server ends it after ``seconds``
        with contextlib.closing(self._open(call, query, answer_s=limits.seconds, limits=limits)) as response:
            yield response, responses.watch_events(response, call)

    def remove_pod(self, name: str, uid: str) -> None:
        """Delete a pod without waiting for its node; it may be gone already. Not retried."""
        options = _delete_options({"uid": uid}) | {"gracePeriodSeconds": 0}
        with contextlib.suppress(ApiNotFound, ApiConflict):
            self._request(self._call("delete", "pods", name), body=options)

    def events(self, name: str) -> list[Object]:
        """Return the events of an object. Not retried."""
        return self.select(Selection(kind="events", fields=f"involvedObject.name={name}"))[0]

    def workloads(self, uid: str) -> list[Object]:
        """Return the Workloads that Kueue has labelled with a job. Not retried."""
        return self.select(Selection(kind="workloads", labels=f"kueue.x-k8s.io/job-uid={uid}"))[0]

    def log(self, pod: str, *, previous: bool = False) -> str:
        """Return the end of a pod's log, or of the log before its last restart. Not retried."""
        query = {"tailLines": "400", "limitBytes": str(_LOG_BYTES)}
        with self.log_lines(pod, query | ({"previous": "true"} if previous else {})) as (_, lines):
            return "\n".join(text for _, text in lines)

    @contextlib.contextmanager
    def log_lines(
        self, pod: str, query: Mapping[str, str]
    ) -> Iterator[tuple[urllib3.BaseHTTPResponse, Iterator[tuple[str, str]]]]:
        """Open a pod's log; yield the open response, and the lines with their times. Not retried.

        Raises:
            ApiNotFound: No such pod exists.
            ApiInvalid: It has no log yet.
        """
        options = {"container": self.kind.container, "timestamps": "true", **query}
        silent_s, limits = (_IDLE_S, FOLLOWED) if "follow" in query else (_ANSWER_S, ANSWER)
        call = self._call("get", "pods/log", pod)
        with contextlib.closing(self._open(call, options, answer_s=silent_s, limits=limits)) as response:
            yield response, (responses.split_timestamp(line) for line in responses.read_lines(response))

    def _call(self, verb: str, resource: str, name: str = "") -> ApiCall:
        kind, known = self.kind, {"job": (self.kind.group, self.kind.version, self.kind.operator)}
        group, version, operator = (known | _EXTENSIONS).get(resource, ("", "v1", ""))
        return ApiCall(
            verb=verb,
            resource=kind.plural if resource == "job" else resource,
            namespace=self.namespace,
            group=group,
            version=version,
            name=name,
            operator=operator,
        )

    def _request(
        self,
        call: ApiCall,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        answer_s: float = _ANSWER_S,
    ) -> Object:
        response = self._open(call, query, body, answer_s=answer_s)
        try:
            return responses.parse_object(response.data, call, "metadata")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise transport_error(error) from error
        finally:
            response.release_conn()

    def _open(
        self,
        call: ApiCall,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        answer_s: float = _ANSWER_S,
        limits: HttpLimits = ANSWER,
    ) -> urllib3.BaseHTTPResponse:
        content = "application/json-patch+json" if call.verb == "patch" else "application/json"
        try:
            with limited(limits):
                response: urllib3.BaseHTTPResponse = self.client.call_api(
                    call.path,
                    _METHODS.get(call.verb, "GET"),
                    query_params=list((query or {}).items()),
                    header_params={"Accept": "application/json", "Content-Type": content},
                    body=body,
                    auth_settings=["BearerToken"],
                    _return_http_data_only=True,
                    _preload_content=False,
                    _request_timeout=(_CONNECT_S, answer_s),
                )
        except k8s.ApiException as error:
            refusal = rejection(error, call)
            if isinstance(refusal, PermissionRefused) and self._is_starting(call):
                what = f"the Kubernetes API is starting: {refusal.what}"
                raise ApiUnavailable(TransientError(what)) from error
            raise refusal from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise transport_error(error) from error
        self.clock.adjust(response.headers.get("Date"))
        self._rejected_s.pop((call.verb, call.resource), None)
        return response

    def _is_starting(self, call: ApiCall) -> bool:
        """Tell whether the API server has yet to read its roles, until when it rejects all calls.

        A role of Kubernetes' own opens ``/readyz`` to every account; the token is sent because a server may
        reject anonymous requests. Where ``/readyz`` is rejected too, either the server is starting or an
        administrator closed it: that counts as a start for a while. The time is counted per verb and
        resource, since the success of one call says nothing about the right to make another one.
        """
        try:
            with limited():
                self.client.call_api(
                    "/readyz",
                    "GET",
                    auth_settings=["BearerToken"],
                    _return_http_data_only=True,
                    _preload_content=False,
                    _request_timeout=(_CONNECT_S, _ANSWER_S),
                ).release_conn()
        except k8s.ApiException as error:
            if error.status not in {401, 403}:
                return int(error.status or 500) >= 500  # noqa: PLR2004 - an error of the server
        except (urllib3.exceptions.HTTPError, OSError):
            return True
        else:
            return False
        now = time.monotonic()
        return now - self._rejected_s.setdefault((call.verb, call.resource), now) < _SETTLING_S


def _delete_options(preconditions: Mapping[str, str]) -> Object:
    options: Object = {"kind": "DeleteOptions", "apiVersion": "v1"}
    return options | ({"preconditions": preconditions} if preconditions else {})


def _json_pointer(annotation: str) -> str:
    """Return the path of an annotation in a JSON patch."""
    return "/metadata/annotations/" + annotation.replace("~", "~0").replace("/", "~1")

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
from trainwright.launch.cluster import responses
from trainwright.launch.cluster.responses import (
    ApiCall,
    ApiConflict,
    ApiInvalid,
    ApiNotFound,
    ApiUnavailable,
    foreign_answer,
    parse_object,
    rejection,
    transport_error,
)
from trainwright.launch.manifests.pods import Owner
from trainwright.retries import Backoff, RetryPolicy

FOREGROUND, BACKGROUND = "Foreground", "Background"
"""Deletion of an object after its dependents, or before them."""


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """A kind of jobs: how they are addressed, and how their pods are found.

    Attributes:
        kind: Its name in Kubernetes.
        group: Its API group.
        version: The API version.
        pods: Label of its pods whose value is the job's name.
        container: The training container.
        operator: The operator that has to be installed.
        removes_itself: Whether a job is removed some time after its end.
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

    @property
    def full(self) -> str:
        """Its full name, such as ``pytorchjobs.kubeflow.org``."""
        return f"{self.plural}.{self.group}"


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


_SAME_TIME_S = 30.0
"""Seconds up to which two clocks count as one: an answer names whole seconds, and takes a while."""


class ServerClock:
    """The API server's time, from this machine's clock and the ``Date`` of the server's answers.

    A node's clock can be wrong by hours: a new job would count as pending for hours, and a lease would have
    expired when it is written.

    Args:
        local: This machine's time, in seconds since 1970.

    Attributes:
        ahead_s: How far the server's clock is ahead, in seconds; 0 below half a minute.
    """

    def __init__(self, local: Callable[[], float] = time.time) -> None:
        self._local, self.ahead_s = local, 0.0

    def now(self) -> float:
        """Return the time, in seconds since 1970."""
        return self._local() + self.ahead_s

    def adjust(self, date: str | None) -> None:
        """Set the clock by the ``Date`` of an answer (RFC 9110), if it has one."""
        try:
            ahead_s = parsedate_to_datetime(date or "").timestamp() - self._local()
        except ValueError:
            return
        self.ahead_s = ahead_s if abs(ahead_s) > _SAME_TIME_S else 0.0


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Objects that are listed or watched together.

    Attributes:
        kind: ``job``, ``pods``, ``events`` or ``workloads``.
        fields: Field selector.
        labels: Label selector.
    """

    kind: str
    fields: str = ""
    labels: str = ""

    @property
    def query(self) -> dict[str, str]:
        """The query parameters that select them."""
        pairs = {"fieldSelector": self.fields, "labelSelector": self.labels}
        return {name: value for name, value in pairs.items() if value}


Object = dict[str, Any]
_T = TypeVar("_T")
_ARGO, _KUEUE = "argoproj.io", "kueue.x-k8s.io"

_CONNECT_S, _ANSWER_S = 5.0, 30.0
_IDLE_S = 300.0
"""Seconds without a line after which a log that is followed is opened anew: connections die silently."""

_LOG_BYTES = 4_194_304
"""The API counts from the first of the requested lines: with fewer bytes the last lines are cut off."""

_NO_DRY_RUN = "does not support dry run"
"""How the API server words the rejection of a dry run because of a webhook with side effects."""

_JSON_PATCH = "application/json-patch+json"
_UNAUTHORIZED, _FORBIDDEN, _SERVER_ERROR = 401, 403, 500
_SETTLING_S = 60.0
"""Seconds in which a server that rejects everything, ``/readyz`` too, is believed to be starting."""


class Api:
    """Access to jobs of one kind, and what belongs to them, in one namespace.

    A method that says "Not retried" raises ``ApiUnavailable`` where a later call may succeed; the others
    retry for as long as the policy allows.

    Args:
        client: A configured client that makes each call once (``retries = False``).
        namespace: The namespace.
        kind: The kind of jobs.
        policy: How outages are retried.
        clock: The API server's time, adjusted by every answer.
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
        self._refused_s: dict[tuple[str, str], float] = {}
        place = f"namespaces/{namespace}"
        self._jobs = f"/apis/{kind.group}/{kind.version}/{place}/{kind.plural}"
        self._pods, self._events = f"/api/v1/{place}/pods", f"/api/v1/{place}/events"
        self._workloads = f"/apis/{_KUEUE}/v1beta2/{place}/workloads"  # since Kueue 0.15; 0.20 knows no older

    def retry(self, call: Callable[[], _T]) -> _T:
        """Make a call until it succeeds or fails for good.

        Raises:
            TransientError: The outage lasts too long.
        """
        backoff = Backoff(self.policy)
        while True:
            try:
                return call()
            except ApiUnavailable as passing:
                backoff.wait(passing.error, passing.pause_s)

    def create(self, body: Object) -> Object:
        """Create a job. It may exist although no reply came.

        Raises:
            ApiConflict: A job of that name exists.
            TrainwrightError: The server rejects it.
        """
        return self._create(body, {})

    def validate(self, body: Object) -> None:
        """Have the server validate a job without creating it: schema, webhooks, quota and rights.

        A webhook that does not support dry runs makes the server reject each of them; then only the creation
        tells.

        Raises:
            ApiConflict: A job of that name exists.
            TrainwrightError: The server rejects it.
        """
        try:
            self._create(body, {"dryRun": "All"})
        except ApiInvalid as error:
            if _NO_DRY_RUN not in error.what:
                raise

    def _create(self, body: Object, options: Mapping[str, str]) -> Object:
        query = {"fieldValidation": "Strict", **options}
        return self.retry(lambda: self._ask("POST", self._job_call("create"), self._jobs, query, body))

    def job(self, name: str) -> Object | None:
        """Return a job; None if none has that name."""
        call = self._job_call("get", name)
        with contextlib.suppress(ApiNotFound):
            return self.retry(lambda: self._ask("GET", call, f"{self._jobs}/{name}"))
        return None

    def delete(self, name: str, uid: str = "", version: str = "", *, answer_s: float = _ANSWER_S) -> None:
        """Delete a job and all that belongs to it; it may be gone already.

        Args:
            name: Its name.
            uid: Its identity; another job of that name is left alone.
            version: Its ``resourceVersion``; empty: any.
            answer_s: Timeout of one call, in seconds.

        Raises:
            ApiConflict: The job has another version by now; with ``version`` only.
        """
        options: Object = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": self.kind.propagation,
        }
        if same := {key: value for key, value in (("uid", uid), ("resourceVersion", version)) if value}:
            options["preconditions"] = same
        call = self._job_call("delete", name)
        with contextlib.suppress(*((ApiNotFound,) if version else (ApiNotFound, ApiConflict))):
            self.retry(
                lambda: self._ask("DELETE", call, f"{self._jobs}/{name}", body=options, answer_s=answer_s)
            )

    def annotate(
        self, name: str, uid: str, values: Mapping[str, str], *, unless_changed: Mapping[str, str]
    ) -> Object:
        """Set annotations of a job atomically, if others have expected values. Not retried.

        Args:
            name: The job.
            uid: Its identity.
            values: The annotations to set.
            unless_changed: Annotations with the values that they must have.

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
        call = self._job_call("patch", name)
        return self._ask("PATCH", call, f"{self._jobs}/{name}", body=steps, content=_JSON_PATCH)

    def select(self, selection: Selection) -> tuple[list[Object], str]:
        """Return objects and the version of the list. Not retried."""
        call = self._of(selection, "list")
        answer = self._ask("GET", call, self._place(selection), selection.query)
        version = answer["metadata"].get("resourceVersion", "")
        if not version:  # otherwise all objects would count as gone
            raise foreign_answer(answer, call)
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
        call = self._of(selection, "watch")
        response = self._open("GET", call, self._place(selection), query, answer_s=seconds + 15)
        try:
            yield response, responses.watch_events(response, call)
        finally:
            response.close()

    def remove_pod(self, name: str, uid: str) -> None:
        """Delete a pod without waiting for its node; it may be gone already. Not retried."""
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        call = self._pod_call("delete", "pods", name)
        with contextlib.suppress(ApiNotFound, ApiConflict):
            self._ask("DELETE", call, f"{self._pods}/{name}", body=options | {"preconditions": {"uid": uid}})

    def events(self, name: str) -> list[Object]:
        """Return the events of an object. Not retried."""
        items, _ = self.select(Selection(kind="events", fields=f"involvedObject.name={name}"))
        return items

    def workloads(self, uid: str) -> list[Object]:
        """Return the Workloads that Kueue has labelled with a job. Not retried."""
        items, _ = self.select(Selection(kind="workloads", labels=f"{_KUEUE}/job-uid={uid}"))
        return items

    def workflow(self, name: str) -> Owner | None:
        """Return an Argo workflow as an owner; None if it does not exist."""
        call = ApiCall(verb="get", resource="workflows", group=_ARGO, namespace=self.namespace, name=name)
        path = f"/apis/{_ARGO}/v1alpha1/namespaces/{self.namespace}/workflows/{name}"
        with contextlib.suppress(ApiNotFound):
            found = self.retry(lambda: self._ask("GET", call, path))
            uid = found["metadata"]["uid"]
            return Owner(api_version=f"{_ARGO}/v1alpha1", kind="Workflow", name=name, uid=uid)
        return None

    def log(self, pod: str, *, lines: int = 400, previous: bool = False) -> str:
        """Return the end of a pod's log, or of the log before its last restart. Not retried."""
        query = {"tailLines": str(lines), "limitBytes": str(_LOG_BYTES)}
        query |= {"previous": "true"} if previous else {}
        with self.log_lines(pod, query) as (_, found):
            return "\n".join(text for _, text in found)

    @contextlib.contextmanager
    def log_lines(
        self, pod: str, query: Mapping[str, str]
    ) -> Iterator[tuple[urllib3.BaseHTTPResponse, Iterator[tuple[str, str]]]]:
        """Open a pod's log; yield the open response, and the lines with their times. Not retried.

        Raises:
            ApiNotFound: No such pod exists.
            ApiInvalid: It has no log yet.
        """
        call = self._pod_call("get", "pods/log", pod)
        told = {"container": self.kind.container, "timestamps": "true", **query}
        silent_s = _IDLE_S if "follow" in query else _ANSWER_S
        response = self._open("GET", call, f"{self._pods}/{pod}/log", told, answer_s=silent_s)
        try:
            yield response, (responses.split_timestamp(line) for line in responses.read_lines(response))
        finally:
            response.close()

    def _job_call(self, verb: str, name: str = "") -> ApiCall:
        kind = self.kind
        return ApiCall(
            verb=verb,
            resource=kind.plural,
            group=kind.group,
            namespace=self.namespace,
            name=name,
            operator=kind.operator,
        )

    def _pod_call(self, verb: str, resource: str = "pods", name: str = "") -> ApiCall:
        return ApiCall(verb=verb, resource=resource, namespace=self.namespace, name=name)

    def _of(self, selection: Selection, verb: str) -> ApiCall:
        if selection.kind == "workloads":
            return ApiCall(verb=verb, resource="workloads", group=_KUEUE, namespace=self.namespace)
        return self._job_call(verb) if selection.kind == "job" else self._pod_call(verb, selection.kind)

    def _place(self, selection: Selection) -> str:
        places = {"job": self._jobs, "pods": self._pods, "events": self._events, "workloads": self._workloads}
        return places[selection.kind]

    def _ask(
        self,
        method: str,
        call: ApiCall,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        content: str = "application/json",
        answer_s: float = _ANSWER_S,
    ) -> Object:
        response = self._open(method, call, path, query, body, content=content, answer_s=answer_s)
        try:
            return parse_object(response.data, call)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise transport_error(error) from error
        finally:
            response.release_conn()

    def _open(
        self,
        method: str,
        call: ApiCall,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        content: str = "application/json",
        answer_s: float = _ANSWER_S,
    ) -> urllib3.BaseHTTPResponse:
        try:
            response: urllib3.BaseHTTPResponse = self.client.call_api(
                path,
                method,
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json", "Content-Type": content},
                body=body,
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _preload_content=False,
                _request_timeout=(_CONNECT_S, answer_s),
            )
        except k8s.ApiException as error:
            raise self._refusal(error, call) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise transport_error(error) from error
        self.clock.adjust(response.headers.get("Date"))
        self._refused_s.pop((call.verb, call.resource), None)
        return response

    def _refusal(self, error: k8s.ApiException, call: ApiCall) -> Exception:
        """Return the error for an answer; a 401 or 403 of a server that is starting is transient."""
        refusal = rejection(error, call)
        if isinstance(refusal, PermissionRefused) and self._starting(call):
            return ApiUnavailable(TransientError(f"the Kubernetes API is starting: {refusal.what}"))
        return refusal

    def _starting(self, call: ApiCall) -> bool:
        """Tell whether the API server has yet to read its roles, until when it rejects all calls.

        A role of Kubernetes' own opens ``/readyz`` to every account; the token is sent because a server may
        reject anonymous requests. Where ``/readyz`` is rejected too, either the server is starting or an
        administrator closed it: that counts as a start for a while. The time is counted per verb and
        resource, since the success of one call says nothing about the right to make another one.
        """
        try:
            self.client.call_api(
                "/readyz",
                "GET",
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _preload_content=False,
                _request_timeout=(_CONNECT_S, _ANSWER_S),
            ).release_conn()
        except k8s.ApiException as error:
            if error.status not in {_UNAUTHORIZED, _FORBIDDEN}:
                return int(error.status or _SERVER_ERROR) >= _SERVER_ERROR
        except (urllib3.exceptions.HTTPError, OSError):
            return True
        else:
            return False
        now = time.monotonic()
        return now - self._refused_s.setdefault((call.verb, call.resource), now) < _SETTLING_S


def _json_pointer(annotation: str) -> str:
    """Return the path of an annotation in a JSON patch."""
    return "/metadata/annotations/" + annotation.replace("~", "~0").replace("/", "~1")

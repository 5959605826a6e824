"""The kinds of jobs that a cluster knows: how they are addressed, and how their pods are found."""

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
"""How the API deletes an object: after what it owns, or at once and what it owns later."""


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """A kind of jobs.

    Attributes:
        kind: What Kubernetes calls it.
        group: Its API group.
        version: The version that is spoken.
        pods: Label of its pods whose value is the job's name.
        container: The container that trains.
        operator: What has to be installed for it.
        removes_itself: Whether a job that has ended is removed after a while.
        propagation: How the API deletes a job with all that belongs to it. Trainer 2.3 creates the JobSet of
            a TrainJob again for as long as the object is there, and a deletion in the foreground keeps it.
        inner_job: Suffix that names the batch Job which creates the pods; empty where the operator does.
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
        """What it is called here: the launcher's name."""
        return self.kind.lower()

    @property
    def plural(self) -> str:
        """Its name in addresses, and in the rules of a Role."""
        return f"{self.name}s"

    @property
    def full(self) -> str:
        """The name that commands and errors of the API use: ``pytorchjobs.kubeflow.org``."""
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
"""Seconds up to which two clocks count as one: an answer tells whole seconds, and takes a while."""


class ServerClock:
    """This machine's clock, put right by what the API's answers say the time is.

    A node's clock can be wrong by hours. Then a job that was created a moment ago would have been pending for
    hours, and a lease would have run out when it is written.

    Args:
        ours: This machine's time, in seconds since 1970.

    Attributes:
        ahead_s: How far the API's clock is ahead of ours, in seconds; 0 while they tell about the same.
    """

    def __init__(self, ours: Callable[[], float] = time.time) -> None:
        self._ours, self.ahead_s = ours, 0.0

    def now(self) -> float:
        """Return the time, in seconds since 1970."""
        return self._ours() + self.ahead_s

    def hear(self, said: str | None) -> None:
        """Take the time that an answer tells (RFC 9110, ``Date``); one that tells none changes nothing."""
        try:
            ahead_s = parsedate_to_datetime(said or "").timestamp() - self._ours()
        except ValueError:
            return
        self.ahead_s = ahead_s if abs(ahead_s) > _SAME_TIME_S else 0.0


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Objects that are looked at together.

    Attributes:
        kind: What they are: ``job``, ``pods``, ``events`` or ``workloads``.
        fields: Field selector.
        labels: Label selector.
    """

    kind: str
    fields: str = ""
    labels: str = ""

    @property
    def query(self) -> dict[str, str]:
        """The parameters of a call that select them."""
        pairs = {"fieldSelector": self.fields, "labelSelector": self.labels}
        return {name: value for name, value in pairs.items() if value}


Object = dict[str, Any]
_T = TypeVar("_T")
_ARGO, _KUEUE = "argoproj.io", "kueue.x-k8s.io"

_CONNECT_S, _ANSWER_S = 5.0, 30.0
_IDLE_S = 300.0
"""Seconds without a line after which a log that is followed is opened anew: connections die silently."""

_LOG_BYTES = 4_194_304
"""The API counts from the first of the lines on: too few of them, and the last words are cut off."""

_NO_DRY_RUN = "does not support dry run"
"""How the API server words the rejection of a dry run because of a webhook with side effects."""

_JSON_PATCH = "application/json-patch+json"
_UNAUTHORIZED, _FORBIDDEN, _SERVER_ERROR = 401, 403, 500
_SETTLING_S = 60.0
"""Seconds in which a server that rejects everything, ``/readyz`` too, is believed to be starting."""


class Api:
    """Jobs of one kind, and what belongs to them, in one namespace.

    Args:
        client: A configured client that makes each call once (``retries = False``).
        namespace: The namespace.
        kind: The kind of jobs.
        policy: How outages are retried.
        clock: The time, put right by every answer.
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
            Conflict: A job of that name exists.
            TrainwrightError: The server rejects it.
        """
        return self._create(body, {})

    def validate(self, body: Object) -> None:
        """Have the server validate a job without creating it: schema, webhooks, quota and rights.

        A webhook that does not support dry runs makes the server reject each of them; then only the creation
        tells.

        Raises:
            Conflict: A job of that name exists.
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
        """Return a job, or nothing if there is none of that name."""
        call = self._job_call("get", name)
        with contextlib.suppress(ApiNotFound):
            return self.retry(lambda: self._ask("GET", call, f"{self._jobs}/{name}"))
        return None

    def delete(self, name: str, uid: str = "", version: str = "", *, answer_s: float = _ANSWER_S) -> None:
        """Delete a job and all that belongs to it; it may be gone already, or be another one by now.

        Args:
            name: Its name.
            uid: Its identity; another job of that name is left alone.
            version: Its version (``resourceVersion``); empty: any.
            answer_s: Seconds that the API is given for its answer.

        Raises:
            Conflict: The job has another version by now; with ``version`` only.
        """
        options: Object = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": self.kind.propagation,
        }
        if same := {key: said for key, said in (("uid", uid), ("resourceVersion", version)) if said}:
            options["preconditions"] = same
        call = self._job_call("delete", name)
        with contextlib.suppress(*((ApiNotFound,) if version else (ApiNotFound, ApiConflict))):
            self.retry(
                lambda: self._ask("DELETE", call, f"{self._jobs}/{name}", body=options, answer_s=answer_s)
            )

    def annotate(
        self, name: str, uid: str, values: Mapping[str, str], *, unless_changed: Mapping[str, str]
    ) -> Object:
        """Set annotations of a job in one step, if others still are as they were. Made once.

        Args:
            name: The job.
            uid: Its identity.
            values: What to set.
            unless_changed: Annotations that have to have these values.

        Raises:
            Invalid: One of these has another value, or another job has that name by now.
            Absent: There is no such job.
            Passing: It did not work now.
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
        """Return objects and the version of the list. Made once.

        Raises:
            Passing: It did not work now.
        """
        call = self._of(selection, "list")
        answer = self._ask("GET", call, self._place(selection), selection.query)
        version = answer["metadata"].get("resourceVersion", "")
        if not version:  # or else all objects would be gone
            raise foreign_answer(answer, call)
        return answer.get("items") or [], version

    @contextlib.contextmanager
    def watch(
        self, selection: Selection, version: str, seconds: int
    ) -> Iterator[tuple[urllib3.BaseHTTPResponse, Iterator[Object]]]:
        """Open a watch from a version on; give the open response, and its events as the API writes them.

        Raises:
            Expired: The version is too old.
            Passing: It broke.
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
        """Remove a pod at once, whatever its node says; it may be gone, or be another one by now. Made once.

        Raises:
            Passing: It did not work now.
        """
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        call = self._pod_call("delete", "pods", name)
        with contextlib.suppress(ApiNotFound, ApiConflict):
            self._ask("DELETE", call, f"{self._pods}/{name}", body=options | {"preconditions": {"uid": uid}})

    def events(self, name: str) -> list[Object]:
        """Return what was said about an object. Made once."""
        items, _ = self.select(Selection(kind="events", fields=f"involvedObject.name={name}"))
        return items

    def workloads(self, uid: str) -> list[Object]:
        """Return what Kueue keeps of a job, by the label that it gives to it. Made once."""
        items, _ = self.select(Selection(kind="workloads", labels=f"{_KUEUE}/job-uid={uid}"))
        return items

    def workflow(self, name: str) -> Owner | None:
        """Return the Argo workflow of that name, as an owner; nothing if there is none."""
        call = ApiCall(verb="get", resource="workflows", group=_ARGO, namespace=self.namespace, name=name)
        path = f"/apis/{_ARGO}/v1alpha1/namespaces/{self.namespace}/workflows/{name}"
        with contextlib.suppress(ApiNotFound):
            found = self.retry(lambda: self._ask("GET", call, path))
            uid = found["metadata"]["uid"]
            return Owner(api_version=f"{_ARGO}/v1alpha1", kind="Workflow", name=name, uid=uid)
        return None

    def log(self, pod: str, *, lines: int = 400, previous: bool = False) -> str:
        """Return the end of a pod's log, or that of its container before the last restart. Made once."""
        query = {"tailLines": str(lines), "limitBytes": str(_LOG_BYTES)}
        query |= {"previous": "true"} if previous else {}
        with self.log_lines(pod, query) as (_, found):
            return "\n".join(text for _, text in found)

    @contextlib.contextmanager
    def log_lines(
        self, pod: str, query: Mapping[str, str]
    ) -> Iterator[tuple[urllib3.BaseHTTPResponse, Iterator[tuple[str, str]]]]:
        """Open a pod's log; give the open response, and the lines with their times.

        Raises:
            Absent: There is no such pod.
            Invalid: There is no log of it yet.
            Passing: It broke.
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
        self.clock.hear(response.headers.get("Date"))
        self._refused_s.pop((call.verb, call.resource), None)
        return response

    def _refusal(self, error: k8s.ApiException, call: ApiCall) -> Exception:
        """Return what an answer amounts to: a 401 or 403 of a server that is starting means nothing."""
        refusal = rejection(error, call)
        if isinstance(refusal, PermissionRefused) and self._starting(call):
            return ApiUnavailable(TransientError(f"the Kubernetes API is starting: {refusal.what}"))
        return refusal

    def _starting(self, call: ApiCall) -> bool:
        """Ask whether the API server has read its roles and accounts; until then it rejects what they allow.

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

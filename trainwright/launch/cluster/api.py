"""The calls of the Kubernetes API that a launcher makes: jobs of one kind, their pods, logs and events."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import urllib3
from kubernetes import client as k8s  # type: ignore[import-untyped]

from trainwright.errors import PermissionRefused, TransientError
from trainwright.launch.cluster import streams
from trainwright.launch.cluster.answers import (
    Absent,
    Call,
    Conflict,
    Invalid,
    Passing,
    of_refusal,
    of_strangers,
    of_transport,
    read,
)
from trainwright.launch.cluster.clock import Clock
from trainwright.launch.cluster.kind import Kind
from trainwright.launch.cluster.selection import Selection
from trainwright.launch.owner import Owner
from trainwright.retries import Backoff, RetryPolicy

Object = dict[str, Any]
_T = TypeVar("_T")
_ARGO, _KUEUE = "argoproj.io", "kueue.x-k8s.io"

_CONNECT_S, _ANSWER_S = 5.0, 30.0
_SILENT_S = 300.0
"""Seconds without a line after which a log that is followed is opened anew: connections die silently."""

_LOG_BYTES = 4_194_304
"""The API counts from the first of the lines on: too few of them, and the last words are cut off."""

_NO_DRY_RUN = "does not support dry run"
"""How the API server words the rejection of a dry run because of a webhook with side effects."""

_STEPS = "application/json-patch+json"
_UNKNOWN, _FORBIDDEN, _DOWN = 401, 403, 500
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
        kind: Kind,
        policy: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.client, self.namespace, self.kind = client, namespace, kind
        self.policy, self.clock = policy or RetryPolicy(), clock or Clock()
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
            except Passing as passing:
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
        except Invalid as error:
            if _NO_DRY_RUN not in error.what:
                raise

    def _create(self, body: Object, options: Mapping[str, str]) -> Object:
        query = {"fieldValidation": "Strict", **options}
        return self.retry(lambda: self._ask("POST", self._job_call("create"), self._jobs, query, body))

    def job(self, name: str) -> Object | None:
        """Return a job, or nothing if there is none of that name."""
        call = self._job_call("get", name)
        with contextlib.suppress(Absent):
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
        with contextlib.suppress(*((Absent,) if version else (Absent, Conflict))):
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
        tests = {"/metadata/uid": uid} | {_pointer(key): value for key, value in unless_changed.items()}
        sets = {_pointer(key): value for key, value in values.items()}
        steps = [
            {"op": op, "path": path, "value": value}
            for op, entries in (("test", tests), ("add", sets))
            for path, value in entries.items()
        ]
        call = self._job_call("patch", name)
        return self._ask("PATCH", call, f"{self._jobs}/{name}", body=steps, content=_STEPS)

    def select(self, selection: Selection) -> tuple[list[Object], str]:
        """Return objects and the version of the list. Made once.

        Raises:
            Passing: It did not work now.
        """
        call = self._of(selection, "list")
        answer = self._ask("GET", call, self._place(selection), selection.query)
        version = answer["metadata"].get("resourceVersion", "")
        if not version:  # or else all objects would be gone
            raise of_strangers(answer, call)
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
            yield response, streams.changes(response, call)
        finally:
            response.close()

    def remove_pod(self, name: str, uid: str) -> None:
        """Remove a pod at once, whatever its node says; it may be gone, or be another one by now. Made once.

        Raises:
            Passing: It did not work now.
        """
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        call = self._pod_call("delete", "pods", name)
        with contextlib.suppress(Absent, Conflict):
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
        call = Call(verb="get", resource="workflows", group=_ARGO, namespace=self.namespace, name=name)
        path = f"/apis/{_ARGO}/v1alpha1/namespaces/{self.namespace}/workflows/{name}"
        with contextlib.suppress(Absent):
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
        silent_s = _SILENT_S if "follow" in query else _ANSWER_S
        response = self._open("GET", call, f"{self._pods}/{pod}/log", told, answer_s=silent_s)
        try:
            yield response, (streams.stamped(line) for line in streams.lines(response))
        finally:
            response.close()

    def _job_call(self, verb: str, name: str = "") -> Call:
        kind = self.kind
        return Call(
            verb=verb,
            resource=kind.plural,
            group=kind.group,
            namespace=self.namespace,
            name=name,
            operator=kind.operator,
        )

    def _pod_call(self, verb: str, resource: str = "pods", name: str = "") -> Call:
        return Call(verb=verb, resource=resource, namespace=self.namespace, name=name)

    def _of(self, selection: Selection, verb: str) -> Call:
        if selection.kind == "workloads":
            return Call(verb=verb, resource="workloads", group=_KUEUE, namespace=self.namespace)
        return self._job_call(verb) if selection.kind == "job" else self._pod_call(verb, selection.kind)

    def _place(self, selection: Selection) -> str:
        places = {"job": self._jobs, "pods": self._pods, "events": self._events, "workloads": self._workloads}
        return places[selection.kind]

    def _ask(
        self,
        method: str,
        call: Call,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        content: str = "application/json",
        answer_s: float = _ANSWER_S,
    ) -> Object:
        response = self._open(method, call, path, query, body, content=content, answer_s=answer_s)
        try:
            return read(response.data, call)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise of_transport(error) from error
        finally:
            response.release_conn()

    def _open(
        self,
        method: str,
        call: Call,
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
            raise of_transport(error) from error
        self.clock.hear(response.headers.get("Date"))
        self._refused_s.pop((call.verb, call.resource), None)
        return response

    def _refusal(self, error: k8s.ApiException, call: Call) -> Exception:
        """Return what an answer amounts to: a 401 or 403 of a server that is starting means nothing."""
        refusal = of_refusal(error, call)
        if isinstance(refusal, PermissionRefused) and self._starting(call):
            return Passing(TransientError(f"the Kubernetes API is starting: {refusal.what}"))
        return refusal

    def _starting(self, call: Call) -> bool:
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
            if error.status not in {_UNKNOWN, _FORBIDDEN}:
                return int(error.status or _DOWN) >= _DOWN
        except (urllib3.exceptions.HTTPError, OSError):
            return True
        else:
            return False
        now = time.monotonic()
        return now - self._refused_s.setdefault((call.verb, call.resource), now) < _SETTLING_S


def _pointer(annotation: str) -> str:
    """Return the path of an annotation in a JSON patch."""
    return "/metadata/annotations/" + annotation.replace("~", "~0").replace("/", "~1")

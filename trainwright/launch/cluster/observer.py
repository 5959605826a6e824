"""Observe one job: watches of the job and its pods, its lease, and logs and events where they explain more.

Each watch is a thread that sleeps in a read. All results go into one queue, in their order.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

import urllib3

from trainwright.errors import DependencyError, PermissionRefused, TrainwrightError, TransientError
from trainwright.launch.cluster.api import Api, Selection
from trainwright.launch.cluster.lease import (
    RENEW_S,
    LeasedJob,
    LeaseLost,
    LeaseRenewal,
    belongs_to,
    holder_of,
)
from trainwright.launch.cluster.responses import (
    ApiConflict,
    ApiGone,
    ApiInvalid,
    ApiNotFound,
    ApiUnavailable,
    Object,
)
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.state import read_workload
from trainwright.retries import Backoff

LISTED = "LISTED"
"""Change of a :class:`WatchEvent` that holds a whole list."""

_WATCH_S, _RELIST_S = 60, 600.0
"""Seconds after which the API ends a watch, so that a dead connection is noticed, and between two lists."""

_SHORT_WATCH_S = 5.0
"""A watch that ends sooner and without a change is followed by a pause, of at most this length."""

_OPTIONAL_ERRORS = (ApiNotFound, ApiConflict, ApiGone, ApiUnavailable, TrainwrightError)
"""Errors of a call for a detail: then that detail is missing, and nothing else."""

_EVENTS_S = 15.0
_MAX_PODS = 16


@dataclass(frozen=True, kw_only=True)
class WatchEvent:
    """A list of objects (``LISTED``), or one that was ``ADDED``, ``MODIFIED`` or ``DELETED``."""

    kind: str
    change: str
    bodies: tuple[Object, ...]


class Watcher:
    """Lists and watches objects in a thread, through outages.

    It calls ``notify`` with every :class:`WatchEvent`, and with the error that ended the watch.
    """

    def __init__(
        self, api: Api, selection: Selection, notify: Callable[[WatchEvent | Exception], None]
    ) -> None:
        self._api, self._selection, self._callback = api, selection, notify
        self._stopped = threading.Event()
        self._backoff = Backoff(api.policy, self._stopped)
        self._version, self._listed_s, self._allowed = "", 0.0, False
        self._short_watches = 0
        self._open: urllib3.BaseHTTPResponse | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch-{selection.kind}", daemon=True)

    def __enter__(self) -> Self:
        """Start watching."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching; the thread closes its connection itself."""
        self._stopped.set()
        if (response := self._open) is not None:
            with contextlib.suppress(Exception):  # the thread may be closing it at this moment
                response.shutdown()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._list_and_watch()
            except ApiUnavailable as error:
                outage, least_s = error.error, error.pause_s
            except ApiGone as error:  # a list, too, can be answered with 410
                outage, least_s = TransientError(f"the Kubernetes API says: {error}"), 0.0
            except (PermissionRefused, DependencyError, ApiInvalid, ApiNotFound) as error:
                # A call that was allowed before mostly is so again in a moment: a restarting API rejects it.
                if not self._allowed:
                    self._notify(error)
                    return
                outage, least_s = TransientError(str(error)), 0.0
            except Exception as error:  # a thread cannot raise to anybody
                self._notify(error)
                return
            else:
                continue
            try:
                self._backoff.wait(outage, least_s)
            except TransientError as last:  # the outage lasts too long
                self._notify(last)
                return

    def _list_and_watch(self) -> None:
        """List if it is time to, then watch until the watch ends."""
        if not self._version or time.monotonic() - self._listed_s > _RELIST_S:
            items, self._version = self._api.select(self._selection)
            self._listed_s, self._allowed = time.monotonic(), True
            self._backoff.reset()
            self._notify(WatchEvent(kind=self._selection.kind, change=LISTED, bodies=tuple(items)))
        started_s, changed = time.monotonic(), False
        try:
            with self._api.watch(self._selection, self._version, _WATCH_S) as (response, changes):
                self._open = response
                self._backoff.reset()
                for change in changes:
                    if self._stopped.is_set():
                        return
                    changed, body = True, change["object"]
                    self._version = (body.get("metadata") or {}).get("resourceVersion") or self._version
                    if (kind := change["type"]) != "BOOKMARK":
                        self._notify(WatchEvent(kind=self._selection.kind, change=kind, bodies=(body,)))
        except ApiGone:
            self._version = ""
        finally:
            self._open = None
        if not changed and time.monotonic() - started_s < _SHORT_WATCH_S:
            # Proxies cut streams, and an API that starts calls every version too old: avoid a storm of calls.
            self._short_watches += 1
            pause_s = self._api.policy.first_s * 2 ** min(self._short_watches, 10)
            self._stopped.wait(min(pause_s, _SHORT_WATCH_S))
        else:
            self._short_watches = 0

    def _notify(self, event: WatchEvent | Exception) -> None:
        if not self._stopped.is_set():
            self._callback(event)


class Observer:
    """Observes one job. Use it in a ``with``: its threads run inside.

    Attributes:
        observed: All that was observed.
        listed: Whether the pods were listed. Before that, an absent pod means nothing.
    """

    def __init__(self, leased: LeasedJob, *, renew_s: float = RENEW_S) -> None:
        self._api, self._leased, self._renew_s = leased.api, leased, renew_s
        self._events: queue.SimpleQueue[WatchEvent | Exception] = queue.SimpleQueue()
        self._logged: set[tuple[str, int, bool]] = set()
        self._events_read_s, self._events_allowed = 0.0, True
        self._stack, self.listed = ExitStack(), False
        self.observed = ObservedJob(leased.name, leased.uid)
        self.observed.update_job(leased.body)

    def __enter__(self) -> "Observer":
        """Start watching, and renewing the lease."""
        api, name, notify = self._api, self._leased.name, self._events.put
        job = Selection(kind="job", fields=f"metadata.name={name}")
        pods = Selection(kind="pods", labels=f"{api.kind.pods}={name}")
        self._stack.enter_context(Watcher(api, job, notify))
        self._stack.enter_context(Watcher(api, pods, notify))
        self._stack.enter_context(LeaseRenewal(self._leased, notify, self._renew_s))
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._stack.close()

    def wait(self, longest_s: float) -> bool:
        """Take in all that was observed, waiting for something if there is nothing; tell if there was any.

        Raises:
            LeaseLost: Another launcher has taken over the job.
            TrainwrightError: The API rejects a call, or is unreachable for too long.
        """
        end, seen = time.monotonic() + longest_s, False
        while True:
            rest_s = 0.0 if seen else max(0.0, end - time.monotonic())
            try:
                event = self._events.get(timeout=rest_s) if rest_s else self._events.get_nowait()
            except queue.Empty:
                return seen
            if isinstance(event, Exception):
                raise event
            self._apply(event)
            seen = True

    def _apply(self, event: WatchEvent) -> None:
        if event.kind == "pods":
            pods = [pod for pod in event.bodies if belongs_to(pod, self._leased.attempt)]
            if event.change == LISTED:
                self.listed = True
                self.observed.replace_pods(pods)
            for pod in pods if event.change != LISTED else ():
                self.observed.update_pod(pod, gone=event.change == "DELETED")
            return
        for body in event.bodies:
            if event.change != "DELETED" and holder_of(body) not in ("", self._leased.holder):
                raise LeaseLost(holder_of(body))
        mine = [body for body in event.bodies if body["metadata"].get("uid") == self._leased.uid]
        for body in mine:
            self._leased.body = body
            self.observed.update_job(body, gone=event.change == "DELETED")
        if event.change == LISTED and not mine:
            self.observed.mark_job_removed()

    def read_details(self, *, waiting: bool = False) -> None:
        """Read the logs of failed pods, and the events of the job and of pods that do not run.

        While the job waits as before (``waiting``), its events are read only now and then.
        """
        for pod in self.observed.pods[-_MAX_PODS:]:
            failures, restarted = sum(end.exit_code != 0 for end in pod.endings), pod.running_s is not None
            key = (pod.uid, failures, restarted)
            if failures and key not in self._logged and not self.observed.successors(pod):
                with contextlib.suppress(*_OPTIONAL_ERRORS):
                    # In a restarted container the log of the failed run is the previous one.
                    self.observed.add_log(pod.uid, self._api.log(pod.name, previous=restarted))
                    self._logged.add(key)
        now = time.monotonic()
        if self._events_allowed and (not waiting or now - self._events_read_s >= _EVENTS_S):
            self._events_read_s = now
            self._read_events()

    def _read_events(self) -> None:
        """Read the events of the job, of the objects between it and its pods, and of pods that do not run."""
        name, inner = self.observed.name, self._api.kind.inner_job
        idle = [
            pod.name
            for pod in self.observed.pods
            if pod.running_s is None and (pod.over is None or pod.phase != "Succeeded")
        ]
        # A JobSet has the job's own name.
        controllers = (name, f"{name}{inner}") if inner else (name,)
        try:
            for about in (*controllers, *self._read_workloads(), *idle[:_MAX_PODS]):
                for event in self._api.events(about):
                    self.observed.add_event(event)
        except PermissionRefused:
            self._events_allowed = False
        except _OPTIONAL_ERRORS:
            pass

    def _read_workloads(self) -> list[str]:
        """Read Kueue's Workloads of a job that a queue holds back; return their names."""
        job = self.observed.job
        running = any(pod.running_s and pod.gone is None for pod in self.observed.pods)
        if job is None or not job.queue or running:
            return []
        try:
            found = self._api.workloads(job.uid)
        except _OPTIONAL_ERRORS:  # without that right, or without Kueue
            return []
        for body in found:
            self.observed.update_workload(body, preemptor=self._preemptor(body))
        if not found:
            self.observed.mark_workload_missing(self._api.clock.now())
        return [str(body["metadata"]["name"]) for body in found]

    def _preemptor(self, body: Object) -> str:
        """Return kind and name of the job that took a workload's quota; empty in another namespace."""
        uid = read_workload(body).preemptor
        owners: list[Object] = []
        with contextlib.suppress(*_OPTIONAL_ERRORS):
            for other in self._api.workloads(uid) if uid else ():
                owners += other["metadata"].get("ownerReferences") or []
        return f"{owners[0]['kind']} {owners[0]['name']}" if owners else ""

"""Looking on at objects: a list, then a watch from its version on, for as long as somebody wants to know.

Each watcher is a thread of its own that sleeps in a read. What it finds goes into one queue, in its order.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import urllib3

from trainwright.errors import DependencyError, PermissionRefused, TrainwrightError, TransientError
from trainwright.launch.cluster import lease
from trainwright.launch.cluster.adoption import LeasedJob
from trainwright.launch.cluster.api import Api, Object, Selection
from trainwright.launch.cluster.deletion import belongs_to
from trainwright.launch.cluster.responses import ApiConflict, ApiGone, ApiInvalid, ApiNotFound, ApiUnavailable
from trainwright.launch.diagnosis import workload
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.state import PodState
from trainwright.retries import Backoff

LISTED = "LISTED"
"""What a list is called among the changes of a watch."""

_WATCH_S, _RELIST_S = 60, 600.0
"""Seconds after which the API ends a watch, so that a dead connection is noticed, and between two lists."""


_SHORT_WATCH_S = 5.0
"""A watch that ends sooner and without a change is worth nothing; the longest pause after such a one."""


@dataclass(frozen=True, kw_only=True)
class WatchEvent:
    """Something that a watcher saw.

    Attributes:
        kind: What was looked at: ``job`` or ``pods``.
        change: ``LISTED``, ``ADDED``, ``MODIFIED`` or ``DELETED``.
        bodies: All objects of a list, or the one that changed.
    """

    kind: str
    change: str
    bodies: tuple[Object, ...]


class Watcher:
    """Watches objects from a thread of its own, and sits outages out.

    Args:
        api: Access to the cluster.
        selection: The objects.
        tell: Called with every :class:`News`, and with the error that ended the watching.
    """

    def __init__(
        self, api: Api, selection: Selection, tell: Callable[[WatchEvent | Exception], None]
    ) -> None:
        self._api, self._selection, self._tell = api, selection, tell
        self._stopped = threading.Event()
        self._backoff = Backoff(api.policy, self._stopped)
        self._version, self._listed_s, self._known = "", 0.0, False
        self._empty = 0
        self._open: urllib3.BaseHTTPResponse | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch-{selection.kind}", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; the thread lets go of its connection by itself."""
        self._stopped.set()
        if (response := self._open) is not None:
            with contextlib.suppress(Exception):  # it may be closing itself at this moment
                response.shutdown()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._look()
            except ApiUnavailable as passing:
                if not self._sat_out(passing):
                    return
            except ApiGone as expired:  # a list, too, can be told so
                if not self._sat_out(ApiUnavailable(TransientError(f"the Kubernetes API says: {expired}"))):
                    return
            except (PermissionRefused, DependencyError, ApiInvalid, ApiNotFound) as error:
                # What was allowed a minute ago mostly is so again in a moment: an API that restarts says so.
                told = TransientError(str(error))
                if not self._known:
                    self._say(error)
                    return
                if not self._sat_out(ApiUnavailable(told)):
                    return
            except Exception as error:  # a thread has nobody else to tell
                self._say(error)
                return

    def _look(self) -> None:
        """List if it is time to, then watch until the watch ends."""
        if not self._version or time.monotonic() - self._listed_s > _RELIST_S:
            items, self._version = self._api.select(self._selection)
            self._listed_s, self._known = time.monotonic(), True
            self._backoff.reset()
            self._say(WatchEvent(kind=self._selection.kind, change=LISTED, bodies=tuple(items)))
        began_s, seen = time.monotonic(), False
        try:
            with self._api.watch(self._selection, self._version, _WATCH_S) as (response, changes):
                self._open = response
                self._backoff.reset()
                for change in changes:
                    if self._stopped.is_set():
                        return
                    seen = True
                    self._see(change)
        except ApiGone:
            self._version = ""
        finally:
            self._open = None
        if not seen and time.monotonic() - began_s < _SHORT_WATCH_S:
            # Proxies cut streams off, and an API that starts calls every version too old: no storm of calls.
            self._empty += 1
            self._stopped.wait(min(self._api.policy.first_s * 2 ** min(self._empty, 10), _SHORT_WATCH_S))
        else:
            self._empty = 0

    def _see(self, change: Object) -> None:
        body = change["object"]
        self._version = (body.get("metadata") or {}).get("resourceVersion") or self._version
        if change["type"] != "BOOKMARK":
            self._say(WatchEvent(kind=self._selection.kind, change=change["type"], bodies=(body,)))

    def _sat_out(self, passing: ApiUnavailable) -> bool:
        """Wait a while; tell the error instead if that has lasted too long."""
        try:
            self._backoff.wait(passing.error, passing.pause_s)
        except TransientError as error:
            self._say(error)
            return False
        return True

    def _say(self, told: WatchEvent | Exception) -> None:
        if not self._stopped.is_set():
            self._tell(told)


_OPTIONAL_ERRORS = (ApiNotFound, ApiConflict, ApiGone, ApiUnavailable, TrainwrightError)
"""What a call for a detail may end with: then that detail is missing, and nothing else."""

_EVENTS_S = 15.0
_MAX_PODS = 16


class Observer:
    """One job, as it is seen from now on. Use it in a ``with``: its watchers run inside.

    Args:
        api: Access to the cluster.
        held: The job.
        holder: Name of this launcher.
        every_s: Seconds between two renewals of the lease.

    Attributes:
        observed: All that was seen.
        version: The version in which the job was last seen.
        listed: Whether the pods were seen. Before, that there are none of them means nothing.
    """

    def __init__(self, api: Api, held: LeasedJob, holder: str, *, every_s: float = lease.RENEW_S) -> None:
        self._api, self._held, self._holder, self._every_s = api, held, holder, every_s
        self._inbox: queue.SimpleQueue[WatchEvent | Exception] = queue.SimpleQueue()
        self._logged: set[tuple[str, int, bool]] = set()
        self._asked_s, self._events_allowed = 0.0, True
        self._stack, self.listed, self.version = ExitStack(), False, held.version
        self.observed = ObservedJob(held.name, held.uid)
        self.observed.update_job(held.body)

    def __enter__(self) -> "Observer":
        """Begin to watch, and to renew the lease."""
        api, held, tell = self._api, self._held, self._inbox.put
        mine = Selection(kind="job", fields=f"metadata.name={held.name}")
        pods = Selection(kind="pods", labels=f"{api.kind.pods}={held.name}")
        self._stack.enter_context(Watcher(api, mine, tell))
        self._stack.enter_context(Watcher(api, pods, tell))
        renewed = lease.Lease(api, held.name, held.uid, self._holder, tell, every_s=self._every_s)
        self._stack.enter_context(renewed)
        return self

    def __exit__(self, *_: object) -> None:
        """Look away."""
        self._stack.close()

    def wait(self, longest_s: float) -> bool:
        """Take in what there is to see; wait for something if there is nothing. Tell whether there was any.

        Raises:
            Outdone: Another launcher has taken the job over.
            TrainwrightError: The API refuses, or is out of reach for too long.
        """
        end, seen = time.monotonic() + longest_s, False
        while True:
            rest_s = 0.0 if seen else max(0.0, end - time.monotonic())
            try:
                told = self._inbox.get(timeout=rest_s) if rest_s else self._inbox.get_nowait()
            except queue.Empty:
                return seen
            if isinstance(told, Exception):
                raise told
            self._take(told)
            seen = True

    def read_details(self, *, waiting: bool = False) -> None:
        """Read the logs of pods that failed, and the events: of the job, and of the pods that do not run."""
        for pod in self.observed.pods[-_MAX_PODS:]:
            ended, again = sum(end.exit_code != 0 for end in pod.endings), pod.running_s is not None
            if ended and (pod.uid, ended, again) not in self._logged and not self.observed.successors(pod):
                with contextlib.suppress(*_OPTIONAL_ERRORS):
                    # Where a container runs again, the log of the one that failed is the previous one.
                    self.observed.add_log(pod.uid, self._api.log(pod.name, previous=again))
                    self._logged.add((pod.uid, ended, again))
        now = time.monotonic()
        if self._events_allowed and (not waiting or now - self._asked_s >= _EVENTS_S):
            self._asked_s = now
            self._see_events()

    @property
    def _controllers(self) -> tuple[str, ...]:
        """Names of the objects between the job and its pods; a JobSet has the job's own."""
        name, inner = self.observed.name, self._api.kind.inner_job
        return (name, f"{name}{inner}") if inner else (name,)

    def _see_events(self) -> None:
        idle = [pod.name for pod in self.observed.pods if not _runs(pod)]
        try:
            for name in (*self._controllers, *self._see_workloads(), *idle[:_MAX_PODS]):
                for event in self._api.events(name):
                    self.observed.add_event(event)
        except PermissionRefused:
            self._events_allowed = False
        except _OPTIONAL_ERRORS:
            pass

    def _see_workloads(self) -> list[str]:
        """Read what Kueue says of a job that a queue holds back; return the names of its workloads."""
        job = self.observed.job
        if (
            job is None
            or not job.queue
            or any(pod.running_s and pod.gone is None for pod in self.observed.pods)
        ):
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
        """Return the job that took the quota of a workload, in words; empty if it is of another namespace."""
        uid = workload.read_workload(body).preemptor
        owners: list[Object] = []
        with contextlib.suppress(*_OPTIONAL_ERRORS):
            for other in self._api.workloads(uid) if uid else ():
                owners += other["metadata"].get("ownerReferences") or []
        return f"{owners[0]['kind']} {owners[0]['name']}" if owners else ""

    def _take(self, news: WatchEvent) -> None:
        if news.kind == "pods":
            pods = [pod for pod in news.bodies if belongs_to(pod, self._held.attempt)]
            if news.change == LISTED:
                self.listed = True
                self.observed.replace_pods(pods)
            for pod in pods if news.change != LISTED else ():
                self.observed.update_pod(pod, gone=news.change == "DELETED")
            return
        for body in news.bodies:
            mine = body["metadata"].get("uid") == self._held.uid
            if news.change != "DELETED" and lease.holder_of(body) not in ("", self._holder):
                raise lease.LeaseLost(lease.holder_of(body))
            if mine:
                self.version = body["metadata"].get("resourceVersion", self.version)
                self.observed.update_job(body, gone=news.change == "DELETED")
        if news.change == LISTED and not any(
            body["metadata"].get("uid") == self._held.uid for body in news.bodies
        ):
            self.observed.mark_job_removed()


def _runs(pod: PodState) -> bool:
    return pod.running_s is not None or (pod.over is not None and pod.phase == "Succeeded")

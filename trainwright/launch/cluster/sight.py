"""What a launcher sees of one job while it follows it: fed by watches, completed by logs and events."""

import contextlib
import queue
import time
from contextlib import ExitStack

from trainwright.errors import PermissionRefused, TrainwrightError
from trainwright.launch.cluster import lease
from trainwright.launch.cluster.answers import Absent, Conflict, Expired, Passing
from trainwright.launch.cluster.api import Api, Object
from trainwright.launch.cluster.joining import Held
from trainwright.launch.cluster.leaving import is_of
from trainwright.launch.cluster.selection import Selection
from trainwright.launch.cluster.watching import LISTED, News, Watcher
from trainwright.launch.diagnosis import Observed, workload
from trainwright.launch.diagnosis.pod_story import PodStory

_QUIETLY = (Absent, Conflict, Expired, Passing, TrainwrightError)
"""What a call for a detail may end with: then that detail is missing, and nothing else."""

_EVENTS_S = 15.0
_MAX_PODS = 16


class Sight:
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

    def __init__(self, api: Api, held: Held, holder: str, *, every_s: float = lease.RENEW_S) -> None:
        self._api, self._held, self._holder, self._every_s = api, held, holder, every_s
        self._inbox: queue.SimpleQueue[News | Exception] = queue.SimpleQueue()
        self._logged: set[tuple[str, int, bool]] = set()
        self._asked_s, self._events_allowed = 0.0, True
        self._stack, self.listed, self.version = ExitStack(), False, held.version
        self.observed = Observed(held.name, held.uid)
        self.observed.see_job(held.body)

    def __enter__(self) -> "Sight":
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

    def look_closer(self, *, waiting: bool = False) -> None:
        """Read the logs of pods that failed, and the events: of the job, and of the pods that do not run."""
        for pod in self.observed.pods[-_MAX_PODS:]:
            ended, again = sum(end.exit_code != 0 for end in pod.endings), pod.running_s is not None
            if ended and (pod.uid, ended, again) not in self._logged and not self.observed.successors(pod):
                with contextlib.suppress(*_QUIETLY):
                    # Where a container runs again, the log of the one that failed is the previous one.
                    self.observed.see_log(pod.uid, self._api.log(pod.name, previous=again))
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
                    self.observed.see_event(event)
        except PermissionRefused:
            self._events_allowed = False
        except _QUIETLY:
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
        except _QUIETLY:  # without that right, or without Kueue
            return []
        for body in found:
            self.observed.see_workload(body, preemptor=self._preemptor(body))
        if not found:
            self.observed.see_no_workload(self._api.clock.now())
        return [str(body["metadata"]["name"]) for body in found]

    def _preemptor(self, body: Object) -> str:
        """Return the job that took the quota of a workload, in words; empty if it is of another namespace."""
        uid = workload.read(body).preemptor
        owners: list[Object] = []
        with contextlib.suppress(*_QUIETLY):
            for other in self._api.workloads(uid) if uid else ():
                owners += other["metadata"].get("ownerReferences") or []
        return f"{owners[0]['kind']} {owners[0]['name']}" if owners else ""

    def _take(self, news: News) -> None:
        if news.kind == "pods":
            pods = [pod for pod in news.bodies if is_of(pod, self._held.attempt)]
            if news.change == LISTED:
                self.listed = True
                self.observed.see_pods(pods)
            for pod in pods if news.change != LISTED else ():
                self.observed.see_pod(pod, gone=news.change == "DELETED")
            return
        for body in news.bodies:
            mine = body["metadata"].get("uid") == self._held.uid
            if news.change != "DELETED" and lease.holder_of(body) not in ("", self._holder):
                raise lease.Outdone(lease.holder_of(body))
            if mine:
                self.version = body["metadata"].get("resourceVersion", self.version)
                self.observed.see_job(body, gone=news.change == "DELETED")
        if news.change == LISTED and not any(
            body["metadata"].get("uid") == self._held.uid for body in news.bodies
        ):
            self.observed.see_gone()


def _runs(pod: PodStory) -> bool:
    return pod.running_s is not None or (pod.over is not None and pod.phase == "Succeeded")

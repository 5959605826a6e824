"""All that a launcher has observed of one job. It only grows: pods and events vanish from a cluster."""

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass

from trainwright.launch.diagnosis import state
from trainwright.launch.diagnosis.state import JobState, Object, PodState, Workload, parse_time

MAX_LOG = 65_536
"""Characters kept of the end of a log."""

_JOB_OBJECTS = frozenset({"PyTorchJob", "TrainJob", "JobSet", "Job", "Pod", "Workload"})
"""Kinds of objects whose events concern a job; a node's events concern its pods."""

_MAX_EVENTS, _MAX_LOGS = 500, 64
_NODE_EVENT_S = 60
"""Seconds after a pod's end in which events of its node still count: nodes report late."""

_NO_LOG = re.compile(r"unable to retrieve container logs for \S+\s*\Z")


@dataclass(frozen=True, kw_only=True)
class Event:
    """A Kubernetes event about an object. A hint: events are late or repeated.

    ``at_s`` is when it last occurred, in seconds since 1970; None if unknown.
    """

    kind: str
    name: str
    uid: str
    reason: str
    message: str
    warning: bool
    at_s: float | None


class ObservedJob:
    """Everything observed of one job, by watches, lists, or both.

    Versions of one kind have to arrive in order, as a watch or a list returns them; the order between kinds
    does not matter. Pods have to be selected by the job's name. With a ``uid``, an older job of that name,
    and its pods, are ignored.
    """

    def __init__(self, name: str, uid: str = "") -> None:
        self.name, self._uid = name, uid
        self.job: JobState | None = None
        self._pods: dict[str, PodState] = {}
        self._events: dict[str, Event] = {}
        self._logs: dict[str, str] = {}
        self._observations = 0
        self.workload: Workload | None = None
        self.preemptor = ""
        self._missing: tuple[float, float] | None = None

    def update_job(self, job: Object, *, gone: bool = False) -> None:
        """Add a version of the job; ``gone`` marks the last one of a removed job."""
        uid = job["metadata"].get("uid", "")
        if job["metadata"]["name"] == self.name and self._uid in ("", uid):
            self._uid = uid
            self.job = state.updated_job_state(self.job or state.new_job_state(job), job, gone=gone)

    def mark_job_removed(self) -> None:
        """Record that the job was not found."""
        self.job = dataclasses.replace(self.job or JobState(), gone=True)

    def update_pod(self, pod: Object, *, gone: bool = False) -> None:
        """Add a version of a pod; ``gone`` marks the last one of a removed pod."""
        self._observations += 1
        self._update_pod(pod, gone=gone)

    def replace_pods(self, pods: Iterable[Object]) -> None:
        """Add a list of all existing pods of the job; other known pods are gone."""
        self._observations += 1
        there = {self._update_pod(pod) for pod in pods}
        for uid in self._pods.keys() - there:
            if self._pods[uid].gone is None:
                self._pods[uid] = dataclasses.replace(self._pods[uid], gone=self._observations)

    def _update_pod(self, pod: Object, *, gone: bool = False) -> str:
        uid: str = pod["metadata"].get("uid") or pod["metadata"]["name"]
        known = self._pods.get(uid) or state.new_pod_state(pod, self._observations)
        self._pods[uid] = state.updated_pod_state(known, pod, self._observations, gone=gone)
        return uid

    def add_event(self, event: Object) -> None:
        """Add a Kubernetes event about the job, one of its pods, its Kueue Workload, or a node."""
        about = event.get("involvedObject") or {}
        kind, name, uid = (about.get(key, "") for key in ("kind", "name", "uid"))
        workloads = tuple(f"{owner}-{self.name}-" for owner in ("pytorchjob", "trainjob", "jobset"))
        mine = name == self.name or name.startswith((f"{self.name}-", *workloads))
        mine = mine or (self.workload is not None and uid == self.workload.uid)
        if kind != "Node" and (not mine or kind not in _JOB_OBJECTS):
            return
        series = event.get("series") or {}
        times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
        self._add_event(
            event["metadata"].get("uid") or event["metadata"]["name"],
            Event(
                kind=kind,
                name=name,
                uid=uid,
                reason=event.get("reason") or "",
                message=event.get("message") or "",
                warning=event.get("type") == "Warning",
                at_s=next((at for text in times if (at := parse_time(text)) is not None), None),
            ),
        )

    def _add_event(self, key: str, event: Event) -> None:
        self._events.pop(key, None)
        self._events[key] = event
        if len(self._events) > _MAX_EVENTS:
            del self._events[next(iter(self._events))]

    def update_workload(self, body: Object, *, preemptor: str = "") -> None:
        """Add Kueue's Workload of the job, and the kind and name of the job that took its quota, if known."""
        found = state.read_workload(body)
        self.workload, self.preemptor, self._missing = found, preemptor, None
        key = f"{found.uid}/QuotaReserved"
        self._events.pop(key, None)
        if found.reason:
            event = Event(
                kind="Workload",
                name=found.name,
                uid=found.uid,
                reason=found.reason,
                message=found.message,
                warning=False,
                at_s=found.since_s,
            )
            self._add_event(key, event)

    def mark_workload_missing(self, now_s: float) -> None:
        """Record that Kueue has no Workload of the job at a time."""
        self.workload = None
        self._missing = (self._missing[0] if self._missing else now_s, now_s)

    @property
    def without_workload_s(self) -> float:
        """Seconds for which Kueue had no Workload of the job."""
        return self._missing[1] - self._missing[0] if self._missing else 0.0

    def add_log(self, uid: str, text: str) -> None:
        """Add the end of a pod's log. An empty one does not replace an earlier one."""
        if text.strip() and not _NO_LOG.search(text):
            self._logs.pop(uid, None)
            self._logs[uid] = text[-MAX_LOG:]
        if len(self._logs) > _MAX_LOGS:
            del self._logs[next(iter(self._logs))]

    @property
    def pods(self) -> tuple[PodState, ...]:
        """The pods of this job, in the order of their first observation."""
        return tuple(
            pod for pod in self._pods.values() if not (self._uid and pod.owner and pod.owner != self._uid)
        )

    @property
    def events(self) -> tuple[Event, ...]:
        """All events, the oldest first."""
        return tuple(sorted(self._events.values(), key=lambda event: event.at_s or 0.0))

    def log(self, uid: str) -> str:
        """Return the end of a pod's log; empty if it was not read."""
        return self._logs.get(uid, "")

    def events_of(self, pod: PodState) -> tuple[Event, ...]:
        """Return the events of a pod, and of its node while the pod was there."""
        start, end = pod.scheduled_s or 0.0, float("inf") if pod.finished_s is None else pod.finished_s
        return tuple(
            event
            for event in self.events
            if (event.kind == "Pod" and event.uid == pod.uid)
            or (
                (event.kind, event.name) == ("Node", pod.node)
                and start <= (event.at_s or 0.0) <= end + _NODE_EVENT_S
            )
        )

    def successors(self, pod: PodState) -> tuple[PodState, ...]:
        """Return the later pods in the same place."""
        return tuple(other for other in self.pods if other.place == pod.place and other.first > pod.first)

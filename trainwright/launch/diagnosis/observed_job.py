"""What a launcher has seen of one job so far. It only grows: pods and events vanish from a cluster."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from trainwright.launch.diagnosis import state, workload
from trainwright.launch.diagnosis.state import JobState, Object, PodState, parse_time
from trainwright.launch.diagnosis.workload import Workload

MAX_LOG = 65_536
"""Characters of a log that are kept: its end is what tells."""

_JOB_OBJECTS = frozenset({"PyTorchJob", "TrainJob", "JobSet", "Job", "Pod", "Workload"})
"""Kinds of objects whose events tell of a job; those of a node count for its pods."""

_MAX_EVENTS = 500
_NODE_EVENT_S = 60
"""Seconds after a pod's end in which what is said about its node still counts: nodes are slow to tell."""

_MAX_LOGS = 64
_NO_LOG = re.compile(r"unable to retrieve container logs for \S+\s*\Z")


@dataclass(frozen=True, kw_only=True)
class Event:
    """What a controller said about an object. A hint and never the state: events come late, or twice.

    Attributes:
        kind: Kind of the object: ``PyTorchJob``, ``TrainJob``, ``JobSet``, ``Job``, ``Pod``, ``Workload`` or
            ``Node``.
        name: Its name.
        uid: Its identity.
        reason: One word.
        message: A sentence.
        warning: Whether it is a warning.
        at_s: When it was last said; None if it does not tell.
    """

    kind: str
    name: str
    uid: str
    reason: str
    message: str
    warning: bool
    at_s: float | None


class ObservedJob:
    """Everything that was seen of one job: fed by a watch, by lists, or by both, in any order between kinds.

    Versions of one kind have to come in their order, as a watch or a list gives them. Nothing that is read
    from here depends on the order between kinds, because separate watches have none. Pods have to be selected
    by the job's name; those of an older job of that name are told by their owner.

    Args:
        name: The job's name.
        uid: Its identity, if it is known. An older job of that name, and its pods, are then passed over.
    """

    def __init__(self, name: str, uid: str = "") -> None:
        self.name, self._uid = name, uid
        self.job: JobState | None = None
        self._pods: dict[str, PodState] = {}
        self._events: dict[str, Event] = {}
        self._logs: dict[str, str] = {}
        self._sights = 0
        self.workload: Workload | None = None
        self.preemptor = ""
        self._missing: tuple[float, float] | None = None

    def update(self, kind: str, change: str, body: Object) -> None:
        """Take an event of a watch.

        Args:
            kind: Kind of the object.
            change: ``ADDED``, ``MODIFIED`` or ``DELETED``.
            body: The object, as the API writes it.
        """
        gone = change == "DELETED"
        match kind:
            case "PyTorchJob" | "TrainJob":
                self.update_job(body, gone=gone)
            case "Pod":
                self.update_pod(body, gone=gone)
            case "Event" if not gone:
                self.add_event(body)

    def update_job(self, job: Object, *, gone: bool = False) -> None:
        """Take a version of the job; ``gone`` with its last one, when it was removed."""
        uid = job["metadata"].get("uid", "")
        if job["metadata"]["name"] != self.name or (self._uid and uid != self._uid):
            return
        self._uid = uid
        self.job = state.updated_job_state(self.job or state.new_job_state(job), job, gone=gone)

    def update_pod(self, pod: Object, *, gone: bool = False) -> None:
        """Take a version of a pod; ``gone`` with its last one, when it was removed."""
        self._sights += 1
        self._grow(pod, gone=gone)

    def replace_pods(self, pods: Iterable[Object]) -> None:
        """Take a list of the job's pods that exist now; those that are missing from it are gone."""
        self._sights += 1
        there = {self._grow(pod) for pod in pods}
        for uid in self._pods.keys() - there:
            self._pods[uid] = state.removed_pod_state(self._pods[uid], self._sights)

    def _grow(self, pod: Object, *, gone: bool = False) -> str:
        uid: str = pod["metadata"].get("uid") or pod["metadata"]["name"]
        story = self._pods.get(uid) or state.new_pod_state(pod, self._sights)
        self._pods[uid] = state.updated_pod_state(story, pod, self._sights, gone=gone)
        return uid

    def add_event(self, event: Object) -> None:
        """Take an event of Kubernetes about the job, one of its pods, its Kueue workload, or a node."""
        about = event.get("involvedObject") or {}
        name = about.get("name", "")
        kind = about.get("kind", "")
        workloads = tuple(f"{owner}-{self.name}-" for owner in ("pytorchjob", "trainjob", "jobset"))
        mine = name == self.name or name.startswith((f"{self.name}-", *workloads))
        mine = mine or (self.workload is not None and about.get("uid", "") == self.workload.uid)
        if kind != "Node" and (not mine or kind not in _JOB_OBJECTS):
            return
        series = event.get("series") or {}
        times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
        key = event["metadata"].get("uid") or event["metadata"]["name"]
        self._events.pop(key, None)
        self._events[key] = Event(
            kind=kind,
            name=name,
            uid=about.get("uid", ""),
            reason=event.get("reason") or "",
            message=event.get("message") or "",
            warning=event.get("type") == "Warning",
            at_s=next((at for text in times if (at := parse_time(text)) is not None), None),
        )
        if len(self._events) > _MAX_EVENTS:
            del self._events[next(iter(self._events))]

    def update_workload(self, body: Object, *, preemptor: str = "") -> None:
        """Take Kueue's Workload of the job.

        Args:
            body: The Workload, as the API writes it.
            preemptor: The job that took its quota, in words, as far as it was found.
        """
        found = workload.read_workload(body)
        self.workload, self.preemptor, self._missing = found, preemptor, None
        key = f"{found.uid}/QuotaReserved"
        self._events.pop(key, None)
        if found.reason:
            self._events[key] = Event(
                kind="Workload",
                name=found.name,
                uid=found.uid,
                reason=found.reason,
                message=found.message,
                warning=False,
                at_s=found.since_s,
            )

    def mark_workload_missing(self, now_s: float) -> None:
        """Take note that Kueue has no Workload of the job."""
        self.workload = None
        self._missing = (self._missing[0] if self._missing else now_s, now_s)

    @property
    def without_workload_s(self) -> float:
        """For how many seconds Kueue was seen to have no Workload of the job."""
        return self._missing[1] - self._missing[0] if self._missing else 0.0

    def add_log(self, uid: str, text: str) -> None:
        """Take the end of a pod's log. An empty one does not replace one that was read before."""
        if text.strip() and not _NO_LOG.search(text):
            self._logs.pop(uid, None)
            self._logs[uid] = text[-MAX_LOG:]
        if len(self._logs) > _MAX_LOGS:
            del self._logs[next(iter(self._logs))]

    def mark_job_removed(self) -> None:
        """Note that the job was not found any more."""
        self.job = state.removed_job_state(self.job)

    @property
    def pods(self) -> tuple[PodState, ...]:
        """The pods of this very job, in the order in which they were first seen."""
        return tuple(
            pod for pod in self._pods.values() if not (self._uid and pod.owner and pod.owner != self._uid)
        )

    @property
    def events(self) -> tuple[Event, ...]:
        """What was said about it, each sentence once, the oldest first."""
        return tuple(sorted(self._events.values(), key=lambda event: event.at_s or 0.0))

    def log(self, uid: str) -> str:
        """The end of a pod's log, as far as it was read."""
        return self._logs.get(uid, "")

    def events_of(self, pod: PodState) -> tuple[Event, ...]:
        """What was said about a pod, and about its node while it was there."""
        end = pod.finished_s if pod.finished_s is not None else float("inf")
        return tuple(
            event
            for event in self.events
            if (event.kind == "Pod" and event.uid == pod.uid)
            or (
                event.kind == "Node"
                and event.name == pod.node
                and (pod.scheduled_s or 0.0) <= (event.at_s or 0.0) <= end + _NODE_EVENT_S
            )
        )

    def successors(self, pod: PodState) -> tuple[PodState, ...]:
        """The pods of the same name that came after one."""
        return tuple(other for other in self.pods if other.place == pod.place and other.first > pod.first)

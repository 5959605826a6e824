"""Classify single pieces of evidence: the exit of a container, an eviction, a deletion."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trainwright.launch import logs
from trainwright.launch.diagnosis.observed_job import Event
from trainwright.launch.diagnosis.state import MAIN_CONTAINERS, ContainerExit, PodState, StatusReason
from trainwright.launch.failure import FAILURE_CLASSES
from trainwright.launch.logs import LogFindings


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A failure class with its evidence.

    Attributes:
        kind: The class.
        what: What happened, in a sentence with its values.
        reason: The reason of Kubernetes, torch or the program.
        exit_code: Exit code of the process; negative for a signal.
        rank: Global rank of the process.
        weak: Whether it only shows that something else failed before.
        evidence: Evidence besides ``what``.
        advice: What to do; empty: the class's advice.
        code: Exit code of the step; None: the class's.
        retryable: Whether to retry; None: as the class.
        charged: The budget; empty: the class's.
    """

    kind: str
    what: str
    reason: str = ""
    exit_code: int | None = None
    rank: int | None = None
    weak: bool = False
    evidence: tuple[str, ...] = field(default=())
    advice: str = ""
    code: int | None = None
    retryable: bool | None = None
    charged: str = ""

    @property
    def budget(self) -> str:
        """The budget that it counts against."""
        return self.charged or FAILURE_CLASSES[self.kind].budget


_KERNEL_OOM = re.compile(r"Memory cgroup out of memory|System OOM encountered|OOMKilling|SystemOOM")
_SIGNAL_BASE = 128
_NAN = 86
_CLASS_BY_CODE = {
    10: "CONFIG",
    11: "USER_EXCEPTION",
    12: "USER_EXCEPTION",
    20: "INFRASTRUCTURE",
    21: "INFRASTRUCTURE",
    30: "DIVERGED",
    31: "HANG",
    40: "PREEMPTED",
    41: "PREEMPTED",
    50: "CONFIG",
    70: "USER_EXCEPTION",
    _NAN: "NAN_LOSS",
}
"""Failure classes of the library's own exit codes; 86 is a loss that is not finite."""

_SPECIFIC_CODES = frozenset({11, 12, 30, 40, 41, 50, _NAN})
"""Codes that are stronger evidence than any log line, which may be about an error that was handled."""

_NOT_STARTED = frozenset({"StartError", "ContainerCannotRun", "RunContainerError"})
_NO_COMMAND = frozenset({126, 127})
_BUS_ERROR_ADVICE = (
    "A bus error mostly means that /dev/shm is full: give the pod an emptyDir of medium Memory there, or use "
    "fewer data loader workers."
)
_KILL_ADVICE = (
    "SIGKILL without a trace of who sent it is often the kernel short of memory: watch the memory of that "
    "pod, or give it more, before it is run again."
)


@dataclass(frozen=True)
class _Exit:
    """A failed exit with all that is known of it; ``code`` is that of the process that failed first."""

    pod: PodState
    end: ContainerExit
    story: LogFindings
    events: Sequence[Event]
    code: int

    def finding(
        self, kind: str, what: str, *, reason: str = "", advice: str = "", weak: bool = False
    ) -> Finding:
        """Return a finding with the exit and the log as its evidence."""
        root, clue = self.story.root, self.story.clue
        told = root.rank if root else clue.rank if clue else None
        return Finding(
            kind=kind,
            what=what,
            reason=reason or self.end.reason,
            exit_code=self.code,
            rank=self.pod.rank if told is None else told,
            weak=weak,
            evidence=_evidence(self.pod, self.end, self.story),
            advice=advice,
            code=self.code if _CLASS_BY_CODE.get(self.code) == kind and self.code != _NAN else None,
        )


def classify_exit(pod: PodState, end: ContainerExit, story: LogFindings, events: Sequence[Event]) -> Finding:
    """Classify a failed exit; one that nothing explains is UNKNOWN."""
    # torchrun exits with 1, whatever its processes exit with.
    code = story.root.exit_code if story.root and end.exit_code == 1 else end.exit_code
    case = _Exit(pod, end, story, events, code)
    looks = (_by_kubernetes, _by_events, _by_named_code, _by_log, _by_our_code, _by_signal)
    return next((finding for look in looks if (finding := look(case))), None) or _by_exit(case)


def _by_kubernetes(case: _Exit) -> Finding | None:
    """Classify by the kubelet's reason, the strongest evidence."""
    pod, end = case.pod, case.end
    if end.container not in MAIN_CONTAINERS:
        return case.finding(
            "INFRASTRUCTURE",
            f"pod {pod.name} never started: its container {end.container} ended with exit code {case.code}",
            advice="A worker waits there until it finds the master by name.",
        )
    if end.reason == "OOMKilled":
        child = "" if end.exit_code == _SIGNAL_BASE + signal.SIGKILL else "a process of "
        return case.finding(
            "HOST_OOM", f"{child}pod {pod.name} was killed for the memory it used (OOMKilled)"
        )
    if end.reason == "ContainerStatusUnknown":
        return case.finding("INFRASTRUCTURE", f"node {pod.node} lost the container of pod {pod.name}")
    if end.reason in _NOT_STARTED:
        what = f"the program of pod {pod.name} cannot be started: {end.message or end.reason}"
        return case.finding("CONFIG", what)
    return None


def _by_events(case: _Exit) -> Finding | None:
    """Classify by events of the kernel and the driver about the pod or its node."""
    killed = case.code in {-signal.SIGKILL, _SIGNAL_BASE + signal.SIGKILL}
    for event in case.events:
        if killed and _KERNEL_OOM.search(f"{event.reason} {event.message}"):
            what = f"pod {case.pod.name} was killed for memory: {event.message}"
            return case.finding("HOST_OOM", what, reason=event.reason)
        if (clue := logs.find_clue(event.message)) and clue.kind == "NODE_GPU":
            what = f"the GPU of node {case.pod.node} failed under pod {case.pod.name}: {event.message}"
            return case.finding("NODE_GPU", what, reason=event.reason)
    return None


def _by_named_code(case: _Exit) -> Finding | None:
    """Classify by an exit code of the library that names the cause."""
    return _by_our_code(case) if case.code in _SPECIFIC_CODES else None


def _by_log(case: _Exit) -> Finding | None:
    """Classify by a log line that can only be a cause; a library exit code outweighs a traceback."""
    clue, pod = case.story.clue, case.pod
    if case.story.told_to_stop and case.code in {1, -signal.SIGTERM, _SIGNAL_BASE + signal.SIGTERM}:
        what = f"pod {pod.name} was stopped (SIGTERM), and its processes with it"
        return case.finding("PREEMPTED", what, reason="SIGTERM", weak=True)
    if clue is None or (clue.kind == "USER_EXCEPTION" and case.code in _CLASS_BY_CODE):
        return None
    word = re.split(r"[:\s(]", clue.line, maxsplit=1)[0][:80]
    if clue.kind == "NODE_GPU":
        return case.finding("NODE_GPU", f"the GPU of node {pod.node} failed in pod {pod.name}: {clue.line}")
    if clue.weak:
        what = f"a process of pod {pod.name} lost the others: {clue.line}"
        return case.finding("INFRASTRUCTURE", what, reason=word, weak=True)
    who = f"rank {clue.rank} in pod {pod.name}" if clue.rank is not None else f"pod {pod.name}"
    return case.finding(clue.kind, f"{who}: {clue.line}", reason=word)


def _by_our_code(case: _Exit) -> Finding | None:
    """Classify by an exit code of the library."""
    if case.code not in _CLASS_BY_CODE:
        return None
    changed = case.code != case.end.exit_code
    hidden = f", which torchrun turned into {case.end.exit_code}" if changed else ""
    clue = case.story.clue if case.code not in _SPECIFIC_CODES else None
    said = f": {clue.line}" if clue else ""
    what = f"a process of pod {case.pod.name} ended with exit code {case.code}{hidden}{said}"
    return case.finding(_CLASS_BY_CODE[case.code], what)


def _by_signal(case: _Exit) -> Finding | None:
    """Classify by a signal: a crash is the program's fault, the sender of SIGKILL or SIGTERM is unknown."""
    number = -case.code if case.code < 0 else case.code - _SIGNAL_BASE
    if number not in set(signal.Signals):
        return None
    name = signal.Signals(number).name
    what = f"a process of pod {case.pod.name} was ended by {name}"
    if number in {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
        seen = "; no eviction, no deletion and no sign of a lack of memory was seen"
        advice = _KILL_ADVICE if number == signal.SIGKILL else ""
        found = case.finding("UNKNOWN", what + seen, reason=name, advice=advice)
        # Whoever sent it may not do it again: retried, within a budget.
        return replace(found, retryable=True, charged="infrastructure")
    advice = _BUS_ERROR_ADVICE if number == signal.SIGBUS else ""
    crashed = f"{what}: it crashed{_without_log(case)}"
    return case.finding("USER_EXCEPTION", crashed, reason=name, advice=advice)


def _by_exit(case: _Exit) -> Finding:
    """Classify an exit code that nothing else explains."""
    pod, code, root = case.pod, case.code, case.story.root
    if code in _NO_COMMAND:
        what = f"the program of pod {pod.name} was not found, or may not be run (exit {code})"
        return case.finding("CONFIG", what)
    if code == 1 and pod.torchrun and not case.story.tail:
        hidden = "which hides what its processes ended with, and its log was not seen"
        return case.finding("UNKNOWN", f"torchrun ended with exit code 1 in pod {pod.name}, {hidden}")
    last = root.said.splitlines()[-1].strip() if root and root.said else ""
    said = case.end.message or last
    what = f"the program of pod {pod.name} ended with exit code {code}"
    return case.finding("USER_EXCEPTION", what + (f": {said}" if said else _without_log(case)))


def _without_log(case: _Exit) -> str:
    return "" if case.story.tail else "; its log was not seen, or is empty"


def _evidence(pod: PodState, end: ContainerExit, story: LogFindings) -> tuple[str, ...]:
    said = f": {end.message}" if end.message else ""
    state = f"container {end.container} ended with exit code {end.exit_code}, {end.reason}{said}"
    shown = [f"pod {pod.name}: {state}"]
    if root := story.root:
        said = f": {root.said}" if root.said else ""
        shown.append(f"torchrun's root cause: rank {root.rank} ended with {root.exit_code}{said}")
    if story.clue:
        shown.append(f"log: {story.clue.line}")
    return tuple(shown)


_KUBELET = "TerminationByKubelet"
_OWN_LIMIT = re.compile(
    r"Usage of EmptyDir volume \"(?P<volume>[^\"]+)\" exceeds the limit"
    r"|Pod ephemeral local storage usage exceeds the total limit"
    r"|exceeded its local ephemeral storage limit"
)
_PRESSURE = re.compile(r"(?:low on resource: |had condition: )\[?(?P<resource>[\w-]+)")
_DISK = frozenset({"ephemeral-storage", "DiskPressure", "inodes", "imagefs", "nodefs"})
_MEMORY = frozenset({"memory", "MemoryPressure"})
_NODE_REJECTIONS = frozenset(
    {
        "UnexpectedAdmissionError",
        "NodeAffinity",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
        "TopologyAffinityError",
    }
)
_DISRUPTIONS = {
    "EvictionByEvictionAPI": "an eviction was asked for, as when a node is drained",
    "DeletionByTaintManager": "its node got a taint that it does not tolerate",
    "PreemptionByScheduler": "a pod of a higher priority needed its place",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "its node shut down",
    "Terminated": "its node shut down",
    "NodeShutdown": "its node shut down",
    "Shutdown": "its node shut down",
    "Preempting": "a critical pod needed its place",
    "NodeLost": "its node does not answer",
}


def classify_eviction(pod: PodState) -> Finding | None:
    """Classify a pod that was evicted or rejected by its node; None for any other.

    Only the pod says so: its container shows exit code 137, or 0 if the program saved its state in time.
    """
    verdict = pod.verdict
    if verdict and verdict.reason == "Evicted":
        return _by_kubelet(pod, verdict)
    if verdict and (verdict.reason in _NODE_REJECTIONS or verdict.reason.startswith("OutOf")):
        return _rejected_by_node(pod, verdict)
    if pod.disruption and pod.disruption.reason == _KUBELET and _PRESSURE.search(pod.disruption.message):
        return _by_kubelet(pod, pod.disruption)
    if pod.disruption:
        return _preempted(pod, pod.disruption) if pod.starts else None
    if verdict and verdict.reason in _DISRUPTIONS:
        return _preempted(pod, verdict)
    return None


def classify_deletion(pod: PodState, *, suspended: bool, replaced: bool) -> Finding:
    """Classify the deletion of a running pod for which Kubernetes gives no reason.

    A pod that was replaced before its end was observed may have ended in any way.
    """
    if pod.deletion is None and replaced:
        what = f"pod {pod.name} was replaced before it was seen to end"
        return Finding(kind="UNKNOWN", what=what, reason="PodReplaced", rank=pod.rank)
    if pod.deletion is None:
        return _preempted(pod, StatusReason(reason="PodVanished"), "it is gone, and was never seen to end")
    if suspended:
        return _preempted(pod, StatusReason(reason="Suspended"), "the job was suspended, as its queue does")
    return _preempted(
        pod, StatusReason(reason="PodDeleted"), "it was deleted while it ran, and nothing says by whom"
    )


def _preempted(pod: PodState, word: StatusReason, why: str = "") -> Finding:
    because = why or _DISRUPTIONS.get(word.reason, "Kubernetes took it away")
    return Finding(
        kind="PREEMPTED",
        what=f"pod {pod.name} was taken off its node ({word.reason}): {because}",
        reason=word.reason,
        exit_code=pod.endings[-1].exit_code if pod.endings else None,
        rank=pod.rank,
        evidence=(f"pod {pod.name}: {word.message}",) if word.message else (),
    )


def _by_kubelet(pod: PodState, word: StatusReason) -> Finding:
    """Classify by whether the pod's own limit or the node ran out, of disk or of memory."""
    own, low = _OWN_LIMIT.search(word.message), _PRESSURE.search(word.message)
    resource = low["resource"] if low else ""
    volume = own["volume"] if own and own["volume"] else ""
    in_memory = volume in pod.memory_volumes if volume else resource in _MEMORY
    greedy = "has larger consumption of memory" in word.message or "exceeds its request" in word.message
    code = pod.endings[-1].exit_code if pod.endings else None
    shown = (f"pod {pod.name}: Evicted: {word.message}",)
    if in_memory and not own and not greedy:
        return _preempted(
            pod, word, "its node ran out of memory, though it used no more than it had asked for"
        )
    if in_memory:
        return Finding(
            kind="HOST_OOM",
            what=f"pod {pod.name} was evicted for the memory it used: {word.message}",
            reason="Evicted",
            exit_code=code,
            rank=pod.rank,
            evidence=shown,
        )
    if not own and resource not in _DISK and not word.message.startswith("The node was low"):
        return _preempted(pod, word, f"the kubelet evicted it: {word.message}")
    advice = "Write less to local disks, or raise the limit that it ran into." if own else ""
    return Finding(
        kind="EVICTED_DISK",
        what=f"pod {pod.name} was evicted for disk space: {word.message}",
        reason="Evicted",
        exit_code=code,
        rank=pod.rank,
        evidence=shown,
        advice=advice,
        retryable=not own,
        charged="user" if own else "",
    )


def _rejected_by_node(pod: PodState, word: StatusReason) -> Finding:
    """Classify a pod that the kubelet did not admit although the scheduler had assigned it."""
    broken = "unhealthy devices" in word.message or "no longer healthy" in word.message
    return Finding(
        kind="NODE_GPU" if broken else "INFRASTRUCTURE",
        what=f"node {pod.node} refused pod {pod.name}: {word.message or word.reason}",
        reason=word.reason,
        rank=pod.rank,
        evidence=(f"pod {pod.name}: {word.reason}: {word.message}",),
    )

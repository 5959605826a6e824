"""Classify single pieces of evidence: the exit of a container, an eviction, a deletion."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainwright.launch import logs
from trainwright.launch.diagnosis.observed_job import Event
from trainwright.launch.diagnosis.state import MAIN_CONTAINERS, ContainerExit, PodState, StatusReason
from trainwright.launch.failure import Failure
from trainwright.launch.logs import LogFindings

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
_SENT_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_SIGNAL_ADVICE = {
    signal.SIGBUS: "A bus error mostly means that /dev/shm is full: give the pod an emptyDir of medium "
    "Memory there, or use fewer data loader workers.",
    signal.SIGKILL: "SIGKILL without a trace of who sent it is often the kernel short of memory: watch the "
    "memory of that pod, or give it more, before it is run again.",
}


@dataclass(frozen=True)
class _Exit:
    """A failed exit with all that is known of it; ``code`` is that of the process that failed first."""

    pod: PodState
    end: ContainerExit
    log: LogFindings
    events: Sequence[Event]
    code: int

    def failure(self, kind: str, what: str, *, reason: str = "", **fields: Any) -> Failure:
        """Return a failure with the exit and the log as its evidence."""
        pod, end, root, clue = self.pod, self.end, self.log.root, self.log.clue
        said = f": {end.message}" if end.message else ""
        state = f"container {end.container} ended with exit code {end.exit_code}, {end.reason}{said}"
        evidence = [f"pod {pod.name}: {state}"]
        if root:
            said = f": {root.said}" if root.said else ""
            evidence.append(f"torchrun's root cause: rank {root.rank} ended with {root.exit_code}{said}")
        if clue:
            evidence.append(f"log: {clue.line}")
        rank = root.rank if root else clue.rank if clue else None
        return Failure.of(
            kind,
            what,
            pod=pod.name,
            reason=reason or end.reason,
            exit_code=self.code,
            rank=pod.rank if rank is None else rank,
            evidence=tuple(evidence),
            code=self.code if _CLASS_BY_CODE.get(self.code) == kind and self.code != _NAN else None,
            **fields,
        )


def classify_exit(
    pod: PodState, end: ContainerExit, log: LogFindings, events: Sequence[Event]
) -> tuple[Failure, bool]:
    """Classify a failed exit; one that nothing explains is UNKNOWN.

    Returns:
        The failure, and whether it is weak: it only shows that something else failed before.
    """
    # torchrun exits with 1, whatever its processes exit with.
    code = log.root.exit_code if log.root and end.exit_code == 1 else end.exit_code
    case = _Exit(pod, end, log, events, code)
    if found := _by_kubernetes(case) or _by_events(case):
        return found, False
    # A code of the library that names the cause outweighs the log, which outweighs the other codes.
    if code in _SPECIFIC_CODES:
        return _by_our_code(case), False
    if found := _by_log(case):
        clue = log.clue
        stopped = found.reason == "SIGTERM" and found.kind == "PREEMPTED"
        return found, stopped or bool(clue and clue.weak)
    if code in _CLASS_BY_CODE:
        return _by_our_code(case), False
    return _by_signal(case) or _by_exit(case), False


def _by_kubernetes(case: _Exit) -> Failure | None:
    """Classify by the kubelet's reason, the strongest evidence."""
    pod, end = case.pod, case.end
    if end.container not in MAIN_CONTAINERS:
        return case.failure(
            "INFRASTRUCTURE",
            f"pod {pod.name} never started: its container {end.container} ended with exit code {case.code}",
            advice="A worker waits there until it finds the master by name.",
        )
    if end.reason == "OOMKilled":
        child = "" if end.exit_code == _SIGNAL_BASE + signal.SIGKILL else "a process of "
        what = f"{child}pod {pod.name} was killed for the memory it used (OOMKilled)"
        return case.failure("HOST_OOM", what)
    if end.reason == "ContainerStatusUnknown":
        return case.failure("INFRASTRUCTURE", f"node {pod.node} lost the container of pod {pod.name}")
    if end.reason in _NOT_STARTED:
        what = f"the program of pod {pod.name} cannot be started: {end.message or end.reason}"
        return case.failure("CONFIG", what)
    return None


def _by_events(case: _Exit) -> Failure | None:
    """Classify by events of the kernel and the driver about the pod or its node."""
    killed = case.code in {-signal.SIGKILL, _SIGNAL_BASE + signal.SIGKILL}
    for event in case.events:
        if killed and _KERNEL_OOM.search(f"{event.reason} {event.message}"):
            what = f"pod {case.pod.name} was killed for memory: {event.message}"
            return case.failure("HOST_OOM", what, reason=event.reason)
        if (clue := logs.find_clue(event.message)) and clue.kind == "NODE_GPU":
            what = f"the GPU of node {case.pod.node} failed under pod {case.pod.name}: {event.message}"
            return case.failure("NODE_GPU", what, reason=event.reason)
    return None


def _by_log(case: _Exit) -> Failure | None:
    """Classify by a log line that can only be a cause; a library exit code outweighs a traceback."""
    clue, pod = case.log.clue, case.pod
    if case.log.told_to_stop and case.code in {1, -signal.SIGTERM, _SIGNAL_BASE + signal.SIGTERM}:
        what = f"pod {pod.name} was stopped (SIGTERM), and its processes with it"
        return case.failure("PREEMPTED", what, reason="SIGTERM")
    if clue is None or (clue.kind == "USER_EXCEPTION" and case.code in _CLASS_BY_CODE):
        return None
    word = re.split(r"[:\s(]", clue.line, maxsplit=1)[0][:80]
    if clue.kind == "NODE_GPU":
        return case.failure("NODE_GPU", f"the GPU of node {pod.node} failed in pod {pod.name}: {clue.line}")
    if clue.weak:
        what = f"a process of pod {pod.name} lost the others: {clue.line}"
        return case.failure("INFRASTRUCTURE", what, reason=word)
    who = f"rank {clue.rank} in pod {pod.name}" if clue.rank is not None else f"pod {pod.name}"
    return case.failure(clue.kind, f"{who}: {clue.line}", reason=word)


def _by_our_code(case: _Exit) -> Failure:
    """Classify by an exit code of the library."""
    changed = case.code != case.end.exit_code
    hidden = f", which torchrun turned into {case.end.exit_code}" if changed else ""
    clue = case.log.clue if case.code not in _SPECIFIC_CODES else None
    said = f": {clue.line}" if clue else ""
    what = f"a process of pod {case.pod.name} ended with exit code {case.code}{hidden}{said}"
    return case.failure(_CLASS_BY_CODE[case.code], what)


def _by_signal(case: _Exit) -> Failure | None:
    """Classify by a signal: a crash is the program's fault, the sender of SIGKILL or SIGTERM is unknown."""
    number = -case.code if case.code < 0 else case.code - _SIGNAL_BASE
    if number not in set(signal.Signals):
        return None
    sent = signal.Signals(number)
    what, advice = f"a process of pod {case.pod.name} was ended by {sent.name}", _SIGNAL_ADVICE.get(sent, "")
    if sent in _SENT_FROM_OUTSIDE:
        what += "; no eviction, no deletion and no sign of a lack of memory was seen"
        found = case.failure("UNKNOWN", what, reason=sent.name, advice=advice)
        # The sender may not do it again: retried, within a budget.
        return replace(found, retryable=True, budget="infrastructure")
    what += f": it crashed{_without_log(case)}"
    return case.failure("USER_EXCEPTION", what, reason=sent.name, advice=advice)


def _by_exit(case: _Exit) -> Failure:
    """Classify an exit code that nothing else explains."""
    pod, code, root = case.pod, case.code, case.log.root
    if code in _NO_COMMAND:
        what = f"the program of pod {pod.name} was not found, or may not be run (exit {code})"
        return case.failure("CONFIG", what)
    if code == 1 and pod.torchrun and not case.log.tail:
        hidden = "which hides what its processes ended with, and its log was not seen"
        return case.failure("UNKNOWN", f"torchrun ended with exit code 1 in pod {pod.name}, {hidden}")
    last = root.said.splitlines()[-1].strip() if root and root.said else ""
    said = case.end.message or last
    what = f"the program of pod {pod.name} ended with exit code {code}"
    return case.failure("USER_EXCEPTION", what + (f": {said}" if said else _without_log(case)))


def _without_log(case: _Exit) -> str:
    return "" if case.log.tail else "; its log was not seen, or is empty"


_KUBELET = "TerminationByKubelet"
_OWN_LIMIT = re.compile(
    r"Usage of EmptyDir volume \"(?P<volume>[^\"]+)\" exceeds the limit"
    r"|Pod ephemeral local storage usage exceeds the total limit"
    r"|exceeded its local ephemeral storage limit"
)
_PRESSURE = re.compile(r"(?:low on resource: |had condition: )\[?(?P<resource>[\w-]+)")
_DISK = frozenset({"ephemeral-storage", "DiskPressure", "inodes", "imagefs", "nodefs"})
_MEMORY = frozenset({"memory", "MemoryPressure"})
_NODE_REJECTIONS = ("UnexpectedAdmissionError", "NodeAffinity", "TopologyAffinityError", "OutOf")
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


def classify_eviction(pod: PodState) -> Failure | None:
    """Classify a pod that was evicted or rejected by its node; None for any other.

    Only the pod says so: its container shows exit code 137, or 0 if the program saved its state in time.
    """
    verdict = pod.verdict
    if verdict and verdict.reason == "Evicted":
        return _by_kubelet(pod, verdict)
    if verdict and verdict.reason.startswith(_NODE_REJECTIONS):
        broken = "unhealthy devices" in verdict.message or "no longer healthy" in verdict.message
        return Failure.of(
            "NODE_GPU" if broken else "INFRASTRUCTURE",
            f"node {pod.node} refused pod {pod.name}: {verdict.message or verdict.reason}",
            pod=pod.name,
            reason=verdict.reason,
            rank=pod.rank,
            evidence=(f"pod {pod.name}: {verdict.reason}: {verdict.message}",),
        )
    if pod.disruption and pod.disruption.reason == _KUBELET and _PRESSURE.search(pod.disruption.message):
        return _by_kubelet(pod, pod.disruption)
    if pod.disruption:
        return _preempted(pod, pod.disruption) if pod.starts else None
    if verdict and verdict.reason in _DISRUPTIONS:
        return _preempted(pod, verdict)
    return None


def classify_deletion(pod: PodState, *, suspended: bool, replaced: bool) -> Failure:
    """Classify the deletion of a running pod for which Kubernetes gives no reason.

    A pod that was replaced before its end was observed may have ended in any way.
    """
    if pod.deletion is None and replaced:
        what = f"pod {pod.name} was replaced before it was seen to end"
        return Failure.of("UNKNOWN", what, pod=pod.name, reason="PodReplaced", rank=pod.rank)
    if pod.deletion is None:
        reason, why = "PodVanished", "it is gone, and was never seen to end"
    elif suspended:
        reason, why = "Suspended", "the job was suspended, as its queue does"
    else:
        reason, why = "PodDeleted", "it was deleted while it ran, and nothing says by whom"
    return _preempted(pod, StatusReason(reason=reason), why)


def _preempted(pod: PodState, word: StatusReason, why: str = "") -> Failure:
    because = why or _DISRUPTIONS.get(word.reason, "Kubernetes took it away")
    return Failure.of(
        "PREEMPTED",
        f"pod {pod.name} was taken off its node ({word.reason}): {because}",
        pod=pod.name,
        reason=word.reason,
        exit_code=pod.endings[-1].exit_code if pod.endings else None,
        rank=pod.rank,
        evidence=(f"pod {pod.name}: {word.message}",) if word.message else (),
    )


def _by_kubelet(pod: PodState, word: StatusReason) -> Failure:
    """Classify by whether the pod's own limit or the node ran out, of disk or of memory."""
    own, low = _OWN_LIMIT.search(word.message), _PRESSURE.search(word.message)
    resource = low["resource"] if low else ""
    volume = own["volume"] if own and own["volume"] else ""
    in_memory = volume in pod.memory_volumes if volume else resource in _MEMORY
    greedy = "has larger consumption of memory" in word.message or "exceeds its request" in word.message
    if in_memory and not own and not greedy:
        why = "its node ran out of memory, though it used no more than it had asked for"
        return _preempted(pod, word, why)
    disk = own or resource in _DISK or word.message.startswith("The node was low")
    if not in_memory and not disk:
        return _preempted(pod, word, f"the kubelet evicted it: {word.message}")
    cause = "the memory it used" if in_memory else "disk space"
    found = Failure.of(
        "HOST_OOM" if in_memory else "EVICTED_DISK",
        f"pod {pod.name} was evicted for {cause}: {word.message}",
        pod=pod.name,
        reason="Evicted",
        exit_code=pod.endings[-1].exit_code if pod.endings else None,
        rank=pod.rank,
        evidence=(f"pod {pod.name}: Evicted: {word.message}",),
    )
    if in_memory or not own:
        return found
    advice = "Write less to local disks, or raise the limit that it ran into."
    return replace(found, advice=advice, retryable=False, budget="user")

"""What the end of a container amounts to: by its exit code, its reason, its log, and what was said of it."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainwright.launch.diagnosis import log
from trainwright.launch.diagnosis.finding import Finding
from trainwright.launch.diagnosis.log import LogStory
from trainwright.launch.diagnosis.observed import Event
from trainwright.launch.diagnosis.pod_story import MAIN, Ending, PodStory

_KERNEL = re.compile(r"Memory cgroup out of memory|System OOM encountered|OOMKilling|SystemOOM")
_SIGNALLED = 128
_NAN = 86
_OURS = {
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
"""Classes of the exit codes that our own processes end with; 86 is a loss that is not finite."""

_NAMED = frozenset({11, 12, 30, 40, 41, 50, _NAN})
"""Those that say more than any line of a log, which may tell of something that was overcome."""

_NOT_STARTED = frozenset({"StartError", "ContainerCannotRun", "RunContainerError"})
_NO_COMMAND = frozenset({126, 127})
_SHARED_MEMORY = (
    "A bus error mostly means that /dev/shm is full: give the pod an emptyDir of medium Memory there, or use "
    "fewer data loader workers."
)
_KILLED = (
    "SIGKILL without a trace of who sent it is often the kernel short of memory: watch the memory of that "
    "pod, or give it more, before it is run again."
)


@dataclass(frozen=True)
class _Case:
    """A failed end, and all that is known of it; ``code`` is what the first failing process ended with."""

    pod: PodStory
    end: Ending
    story: LogStory
    events: Sequence[Event]
    code: int

    def finding(
        self, kind: str, what: str, *, reason: str = "", advice: str = "", weak: bool = False
    ) -> Finding:
        """Make a finding, with what was seen as its evidence."""
        root, clue = self.story.root, self.story.clue
        told = root.rank if root else clue.rank if clue else None
        return Finding(
            kind=kind,
            what=what,
            reason=reason or self.end.reason,
            exit_code=self.code,
            rank=self.pod.rank if told is None else told,
            weak=weak,
            evidence=_shown(self.pod, self.end, self.story),
            advice=advice,
            code=self.code if _OURS.get(self.code) == kind and self.code != _NAN else None,
        )


def judge(pod: PodStory, end: Ending, story: LogStory, events: Sequence[Event]) -> Finding:
    """Return what a failed end amounts to. What nothing explains stays UNKNOWN."""
    # torchrun itself ends with 1, whatever its processes end with.
    code = story.root.exit_code if story.root and end.exit_code == 1 else end.exit_code
    case = _Case(pod, end, story, events, code)
    looks = (_by_kubernetes, _by_events, _by_named_code, _by_log, _by_our_code, _by_signal)
    return next((finding for look in looks if (finding := look(case))), None) or _by_exit(case)


def _by_kubernetes(case: _Case) -> Finding | None:
    """Believe what the kubelet says; exit codes come after it."""
    pod, end = case.pod, case.end
    if end.container not in MAIN:
        return case.finding(
            "INFRASTRUCTURE",
            f"pod {pod.name} never started: its container {end.container} ended with exit code {case.code}",
            advice="A worker waits there until it finds the master by name.",
        )
    if end.reason == "OOMKilled":
        child = "" if end.exit_code == _SIGNALLED + signal.SIGKILL else "a process of "
        return case.finding(
            "HOST_OOM", f"{child}pod {pod.name} was killed for the memory it used (OOMKilled)"
        )
    if end.reason == "ContainerStatusUnknown":
        return case.finding("INFRASTRUCTURE", f"node {pod.node} lost the container of pod {pod.name}")
    if end.reason in _NOT_STARTED:
        what = f"the program of pod {pod.name} cannot be started: {end.message or end.reason}"
        return case.finding("CONFIG", what)
    return None


def _by_events(case: _Case) -> Finding | None:
    """Believe what the kernel and the driver had said about the pod, or about its node."""
    killed = case.code in {-signal.SIGKILL, _SIGNALLED + signal.SIGKILL}
    for event in case.events:
        if killed and _KERNEL.search(f"{event.reason} {event.message}"):
            what = f"pod {case.pod.name} was killed for memory: {event.message}"
            return case.finding("HOST_OOM", what, reason=event.reason)
        if (clue := log.kind_of(event.message)) and clue.kind == "NODE_GPU":
            what = f"the GPU of node {case.pod.node} failed under pod {case.pod.name}: {event.message}"
            return case.finding("NODE_GPU", what, reason=event.reason)
    return None


def _by_named_code(case: _Case) -> Finding | None:
    """Believe an exit code with which our own process names the cause."""
    return _by_our_code(case) if case.code in _NAMED else None


def _by_log(case: _Case) -> Finding | None:
    """Believe a line that can only be a cause; an exit code of ours says more than a traceback does."""
    clue, pod = case.story.clue, case.pod
    if case.story.told_to_stop and case.code in {1, -signal.SIGTERM, _SIGNALLED + signal.SIGTERM}:
        what = f"pod {pod.name} was told to stop (SIGTERM), and its processes with it"
        return case.finding("PREEMPTED", what, reason="SIGTERM", weak=True)
    if clue is None or (clue.kind == "USER_EXCEPTION" and case.code in _OURS):
        return None
    word = re.split(r"[:\s(]", clue.line, maxsplit=1)[0][:80]
    if clue.kind == "NODE_GPU":
        return case.finding("NODE_GPU", f"the GPU of node {pod.node} failed in pod {pod.name}: {clue.line}")
    if clue.weak:
        what = f"a process of pod {pod.name} lost the others: {clue.line}"
        return case.finding("INFRASTRUCTURE", what, reason=word, weak=True)
    who = f"rank {clue.rank} in pod {pod.name}" if clue.rank is not None else f"pod {pod.name}"
    return case.finding(clue.kind, f"{who}: {clue.line}", reason=word)


def _by_our_code(case: _Case) -> Finding | None:
    """Believe the exit codes that our own processes end with."""
    if case.code not in _OURS:
        return None
    changed = case.code != case.end.exit_code
    hidden = f", which torchrun turned into {case.end.exit_code}" if changed else ""
    clue = case.story.clue if case.code not in _NAMED else None
    said = f": {clue.line}" if clue else ""
    what = f"a process of pod {case.pod.name} ended with exit code {case.code}{hidden}{said}"
    return case.finding(_OURS[case.code], what)


def _by_signal(case: _Case) -> Finding | None:
    """A signal that the program raises itself is its own doing; for SIGKILL and SIGTERM nobody is known."""
    number = -case.code if case.code < 0 else case.code - _SIGNALLED
    if number not in set(signal.Signals):
        return None
    name = signal.Signals(number).name
    what = f"a process of pod {case.pod.name} was ended by {name}"
    if number in {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
        seen = "; no eviction, no deletion and no sign of a lack of memory was seen"
        advice = _KILLED if number == signal.SIGKILL else ""
        found = case.finding("UNKNOWN", what + seen, reason=name, advice=advice)
        # Whoever did it from outside may well not do it again: worth some tries, but not without end.
        return replace(found, retryable=True, charged="infrastructure")
    advice = _SHARED_MEMORY if number == signal.SIGBUS else ""
    crashed = f"{what}: it crashed{_without_log(case)}"
    return case.finding("USER_EXCEPTION", crashed, reason=name, advice=advice)


def _by_exit(case: _Case) -> Finding:
    """An exit code that the program chose, and no line that explains it."""
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


def _without_log(case: _Case) -> str:
    return "" if case.story.tail else "; its log was not seen, or is empty"


def _shown(pod: PodStory, end: Ending, story: LogStory) -> tuple[str, ...]:
    said = f": {end.message}" if end.message else ""
    state = f"container {end.container} ended with exit code {end.exit_code}, {end.reason}{said}"
    shown = [f"pod {pod.name}: {state}"]
    if root := story.root:
        said = f": {root.said}" if root.said else ""
        shown.append(f"torchrun's root cause: rank {root.rank} ended with {root.exit_code}{said}")
    if story.clue:
        shown.append(f"log: {story.clue.line}")
    return tuple(shown)

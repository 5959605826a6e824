"""Monitor the processes of one machine: their exits, OOM kills and hangs."""

import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainwright.errors import (
    DataRefused,
    Diverged,
    Hang,
    InputError,
    InternalError,
    ModelRefused,
    PermissionRefused,
    Preempted,
    PreemptedUnsaved,
    TrainwrightError,
    TransientError,
)
from trainwright.launch.agent import stacks
from trainwright.launch.agent.heartbeat import HeartbeatMonitor
from trainwright.launch.agent.rank_errors import RankError, first_error

SETTLE_S = 5.0
"""Seconds that the others have, after one process has failed, to end by themselves and to say why."""

_POLL_S = 0.2
_SHARED_CODES = frozenset(
    kind.code for kind in (DataRefused, Diverged, InputError, ModelRefused, PermissionRefused, Preempted)
)
"""Codes that processes mostly end with together; the first of them may have its page to draw before that."""


def oom_kills(proc: Path = Path("/proc"), mounted: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return how many processes of this process's control group the kernel has killed for memory so far.

    Read before and after, it tells an out-of-memory kill from any other SIGKILL, which look the same. Reads
    control groups of version 1 and 2; None where it cannot be read.
    """
    try:
        groups = (proc / "self" / "cgroup").read_text()
    except OSError:
        return None
    paths = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if not controllers:
            paths += [mounted / inside / "memory.events", mounted / "memory.events"]
        elif "memory" in controllers.split(","):
            memory = mounted / "memory"
            paths += [memory / inside / "memory.oom_control", memory / "memory.oom_control"]
    for place in paths:
        try:
            found = re.search(r"^oom_kill (\d+)$", place.read_text(), re.MULTILINE)
        except OSError:
            continue
        if found:
            return int(found[1])
    return None


@dataclass
class _Process:
    """A process of this machine; its code is negative for a signal, None while it runs."""

    pid: int
    code: int | None = None


class ProcessMonitor:
    """Monitors the processes that run the job's program on this machine, round after round.

    Every end is recorded with its exact exit code and in its order. When a process has failed, or the job has
    hung, the stacks of those that still run are saved before they are ended.

    Args:
        folder: The attempt's folder.
        grace_s: Seconds in which a process finishes its step and saves after SIGTERM.
        stall_s: Seconds without a step after which the job counts as hung; None: never.
    """

    def __init__(self, folder: Path, grace_s: float, stall_s: float | None = None) -> None:
        self._folder, self._grace_s, self._stall_s = folder, grace_s, stall_s
        self._heartbeats = HeartbeatMonitor(folder, stall_s) if stall_s else None
        self._processes: dict[int, _Process] = {}
        self.round: int | None = None
        self._killed = oom_kills()
        self._ends_at: float | None = None
        self._looked = time.monotonic()

    def prepare(self, ranks: list[int]) -> None:
        """Forget the heartbeats of these ranks before a round begins."""
        if self._heartbeats:
            self._heartbeats.begin(ranks)

    def begin(self, number: int, processes: Mapping[int, int]) -> None:
        """Monitor the processes of a new round, by their ranks in the whole job."""
        self.leave()
        self.round, self._ends_at, self._killed = number, None, oom_kills()
        self._processes = {rank: _Process(pid) for rank, pid in processes.items()}

    @property
    def cause(self) -> RankError | None:
        """The error that made this round fail, if any process left one."""
        return None if self.round is None else first_error(self._folder, self.round)

    @property
    def ranks(self) -> list[int]:
        """The processes of this machine, by their ranks in the whole job."""
        return sorted(self._processes)

    def over(self) -> bool:
        """Tell whether the round is over: all processes have ended or were just killed."""
        now = time.monotonic()
        self._record_ends(now)
        if not self._running():
            return True
        if self._ends_at is None and now - self._looked >= _POLL_S:
            if error := self._hung(now - self._looked):
                error.save(self._folder)
                self._ends_at = now
            self._looked = now
        if self._ends_at is None or now < self._ends_at:
            return False
        running = self._running()
        stacks.dump(self._folder, running)
        for rank, pid in running.items():
            os.kill(pid, signal.SIGKILL)
            self._processes[rank].code = -signal.SIGKILL
        return True

    def unsaved(self, name: str) -> None:
        """Record for every process that could not do so itself that signal ``name`` came before it saved."""
        what = f"stopped by {name} before the step was finished and saved, within {self._grace_s:g} s"
        hint = "Allow more time with resources.grace_s, or save more often."
        for rank in self._processes:
            self._error(PreemptedUnsaved(what, hint=hint), rank).save(self._folder)

    def leave(self) -> None:
        """Remove what was only needed while the processes ran."""
        stacks.remove_empty(self._folder, {rank: entry.pid for rank, entry in self._processes.items()})

    def _running(self) -> dict[int, int]:
        return {rank: entry.pid for rank, entry in self._processes.items() if entry.code is None}

    def _record_ends(self, now: float) -> None:
        for rank, entry in self._processes.items():
            if entry.code is not None or (code := _exit_code(entry.pid)) is None:
                continue
            entry.code = code
            if code == 0:
                continue
            self._ends_at = self._ends_at or now + (self._grace_s if code in _SHARED_CODES else SETTLE_S)
            error, kind = self._explain(rank, code)
            self._error(error, rank, kind=kind).save(self._folder)

    def _explain(self, rank: int, code: int) -> tuple[TrainwrightError, str]:
        """Describe the end of a process, with its class; counts only if it could not say so itself."""
        log = "Its last lines are in the log of the step."
        if code > 0:
            what = f"rank {rank} ended with exit code {code} and left no error"
            return InternalError(what, hint=log), "USER_EXCEPTION"
        what = f"rank {rank} was killed by {signal.Signals(-code).name}"
        if -code != signal.SIGKILL:
            return TransientError(what, hint=log), "UNKNOWN"
        hint = "Give the job more (resources.memory_gib), use fewer processes, or a smaller batch."
        count = oom_kills()
        if count is not None and self._killed is not None and count > self._killed:
            what = f"rank {rank} was killed by the kernel: the machine or the container ran out of memory"
            return InputError(what, where="resources.memory_gib", hint=hint), "HOST_OOM"
        hint = f"If nobody did it by hand, the machine probably ran out of memory. {hint}"
        return TransientError(what, hint=hint), "UNKNOWN"

    def _hung(self, passed_s: float) -> RankError | None:
        """Return the error of the process that holds the others up, if the job has hung."""
        running = self._running()
        steps = self._heartbeats.look(running, passed_s) if self._heartbeats else {}
        if not steps:
            return None
        stopped = [rank for rank in steps if stacks.is_stopped(running[rank])]
        least = min(steps, key=lambda rank: (rank not in stopped, steps[rank], rank))
        states = [
            f"rank {rank} at step {step:,}" + (", stopped from outside" if rank in stopped else "")
            for rank, step in sorted(steps.items())
        ]
        error = Hang(
            f"no step for {self._stall_s:g} s: {'; '.join(states[:8])}",
            where="training.guards.stall_s",
            hint=f"Where each one stood is in {self._folder / stacks.FOLDER}. If a step may take that long, "
            "allow more time.",
        )
        return self._error(error, least, witnessed=False)

    def _error(
        self, error: TrainwrightError, rank: int, *, kind: str = "", witnessed: bool = True
    ) -> RankError:
        return RankError.of(error, rank, number=self.round or 0, witnessed=witnessed, kind=kind)


def _exit_code(pid: int) -> int | None:
    """Return the exit code of a child process, negative for a signal; leave it to others to reap it."""
    try:
        state = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    if state is None:
        return None
    return state.si_status if state.si_code == os.CLD_EXITED else -state.si_status

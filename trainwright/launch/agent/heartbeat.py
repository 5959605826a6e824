"""Heartbeats of a job's processes: each process writes its phase and step, its agent reads them.

Only in the phase ``steps`` does silence mean a hang: a first batch, a compilation, an evaluation or the
commit of a checkpoint takes as long as it takes.
"""

import os
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

STEPS = "steps"
"""The phase in which steps are to be expected."""

FOLDER = "pulse"
_LENGTH = 40
_RECENT_S = 1.0


def _interval_s(stall_s: float) -> float:
    """Return the seconds between two writings: often enough to miss a stall by little, else seldom."""
    return min(max(stall_s / 100, 0.05), 4.0)


class Heartbeat:
    """Writes phase and step of this process, from a thread of its own that costs the steps nothing.

    Args:
        folder: The attempt's folder.
        rank: Rank of this process in the whole job.
        stall_s: Seconds without a step after which the job counts as hung.
    """

    def __init__(self, folder: Path, rank: int, stall_s: float) -> None:
        self._path, self._every_s = folder / FOLDER / f"rank-{rank}", _interval_s(stall_s)
        self._over = threading.Event()
        self.phase, self._step, self._seen = "starting", 0, 0

    def __enter__(self) -> "Heartbeat":
        """Begin to write."""
        self._path.parent.mkdir(exist_ok=True)
        self._thread = threading.Thread(target=self._write, name="pulse", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Record that no more steps are to be expected."""
        self.phase = "ended"
        self._over.set()
        self._thread.join()

    def beat(self, step: int) -> None:
        """Record a step. The first one may have taken long, and the next may too."""
        self._step = step
        self._seen += 1
        if self._seen == 2:  # noqa: PLR2004 - the first step compiles, the second may compile again
            self.phase = STEPS

    def during(self, phase: str) -> AbstractContextManager[None]:
        """Expect no step for a while, such as during an evaluation."""
        return _Phase(self, phase)

    def _write(self) -> None:
        try:
            with self._path.open("wb", buffering=0) as stream:
                written, over = "", False
                while not over:
                    over = self._over.wait(self._every_s)
                    line = f"{self.phase} {self._step}"
                    if line != written:
                        # Always as long, so that nobody reads a half of it.
                        os.pwrite(stream.fileno(), f"{line:<{_LENGTH - 1}}\n".encode(), 0)
                        written = line
        except OSError:
            # On a full disk, say. Without a heartbeat, nobody takes silence for a hang.
            self._path.unlink(missing_ok=True)


class _Phase:
    """A phase of a heartbeat; at every step there is one, so it costs next to nothing."""

    __slots__ = ("_before", "_heartbeat", "_phase")

    def __init__(self, heartbeat: Heartbeat, phase: str) -> None:
        self._heartbeat, self._phase, self._before = heartbeat, phase, heartbeat.phase

    def __enter__(self) -> None:
        self._heartbeat.phase = self._phase

    def __exit__(self, *_: object) -> None:
        self._heartbeat.phase = self._before


class HeartbeatMonitor:
    """Reads the heartbeats of the processes of an attempt, and detects a hang of ``stall_s`` seconds."""

    def __init__(self, folder: Path, stall_s: float) -> None:
        self._folder, self._stall_s = folder / FOLDER, stall_s
        self._last: dict[int, str] = {}
        self._quiet_s: dict[int, float] = {}

    def look(self, ranks: Iterable[int], passed_s: float) -> dict[int, int]:
        """Read the heartbeats of the running processes of this machine.

        Args:
            ranks: The processes that run.
            passed_s: Seconds since the last look. More than a second counts as one: if this process was
                stopped, so were the others, and their silence means nothing.

        Returns:
            The step of each of them, if one has hung; else nothing. None has as long as any process of the
            job, also of another machine, is in a phase in which the others wait for it.
        """
        lines = {rank: _line(self._folder / f"rank-{rank}") for rank in ranks}
        for rank, line in lines.items():
            moved = line != self._last.get(rank) or _phase(line) != STEPS
            self._quiet_s[rank] = 0.0 if moved else self._quiet_s[rank] + min(passed_s, _RECENT_S)
            self._last[rank] = line
        limit = self._stall_s + _interval_s(self._stall_s)
        if not any(self._quiet_s[rank] >= limit for rank in lines):
            return {}
        if any(_phase(_line(path)) != STEPS for path in self._folder.glob("rank-*")):
            self._quiet_s.clear()
            self._last.clear()
            return {}
        return {rank: int(line.split()[1]) for rank, line in lines.items()}

    def begin(self, ranks: Iterable[int]) -> None:
        """Forget the heartbeats of an earlier round."""
        self._last.clear()
        self._quiet_s.clear()
        for rank in ranks:
            (self._folder / f"rank-{rank}").unlink(missing_ok=True)


def _line(path: Path) -> str:
    """Read a heartbeat; empty where it is gone, such as with the round of another machine."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _phase(line: str) -> str:
    return line.partition(" ")[0]

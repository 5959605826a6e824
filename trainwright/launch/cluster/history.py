"""What became of the attempts at a job: kept beside them, for a launcher that is started again."""

import contextlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from trainwright.documents import Document
from trainwright.errors import InputError
from trainwright.launch import job_directory
from trainwright.launch.diagnosis import incidents
from trainwright.launch.diagnosis.incidents import Loss, find_incidents
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.job import Budget


@dataclass(frozen=True, kw_only=True)
class FailedAttempt(Document):
    """An attempt that has failed.

    Attributes:
        job: Digest of the job.
        kind: The class of its failure.
        what: What happened.
        counts: Restarts that it used up, by budget.
        took_s: Seconds that it took, waiting in a queue apart.
        lost_gpu_s: GPU seconds that have to be spent again.
        final: Whether no other attempt followed from it. A later launch begins to count afresh.
    """

    FILE: ClassVar[str] = job_directory.FAILED_ATTEMPT_FILE
    job: str
    kind: str
    what: str
    counts: dict[str, int]
    took_s: float
    lost_gpu_s: float
    final: bool


@dataclass(frozen=True)
class AttemptHistory:
    """The failed attempts of one launch so far, the oldest first, by the names of their folders."""

    entries: tuple[tuple[str, FailedAttempt], ...] = ()

    @classmethod
    def read(cls, folders: Iterable[Path]) -> "AttemptHistory":
        """Read what became of attempts, from their folders in order; a final one ends an earlier launch."""
        found: list[tuple[str, FailedAttempt]] = []
        for folder in folders:
            if not (folder / FailedAttempt.FILE).exists():
                continue
            try:
                entry = FailedAttempt.read(folder)
            except InputError:  # of a newer library: its attempt counts for nothing here
                continue
            found = [] if entry.final else [*found, (folder.name, entry)]
        return cls(tuple(found))

    @classmethod
    def before(cls, folder: Path) -> "AttemptHistory":
        """Read what became of the attempts before one, of the same launch."""
        home = job_directory.job_directory_of(folder)
        earlier = [path for path in job_directory.attempts(home) if path != folder] if home else []
        return cls.read(earlier)

    @property
    def spent(self) -> dict[str, int]:
        """Restarts that were used up, by budget."""
        counts: dict[str, int] = {}
        for _, entry in self.entries:
            for name, count in entry.counts.items():
                counts[name] = counts.get(name, 0) + count
        return counts

    @property
    def took_s(self) -> float:
        """Seconds that all of them took."""
        return sum(entry.took_s for _, entry in self.entries)

    @property
    def lost_gpu_s(self) -> float:
        """GPU seconds that had to be spent again."""
        return sum(entry.lost_gpu_s for _, entry in self.entries)

    @property
    def told(self) -> tuple[str, ...]:
        """Say what became of each."""
        return tuple(f"attempt {name}: {entry.kind}: {entry.what}" for name, entry in self.entries)


def last_failed_attempt(folder: Path) -> tuple[Path, FailedAttempt] | None:
    """Return the latest failed attempt at a job, with its folder, of those that share a home with one."""
    home = job_directory.job_directory_of(folder)
    for path in reversed(job_directory.attempts(home) if home else []):
        if (path / FailedAttempt.FILE).exists():
            with contextlib.suppress(InputError):
                return path, FailedAttempt.read(path)
    return None


def exceeded_budget(budget: Budget, spent: Mapping[str, int]) -> str:
    """Name the budget that is used up beyond its limit; empty if none is."""
    limits = asdict(budget)
    return next((name for name, count in spent.items() if count > limits[name]), "")


@dataclass(frozen=True, kw_only=True)
class HeldGpus:
    """The GPUs that a pod held which is gone.

    Attributes:
        uid: The pod.
        gpus: How many.
        since_s: From when on, in seconds since 1970.
        until_s: Until when.
    """

    uid: str
    gpus: int
    since_s: float
    until_s: float


@dataclass(frozen=True, kw_only=True)
class AttemptLosses(Document):
    """All that an attempt lost, the oldest first.

    Attributes:
        lost: What was lost.
        held: What the pods held that are gone.
    """

    FILE: ClassVar[str] = "losses.json"
    lost: tuple[Loss, ...] = ()
    held: tuple[HeldGpus, ...] = ()

    @classmethod
    def of(cls, folder: Path) -> "AttemptLosses":
        """Read what was noted of an attempt; nothing if nothing was, or a newer library did."""
        with contextlib.suppress(InputError, OSError):
            return cls.read(folder)
        return cls()

    def with_those_of(self, observed: ObservedJob) -> "AttemptLosses":
        """Return what was lost before this launcher came, with what it has seen itself.

        What is seen again is judged anew: more may be known of it.
        """
        lost = {loss.key: loss for loss in self.lost}
        for entry in find_incidents(observed):
            loss = Loss.of(entry)
            lost.pop(loss.key, None)
            if not entry.finding.weak:
                lost[loss.key] = loss
        held = {hold.uid: hold for hold in self.held}
        latest_s = incidents.latest_s(observed)
        for pod in observed.pods:
            if pod.gone is not None and pod.gpus and (span := incidents.held_span(pod, latest_s)):
                held[pod.uid] = HeldGpus(uid=pod.uid, gpus=pod.gpus, since_s=span[0], until_s=span[1])
        return AttemptLosses(lost=tuple(lost.values()), held=tuple(held.values()))

    def forgotten_gpu_s(self, observed: ObservedJob, since_s: float) -> float:
        """Return the GPU seconds since a time that pods held which this launcher has not seen itself."""
        seen = {pod.uid for pod in observed.pods}
        spans = [
            (hold.gpus, hold.until_s - max(hold.since_s, since_s))
            for hold in self.held
            if hold.uid not in seen
        ]
        return float(sum(gpus * max(0.0, span) for gpus, span in spans))

    def note(self, folder: Path) -> None:
        """Write them into the folder of the attempt."""
        try:
            self.write(folder / self.FILE)
        except OSError as error:  # a full disk is no reason to stop
            sys.stderr.write(f"what attempt {folder.name} lost could not be noted: {error}\n")


_COMMITTED = "checkpoints/step-*/manifest.json"
"""The manifest of a checkpoint is written last: without it there is none."""


def last_checkpoint_s(home: Path) -> float:
    """Return when a training last committed a checkpoint, in seconds since 1970; 0 if it never did."""
    times = []
    for path in home.glob(_COMMITTED):
        try:
            times.append(path.stat().st_mtime)
        except OSError:  # tidied away in between
            continue
    return max(times, default=0.0)

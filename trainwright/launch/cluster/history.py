"""The failed attempts of a job and the losses of an elastic attempt, saved for a restarted launcher."""

import contextlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from trainwright.documents import Document
from trainwright.errors import InputError
from trainwright.launch import job_directory
from trainwright.launch.diagnosis.incidents import Loss, find_incidents, held_span, latest_s
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.job import Budget

_COMMITTED = "checkpoints/step-*/manifest.json"
"""The manifest of a checkpoint is written last: without it there is no checkpoint."""


@dataclass(frozen=True, kw_only=True)
class FailedAttempt(Document):
    """A failed attempt, as written into its folder.

    Attributes:
        job: Digest of the job.
        kind: The failure class.
        what: What happened.
        counts: Restarts that it used up, by budget.
        took_s: Its duration in seconds, time in a queue excluded.
        lost_gpu_s: GPU seconds that have to be spent again.
        final: Whether no other attempt followed. A later launch counts from 0.
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
    """The failed attempts of one launch, the oldest first, by the names of their folders."""

    entries: tuple[tuple[str, FailedAttempt], ...] = ()

    @classmethod
    def read(cls, folders: Iterable[Path]) -> "AttemptHistory":
        """Read failed attempts from their folders in order; a final one ends an earlier launch."""
        found: list[tuple[str, FailedAttempt]] = []
        for folder in folders:
            if not (folder / FailedAttempt.FILE).exists():
                continue
            try:
                entry = FailedAttempt.read(folder)
            except InputError:  # written by a newer library: it does not count here
                continue
            found = [] if entry.final else [*found, (folder.name, entry)]
        return cls(tuple(found))

    @classmethod
    def before(cls, folder: Path) -> "AttemptHistory":
        """Read the failed attempts of the same launch before one."""
        directory = job_directory.job_directory_of(folder)
        earlier = [path for path in job_directory.attempts(directory) if path != folder] if directory else []
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
        """Duration of all attempts, in seconds."""
        return sum(entry.took_s for _, entry in self.entries)

    @property
    def lost_gpu_s(self) -> float:
        """GPU seconds that had to be spent again."""
        return sum(entry.lost_gpu_s for _, entry in self.entries)

    @property
    def lines(self) -> tuple[str, ...]:
        """One line for each attempt."""
        return tuple(f"attempt {name}: {entry.kind}: {entry.what}" for name, entry in self.entries)


def last_failed_attempt(folder: Path) -> tuple[Path, FailedAttempt] | None:
    """Return the latest failed attempt of the job that an attempt belongs to, with its folder."""
    directory = job_directory.job_directory_of(folder)
    for path in reversed(job_directory.attempts(directory) if directory else []):
        if (path / FailedAttempt.FILE).exists():
            with contextlib.suppress(InputError):
                return path, FailedAttempt.read(path)
    return None


def exceeded_budget(budget: Budget, spent: Mapping[str, int]) -> str:
    """Return the name of a budget that is exceeded; empty if none is."""
    limits = asdict(budget)
    return next((name for name, count in spent.items() if count > limits[name]), "")


def last_checkpoint_s(directory: Path) -> float:
    """Return when a job last committed a checkpoint, in seconds since 1970; 0 if it never did."""
    times = []
    for path in directory.glob(_COMMITTED):
        with contextlib.suppress(OSError):  # removed in between
            times.append(path.stat().st_mtime)
    return max(times, default=0.0)


@dataclass(frozen=True, kw_only=True)
class HeldGpus:
    """The GPUs that a removed pod held, and from when until when, in seconds since 1970."""

    uid: str
    gpus: int
    since_s: float
    until_s: float


@dataclass(frozen=True, kw_only=True)
class AttemptLosses(Document):
    """The losses of an elastic attempt, oldest first.

    Such an attempt continues when a pod is lost, whose object is gone within seconds. A launcher that adopts
    the job finds other pods in their places, and must not count from 0.

    Attributes:
        lost: The lost pods and runs of containers.
        held: The GPUs that the removed pods held.
    """

    FILE: ClassVar[str] = "losses.json"
    lost: tuple[Loss, ...] = ()
    held: tuple[HeldGpus, ...] = ()

    @classmethod
    def of(cls, folder: Path) -> "AttemptLosses":
        """Read the losses of an attempt; none if none were saved, or a newer library saved them."""
        with contextlib.suppress(InputError, OSError):
            return cls.read(folder)
        return cls()

    def with_observed(self, observed: ObservedJob) -> "AttemptLosses":
        """Return the saved losses with those that this launcher observed, which replace older judgements."""
        lost = {loss.key: loss for loss in self.lost}
        for entry in find_incidents(observed):
            loss = Loss.of(entry)
            lost.pop(loss.key, None)
            if not entry.finding.weak:
                lost[loss.key] = loss
        held = {entry.uid: entry for entry in self.held}
        end_s = latest_s(observed)
        for pod in observed.pods:
            if pod.gone is not None and pod.gpus and (span := held_span(pod, end_s)):
                held[pod.uid] = HeldGpus(uid=pod.uid, gpus=pod.gpus, since_s=span[0], until_s=span[1])
        return AttemptLosses(lost=tuple(lost.values()), held=tuple(held.values()))

    def unobserved_gpu_s(self, observed: ObservedJob, since_s: float) -> float:
        """Return the GPU seconds since a time of pods that this launcher has not observed itself."""
        seen = {pod.uid for pod in observed.pods}
        spans = [
            (entry.gpus, entry.until_s - max(entry.since_s, since_s))
            for entry in self.held
            if entry.uid not in seen
        ]
        return float(sum(gpus * max(0.0, span) for gpus, span in spans))

    def save(self, folder: Path) -> None:
        """Write the losses into the folder of the attempt."""
        try:
            self.write(folder / self.FILE)
        except OSError as error:  # a full disk must not stop the launcher
            sys.stderr.write(f"the losses of attempt {folder.name} could not be saved: {error}\n")

"""The failed attempts of a job and the losses of an elastic attempt, saved for a restarted launcher."""

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trainwright.documents import Document
from trainwright.errors import InputError
from trainwright.experiment.resources import RetryBudget
from trainwright.launch import job_directory
from trainwright.launch.diagnosis.incidents import Loss, find_incidents
from trainwright.launch.diagnosis.observed_job import ObservedJob

_COMMITTED = "checkpoints/step-*/manifest.json"
"""The manifest of a checkpoint is written last: without it there is no checkpoint."""


@dataclass(frozen=True, kw_only=True)
class FailedAttempt(Document):
    """A failed attempt, as written into its folder.

    Attributes:
        counts: Restarts that it used up, by budget.
        took_s: Its duration in seconds, time in a queue excluded.
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

    def save(self, folder: Path) -> None:
        """Write it into the folder of the attempt."""
        try:
            self.write(folder / self.FILE)
        except OSError as error:  # a full disk must not stop the launcher
            sys.stderr.write(f"the failure of attempt {folder.name} could not be recorded: {error}\n")


@dataclass(frozen=True)
class AttemptHistory:
    """The failed attempts of one launch, the oldest first, by the names of their folders."""

    entries: tuple[tuple[str, FailedAttempt], ...] = ()

    @classmethod
    def before(cls, folder: Path) -> "AttemptHistory":
        """Read the failed attempts of the same launch before one; a final one ends an earlier launch."""
        directory = job_directory.job_directory_of(folder)
        found: list[tuple[str, FailedAttempt]] = []
        for path in job_directory.attempts(directory) if directory else []:
            if path == folder or not (path / FailedAttempt.FILE).exists():
                continue
            with contextlib.suppress(InputError):  # written by a newer library: it does not count here
                entry = FailedAttempt.read(path)
                found = [] if entry.final else [*found, (path.name, entry)]
        return cls(tuple(found))

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


def exceeded_budget(budget: RetryBudget, spent: Mapping[str, int]) -> str:
    """Return the name of a budget that is exceeded; empty if none is."""
    return next((name for name, count in spent.items() if count > getattr(budget, name)), "")


def last_checkpoint_s(folder: Path) -> float:
    """Return when the job of an attempt last committed a checkpoint, in seconds since 1970; 0 if never."""
    times, directory = [0.0], job_directory.job_directory_of(folder)
    for path in directory.glob(_COMMITTED) if directory else ():
        with contextlib.suppress(OSError):  # removed in between
            times.append(path.stat().st_mtime)
    return max(times)


@dataclass(frozen=True, kw_only=True)
class AttemptLosses(Document):
    """The lost pods and runs of containers of an elastic attempt, the oldest first.

    Such an attempt continues when a pod is lost, whose object is gone within seconds. A launcher that adopts
    the job finds other pods in their places, and must not count from 0.
    """

    FILE: ClassVar[str] = "losses.json"
    lost: tuple[Loss, ...] = ()

    @classmethod
    def of(cls, folder: Path) -> "AttemptLosses":
        """Read the losses of an attempt; none if none were saved, or another version saved them."""
        with contextlib.suppress(InputError, OSError):
            return cls.read(folder)
        return cls()

    def with_observed(self, observed: ObservedJob) -> "AttemptLosses":
        """Return the saved losses with those that this launcher observed, which replace older judgements."""
        lost = {loss.key: loss for loss in self.lost}
        for entry in find_incidents(observed):
            loss = Loss.of(entry)
            lost.pop(loss.key, None)
            if not entry.weak:
                lost[loss.key] = loss
        return AttemptLosses(lost=tuple(lost.values()))

    def save(self, folder: Path) -> None:
        """Write the losses into the folder of the attempt."""
        try:
            self.write(folder / self.FILE)
        except OSError as error:  # a full disk must not stop the launcher
            sys.stderr.write(f"the losses of attempt {folder.name} could not be saved: {error}\n")

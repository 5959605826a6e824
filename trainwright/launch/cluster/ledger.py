"""What became of the attempts at a job: kept beside them, for a launcher that is started again."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from trainwright.documents import Document
from trainwright.errors import InputError
from trainwright.launch import attempt
from trainwright.launch.job import Budget


@dataclass(frozen=True, kw_only=True)
class Ended(Document):
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

    FILE: ClassVar[str] = attempt.ENDED
    job: str
    kind: str
    what: str
    counts: dict[str, int]
    took_s: float
    lost_gpu_s: float
    final: bool


@dataclass(frozen=True)
class Ledger:
    """The failed attempts of one launch so far, the oldest first, by the names of their folders."""

    entries: tuple[tuple[str, Ended], ...] = ()

    @classmethod
    def read(cls, folders: Iterable[Path]) -> "Ledger":
        """Read what became of attempts, from their folders in order; a final one ends an earlier launch."""
        found: list[tuple[str, Ended]] = []
        for folder in folders:
            if not (folder / Ended.FILE).exists():
                continue
            try:
                entry = Ended.read(folder)
            except InputError:  # of a newer library: its attempt counts for nothing here
                continue
            found = [] if entry.final else [*found, (folder.name, entry)]
        return cls(tuple(found))

    @classmethod
    def before(cls, folder: Path) -> "Ledger":
        """Read what became of the attempts before one, of the same launch."""
        home = attempt.home_of(folder)
        earlier = [path for path in attempt.folders(home) if path != folder] if home else []
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


def last(folder: Path) -> tuple[Path, Ended] | None:
    """Return the latest failed attempt at a job, with its folder, of those that share a home with one."""
    home = attempt.home_of(folder)
    for path in reversed(attempt.folders(home) if home else []):
        if (path / Ended.FILE).exists():
            with contextlib.suppress(InputError):
                return path, Ended.read(path)
    return None


def exceeded(budget: Budget, spent: Mapping[str, int]) -> str:
    """Name the budget that is used up beyond its limit; empty if none is."""
    limits = asdict(budget)
    return next((name for name, count in spent.items() if count > limits[name]), "")

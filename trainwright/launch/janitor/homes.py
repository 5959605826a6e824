"""Homes of trainings that nobody went on with: checkpoints and attempts on the volume that steps share."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from trainwright.launch.attempt import remove_home

_JOBS = Path("trainwright") / "jobs"
_DAY_S = 86_400.0
_GIB = 2.0**30


@dataclass(frozen=True, kw_only=True)
class Home:
    """The folder that all attempts at a training share.

    Attributes:
        path: Where it is.
        days: Since when nothing in it has changed.
        size: Bytes in it.
    """

    path: Path
    days: float
    size: int

    def __str__(self) -> str:
        """Say it in a line."""
        return f"home {self.path.name}: unchanged for {self.days:,.1f} days, {self.size / _GIB:,.2f} GiB"


def leftover(mount: Path, used: Iterable[str], days: float, now: datetime) -> Iterator[Home]:
    """Find homes that no job uses, and in which nothing has changed for some days.

    Args:
        mount: Where the volume is mounted.
        used: Folders that jobs of the cluster write into.
        days: How many days.
        now: The time.
    """
    folders = [Path(folder) for folder in used if folder]
    for path in sorted((mount / _JOBS).glob("*")):
        if not path.is_dir() or any(folder.is_relative_to(path) for folder in folders):
            continue
        home = _measure(path, now)
        if home.days >= days:
            yield home


def _measure(path: Path, now: datetime) -> Home:
    newest, size = path.stat().st_mtime, 0
    for entry in path.rglob("*"):
        try:
            found = entry.lstat()
        except FileNotFoundError:  # removed while we look
            newest = now.timestamp()
            continue
        newest, size = max(newest, found.st_mtime), size + found.st_size
    return Home(path=path, days=(now.timestamp() - newest) / _DAY_S, size=size)


def remove(home: Home) -> str:
    """Remove a home but for what is pinned in it; say what became of it."""
    remove_home(home.path)
    return "kept in part, it is pinned" if home.path.exists() else "removed"

"""The summaries of all runs of a folder in memory, each read again only when its file changed."""

import functools
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.errors import InputError
from trainwright.local.run_folder import Request
from trainwright.local.run_index import Lineage, RunSummary, read_arguments, read_run


@dataclass
class _Entry:
    """A run; ``signature`` is that of its summary's file, None while it has not ended."""

    signature: tuple[int, int, int] | None
    summary: RunSummary
    arguments: Mapping[str, Any] | None = None


class RunIndex:
    """The runs of a folder. Every call looks which files have changed, so it holds no state of its own."""

    def __init__(self, runs: Path) -> None:
        self._runs, self._lock = runs, threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._lineage: Lineage | None = None

    def summaries(self, before: str = "") -> Iterator[RunSummary]:
        """Yield the runs that can be read, the newest first; only those older than ``before``, if named."""
        with self._lock:
            self._refresh()
            entries = self._entries
        for name in sorted(entries, reverse=True):  # ids sort by time
            if not before or name < before:
                yield entries[name].summary

    def count(self) -> int:
        """Return the number of runs at the last look."""
        return len(self._entries)

    def find(self, run: str) -> RunSummary | None:
        """Return a run by its name, as it was at the last look."""
        entry = self._entries.get(run)
        return entry.summary if entry else None

    def arguments(self, run: str) -> Mapping[str, Any]:
        """Return the arguments of a run, by dotted keys; none if they cannot be read."""
        entry = self._entries.get(run)
        if entry is None:
            return {}
        if entry.arguments is None:
            try:
                entry.arguments = read_arguments(self._runs / run)
            except (OSError, ValueError, LookupError, TypeError, AttributeError):
                entry.arguments = {}
        return entry.arguments

    def lineage(self) -> Lineage:
        """Return the lineage of all runs."""
        with self._lock:
            if self._refresh() or self._lineage is None:
                self._lineage = Lineage(
                    self._entries[name].summary for name in sorted(self._entries, reverse=True)
                )
            return self._lineage

    def _refresh(self) -> bool:
        """Read what has changed; return True if anything has."""
        known, found, changed = self._entries, {}, False
        for name, signature in self._signatures():
            entry = known.get(name)
            if entry is None or signature is None or entry.signature != signature:
                try:
                    entry = _Entry(signature, read_run(self._runs / name))
                except InputError:  # `trainwright runs list` names it
                    continue
                changed = True
            found[name] = entry
        self._entries = found
        return changed or found.keys() != known.keys()

    def _signatures(self) -> Iterator[tuple[str, tuple[int, int, int] | None]]:
        if not self._runs.is_dir():
            return
        with os.scandir(self._runs) as folders:
            for folder in folders:
                try:
                    at = os.stat(f"{folder.path}/{RunSummary.FILE}")
                except OSError:  # it has not ended, or is no run
                    if os.path.exists(f"{folder.path}/{Request.FILE}"):
                        yield folder.name, None
                else:
                    yield folder.name, (at.st_mtime_ns, at.st_ino, at.st_size)


@functools.cache
def index_of(runs: Path) -> RunIndex:
    """Return the index of a folder, the same one at each call."""
    return RunIndex(runs)

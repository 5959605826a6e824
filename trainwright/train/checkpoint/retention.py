"""Which checkpoints stay: the newest that verify, the best one, and those that somebody asked to keep."""

import logging
import shutil
from collections.abc import Collection
from pathlib import Path

from trainwright.errors import TrainwrightError
from trainwright.train.checkpoint.manifest import Manifest, Name, committed, pinned, unfinished
from trainwright.train.checkpoint.reading import damage, read_manifest

_LEAST = 2
"""Verified checkpoints that always stay: should the newest one break, there is another."""

_log = logging.getLogger("trainwright.train")

Signature = tuple[tuple[str, int, int, int], ...]


class Retention:
    """Tidies a folder of checkpoints.

    Args:
        folder: The folder.
        keep: Newest verified checkpoints that stay.
        keep_best: Whether the one with the least loss on the watched split stays too.
    """

    def __init__(self, folder: Path, keep: int, *, keep_best: bool) -> None:
        self._folder, self._keep, self._keep_best = folder, max(keep, _LEAST), keep_best
        self._known: dict[Name, tuple[Signature, bool]] = {}

    def trust(self, name: Name) -> None:
        """Take note that the digests of a checkpoint hold as its files are now."""
        self._known[name] = (_signature(self._folder / str(name)), True)

    def tidy(self, start: int, held: Collection[Name]) -> None:
        """Remove what is not to stay. Whatever fails is told, and tried again the next time.

        Args:
            start: Number of this start; what earlier ones left unfinished is removed.
            held: Checkpoints that are being read.
        """
        for name in [*unfinished(self._folder)]:
            if name.start < start:
                self._remove(name)
        names = committed(self._folder)
        stay = set(self._newest(names)) | set(held)
        oldest = min(stay, default=None)
        if len(stay - set(held)) < self._keep or oldest is None:
            return
        if self._keep_best and (best := self._best(names)):
            stay.add(best)
        for name in names:
            if name not in stay and name < oldest and not pinned(self._folder / str(name)):
                self._remove(name)

    def _newest(self, names: list[Name]) -> list[Name]:
        """Return the newest checkpoints that verify; looking ends when there are enough."""
        found: list[Name] = []
        for name in names:
            if len(found) == self._keep:
                break
            if self._verifies(name):
                found.append(name)
        return found

    def _verifies(self, name: Name) -> bool:
        """Tell whether the digests hold; files that did not change since are not read again."""
        folder, wrong, signature = self._folder / str(name), "", None
        try:
            signature = _signature(folder)
            if name in self._known and self._known[name][0] == signature:
                return self._known[name][1]
            wrong = damage(folder, read_manifest(folder).files)
        except (OSError, TrainwrightError) as error:
            wrong, signature = str(error), None  # which may pass, and is looked at again
        if wrong:
            _log.warning("checkpoint %s does not count: %s", name, wrong)
        if signature:
            self._known[name] = (signature, not wrong)
        return not wrong

    def _best(self, names: list[Name]) -> Name | None:
        """Return the checkpoint with the least loss on the watched split, if any has one."""
        losses: dict[Name, float] = {}
        for name in names:
            try:
                watched = Manifest.read(self._folder / str(name)).watched
            except TrainwrightError:
                continue
            if watched is not None:
                losses[name] = watched
        return min(losses, key=lambda name: (losses[name], name), default=None)

    def _remove(self, name: Name) -> None:
        """Remove a checkpoint: its manifest first, so that it is not there before its files are gone."""
        folder = self._folder / str(name)
        try:
            (folder / Manifest.FILE).unlink(missing_ok=True)
            shutil.rmtree(folder)
        except OSError as error:
            _log.warning("checkpoint %s could not be removed: %s", name, error)
        self._known.pop(name, None)


def _signature(folder: Path) -> Signature:
    """Return what changes when a file is written: sizes and times."""
    return tuple(
        (path.name, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        for path in sorted(folder.iterdir())
        for state in [path.stat()]
    )

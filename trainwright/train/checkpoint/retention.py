"""Removes old checkpoints; the newest verified ones, the best one and pinned ones stay."""

import logging
import shutil
from collections.abc import Collection
from pathlib import Path

from trainwright.errors import TrainwrightError
from trainwright.train.checkpoint.manifest import (
    CheckpointName,
    Manifest,
    committed,
    read_manifest,
    uncommitted,
)
from trainwright.train.checkpoint.reader import damage

_LEAST = 2
"""Verified checkpoints that always stay: if the newest one breaks, there is another."""

_PIN = "pinned-by-*.json"
_log = logging.getLogger("trainwright.train")

_Signature = tuple[tuple[str, int, int, int], ...]
"""Name, size and times of every file: changes when a file is written."""


class Retention:
    """The retention policy of a folder of checkpoints.

    Args:
        folder: The folder.
        keep: Newest verified checkpoints that stay.
        keep_best: Also keep the one with the least loss on the watched split.
    """

    def __init__(self, folder: Path, keep: int, *, keep_best: bool) -> None:
        self._folder, self._keep, self._keep_best = folder, max(keep, _LEAST), keep_best
        self._verified: dict[CheckpointName, tuple[_Signature, bool]] = {}

    def mark_verified(self, name: CheckpointName) -> None:
        """Record that the digests of a checkpoint hold for its files as they are now."""
        self._verified[name] = (_signature(self._folder / str(name)), True)

    def apply(self, start: int, in_use: Collection[CheckpointName]) -> None:
        """Remove what is not to stay; failures are logged and retried the next time.

        Args:
            start: Token of this start; uncommitted checkpoints of earlier starts are removed.
            in_use: Checkpoints that are being read.
        """
        for name in uncommitted(self._folder):
            if name.start < start:
                self._remove(name)
        names = committed(self._folder)
        newest = self._newest_verified(names)
        stay = {*newest, *in_use}
        if len(set(newest) - set(in_use)) < self._keep or not stay:
            return
        oldest = min(stay)
        if self._keep_best and (best := self._best(names)):
            stay.add(best)
        for name in names:
            pinned = any((self._folder / str(name)).glob(_PIN))
            if name not in stay and name < oldest and not pinned:
                self._remove(name)

    def _newest_verified(self, names: list[CheckpointName]) -> list[CheckpointName]:
        found: list[CheckpointName] = []
        for name in names:
            if len(found) == self._keep:
                break
            if self._verifies(name):
                found.append(name)
        return found

    def _verifies(self, name: CheckpointName) -> bool:
        """Return whether the digests hold; unchanged files are not read again."""
        folder, wrong, signature = self._folder / str(name), "", None
        try:
            signature = _signature(folder)
            if name in self._verified and self._verified[name][0] == signature:
                return self._verified[name][1]
            wrong = damage(folder, read_manifest(folder).files)
        except (OSError, TrainwrightError) as error:
            wrong, signature = str(error), None  # may be transient: verified again the next time
        if wrong:
            _log.warning("checkpoint %s does not count: %s", name, wrong)
        if signature:
            self._verified[name] = (signature, not wrong)
        return not wrong

    def _best(self, names: list[CheckpointName]) -> CheckpointName | None:
        losses: dict[CheckpointName, float] = {}
        for name in names:
            try:
                watched = Manifest.read(self._folder / str(name)).watched
            except TrainwrightError:
                continue
            if watched is not None:
                losses[name] = watched
        return min(losses, key=lambda name: (losses[name], name), default=None)

    def _remove(self, name: CheckpointName) -> None:
        """Remove a checkpoint, its manifest first, so that it never exists without its files."""
        folder = self._folder / str(name)
        try:
            (folder / Manifest.FILE).unlink(missing_ok=True)
            shutil.rmtree(folder)
        except OSError as error:
            _log.warning("checkpoint %s could not be removed: %s", name, error)
        self._verified.pop(name, None)


def _signature(folder: Path) -> _Signature:
    return tuple(
        (path.name, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        for path in sorted(folder.iterdir())
        for state in [path.stat()]
    )

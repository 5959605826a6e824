"""The checkpoints of a training in the places where they lie. The first process alone handles it."""

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from trainwright.errors import DependencyError, InputError, PreemptedUnsaved, TrainwrightError
from trainwright.experiment.checkpoints import Checkpointing
from trainwright.storage import Access, join
from trainwright.train.checkpoint.copies import Copies
from trainwright.train.checkpoint.fence import Fence, superseded
from trainwright.train.checkpoint.manifest import Manifest, Name, committed, unfinished
from trainwright.train.checkpoint.reading import read_manifest
from trainwright.train.checkpoint.retention import Retention
from trainwright.train.checkpoint.writing import commit

_FOLDER = "checkpoints"
_ATTEMPTS = "attempts"
_log = logging.getLogger("trainwright.train")


class Shelf:
    """Where the checkpoints of a training lie: below its home, and in a store if one is named.

    Args:
        home: Folder that all attempts at the training share.
        attempt: The attempt that this process belongs to.
        settings: How many stay, and the store.
    """

    def __init__(self, home: Path, attempt: str, settings: Checkpointing) -> None:
        self.folder, self._home, self._attempt, self._settings = home / _FOLDER, home, attempt, settings
        self._fence = Fence(str(self.folder), Access())
        # Homes are named after what their training was told, so that it finds its copies from anywhere.
        key = home.name.rpartition("-")[2]
        self._copies = Copies(join(settings.store, key), settings.keep) if settings.store else None
        self._retention = Retention(self.folder, settings.keep, keep_best=settings.keep_best)
        self.number = 0

    def open(self) -> int:
        """Take the number of this start, and return it.

        Raises:
            PreemptedUnsaved: There is a newer attempt at this training.
            DependencyError: There is nothing here, and the store, which may hold something, does not answer.
        """
        if newer := self._newer_attempt():
            raise PreemptedUnsaved(
                f"attempt {self._attempt} of this training was replaced by attempt {newer}",
                where=str(self._home),
            )
        while True:
            number = max(self._fence.newest(), self._highest(), self._newest_of_store()) + 1
            if self._fence.take(number, self._attempt):
                break
        self.number = number
        if self._copies:
            self._claim(self._copies)
        return number

    def candidates(self) -> list[tuple[Name, bool]]:
        """Name what can be continued from, the newest first, with whether it lies in the store."""
        found = [(name, False) for name in committed(self.folder)]
        if self._copies:
            found += [(name, True) for name in self._of_store(self._copies)]
        return sorted(found, key=lambda entry: (entry[0], not entry[1]), reverse=True)

    def bring(self, name: Name, *, from_store: bool) -> Manifest:
        """Return the manifest of a checkpoint, once its files are below the home.

        Raises:
            InputError: It cannot be read.
            PermissionRefused: It is not one that may be.
        """
        folder = self.folder / str(name)
        if from_store and self._copies:
            fresh = self.folder / f"{name}.fetched"
            shutil.rmtree(fresh, ignore_errors=True)
            self._copies.fetch(name, fresh)
            if folder.exists():
                folder.rename(self.folder / f"{name}.damaged-{self.number:04}")
            fresh.rename(folder)
        manifest = read_manifest(folder)
        if manifest.name != name:
            raise InputError(f"the manifest is that of {manifest.name}", where=str(folder))
        return manifest

    def trust(self, name: Name) -> None:
        """Take note that a checkpoint was verified."""
        self._retention.trust(name)

    def superseded(self) -> bool:
        """Tell whether there is a newer start."""
        return self._fence.newest() > self.number or bool(self._copies and self._copies.superseded)

    def commit(self, manifest: Manifest) -> None:
        """Make a checkpoint of files that lie there.

        Raises:
            PreemptedUnsaved: There is a newer start.
        """
        if self.superseded():
            raise superseded(self.number, str(self.folder))
        folder = self.folder / str(manifest.name)
        commit(folder, manifest)
        self.trust(manifest.name)

    def settle(self, name: Name) -> None:
        """Let a committed checkpoint be copied, and remove those that are not to stay."""
        if self._copies:
            self._copies.offer(self.folder / str(name))
        try:
            self._retention.tidy(self.number, self._copies.held if self._copies else [])
        except (OSError, TrainwrightError) as error:
            _log.warning("old checkpoints could not be removed: %s", error)

    def discard(self, name: Name) -> None:
        """Remove what a save that failed has left: its room may be what the next one needs."""
        shutil.rmtree(self.folder / str(name), ignore_errors=True)

    def finish(self) -> None:
        """Wait for the copies."""
        if self._copies:
            self._copies.finish(self._settings.wait_s)

    def require_room(self, needed: int) -> None:
        """Refuse to begin where not one checkpoint fits.

        Args:
            needed: Bytes of one.

        Raises:
            DependencyError: It does not.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        free, wanted = shutil.disk_usage(self.folder).free, needed * (self._settings.keep + 1)
        room = free + sum(manifest.size for manifest in self._manifests())
        if needed > room:
            raise DependencyError(
                f"a checkpoint takes about {_mib(needed)}, and there are {_mib(free)} free",
                where=str(self.folder),
                hint="Make room on that disk, or raise its quota, and run the step again.",
            )
        if wanted > room:
            _log.warning(
                "%d checkpoints and a new one take about %s; there are %s in %s",
                *(self._settings.keep, _mib(wanted), _mib(room), self.folder),
            )

    def _manifests(self) -> Iterator[Manifest]:
        for name in committed(self.folder):
            try:
                yield read_manifest(self.folder / str(name))
            except TrainwrightError:
                continue

    def _highest(self) -> int:
        """Return the highest number of a start that any folder here has."""
        return max((name.start for name in committed(self.folder) + unfinished(self.folder)), default=0)

    def _newer_attempt(self) -> str:
        """Return an attempt that is newer than this one and whose processes have begun, if there is one.

        Its folder alone says nothing: a launcher that finds an older attempt still running goes on with that.
        """
        for path in sorted((self.folder / "starts").glob("*.json"), reverse=True):
            attempt = str(_attempt_of(path))
            if attempt.isdigit() and self._attempt.isdigit() and int(attempt) > int(self._attempt):
                return attempt
        return ""

    def _newest_of_store(self) -> int:
        if not self._copies:
            return 0
        try:
            names = self._copies.names()
            return max([self._copies.fence.newest(), *(name.start for name in names)])
        except (TrainwrightError, OSError) as error:
            if not committed(self.folder):
                raise DependencyError(
                    f"whether there is something to go on from cannot be told: {error}",
                    where="training.checkpoints.store",
                    hint="Run the step again when the store answers.",
                ) from None
            return 0

    def _of_store(self, copies: Copies) -> list[Name]:
        try:
            return copies.names()
        except (TrainwrightError, OSError) as error:
            _log.warning("the checkpoints of the store cannot be listed: %s", error)
            return []

    def _claim(self, copies: Copies) -> None:
        try:
            copies.claim(self.number, self._attempt)
        except (TrainwrightError, OSError) as error:
            _log.warning("the store does not answer; training goes on without it: %s", error)


def _attempt_of(path: Path) -> object:
    try:
        return json.loads(path.read_text()).get("attempt", "")
    except (OSError, ValueError, AttributeError):
        return ""


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"

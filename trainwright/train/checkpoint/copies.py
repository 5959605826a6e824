"""Copies of committed checkpoints in another place, such as a bucket: in the background, one at a time."""

import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainwright import storage
from trainwright.documents import canonical
from trainwright.errors import InputError, PreemptedUnsaved, TrainwrightError
from trainwright.storage import Access, AlreadyExists
from trainwright.train.checkpoint.fence import Fence
from trainwright.train.checkpoint.manifest import Manifest, Name, SavedFile
from trainwright.train.checkpoint.reading import read_manifest

_AT_A_TIME = 4
_AGAIN_S = 5.0
_PIN = "pinned-by-"
_log = logging.getLogger("trainwright.train")


class Copies:
    """The copies of one training's checkpoints.

    Args:
        place: Path or URI of their folder.
        keep: Newest copies that stay.
        patience_s: Seconds for which one call to the store is tried again.
    """

    def __init__(self, place: str, keep: int, patience_s: float = 30.0) -> None:
        self._place, self._keep, self._access = place, keep, Access(retry_s=patience_s)
        self.fence = Fence(place, self._access)
        self._number, self._attempt, self._claimed = 0, "", False
        self._changed = threading.Condition()
        self._waiting: Path | None = None
        self._copying: Path | None = None
        self.superseded = False
        self._thread = threading.Thread(target=self._work, name="copies", daemon=True)

    @property
    def held(self) -> list[Name]:
        """The checkpoint that is being read."""
        copying = self._copying
        name = Name.read(copying.name) if copying else None
        return [name] if name else []

    def names(self) -> list[Name]:
        """Name the copies, the newest first."""
        folders = [uri.rsplit("/", 2)[-2] for uri in storage.find(self._place, Manifest.FILE, self._access)]
        return sorted((name for folder in folders if (name := Name.read(folder))), reverse=True)

    def claim(self, number: int, attempt: str) -> bool:
        """Take the number of a start here too, and tell whether it was free."""
        self._number, self._attempt = number, attempt
        self._claimed = self.fence.newest() < number and self.fence.take(number, attempt)
        return self._claimed

    def fetch(self, name: Name, folder: Path) -> None:
        """Copy a checkpoint back into a folder, its manifest last.

        Raises:
            TrainwrightError: It cannot be read.
        """
        manifest = self._manifest(name)

        def one(entry: SavedFile) -> None:
            found = storage.head(self._uri(name, entry.path), access=self._access)
            storage.fetch(found, folder / entry.path, self._access)

        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            list(pool.map(one, manifest.files))
        storage.create(str(folder / Manifest.FILE), canonical(manifest.to_json()).encode())

    def offer(self, folder: Path) -> None:
        """Let a committed checkpoint be copied next; one that still waits for that is skipped."""
        if self.superseded:
            return
        with self._changed:
            if self._waiting:
                _log.warning("checkpoint %s is not copied to the store: it is slower", self._waiting.name)
            self._waiting = folder
            self._changed.notify_all()
        if self._thread.ident is None:
            self._thread.start()

    def finish(self, wait_s: float) -> None:
        """Wait for the copies that are under way or due, but not for ever."""
        with self._changed:
            done = self._changed.wait_for(lambda: not self._waiting and not self._copying, wait_s)
        if not done:
            _log.warning("the last checkpoint was not copied to %s within %g s", self._place, wait_s)

    def _work(self) -> None:
        """Copy what is offered, again and again until it succeeds or something newer is offered."""
        while not self.superseded:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None)
                self._copying, self._waiting = self._waiting, None
            assert self._copying is not None  # noqa: S101 - waited for
            self._copy(self._copying)
            with self._changed:
                self._copying = None
                self._changed.notify_all()

    def _copy(self, folder: Path) -> None:
        told = False
        while not self._waiting:
            try:
                self._publish(folder)
            except PreemptedUnsaved:
                self.superseded = True
                return
            except (TrainwrightError, OSError) as error:
                if not told:
                    _log.warning("checkpoint %s waits for its store: %s", folder.name, error)
                told = True
                time.sleep(_AGAIN_S)
                continue
            self._tidy()
            return

    def _publish(self, folder: Path) -> None:
        """Copy the files of a checkpoint, and its manifest last. What an earlier try left there is ours."""
        if not self._claimed and not self.claim(self._number, self._attempt):
            raise PreemptedUnsaved(f"the store {self._place} has a newer start of this training")
        manifest = read_manifest(folder)

        def one(entry: SavedFile) -> None:
            self._put(folder / entry.path, self._uri(manifest.name, entry.path))

        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            list(pool.map(one, manifest.files))
        self.fence.require(self._number)
        self._put(folder / Manifest.FILE, self._uri(manifest.name, Manifest.FILE))

    def _put(self, path: Path, uri: str) -> None:
        try:
            storage.publish(path, uri, self._access)
        except AlreadyExists:
            # Nobody else writes under the number of this start.
            if storage.head(uri, access=self._access).size != path.stat().st_size:
                raise

    def _tidy(self) -> None:
        """Remove the copies beyond the newest; whoever may write to a store may not remove from it always."""
        try:
            self._remove_old()
        except (TrainwrightError, OSError) as error:
            _log.warning("old copies in the store could not be removed: %s", error)

    def _remove_old(self) -> None:
        """Remove the copies beyond the newest, but for those that somebody asked to keep."""
        files = [file.uri.rsplit("/", 2) for file in storage.list_files(self._place, access=self._access)]
        kept = {folder for _, folder, file in files if file.startswith(_PIN)}
        for name in self.names()[self._keep :]:
            if str(name) not in kept:
                entries = self._manifest(name).files
                storage.remove([self._uri(name, Manifest.FILE)], self._access)
                storage.remove([self._uri(name, entry.path) for entry in entries], self._access)
                if folder := storage.local_path(storage.join(self._place, str(name))):
                    folder.rmdir()

    def _manifest(self, name: Name) -> Manifest:
        uri = self._uri(name, Manifest.FILE)
        try:
            return Manifest.from_json(json.loads(storage.read_bytes(uri, access=self._access)), where=uri)
        except ValueError as error:
            raise InputError(f"the manifest is not JSON: {error}", where=uri) from None

    def _uri(self, name: Name, file: str) -> str:
        return storage.join(self._place, str(name), file)

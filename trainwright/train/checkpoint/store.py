"""The checkpoint store of a training: its job directory, and copies in a bucket if one is configured."""

import json
import logging
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainwright import storage
from trainwright.documents import canonical
from trainwright.errors import DependencyError, InputError, PreemptedUnsaved, TrainwrightError
from trainwright.experiment.training import Checkpointing
from trainwright.storage import Access, AlreadyExists
from trainwright.train.checkpoint.manifest import (
    CheckpointFile,
    CheckpointName,
    Manifest,
    committed,
    read_manifest,
    uncommitted,
)
from trainwright.train.checkpoint.retention import Retention

_PARALLEL_TRANSFERS = 4
_RETRY_S = 5.0
_PIN = "pinned-by-"
_log = logging.getLogger("trainwright.train")


class StartTokens:
    """Fencing tokens of a training: each start takes the next number, and the highest may write.

    A token is a create-only file ``starts/NNNN.json``, so no two starts get the same one, on any machine or
    store. A start checks before every commit that no higher token exists, and ends if one does. Unlike
    :mod:`trainwright.storage.lease` it waits for nobody: a new start replaces a live one at once.

    Args:
        place: Path or URI of the folder of checkpoints.
        access: Retry limits for calls to a store.
    """

    def __init__(self, place: str, access: Access) -> None:
        self._place, self._access = storage.join(place, "starts"), access

    def newest(self) -> int:
        """Return the highest token taken so far, 0 if none."""
        path = storage.local_path(self._place)
        if path is not None:
            names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
        else:
            try:
                found = storage.list_files(self._place, access=self._access)
            except InputError:
                return 0
            names = [file.uri.rsplit("/", 1)[-1] for file in found]
        return max((int(Path(name).stem) for name in names if Path(name).stem.isdigit()), default=0)

    def take(self, token: int, attempt: str) -> bool:
        """Take a token; return False if another start has it."""
        uri = storage.join(self._place, f"{token:04}.json")
        try:
            storage.create(uri, canonical({"attempt": attempt}).encode(), self._access)
        except AlreadyExists:
            return False
        return True

    def require(self, token: int) -> None:
        """Check that no higher token was taken.

        Raises:
            PreemptedUnsaved: A newer start continues the training.
        """
        if self.newest() > token:
            raise superseded(token, self._place)


def superseded(token: int, where: str) -> PreemptedUnsaved:
    """Return the error that a replaced start ends with."""
    return PreemptedUnsaved(
        f"start {token} of this training was replaced by a newer one, which continues it",
        where=where,
        hint="Nothing to do: two starts that write at once would mix their checkpoints.",
    )


class CheckpointStore:
    """The checkpoints of a training on disk and in the remote store. Only rank 0 has one.

    Args:
        job_directory: Folder that all attempts at the training share.
        attempt: The attempt that this process belongs to.
        settings: Retention, and the remote store.
    """

    def __init__(self, job_directory: Path, attempt: str, settings: Checkpointing) -> None:
        self.folder, self._attempt, self._settings = job_directory / "checkpoints", attempt, settings
        self._job_directory = job_directory
        self._tokens = StartTokens(str(self.folder), Access())
        # A job directory is named after a digest of its configuration: its copies are found from anywhere.
        key = job_directory.name.rpartition("-")[2]
        self._copies = (
            RemoteCopies(storage.join(settings.store, key), settings.keep) if settings.store else None
        )
        self._retention = Retention(self.folder, settings.keep, keep_best=settings.keep_best)
        self.token = 0

    def open(self) -> int:
        """Take the next fencing token, and return it.

        Raises:
            PreemptedUnsaved: A newer attempt has started.
            DependencyError: There is no local checkpoint, and the remote store, which may have one, does not
                answer.
        """
        if newer := self._newer_attempt():
            raise PreemptedUnsaved(
                f"attempt {self._attempt} of this training was replaced by attempt {newer}",
                where=str(self._job_directory),
            )
        local = [name.start for name in committed(self.folder) + uncommitted(self.folder)]
        while True:
            self.token = max([self._tokens.newest(), self._newest_remote(), *local]) + 1
            if self._tokens.take(self.token, self._attempt):
                break
        if self._copies:
            try:
                self._copies.claim(self.token, self._attempt)
            except (TrainwrightError, OSError) as error:
                _log.warning("the store does not answer; training continues without it: %s", error)
        return self.token

    def candidates(self) -> list[tuple[CheckpointName, bool]]:
        """List checkpoints to resume from, newest first, each with whether it is remote."""
        found = [(name, False) for name in committed(self.folder)]
        if self._copies:
            try:
                found += [(name, True) for name in self._copies.names()]
            except (TrainwrightError, OSError) as error:
                _log.warning("the checkpoints of the store cannot be listed: %s", error)
        return sorted(found, key=lambda entry: (entry[0], not entry[1]), reverse=True)

    def fetch(self, name: CheckpointName, *, remote: bool) -> Manifest:
        """Return the manifest of a checkpoint, once its files are on disk.

        Raises:
            InputError: It cannot be read.
            PermissionRefused: It leads outside its folder.
        """
        folder = self.folder / str(name)
        if remote and self._copies:
            fresh = self.folder / f"{name}.fetched"
            shutil.rmtree(fresh, ignore_errors=True)
            self._copies.fetch(name, fresh)
            if folder.exists():
                folder.rename(self.folder / f"{name}.damaged-{self.token:04}")
            fresh.rename(folder)
        manifest = read_manifest(folder)
        if manifest.name != name:
            raise InputError(f"the manifest is that of {manifest.name}", where=str(folder))
        return manifest

    def mark_verified(self, name: CheckpointName) -> None:
        """Record that the digests of a checkpoint hold."""
        self._retention.mark_verified(name)

    def superseded(self) -> bool:
        """Return whether a newer start exists."""
        return self._tokens.newest() > self.token or bool(self._copies and self._copies.superseded)

    def commit(self, manifest: Manifest) -> None:
        """Publish a checkpoint whose files are on disk, by writing its manifest.

        Raises:
            PreemptedUnsaved: A newer start exists.
        """
        if self.superseded():
            raise superseded(self.token, str(self.folder))
        text = canonical(manifest.to_json()) + "\n"
        storage.create(str(self.folder / str(manifest.name) / Manifest.FILE), text.encode())
        self.mark_verified(manifest.name)

    def after_commit(self, name: CheckpointName) -> None:
        """Queue a committed checkpoint for copying, and apply the retention policy."""
        if self._copies:
            self._copies.offer(self.folder / str(name))
        try:
            self._retention.apply(self.token, self._copies.in_use if self._copies else [])
        except (OSError, TrainwrightError) as error:
            _log.warning("old checkpoints could not be removed: %s", error)

    def discard(self, name: CheckpointName) -> None:
        """Remove what a failed save left: the next one may need its space."""
        shutil.rmtree(self.folder / str(name), ignore_errors=True)

    def finish(self) -> None:
        """Wait for pending copies, within the configured limit."""
        if self._copies:
            self._copies.finish(self._settings.wait_s)

    def require_space(self, needed: int) -> None:
        """Check that a checkpoint of so many bytes fits on the disk.

        Raises:
            DependencyError: It does not.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        free, wanted = shutil.disk_usage(self.folder).free, needed * (self._settings.keep + 1)
        space = free
        for name in committed(self.folder):
            try:
                space += read_manifest(self.folder / str(name)).size
            except TrainwrightError:
                continue
        if needed > space:
            raise DependencyError(
                f"a checkpoint takes about {_mib(needed)}, and there are {_mib(free)} free",
                where=str(self.folder),
                hint="Free space on that disk, or raise its quota, and run the step again.",
            )
        if wanted > space:
            _log.warning(
                "%d checkpoints and a new one take about %s; there are %s in %s",
                *(self._settings.keep, _mib(wanted), _mib(space), self.folder),
            )

    def _newer_attempt(self) -> str:
        """Return a newer attempt whose processes have started, empty if there is none.

        An attempt's folder alone proves nothing: a launcher may have adopted an older attempt.
        """
        for path in sorted((self.folder / "starts").glob("*.json"), reverse=True):
            try:
                attempt = str(json.loads(path.read_text()).get("attempt", ""))
            except (OSError, ValueError, AttributeError):
                continue
            if attempt.isdigit() and self._attempt.isdigit() and int(attempt) > int(self._attempt):
                return attempt
        return ""

    def _newest_remote(self) -> int:
        if not self._copies:
            return 0
        try:
            names = self._copies.names()
            return max([self._copies.tokens.newest(), *(name.start for name in names)])
        except (TrainwrightError, OSError) as error:
            if not committed(self.folder):
                raise DependencyError(
                    f"the store, which may hold a checkpoint to resume from, does not answer: {error}",
                    where="training.checkpoints.store",
                    hint="Run the step again when the store answers.",
                ) from None
            return 0


class RemoteCopies:
    """Copies of committed checkpoints in another place, such as a bucket: in the background, one at a time.

    Args:
        place: Path or URI of their folder.
        keep: Newest copies that stay.
        retry_s: Seconds for which one call to the store is retried.
    """

    def __init__(self, place: str, keep: int, retry_s: float = 30.0) -> None:
        self._place, self._keep, self._access = place, keep, Access(retry_s=retry_s)
        self.tokens = StartTokens(place, self._access)
        self._token, self._attempt, self._claimed = 0, "", False
        self._changed = threading.Condition()
        self._waiting: Path | None = None
        self._copying: Path | None = None
        self.superseded = False
        self._thread = threading.Thread(target=self._work, name="copies", daemon=True)

    @property
    def in_use(self) -> list[CheckpointName]:
        """The checkpoint that is being copied."""
        copying = self._copying
        name = CheckpointName.parse(copying.name) if copying else None
        return [name] if name else []

    def names(self) -> list[CheckpointName]:
        """List the copies, newest first."""
        folders = [uri.rsplit("/", 2)[-2] for uri in storage.find(self._place, Manifest.FILE, self._access)]
        return sorted((name for folder in folders if (name := CheckpointName.parse(folder))), reverse=True)

    def claim(self, token: int, attempt: str) -> bool:
        """Take the token of a start here too; return False if it was taken."""
        self._token, self._attempt = token, attempt
        self._claimed = self.tokens.newest() < token and self.tokens.take(token, attempt)
        return self._claimed

    def fetch(self, name: CheckpointName, folder: Path) -> None:
        """Copy a checkpoint back into a folder, its manifest last.

        Raises:
            TrainwrightError: It cannot be read.
        """
        manifest = self._manifest(name)

        def fetch_file(entry: CheckpointFile) -> None:
            found = storage.head(self._uri(name, entry.path), access=self._access)
            storage.fetch(found, folder / entry.path, self._access)

        with ThreadPoolExecutor(_PARALLEL_TRANSFERS) as pool:
            list(pool.map(fetch_file, manifest.files))
        storage.create(str(folder / Manifest.FILE), canonical(manifest.to_json()).encode())

    def offer(self, folder: Path) -> None:
        """Copy a committed checkpoint next, in place of one that still waits."""
        if self.superseded:
            return
        with self._changed:
            if self._waiting:
                _log.warning(
                    "checkpoint %s is not copied: the store is slower than the saves", self._waiting.name
                )
            self._waiting = folder
            self._changed.notify_all()
        if self._thread.ident is None:
            self._thread.start()

    def finish(self, wait_s: float) -> None:
        """Wait for pending copies, at most ``wait_s`` seconds."""
        with self._changed:
            done = self._changed.wait_for(lambda: not self._waiting and not self._copying, wait_s)
        if not done:
            _log.warning("the last checkpoint was not copied to %s within %g s", self._place, wait_s)

    def _work(self) -> None:
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
        """Copy a checkpoint; retry until that succeeds or a newer one is offered."""
        logged = False
        while not self._waiting:
            try:
                self._publish(folder)
            except PreemptedUnsaved:
                self.superseded = True
                return
            except (TrainwrightError, OSError) as error:
                if not logged:
                    _log.warning("checkpoint %s waits for its store: %s", folder.name, error)
                logged = True
                time.sleep(_RETRY_S)
                continue
            try:
                self._remove_old()
            except (TrainwrightError, OSError) as error:  # whoever may write to a store may not always delete
                _log.warning("old copies in the store could not be removed: %s", error)
            return

    def _publish(self, folder: Path) -> None:
        if not self._claimed and not self.claim(self._token, self._attempt):
            raise PreemptedUnsaved(f"the store {self._place} has a newer start of this training")
        manifest = read_manifest(folder)

        def publish_file(entry: CheckpointFile) -> None:
            self._put(folder / entry.path, self._uri(manifest.name, entry.path))

        with ThreadPoolExecutor(_PARALLEL_TRANSFERS) as pool:
            list(pool.map(publish_file, manifest.files))
        self.tokens.require(self._token)
        self._put(folder / Manifest.FILE, self._uri(manifest.name, Manifest.FILE))

    def _put(self, path: Path, uri: str) -> None:
        try:
            storage.publish(path, uri, self._access)
        except AlreadyExists:
            # An earlier try of this start left it: nobody else writes under its token.
            if storage.head(uri, access=self._access).size != path.stat().st_size:
                raise

    def _remove_old(self) -> None:
        files = [file.uri.rsplit("/", 2) for file in storage.list_files(self._place, access=self._access)]
        pinned = {folder for _, folder, file in files if file.startswith(_PIN)}
        for name in self.names()[self._keep :]:
            if str(name) not in pinned:
                entries = self._manifest(name).files
                storage.remove([self._uri(name, Manifest.FILE)], self._access)
                storage.remove([self._uri(name, entry.path) for entry in entries], self._access)
                if folder := storage.local_path(storage.join(self._place, str(name))):
                    folder.rmdir()

    def _manifest(self, name: CheckpointName) -> Manifest:
        uri = self._uri(name, Manifest.FILE)
        try:
            return Manifest.from_json(json.loads(storage.read_bytes(uri, access=self._access)), where=uri)
        except ValueError as error:
            raise InputError(f"the manifest is not JSON: {error}", where=uri) from None

    def _uri(self, name: CheckpointName, file: str) -> str:
        return storage.join(self._place, str(name), file)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"

"""The checkpoint store of a training: its job directory, and copies in a bucket if one is configured."""

import logging
import shutil
import time
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from trainwright import storage
from trainwright.documents import canonical, read_json
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
from trainwright.train.checkpoint.tensor_files import damage

_PIN = "pinned-by-"
"""First letters of the name of a file that keeps its checkpoint."""

_PARALLEL_TRANSFERS = 4
_RETRY_S = 5.0
_log = logging.getLogger("trainwright.train")


class StartTokens:
    """Fencing tokens of a training: each start takes the next number, and the highest may write.

    A token is a create-only file ``starts/NNNN.json``, so no two starts get the same one, on any machine or
    store. A start checks before every commit that no higher token exists, and ends if one does. Unlike
    :mod:`trainwright.storage.lease` it waits for nobody: a new start replaces a live one at once.
    """

    def __init__(self, place: str, access: Access) -> None:
        self._place, self._access = storage.join(place, "starts"), access

    def newest(self) -> int:
        """Return the highest token taken so far, 0 if none."""
        try:
            names = [Path(file.uri).stem for file in storage.list_files(self._place, access=self._access)]
        except InputError:
            return 0
        return max((int(name) for name in names if name.isdigit()), default=0)

    def take(self, token: int, attempt: str) -> bool:
        """Take a token; return False if another start has it."""
        uri = storage.join(self._place, f"{token:04}.json")
        try:
            storage.create(uri, canonical({"attempt": attempt}).encode(), self._access)
        except AlreadyExists:
            return False
        return True


def superseded(token: int, where: str) -> PreemptedUnsaved:
    """Return the error that a replaced start ends with."""
    return PreemptedUnsaved(
        f"start {token} of this training was replaced by a newer one, which continues it",
        where=where,
        hint="Nothing to do: two starts that write at once would mix their checkpoints.",
    )


class CheckpointStore:
    """The checkpoints of a training on disk and in the remote store. Only rank 0 has one."""

    def __init__(self, job_directory: Path, attempt: str, settings: Checkpointing) -> None:
        self.folder, self._attempt, self._settings = job_directory / "checkpoints", attempt, settings
        self._tokens = StartTokens(str(self.folder), Access())
        # A job directory is named after a digest of its configuration: its copies are found from anywhere.
        key = job_directory.name.rpartition("-")[2]
        self._copies = (
            RemoteCopies(storage.join(settings.store, key), settings.keep) if settings.store else None
        )
        self._retention = Retention(self.folder, settings.keep, keep_best=settings.keep_best)
        self.mark_verified = self._retention.mark_verified
        self.token = 0

    def open(self) -> int:
        """Take the next fencing token, and return it."""
        # An attempt's folder alone proves nothing: a launcher may have adopted an older attempt.
        for path in (self.folder / "starts").glob("*.json"):
            try:
                attempt = str(read_json(path).get("attempt", ""))
            except (OSError, ValueError, AttributeError):
                continue
            if attempt.isdigit() and self._attempt.isdigit() and int(attempt) > int(self._attempt):
                raise PreemptedUnsaved(
                    f"attempt {self._attempt} of this training was replaced by attempt {attempt}",
                    where=str(self.folder.parent),
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
        """Return the manifest of a checkpoint, once its files are on disk."""
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

    def superseded(self) -> bool:
        """Return whether a newer start exists."""
        return self._tokens.newest() > self.token or bool(self._copies and self._copies.superseded)

    def commit(self, manifest: Manifest) -> None:
        """Publish a checkpoint whose files are on disk, by writing its manifest."""
        if self.superseded():
            raise superseded(self.token, str(self.folder))
        text = canonical(manifest.to_json()) + "\n"
        storage.create(str(self.folder / str(manifest.name) / Manifest.FILE), text.encode())
        self.mark_verified(manifest.name)

    def after_commit(self, name: CheckpointName) -> None:
        """Queue a committed checkpoint for copying, and apply the retention policy."""
        if self._copies:
            self._copies.offer(name, self.folder)
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
        """Check that a checkpoint of so many bytes fits on the disk, in place of all earlier ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        used = sum(path.stat().st_size for path in self.folder.glob("step-*/*"))
        if needed > free + used:
            raise DependencyError(
                f"a checkpoint takes about {needed / 2**20:,.1f} MiB, and there are {free / 2**20:,.1f} MiB "
                "free",
                where=str(self.folder),
                hint="Free space on that disk, or raise its quota, and run the step again.",
            )

    def _newest_remote(self) -> int:
        if not self._copies:
            return 0
        try:
            return max([self._copies.tokens.newest(), *(name.start for name in self._copies.names())])
        except (TrainwrightError, OSError) as error:
            if not committed(self.folder):
                raise DependencyError(
                    f"the store, which may hold a checkpoint to resume from, does not answer: {error}",
                    where="training.checkpoints.store",
                    hint="Run the step again when the store answers.",
                ) from None
            return 0


class Retention:
    """The retention policy of a folder of checkpoints, each of which it verifies once."""

    def __init__(self, folder: Path, keep: int, *, keep_best: bool) -> None:
        self._folder, self._keep, self._keep_best = folder, keep, keep_best
        self._verified: dict[CheckpointName, bool] = {}

    def mark_verified(self, name: CheckpointName) -> None:
        """Record that the digests of a checkpoint hold."""
        self._verified[name] = True

    def apply(self, start: int, in_use: Collection[CheckpointName]) -> None:
        """Remove what is not to stay; failures are logged and retried the next time."""
        for name in uncommitted(self._folder):
            if name.start < start:
                self._remove(name)
        names, newest = committed(self._folder), list[CheckpointName]()
        for name in names:
            if len(newest) < self._keep and self._verifies(name):
                newest.append(name)
        if len(newest) < self._keep:
            return
        stay = {*newest, *in_use}
        if self._keep_best and (best := self._best(names)):
            stay.add(best)
        for name in names:
            pinned = any((self._folder / str(name)).glob(f"{_PIN}*.json"))
            if name < newest[-1] and name not in stay and not pinned:
                self._remove(name)

    def _verifies(self, name: CheckpointName) -> bool:
        if name not in self._verified:
            folder = self._folder / str(name)
            try:
                wrong = damage(folder, read_manifest(folder).files)
                self._verified[name] = not wrong
            except (OSError, TrainwrightError) as error:
                wrong = str(error)  # may be transient: verified again the next time
            if wrong:
                _log.warning("checkpoint %s does not count: %s", name, wrong)
        return self._verified.get(name, False)

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


class RemoteCopies:
    """Copies of committed checkpoints elsewhere, such as in a bucket: in the background, one at a time."""

    def __init__(self, place: str, keep: int, retry_s: float = 30.0) -> None:
        self._place, self._keep, self._access = place, keep, Access(retry_s=retry_s)
        self.tokens = StartTokens(place, self._access)
        self.superseded = False
        self._token, self._attempt, self._claimed = 0, "", False
        self._thread = ThreadPoolExecutor(1, "copies")
        self._offered: CheckpointName | None = None
        self._pending: dict[CheckpointName, Future[None]] = {}

    @property
    def in_use(self) -> list[CheckpointName]:
        """The checkpoints that are being copied or wait for it."""
        return [name for name, copying in list(self._pending.items()) if not copying.done()]

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
        """Copy a checkpoint back into a folder, its manifest last."""
        manifest = self._manifest(name)

        def fetch_file(entry: CheckpointFile) -> None:
            found = storage.head(self._uri(name, entry.path), access=self._access)
            storage.fetch(found, folder / entry.path, self._access)

        with ThreadPoolExecutor(_PARALLEL_TRANSFERS) as pool:
            list(pool.map(fetch_file, manifest.files))
        storage.create(str(folder / Manifest.FILE), canonical(manifest.to_json()).encode())

    def offer(self, name: CheckpointName, folder: Path) -> None:
        """Copy a committed checkpoint next, in place of one that still waits."""
        if self.superseded:
            return
        for waiting, copying in list(self._pending.items()):
            if copying.cancel():
                _log.warning("checkpoint %s is not copied: the store is slower than the saves", waiting)
            if copying.done():
                del self._pending[waiting]
        self._offered = name
        self._pending[name] = self._thread.submit(self._copy, name, folder / str(name))

    def finish(self, wait_s: float) -> None:
        """Wait for pending copies, at most ``wait_s`` seconds."""
        if wait(self._pending.values(), wait_s).not_done:
            _log.warning("the last checkpoint was not copied to %s within %g s", self._place, wait_s)
            self._offered = None

    def _copy(self, name: CheckpointName, folder: Path) -> None:
        """Copy a checkpoint; retry until that succeeds or a newer one is offered."""
        logged = False
        while self._offered == name and not self.superseded:
            try:
                self._publish(folder)
            except PreemptedUnsaved:
                self.superseded = True
            except (TrainwrightError, OSError) as error:
                if not logged:
                    _log.warning("checkpoint %s waits for its store: %s", name, error)
                logged = True
                time.sleep(_RETRY_S)
            else:
                break
        else:
            return
        try:
            self._remove_old()
        except (TrainwrightError, OSError) as error:  # whoever may write to a store may not always delete
            _log.warning("old copies in the store could not be removed: %s", error)

    def _publish(self, folder: Path) -> None:
        if not self._claimed and not self.claim(self._token, self._attempt):
            raise PreemptedUnsaved(f"the store {self._place} has a newer start of this training")
        manifest = read_manifest(folder)

        def publish_file(file: str) -> None:
            path, uri = folder / file, self._uri(manifest.name, file)
            try:
                storage.publish(path, uri, self._access)
            except AlreadyExists:
                # An earlier try of this start left it: nobody else writes under its token.
                if storage.head(uri, access=self._access).size != path.stat().st_size:
                    raise

        with ThreadPoolExecutor(_PARALLEL_TRANSFERS) as pool:
            list(pool.map(publish_file, [entry.path for entry in manifest.files]))
        if self.tokens.newest() > self._token:
            raise superseded(self._token, self._place)
        publish_file(Manifest.FILE)

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
        return Manifest.parse(storage.read_bytes(uri, access=self._access), where=uri)

    def _uri(self, name: CheckpointName, file: str) -> str:
        return storage.join(self._place, str(name), file)

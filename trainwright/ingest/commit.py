"""Output locations of an attempt, and its atomic commit: files under fresh names first, the manifest last.

A step's own folder belongs to one process at a time. A store is shared: every attempt at the same request
writes below one folder, named by the digest of the request, so a restart finds what an earlier attempt
committed, and two attempts at once end with one manifest.
"""

import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright import storage
from trainwright.artifacts import Listing, Snapshot, SnapshotFile, SourceFile
from trainwright.documents import canonical, digest_file
from trainwright.errors import InputError, TransientError
from trainwright.ingest.reports import ShardReport
from trainwright.storage import Access, AlreadyExists
from trainwright.storage.local import file_lock, naming_path
from trainwright.tables import FileWriter

_THREADS = 16


@dataclass(frozen=True, kw_only=True)
class OutputLocations:
    """The folders of one attempt, as paths or URIs.

    Attributes:
        files: Data files go below it; no other attempt writes there.
        named: How the manifest names that folder: relative to itself, or the same.
        reports: Reports of shards go there; other attempts at the same request share it.
        shared: Whether several processes may make the same shard, so that each needs names of its own.
    """

    files: str
    named: str
    spills: str
    reports: str
    shared: bool


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Create a step's folder, and be the only process that writes there until the block ends.

    Raises:
        TransientError: Another process is writing there.
    """
    with naming_path(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with file_lock(folder / ".ingest.lock") as acquired:
            if not acquired:
                raise TransientError(
                    "another ingest is writing into this folder",
                    where=str(folder),
                    hint="Name another folder, or run it again when the other has ended.",
                )
            yield
    finally:
        with suppress(OSError):  # what has a snapshot, or what another ingest writes into, is not empty
            folder.rmdir()


@contextmanager
def scratch_for(uri: str) -> Iterator[Path]:
    """Make a folder for files on their way to or from a store; a place on a disk needs none."""
    if storage.local_path(uri) is not None:
        yield Path()
        return
    with tempfile.TemporaryDirectory(prefix="trainwright-ingest-") as folder:
        yield Path(folder)


class ShardOutput:
    """The files of one attempt at one shard: written, sent to their location, and removed if it fails."""

    def __init__(
        self, place: OutputLocations, shard: int, scratch: Path, access: Access, rows_per_file: int
    ) -> None:
        self._place, self._scratch, self._access = place, scratch, access
        self._rows_per_file = rows_per_file
        self._stem = f"{shard:05d}" + (f"-{secrets.token_hex(4)}" if place.shared else "")
        self._uris: list[str] = []
        self._open: dict[str, FileWriter] = {}
        self._files: list[SnapshotFile] = []
        self.spill = self._path(place.spills, f"{self._stem}.fingerprints")
        """A fresh path to write the spill to."""

    def append(self, split: str, rows: pa.Table) -> None:
        """Add rows to a split; the batch that brings a file to ``rows_per_file`` is its last."""
        if split in self._open and self._open[split].rows >= self._rows_per_file:
            self._end(split)
        if split not in self._open:
            self._open[split] = FileWriter(self._path(self._place.files, self._next_name(split)))
        self._open[split].append(rows)

    def finish(self) -> tuple[SnapshotFile, ...]:
        """End every file, send it to its location, and return the entries of the manifest."""
        for split in tuple(self._open):
            self._end(split)
        return tuple(self._files)

    def send_spill(self) -> SourceFile:
        """Send the finished spill to its location."""
        size, checksum = self.spill.stat().st_size, f"sha256:{digest_file(self.spill)}"
        uri, version = self._send(self._place.spills, self.spill.name, self.spill)
        return SourceFile(uri=uri, size=size, checksum=checksum, version=version)

    def withdraw(self) -> None:
        """Close what was not finished, and remove everything."""
        for writer in self._open.values():
            writer.abandon()
        storage.remove(self._uris, self._access)

    def _end(self, split: str) -> None:
        name, written = self._next_name(split), self._open[split].finish()
        del self._open[split]
        _, version = self._send(self._place.files, name, written.path)
        self._files.append(
            SnapshotFile(
                uri=storage.join(self._place.named, name),
                size=written.size,
                checksum=written.checksum,
                rows=written.rows,
                split=split,
                version=version,
            )
        )

    def _next_name(self, split: str) -> str:
        piece = sum(entry.split == split for entry in self._files)
        return f"{split}/part-{self._stem}{f'.{piece}' if piece else ''}.parquet"

    def _path(self, root: str, name: str) -> Path:
        uri = storage.join(root, name)
        self._uris.append(uri)
        path = storage.local_path(uri) or self._scratch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _send(self, root: str, name: str, path: Path) -> tuple[str, str]:
        """Publish a file of the scratch folder; one on a disk is in place. Return its URI and version."""
        uri = storage.join(root, name)
        if storage.local_path(uri) is not None:
            return uri, ""
        sent = storage.publish(path, uri, self._access)
        path.unlink()
        return uri, sent.version


class FolderCommit:
    """The step's own folder: files below ``data``, named relative to the manifest beside it.

    A snapshot that lies there already stays whole until the new manifest replaces its manifest; the new
    files go to ``data-2`` then, or the next name that is free.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._attempt = folder / ".attempt"
        shutil.rmtree(self._attempt, ignore_errors=True)
        for unfinished in folder.glob(".*.json.*"):
            unfinished.unlink()
        names = ["data", *(f"data-{number}" for number in range(2, 2 + len(self._data_folders())))]
        self._name = next(name for name in names if not (folder / name).exists())
        self.place = OutputLocations(
            files=str(folder / self._name),
            named=self._name,
            spills=str(self._attempt / "spills"),
            reports=str(self._attempt / "reports"),
            shared=False,
        )

    def committed(self) -> None:
        """Return None: every run of the step makes its own snapshot."""

    def valid_reports(self) -> dict[int, ShardReport]:
        """Return no shard: what an earlier process left was removed."""
        return {}

    def publish(self, snapshot: Snapshot) -> Snapshot:
        """Replace the manifest, in one step."""
        self._folder.mkdir(parents=True, exist_ok=True)
        snapshot.write(self._folder)
        return snapshot

    def clean_up(self) -> None:
        """Remove the files of earlier snapshots, and the attempt's temporary files."""
        for path in self._data_folders():
            if path.name != self._name:
                shutil.rmtree(path)
        shutil.rmtree(self._attempt, ignore_errors=True)

    def abandon(self, *, final: bool) -> None:  # noqa: ARG002 - nobody else can use what lies here
        """Remove everything that this attempt wrote."""
        shutil.rmtree(self._folder / self._name, ignore_errors=True)
        shutil.rmtree(self._attempt, ignore_errors=True)

    def _data_folders(self) -> list[Path]:
        return [path for path in self._folder.glob("data*") if path.is_dir()]


class StoreCommit:
    """A folder of a store that all attempts at one request share.

    ::

        <store>/<request>/manifest.json                     the commit, create-only
        <store>/<request>/shards/00012.json                 the report of shard 12, create-only
        <store>/<request>/attempt-5f0c…/train/part-….parquet

    All attempts build the manifest from the same reports, so it is the same whoever writes it.
    """

    def __init__(self, store: str, request: str, listing: Listing, access: Access) -> None:
        self._access = access
        self._listed = set(map(_identity, listing.files))
        path = storage.local_path(store)
        self._root = storage.join(str(path) if path else store, request)
        self._manifest = storage.join(self._root, Snapshot.FILE)
        self._attempt = storage.join(self._root, f"attempt-{secrets.token_hex(8)}")
        self.place = OutputLocations(
            files=self._attempt,
            named=self._attempt,
            spills=storage.join(self._attempt, "spills"),
            reports=storage.join(self._root, "shards"),
            shared=True,
        )

    def committed(self) -> tuple[Snapshot, list[ShardReport]] | None:
        """Return the committed snapshot with its shards in order, if an earlier attempt left it whole.

        The commit of a snapshot whose files are gone or changed is removed.
        """
        snapshot = self._read_manifest()
        if snapshot is None:
            return None
        there = self._objects()
        # Files of the source, which a manifest in reference mode names, were listed a moment ago.
        if all(_is_there(*file, there) for file in set(map(_identity, snapshot.files)) - self._listed):
            reports = (ShardReport.parse(content, uri) for uri, content in self._reports(there))
            return snapshot, sorted(reports, key=lambda report: report.shard)
        storage.remove([self._manifest], self._access)
        return None

    def valid_reports(self) -> dict[int, ShardReport]:
        """Return the reports whose files are as they say, by shard; remove the others."""
        there = self._objects()
        found, broken = {}, []

        def whole(uri: str, content: bytes) -> ShardReport | None:
            try:
                report = ShardReport.parse(content, uri)
            except (InputError, ValueError):
                return None
            files: list[SnapshotFile | SourceFile] = [*report.files, report.spill]
            return report if all(_is_there(*_identity(file), there) for file in files) else None

        contents = self._reports(there)
        with ThreadPoolExecutor(_THREADS) as threads:
            for (uri, _), report in zip(
                contents, threads.map(lambda one: whole(*one), contents), strict=True
            ):
                if report is None:
                    broken.append(uri)
                else:
                    found[report.shard] = report
        self._remove(broken)
        return found

    def publish(self, snapshot: Snapshot) -> Snapshot:
        """Create the manifest, and return the one that is committed: another attempt may have been first."""
        try:
            storage.create(self._manifest, canonical(snapshot.to_json()).encode(), self._access)
        except AlreadyExists:
            return self._read_manifest() or snapshot
        return snapshot

    def clean_up(self) -> None:
        """Remove the files that no manifest names: of this attempt, and of those that were killed.

        All reports exist by now, so a concurrent attempt can commit no file of its own any more, and loses
        nothing.
        """
        snapshot = self._read_manifest()
        if snapshot is not None:
            named = {entry.uri for entry in snapshot.files}
            attempts = storage.join(self._root, "attempt-")
            self._remove(uri for uri in self._objects() if uri.startswith(attempts) and uri not in named)

    def abandon(self, *, final: bool) -> None:
        """Remove this attempt's files and the reports that name them, unless a later attempt can use them."""
        if final:
            there = self._objects()
            own = [uri for uri in there if uri.startswith(f"{self._attempt}/")]
            reports = [uri for uri, text in self._reports(there) if self._attempt.encode() in text]
            self._remove([*reports, *own])

    def _reports(self, there: Iterable[str]) -> list[tuple[str, bytes]]:
        def read(uri: str) -> bytes:
            try:
                return storage.read_bytes(uri, access=self._access)
            except InputError:  # a concurrent attempt removed it
                return b""

        uris = [uri for uri in there if uri.startswith(f"{self.place.reports}/")]
        with ThreadPoolExecutor(_THREADS) as threads:
            found = zip(uris, threads.map(read, uris), strict=True)
            return [(uri, content) for uri, content in found if content]

    def _read_manifest(self) -> Snapshot | None:
        try:
            content = storage.read_bytes(self._manifest, access=self._access)
        except InputError:
            return None
        return Snapshot.parse(content, self._manifest)

    def _objects(self) -> dict[str, SourceFile]:
        """List everything below the request's folder, by URI; nothing if nobody wrote there yet."""
        try:
            return {entry.uri: entry for entry in storage.list_files(self._root, access=self._access)}
        except InputError:
            return {}

    def _remove(self, uris: Iterable[str]) -> None:
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(lambda uri: storage.remove([uri], self._access), uris))


def _identity(file: SnapshotFile | SourceFile) -> tuple[str, int, str, str]:
    return file.uri, file.size, file.checksum, file.version


def _is_there(uri: str, size: int, checksum: str, version: str, there: dict[str, SourceFile]) -> bool:
    """Return whether a file is as it was written: a store says so by its version, a disk by reading it."""
    entry = there.get(uri)
    if entry is None or entry.size != size:
        return False
    path = storage.local_path(uri)
    return entry.version == version if path is None else f"sha256:{digest_file(path)}" == checksum

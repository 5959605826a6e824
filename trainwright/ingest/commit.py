"""Output locations of an attempt, and its atomic commit: files under fresh names first, the manifest last.

A step's own folder belongs to one process at a time. A store is shared: every attempt at the same request
writes below one folder, named by the digest of the request, so a restart finds what an earlier attempt
committed, and two attempts at once end with one manifest.
"""

import secrets
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainwright import storage
from trainwright.artifacts import Listing, Snapshot, SnapshotFile, SourceFile
from trainwright.documents import canonical, digest_file
from trainwright.errors import InputError
from trainwright.ingest.reports import ShardReport, unpacked
from trainwright.ingest.request import IngestRequest
from trainwright.storage import Access, AlreadyExists
from trainwright.tables import WrittenFile


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

    def report(self, shard: int) -> str:
        """Return where the report of a shard lies."""
        return storage.join(self.reports, f"{shard:05d}.json")


@contextmanager
def scratch_for(uri: str) -> Iterator[Path]:
    """Have a folder for what goes to a store, or comes from one; for a place on a disk there is no need."""
    if storage.local_path(uri) is not None:
        yield Path()
        return
    with tempfile.TemporaryDirectory(prefix="trainwright-ingest-") as folder:
        yield Path(folder)


class Outbox:
    """Takes the files of one try at one shard to their place, and back if they are not wanted.

    Args:
        scratch: A folder of this process, for what goes into a store.
    """

    def __init__(self, place: OutputLocations, shard: int, scratch: Path, access: Access) -> None:
        self._place, self._scratch, self._access = place, scratch, access
        self._stem = f"{shard:05d}" + (f"-{secrets.token_hex(4)}" if place.shared else "")
        self._uris: list[str] = []

    def data_path(self, split: str, piece: int) -> Path:
        """Return where to write a data file; nothing lies there."""
        return self._path(self._place.files, self._data_name(split, piece))

    def spill_path(self) -> Path:
        """Return where to write the spill; nothing lies there."""
        path = self._path(self._place.spills, self._spill_name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def send_data(self, split: str, piece: int, written: WrittenFile) -> SnapshotFile:
        """Take a finished data file to its place, and say what the manifest says of it."""
        name = self._data_name(split, piece)
        sent = self._send(self._place.files, name, written.path)
        return SnapshotFile(
            uri=storage.join(self._place.named, name),
            size=written.size,
            checksum=written.checksum,
            rows=written.rows,
            split=split,
            version=sent.version if sent else "",
        )

    def send_spill(self) -> SourceFile:
        """Take the finished spill to its place."""
        path = self._path(self._place.spills, self._spill_name)
        size, checksum = path.stat().st_size, f"sha256:{digest_file(path)}"
        sent = self._send(self._place.spills, self._spill_name, path)
        uri = storage.join(self._place.spills, self._spill_name)
        return SourceFile(uri=uri, size=size, checksum=checksum, version=sent.version if sent else "")

    def withdraw(self) -> None:
        """Remove everything again."""
        storage.remove(self._uris, self._access)

    @property
    def _spill_name(self) -> str:
        return f"{self._stem}.fingerprints"

    def _data_name(self, split: str, piece: int) -> str:
        return f"{split}/part-{self._stem}{f'.{piece}' if piece else ''}.parquet"

    def _path(self, root: str, name: str) -> Path:
        uri = storage.join(root, name)
        self._uris.append(uri)
        return storage.local_path(uri) or self._scratch / name

    def _send(self, root: str, name: str, path: Path) -> SourceFile | None:
        """Publish a file that was written in the scratch folder; one that lies on a disk is in its place."""
        uri = storage.join(root, name)
        if storage.local_path(uri) is not None:
            return None
        sent = storage.publish(path, uri, self._access)
        path.unlink()
        return sent


_AT_A_TIME = 16


class SnapshotCommit(ABC):
    """Output locations of an attempt, its publication and its clean-up."""

    place: OutputLocations

    @abstractmethod
    def committed(self) -> Snapshot | None:
        """Return the snapshot that an earlier attempt at this request committed, if all of it is there."""

    @abstractmethod
    def reports(self) -> list[ShardReport]:
        """Return the reports of a committed snapshot, in the order of the shards."""

    @abstractmethod
    def kept(self) -> dict[int, ShardReport]:
        """Return what earlier attempts at this request left of shards, by shard, once it is checked."""

    @abstractmethod
    def publish(self, snapshot: Snapshot) -> Snapshot:
        """Commit the snapshot, and return what is committed now: another attempt's, if that was first."""

    @abstractmethod
    def tidy(self) -> None:
        """After the commit, remove what the manifest does not name."""

    @abstractmethod
    def give_up(self, *, for_good: bool) -> None:
        """Remove what this attempt wrote; unless it failed for good, keep what the next can use."""


class FolderCommit(SnapshotCommit):
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
        names = ["data", *(f"data-{number}" for number in range(2, 2 + len(_data_folders(folder))))]
        self._name = next(name for name in names if not (folder / name).exists())
        self.place = OutputLocations(
            files=str(folder / self._name),
            named=self._name,
            spills=str(self._attempt / "spills"),
            reports=str(self._attempt / "reports"),
            shared=False,
        )

    def committed(self) -> Snapshot | None:
        """Return None: every run of the step makes its own."""
        return None

    def reports(self) -> list[ShardReport]:
        """Return what this process has made."""
        return [report for _, report in sorted(self.kept().items())]

    def kept(self) -> dict[int, ShardReport]:
        """Return what this process has made already; what an earlier one left was removed."""
        reports = (unpacked(path.read_bytes(), str(path)) for path in Path(self.place.reports).glob("*.json"))
        return {report.shard: report for report in reports}

    def publish(self, snapshot: Snapshot) -> Snapshot:
        """Replace the manifest, in one step."""
        self._folder.mkdir(parents=True, exist_ok=True)
        snapshot.write(self._folder)
        return snapshot

    def tidy(self) -> None:
        """Remove the files of snapshots that were there before, and what this attempt needed."""
        for path in _data_folders(self._folder):
            if path.name != self._name:
                shutil.rmtree(path)
        shutil.rmtree(self._attempt, ignore_errors=True)

    def give_up(self, *, for_good: bool) -> None:  # noqa: ARG002 - nobody else can use what lies here
        """Remove everything that this attempt wrote."""
        shutil.rmtree(self._folder / self._name, ignore_errors=True)
        shutil.rmtree(self._attempt, ignore_errors=True)


class StoreCommit(SnapshotCommit):
    """A folder of a store that all attempts at one request share.

    ::

        <store>/<request>/manifest.json                     the commit, create-only
        <store>/<request>/shards/00012.json                 what shard 12 came to, create-only
        <store>/<request>/attempt-5f0c…/train/part-….parquet

    All attempts build the manifest from the same reports, so it is the same whoever writes it.

    Args:
        root: The store: a folder, ``gs://`` or ``s3://``.
        listing: The files of the source, which are not looked at again where a manifest names them.
    """

    def __init__(self, root: str, request: IngestRequest, listing: Listing) -> None:
        self._access = request.access
        self._listed = {(entry.uri, entry.size, entry.checksum, entry.version) for entry in listing.files}
        path = storage.local_path(root)
        self._root = storage.join(str(path) if path else root, request.digest)
        self._manifest = storage.join(self._root, Snapshot.FILE)
        self._attempt = storage.join(self._root, f"attempt-{secrets.token_hex(8)}")
        self.place = OutputLocations(
            files=self._attempt,
            named=self._attempt,
            spills=storage.join(self._attempt, "spills"),
            reports=storage.join(self._root, "shards"),
            shared=True,
        )

    def committed(self) -> Snapshot | None:
        """Return the committed snapshot; one whose files are gone or changed is taken back."""
        snapshot = self._read_manifest()
        if snapshot is None:
            return None
        files = {(entry.uri, entry.size, entry.checksum, entry.version) for entry in snapshot.files}
        there = self._objects()
        if all(_is_there(*file, there) for file in files - self._listed):
            return snapshot
        storage.remove([self._manifest], self._access)
        return None

    def kept(self) -> dict[int, ShardReport]:
        """Return the reports whose files are as they say; of others, the report is removed."""
        there = self._objects()
        places = [uri for uri in there if uri.startswith(f"{self.place.reports}/")]
        with ThreadPoolExecutor(_AT_A_TIME) as threads:
            found = list(threads.map(lambda uri: _whole(uri, there, self._access), places))
        self._remove(uri for uri, report in zip(places, found, strict=True) if report is None)
        return {report.shard: report for report in found if report is not None}

    def publish(self, snapshot: Snapshot) -> Snapshot:
        """Create the manifest, unless another attempt has."""
        try:
            storage.create(self._manifest, canonical(snapshot.to_json()).encode(), self._access)
        except AlreadyExists:
            return self._read_manifest() or snapshot
        return snapshot

    def tidy(self) -> None:
        """Remove what no report and no manifest names: of this attempt, and of those that were killed.

        All reports are there by now, so an attempt that is still at work can commit no file of its own
        any more, and loses nothing.
        """
        snapshot = self._read_manifest()
        if snapshot is not None:
            named = {entry.uri for entry in snapshot.files}
            attempts = storage.join(self._root, "attempt-")
            self._remove(uri for uri in self._objects() if uri.startswith(attempts) and uri not in named)

    def give_up(self, *, for_good: bool) -> None:
        """Remove this attempt's files and the reports that name them, if no later attempt can use them."""
        if for_good:
            own = [uri for uri in self._objects() if uri.startswith(f"{self._attempt}/")]
            reports = [uri for uri, text in self._reports() if self._attempt in text]
            self._remove([*reports, *own])

    def reports(self) -> list[ShardReport]:
        """Return all reports, in the order of the shards."""
        return sorted(
            (unpacked(text.encode(), uri) for uri, text in self._reports()), key=lambda one: one.shard
        )

    def _reports(self) -> list[tuple[str, str]]:
        places = [uri for uri in self._objects() if uri.startswith(f"{self.place.reports}/")]
        with ThreadPoolExecutor(_AT_A_TIME) as threads:
            contents = threads.map(lambda uri: storage.read_bytes(uri, access=self._access).decode(), places)
            return list(zip(places, contents, strict=True))

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
        with ThreadPoolExecutor(_AT_A_TIME) as threads:
            list(threads.map(lambda uri: storage.remove([uri], self._access), uris))


def _data_folders(folder: Path) -> list[Path]:
    return [path for path in folder.glob("data*") if path.is_dir()]


def _whole(uri: str, there: dict[str, SourceFile], access: Access) -> ShardReport | None:
    try:
        report = unpacked(storage.read_bytes(uri, access=access), uri)
    except (InputError, ValueError):
        return None
    files: Sequence[tuple[str, int, str, str]] = [
        *((entry.uri, entry.size, entry.checksum, entry.version) for entry in report.files),
        (report.spill.uri, report.spill.size, report.spill.checksum, report.spill.version),
    ]
    return report if all(_is_there(*file, there) for file in files) else None


def _is_there(uri: str, size: int, checksum: str, version: str, there: dict[str, SourceFile]) -> bool:
    """Return whether a file is as it was written: a store says so by its version, a disk by reading it."""
    entry = there.get(uri)
    if entry is None or entry.size != size:
        return False
    path = storage.local_path(uri)
    return entry.version == version if path is None else f"sha256:{digest_file(path)}" == checksum

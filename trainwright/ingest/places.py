"""Where an attempt puts what it makes: straight onto a disk, or through a scratch folder into a store."""

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainwright import storage
from trainwright.artifacts import SnapshotFile, SourceFile
from trainwright.documents import digest_file
from trainwright.storage import Access
from trainwright.tables import WrittenFile


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folders of one attempt, as paths or URIs.

    Attributes:
        files: Data files go below it; no other attempt writes there.
        named: How the manifest names that folder: relative to itself, or the same.
        spills: Fingerprints go there.
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
        place: Where they belong.
        shard: The shard.
        scratch: A folder of this process, for what goes into a store.
        access: What may be reached.
    """

    def __init__(self, place: Place, shard: int, scratch: Path, access: Access) -> None:
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

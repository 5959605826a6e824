"""What the content of an artifact is: what a later step reads of it, and nothing about where or when.

A step of which every input has the same content gives the same result. So a result that is made again, byte
for byte as it was, repeats nothing after it: builds call that an early cutoff. Kubeflow has none: there the
identity of an artifact is its number in a database, and a new artifact has a new one (docs/caching.md).
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainwright.artifacts import Listing, Record, Snapshot
from trainwright.documents import canonical, digest_file, digest_text
from trainwright.errors import InputError


class Digests:
    """Digests of files, each read once for as long as it does not change."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int, int], str] = {}

    def file(self, path: Path) -> str:
        """Return the SHA-256 of a file's bytes."""
        state = path.stat()
        key = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
        if key not in self._known:
            self._known[key] = digest_file(path)
        return self._known[key]

    def artifact(self, path: Path) -> str:
        """Return the SHA-256 of an artifact's content: a file, or all files of a folder with their names.

        A record is left out: it names times. Of a snapshot, the manifest counts by its data version, which
        covers every file by its checksum wherever it lies; its own files count by their bytes and their
        place in the manifest, not by name; and the listing of its source, which names places, is left out.

        Raises:
            FileNotFoundError: There is nothing at the path.
        """
        if path.is_file():
            return self.file(path)
        if not path.is_dir():
            raise FileNotFoundError(path)
        files = {str(entry.relative_to(path)): entry for entry in path.rglob("*") if entry.is_file()}
        if Record.FILE in files and _is_record(files[Record.FILE]):
            del files[Record.FILE]
        rows = list(self._of_snapshot(files))
        rows += [["file", name, self.file(entry)] for name, entry in files.items()]
        return digest_text(canonical(sorted(rows)))

    def _of_snapshot(self, files: dict[str, Path]) -> Iterator[list[str]]:
        """Take what belongs to a snapshot out of a folder's files, and yield what it counts as."""
        snapshot = snapshot_in(files)
        if snapshot is None:
            return
        del files[Snapshot.FILE]
        files.pop(Listing.FILE, None)
        yield ["snapshot", snapshot.digest]
        for number, entry in enumerate(snapshot.files):
            if own := files.pop(entry.uri, None):
                yield ["shard", f"{number:06d}", self.file(own)]


def snapshot_in(files: Mapping[str, Path]) -> Snapshot | None:
    """Return the snapshot whose manifest is among the files of a folder; None if there is none."""
    if Snapshot.FILE in files:
        with contextlib.suppress(InputError):
            return Snapshot.read(files[Snapshot.FILE])
    return None


def gone_from(folder: Path) -> str:
    """Name a file on this machine that a snapshot below a folder names and that is not as it was; else ''.

    A snapshot may keep its files outside its own folder. If they are gone, a kept manifest is no result any
    more. Only sizes are looked at: whoever reads a file compares its checksum. Object stores are not asked.
    """
    for manifest in folder.rglob(Snapshot.FILE):
        snapshot = snapshot_in({Snapshot.FILE: manifest})
        for entry in snapshot.files if snapshot else ():
            path = Path(entry.uri)
            if path.is_absolute() and not (path.is_file() and path.stat().st_size == entry.size):
                return entry.uri
    return ""


def _is_record(path: Path) -> bool:
    with contextlib.suppress(InputError):
        Record.read(path)
        return True
    return False

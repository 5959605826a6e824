"""An immutable dataset: its manifest, whose digest is the data version."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from trainwright.documents import Document, canonical, digest_text
from trainwright.errors import InputError

RUN_AGAIN = "Run the step that wrote it again, with caching off for it."
"""What to do about an input that is gone or was changed."""

UNASSIGNED = "unassigned"
"""The split of a snapshot that holds the rows of no other."""


@dataclass(frozen=True, kw_only=True)
class SnapshotFile:
    """One Parquet file of a snapshot.

    Attributes:
        uri: Where it lies: relative to the manifest's folder, an absolute path, or a URI.
        size: Bytes.
        checksum: ``kind:digits``, as in :class:`SourceFile`.
        rows: Rows in it.
        split: The split that all of them belong to.
        version: Pins the very bytes in an object store; empty on a disk.
    """

    uri: str
    size: int
    checksum: str
    rows: int
    split: str
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column and its Arrow type, as Arrow writes it (``int64``, ``string``, ``timestamp[us, tz=UTC]``)."""

    name: str
    type: str


@dataclass(frozen=True, kw_only=True)
class Snapshot(Document):
    """The manifest of an immutable dataset; its digest is the data version.

    The digest is taken of the content alone: columns, roles, and every file's split, rows, size and checksum
    in order. Where the files lie, what they were made from and the figures about them are no part of it, so
    equal bytes have one data version wherever they lie.

    Attributes:
        files: Every file, in the order in which rows are read.
        columns: The columns that every file has, in order.
        parents: Digests of what it was made from, by name.
        roles: Column names by role: ``key``, ``time``, ``label``. A role that is absent has no column.
        quality: Figures by name, such as ``nulls.arr_delay`` (rows without a value).
        protection: Whether pinned objects can still be read later, as in :class:`Listing`.
    """

    FILE: ClassVar[str] = "manifest.json"
    files: tuple[SnapshotFile, ...]
    columns: tuple[Column, ...]
    parents: dict[str, str] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    quality: dict[str, float] = field(default_factory=dict)
    protection: str = ""

    @property
    def digest(self) -> str:
        """The data version: the SHA-256 over the content, and nothing else."""
        files = [[entry.split, entry.rows, entry.size, entry.checksum] for entry in self.files]
        columns = [[column.name, column.type] for column in self.columns]
        return digest_text(canonical({"columns": columns, "files": files, "roles": self.roles}))

    @classmethod
    def open(cls, folder: Path, data_version: str) -> Self:
        """Read the manifest in a folder, and check that it is the one that was asked for.

        Args:
            folder: The snapshot's folder.
            data_version: The digest that the step was given.

        Raises:
            InputError: The manifest is missing, or its digest is another.
        """
        if not (folder / cls.FILE).exists():
            raise InputError(f"cached input is gone: no {cls.FILE}", where=str(folder), hint=RUN_AGAIN)
        snapshot = cls.read(folder)
        if snapshot.digest != data_version:
            raise InputError(
                f"cached input changed: data version {snapshot.digest[:12]}, expected {data_version[:12]}",
                where=str(folder),
                hint=RUN_AGAIN,
            )
        return snapshot

    @property
    def rows(self) -> int:
        """Rows in all splits."""
        return sum(entry.rows for entry in self.files)

    @property
    def splits(self) -> dict[str, int]:
        """Rows by split, in the order of the files."""
        counts: dict[str, int] = {}
        for entry in self.files:
            counts[entry.split] = counts.get(entry.split, 0) + entry.rows
        return counts

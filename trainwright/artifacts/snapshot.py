"""Documents about data: a source's listing, and the manifest of a snapshot."""

import re
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeAlias

from trainwright.documents import Document, canonical, digest_text
from trainwright.errors import InputError

RUN_AGAIN = "Run the step that wrote it again, with caching off for it."
"""Hint for an input that is missing or was changed."""

UNASSIGNED = "unassigned"
"""The split of rows that belong to no configured split."""


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One object of a source at the time of the listing.

    ``version`` pins the bytes in their store (generation, version id or ETag; empty on a disk) and is not in
    ``uri``. ``checksum`` is the strongest that needs no second read, as ``kind:digits``: ``md5`` on disks and
    in stores that have it, ``crc32c`` of a composed object, ``etag`` of an S3 multipart upload, ``sha256`` of
    objects written by trainwright. ``written`` is ISO 8601 in UTC; empty if unknown.
    """

    uri: str
    size: int
    checksum: str
    version: str = ""
    written: str = ""


@dataclass(frozen=True, kw_only=True)
class Listing(Document):
    """The files of a source when ``resolve`` listed it; ``data_version`` is derived from it.

    ``files`` are sorted by URI; a database or a table has one entry. ``protection`` of pinned objects against
    deletion is ``versioned``, ``soft_delete``, ``retention`` or ``pinned_unprotected``; empty for a disk.
    """

    FILE: ClassVar[str] = "listing.json"
    source: str
    files: tuple[SourceFile, ...]
    protection: str = ""

    @property
    def content_digest(self) -> str:
        """SHA-256 over names, sizes and checksums: equal for a copy elsewhere."""
        rows = sorted([name, entry.size, entry.checksum] for name, entry in self.by_name)
        return digest_text(canonical(rows))

    @property
    def by_name(self) -> tuple[tuple[str, SourceFile], ...]:
        """Files with their names, relative to the deepest folder that all share, so that a copy has the same.

        A folder such as ``day=1`` stays in the name: it is the value of a column.
        """
        paths = [(entry.uri.partition("://")[2] or entry.uri).split("/") for entry in self.files]
        levels = zip(*(path[:-1] for path in paths), strict=False)
        alike = takewhile(lambda level: len(set(level)) == 1 and "=" not in level[0], levels)
        shared = sum(1 for _ in alike)
        return tuple(("/".join(path[shared:]), entry) for path, entry in zip(paths, self.files, strict=True))


@dataclass(frozen=True, kw_only=True)
class PinnedSource(Document):
    """A source as a run read it.

    Attributes:
        source: Its location.
        version: Its content digest.
        files: Its files; empty if the record of the run does not list them.
        versions: Versions in their store of all its files, by URI, where nothing else of them is known.
        written_until: Time of the listing, ISO 8601; where the files are unknown, later ones do not count.
        data: Section ``data``; empty for plain files.
        roots: Folders that may hold local files at another place, by the end of their path.
    """

    FILE: ClassVar[str] = "pinned.json"
    source: str
    version: str
    files: tuple[SourceFile, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    written_until: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    roots: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SnapshotFile:
    """One Parquet file of a snapshot: its URI, or path relative to the manifest's folder, and its one split.

    ``checksum`` and ``version`` are as in :class:`SourceFile`. A ``companion`` has the same rows in the same
    order, and further columns.
    """

    uri: str
    size: int
    checksum: str
    rows: int
    split: str
    version: str = ""
    companion: "SnapshotFile | None" = None

    @property
    def in_place(self) -> bool:
        """True if the file lies outside the manifest's folder, on a disk or in a store."""
        return "://" in self.uri or Path(self.uri).is_absolute()

    @property
    def content(self) -> list[int | str]:
        """Size and checksum, its companion's too: they decide its rows."""
        return [self.size, self.checksum, *(self.companion.content if self.companion else [])]


ColumnKind: TypeAlias = Literal["number", "category", "time"]

_COLUMN_KINDS: tuple[tuple[str, ColumnKind], ...] = (
    (r"null|u?int(8|16|32|64)|halffloat|float|double|decimal\w*\(.*\)", "number"),
    (r"(large_)?string(_view)?|bool|dictionary<values=(large_)?string.*>", "category"),
    (r"timestamp\[.*\]|date(32|64)\[.*\]", "time"),
)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column and its Arrow type, as Arrow writes it (``int64``, ``string``, ``timestamp[us, tz=UTC]``)."""

    name: str
    type: str

    @property
    def kind(self) -> ColumnKind | None:
        """Kind of input that a model reads the column as; None for a type that no network or tree reads.

        A column of type ``null`` counts as a number that is always missing.
        """
        return next((kind for pattern, kind in _COLUMN_KINDS if re.fullmatch(pattern, self.type)), None)


TargetKind: TypeAlias = Literal["binary", "multiclass", "regression", "text"]
"""Kinds of targets: two classes, several, a number, or, without a label, the next token of a text."""


@dataclass(frozen=True, kw_only=True)
class SnapshotTarget:
    """The target of a model; every step reads it from the manifest of the snapshot.

    Rows have a class as int64 from 0 on, and a number as float64. ``classes`` has the names of the classes by
    number; where the source itself has the numbers 0 to n-1, they are the names, so that their count is known
    in every split. It is empty for the numbers 0 and 1, and for other kinds.
    """

    kind: TargetKind = "binary"
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Snapshot(Document):
    """The manifest of an immutable dataset; its digest is the data version.

    The digest covers the content only: columns, roles, and each file's split, rows, size and checksum in
    order. It leaves out locations, parents and quality, so equal bytes have one data version everywhere.

    ``files`` are in reading order. ``parents`` has digests of its inputs by name, ``roles`` column names by
    role (``key``, ``time``, ``label``; the last two may be absent), ``quality`` figures by name, such as
    ``nulls.arr_delay``. ``target`` says what the label means.
    """

    FILE: ClassVar[str] = "manifest.json"
    files: tuple[SnapshotFile, ...]
    columns: tuple[Column, ...]
    parents: dict[str, str] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    quality: dict[str, float] = field(default_factory=dict)
    protection: str = ""
    target: SnapshotTarget = SnapshotTarget()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data, where a file without a companion looks as it did before there were any."""
        data = super().to_json()
        for entry in data["files"]:
            companion = entry["companion"]
            (companion or entry).pop("companion")
        return data

    @property
    def digest(self) -> str:
        """The data version: SHA-256 over the content."""
        files = [[entry.split, entry.rows, *entry.content] for entry in self.files]
        columns = [[column.name, column.type] for column in self.columns]
        content: dict[str, Any] = {"columns": columns, "files": files, "roles": self.roles}
        if self.target != SnapshotTarget():  # a label of 0 and 1 was the only target once
            content["target"] = asdict(self.target)
        return digest_text(canonical(content))

    @classmethod
    def open(cls, folder: Path, data_version: str) -> Self:
        """Read the manifest in a folder and check its digest.

        Raises:
            InputError: The manifest is missing, or its digest differs.
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

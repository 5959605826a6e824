"""The documents that cross from one step to the next.

Each is a frozen dataclass that is written as JSON. ``digest`` is the SHA-256 of its canonical form and is
its identity; a reader refuses a field or a version it does not know. Only the standard library is needed.
"""

from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, Self

from trainwright.documents import Document, canonical, digest_text
from trainwright.errors import InputError

RUN_AGAIN = "Run the step that wrote it again, with caching off for it."
"""What to do about an input that is gone or was changed."""

UNASSIGNED = "unassigned"
"""The split of a snapshot that holds the rows of no other."""


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One object of a source, as it was when it was listed.

    Attributes:
        uri: Its absolute path or its URI, without a version.
        size: Bytes.
        checksum: The strongest that is to be had without reading twice, as ``kind:digits``: ``md5`` from
            every store that keeps it and from a disk, ``crc32c`` of a composed object, ``etag`` of an S3
            object that was uploaded in parts, ``sha256`` of what we wrote ourselves.
        version: What pins these very bytes in their store: generation, version id or ETag; empty on a disk.
        written: When it was last written, ISO 8601 in UTC; empty if the store does not say.
    """

    uri: str
    size: int
    checksum: str
    version: str = ""
    written: str = ""


@dataclass(frozen=True, kw_only=True)
class Listing(Document):
    """What a source held when ``resolve`` looked: the ground of ``data_version``.

    Attributes:
        source: What was listed: a path, a URI or a glob, with nothing left to be filled in.
        files: Its objects, sorted by URI; for a database or a table format, one entry that stands for it.
        protection: Whether what is pinned can still be read later: ``versioned``, ``soft_delete``,
            ``retention`` or ``pinned_unprotected``; empty for a disk.
    """

    FILE: ClassVar[str] = "listing.json"
    source: str
    files: tuple[SourceFile, ...]
    protection: str = ""

    @property
    def content_digest(self) -> str:
        """The SHA-256 over names, sizes and checksums: equal wherever the same bytes lie.

        Places, versions and times are left out.
        """
        rows = sorted([name, entry.size, entry.checksum] for name, entry in self.by_name)
        return digest_text(canonical(rows))

    @property
    def by_name(self) -> tuple[tuple[str, SourceFile], ...]:
        """Every file with its name: relative to the deepest folder that all share, so a copy keeps it.

        A folder such as ``day=1`` stays in the name: it is the value of a column, and may be the only one.
        """
        paths = [(entry.uri.partition("://")[2] or entry.uri).split("/") for entry in self.files]
        levels = zip(*(path[:-1] for path in paths), strict=False)
        alike = takewhile(lambda level: len(set(level)) == 1 and "=" not in level[0], levels)
        shared = sum(1 for _ in alike)
        return tuple(("/".join(path[shared:]), entry) for path, entry in zip(paths, self.files, strict=True))


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


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """One file of a model's folder; ``path`` is relative to it."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Model(Document):
    """The manifest of a trained model's folder; written last, so a folder without it is not a model.

    Attributes:
        files: Weights, program, transforms, signature, input example, card.
        kind: The architecture, such as ``mlp``.
        inputs: Names of the raw columns the model reads.
        label: The column it predicts.
        training_data: Digest of the snapshot it was fitted on.
        config: What was asked of the training, as given.
        metrics: Final figures of the training, such as ``train_loss``.
        parents: Digests of what it was made from, by name: the training set, what that was made from, such
            as the feature service and every view, and the fitted transforms.
    """

    FILE: ClassVar[str] = "model.json"
    files: tuple[ModelFile, ...]
    kind: str
    inputs: tuple[str, ...]
    label: str
    training_data: str
    config: dict[str, Any]
    metrics: dict[str, float] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where a step ran: enough to build the same environment again.

    Attributes:
        name: The image's short name, such as ``tabular``.
        lock_sha256: Digest of the lock it was made from; empty if unknown.
        library: Version of trainwright.
        library_sha256: Digest over the source of trainwright as it was.
        python: Version of the interpreter.
        platform: Operating system and processor.
    """

    name: str
    lock_sha256: str
    library: str
    library_sha256: str
    python: str
    platform: str


@dataclass(frozen=True, kw_only=True)
class Record(Document):
    """What one step did: the ground of the run's page and of a model's lineage.

    It lies beside the step's main document and carries the records of what it was made from, so a
    model's record alone leads back to the source. It is no part of any identity: it names times.

    Attributes:
        step: The verb.
        headline: The one fact worth a line on the screen, with its limit beside the number.
        decision: One of :data:`trainwright.verdicts.DECISIONS` for a judging step, else empty.
        started: Start in UTC, ISO 8601.
        seconds: Duration of the work, imports excluded.
        config: What was asked of the step.
        inputs: Digests of what it read, by name.
        outputs: Digests of what it made, by name.
        environment: Where it ran.
        parents: Records of the steps it read from.
    """

    FILE: ClassVar[str] = "record.json"
    step: str
    headline: str
    started: str
    seconds: float
    environment: Environment
    decision: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    parents: tuple["Record", ...] = ()


@dataclass(frozen=True, kw_only=True)
class Trial(Document):
    """That a model was loaded and asked for scores by a process that knows nothing of its training.

    Attributes:
        model: Digest of the model's manifest.
        input_example: SHA-256 of the file with the rows that it was asked about.
        passed: Whether it answered, and with what its signature says.
        said: What it answered, in a few words; or what went wrong.
        scores: SHA-256 of the answers; empty if there are none.
        environment: Where it was loaded.
    """

    FILE: ClassVar[str] = "trial.json"
    model: str
    input_example: str
    passed: bool
    said: str
    scores: str
    environment: Environment


@dataclass(frozen=True, kw_only=True)
class Progress(Document):
    """Where a training stands; written whole, at most every 10 seconds."""

    FILE: ClassVar[str] = "progress.json"
    step: int
    total: int
    epoch: int
    loss: float
    samples_per_s: float
    eta_s: float
    time: str
    checkpoint_step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)

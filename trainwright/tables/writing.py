"""Write Parquet files and snapshots: the same rows give the same bytes, however they were batched."""

import hashlib
import inspect
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from trainwright.artifacts import Column, Snapshot, SnapshotFile, SnapshotTarget
from trainwright.errors import InputError
from trainwright.tables.columns import is_nested, plain, require_columns, require_distinct, schema_difference

ROW_GROUP = 131_072
"""Rows a row group: what a reader holds in memory at once."""

_SAMPLE = 16_384
"""Rows that tell whether a column repeats its values."""


@dataclass(frozen=True)
class WrittenFile:
    """A file that was written whole.

    Attributes:
        size: Bytes.
        checksum: ``sha256:`` and 64 hexadecimal digits, taken while it was written.
    """

    path: Path
    rows: int
    size: int
    checksum: str


class FileWriter:
    """Writes one file; memory stays that of a row group and of the batch that is added.

    Use it as a context manager, or call :meth:`finish` or :meth:`abandon` yourself. Nothing is ever written
    over a file: give each attempt a fresh name.

    Args:
        path: The file; its folder is made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._schema: pa.Schema | None = None
        self._sink: _Hashed | None = None
        self._writer: Any = None

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close a file that was not finished."""
        self.abandon()

    def append(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Add rows."""
        table = plain(rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows]), str(self.path))
        if self._schema is None:
            self._schema = require_distinct(table.schema, str(self.path))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._sink = _Hashed(self.path.open("xb"))
        elif table.schema != self._schema:
            difference = schema_difference(self._schema, table.schema)
            raise InputError(f"rows differ from those before: {difference}", where=str(self.path))
        self._waiting.append(table)
        self._waiting_rows += table.num_rows
        self.rows += table.num_rows
        while self._waiting_rows >= ROW_GROUP:
            self._write(ROW_GROUP)

    def finish(self) -> WrittenFile:
        """End the file."""
        if self._schema is None or self._sink is None:
            raise InputError("no rows and no columns were written", where=str(self.path))
        if self._waiting_rows or not self.rows:
            self._write(self._waiting_rows)
        self._writer.close()
        self._sink.close()
        written = WrittenFile(self.path, self.rows, self._sink.size, self._sink.checksum)
        self._writer = self._sink = None
        return written

    def abandon(self) -> None:
        """Close the file without an end; does nothing if it is finished."""
        if self._sink is None:
            return
        self._sink.discard()
        if self._writer is not None:
            with suppress(OSError, pa.ArrowException):
                self._writer.close()
        self._writer = self._sink = None

    def _write(self, size: int) -> None:
        waiting = pa.concat_tables(self._waiting)
        self._waiting = [waiting.slice(size)]
        self._waiting_rows -= size
        columns, whole = waiting.slice(0, size).columns, []
        del waiting
        while columns:  # column by column, so that few are in memory twice
            whole.append(pa.table([columns.pop(0)], names=[""]).combine_chunks().column(0))
        group = pa.Table.from_arrays(whole, schema=self._schema)
        # Page checksums are for readers of others; pyarrow 10, which TFDV needs, cannot write them.
        known = inspect.signature(pq.write_table).parameters
        option = {"write_page_checksum": True} if "write_page_checksum" in known else {}
        try:
            if self._writer is None:
                self._writer = pq.ParquetWriter(
                    self._sink, self._schema, compression="zstd", use_dictionary=_repetitive(group), **option
                )
            self._writer.write_table(group, row_group_size=max(size, 1))
        except pa.ArrowException as error:
            what = f"the rows cannot be stored as Parquet: {error!s:.300}"
            raise InputError(what, where=str(self.path)) from None


def _repetitive(group: pa.Table) -> list[str]:
    """Name the columns whose values are worth a dictionary, by a sample of a file's first row group.

    A row group of so few rows never outgrows Parquet's limit for dictionaries, so columns without repeated
    values would keep theirs: 10 million rows of 20 columns took 2.5 times as long and were a quarter larger.
    """
    step = max(1, group.num_rows // _SAMPLE)
    sample = group.take(pa.array(range(0, group.num_rows, step), pa.int64()))
    return [
        name
        for name, column in zip(group.column_names, sample.columns, strict=True)
        if not (is_nested(column.type) or pa.types.is_boolean(column.type) or pa.types.is_null(column.type))
        and 2 * pc.count_distinct(column, mode="all").as_py() <= len(column)
    ]


class _Hashed:
    """A file that is digested while it is written, so that nobody has to read it again."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self.size = 0
        self.closed = False

    @property
    def checksum(self) -> str:
        return f"sha256:{self._digest.hexdigest()}"

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        self.size += len(data)
        return len(data) if self._stream.closed else self._stream.write(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        if not self._stream.closed:
            self._stream.flush()

    def discard(self) -> None:
        """Ignore what is still to come: Arrow writes a footer even to a file that is given up."""
        self._stream.close()

    def close(self) -> None:
        self._stream.close()
        self.closed = True


class SnapshotWriter:
    """Writes a snapshot whose rows arrive in any order of splits; memory stays flat.

    Use it as a context manager and call :meth:`commit` at the end. Without a commit nothing is published
    and what was written is removed; a snapshot that was there before stays as it was.

    Args:
        folder: The snapshot's folder; made if it is not there.
        splits: The order in which the manifest lists the splits; others follow as they come.
        references: Files of each split that may stay in place, in the order in which their rows are added,
            each with the number of these rows. A file whose rows are all added stays, with a companion file
            of the columns ``added``, if any; the rows of the others are written.
    """

    def __init__(
        self,
        folder: Path,
        splits: Sequence[str] = (),
        *,
        rows_per_file: int = 1_000_000,
        references: Mapping[str, Sequence[tuple[SnapshotFile, int]]] | None = None,
        added: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self._references, self._added = references or {}, added
        self._attempt = folder / ".attempt"
        self._rows_per_file = rows_per_file
        self._splits: dict[str, _SplitWriter] = {}
        for name in splits:
            self._begin(name)
        self._schema: pa.Schema | None = None
        self._nulls: dict[str, int] = {}

    def __enter__(self) -> Self:
        """Begin a fresh attempt."""
        shutil.rmtree(self._attempt, ignore_errors=True)
        self._attempt.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove what was not published."""
        for writer in self._splits.values():
            writer.close()
        shutil.rmtree(self._attempt, ignore_errors=True)

    def append(self, split: str, rows: pa.Table | pa.RecordBatch) -> None:
        """Add rows to the end of a split."""
        table = plain(rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows]), str(self.folder))
        if self._schema is None:
            self._schema = require_distinct(table.schema, str(self.folder))
        elif table.schema != self._schema:
            difference = schema_difference(self._schema, table.schema)
            raise InputError(
                f"rows of split {split!r} differ from those before: {difference}", where=str(self.folder)
            )
        for name, column in zip(table.column_names, table.columns, strict=True):
            self._nulls[name] = self._nulls.get(name, 0) + column.null_count
        if split not in self._splits:
            self._begin(split)
        self._splits[split].append(table)

    def end_file(self, split: str) -> None:
        """End the file of a split: the next rows begin another."""
        if split in self._splits:
            self._splits[split].finish()

    def _begin(self, split: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", split):
            raise InputError(
                f"split {split!r} cannot be a folder's name",
                where=str(self.folder),
                hint="Use letters, digits, _ . and -.",
            )
        references = self._references.get(split, ())
        self._splits[split] = _SplitWriter(self._attempt, split, self._rows_per_file, references, self._added)

    def commit(
        self,
        *,
        parents: Mapping[str, str],
        roles: Mapping[str, str],
        quality: Mapping[str, float] | None = None,
        target: SnapshotTarget | None = None,
        protection: str = "",
    ) -> Snapshot:
        """Publish the data, and then the manifest, and return it."""
        if self._schema is None:
            raise InputError("no rows and no columns were written", where=str(self.folder))
        require_columns(self._schema, roles.values(), where=str(self.folder))
        nulls = {f"nulls.{name}": float(count) for name, count in self._nulls.items()}
        snapshot = Snapshot(
            files=tuple(entry for writer in self._splits.values() for entry in writer.finish()),
            columns=tuple(Column(name=field.name, type=str(field.type)) for field in self._schema),
            parents=dict(parents),
            roles=dict(roles),
            quality=nulls | dict(quality or {}),
            target=target or SnapshotTarget(),
            protection=protection,
        )
        (self.folder / Snapshot.FILE).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        if (self._attempt / "data").exists():  # a companion without columns is not written
            (self._attempt / "data").rename(self.folder / "data")
        snapshot.write(self.folder)
        return snapshot


class _SplitWriter:
    """Writes the files of one split, each of the same number of rows however they arrive.

    With ``references``, the files have as many rows as those, and may be companions of them.
    """

    def __init__(
        self,
        root: Path,
        split: str,
        rows_per_file: int,
        references: Sequence[tuple[SnapshotFile, int]],
        added: Sequence[str],
    ) -> None:
        self._root, self._split, self._rows_per_file = root, split, rows_per_file
        self._references, self._added = references, list(added)
        self._writer: FileWriter | None = None
        self._rows = 0
        self._done: list[SnapshotFile] = []

    def append(self, table: pa.Table) -> None:
        """Add rows, and begin another file where one is full. A split without rows has one empty file."""
        while table.num_rows or not (self._done or self._writer or self._references):
            in_place, rows = self._current()
            free = rows - self._rows
            part, table = table.slice(0, free), table.slice(free)
            self._rows += part.num_rows
            if self._added or not in_place:
                if self._writer is None:
                    name = f"part-{len(self._done):05d}.parquet"
                    self._writer = FileWriter(self._root / "data" / self._split / name)
                self._writer.append(part.select(self._added) if in_place else part)
            if self._rows == rows:
                self.finish()

    def _current(self) -> tuple[SnapshotFile | None, int]:
        """Return the file in place that the next rows belong to, None if they are written, and its rows."""
        if not self._references:
            return None, self._rows_per_file
        entry, rows = self._references[len(self._done)]
        return entry if rows == entry.rows else None, rows

    def finish(self) -> list[SnapshotFile]:
        """End the last file, and return all."""
        if self._rows or self._writer:
            in_place, _ = self._current()
            written = self._finish_file() if self._writer else None
            done = replace(in_place, companion=written) if in_place else written
            self._done += [done] if done else []
            self._writer, self._rows = None, 0
        return self._done

    def _finish_file(self) -> SnapshotFile:
        assert self._writer is not None  # noqa: S101 - begun
        written = self._writer.finish()
        return SnapshotFile(
            uri=written.path.relative_to(self._root).as_posix(),
            size=written.size,
            checksum=written.checksum,
            rows=written.rows,
            split=self._split,
        )

    def close(self) -> None:
        """Give up what is not finished."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None


def write_snapshot(
    folder: Path,
    tables_by_split: Mapping[str, Iterable[pa.RecordBatch | pa.Table]],
    *,
    parents: Mapping[str, str],
    roles: Mapping[str, str],
    rows_per_file: int = 1_000_000,
    quality: Mapping[str, float] | None = None,
    target: SnapshotTarget | None = None,
) -> Snapshot:
    """Write a snapshot split by split: data first, manifest last.

    Timestamps are stored in microseconds (finer digits are cut off) and, where they have a zone, in UTC;
    dictionaries as their values; nothing of pandas is kept.

    Args:
        folder: The snapshot's folder; made if it is not there.
        tables_by_split: Rows by split, as tables or batches of one schema; iterables are read once.
        parents: Digests of what the rows were made from, by name.
        roles: Column names by role (``key``, ``time``, ``label``, ``score``).
        quality: Figures beside the rows without a value, which are counted here.
        target: What the label means; 0 and 1 by default.

    Returns:
        The manifest; its digest is the data version.

    Raises:
        InputError: Rows differ in columns or types, a role names no column, or there is no schema at all.
    """
    with SnapshotWriter(folder, list(tables_by_split), rows_per_file=rows_per_file) as writer:
        for split, tables in tables_by_split.items():
            for rows in tables:
                writer.append(split, rows)
        return writer.commit(parents=parents, roles=roles, quality=quality, target=target)

"""Writing a snapshot: data first, manifest last, the same bytes for the same rows."""

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.artifacts import Column, Snapshot, SnapshotFile
from trainwright.errors import InputError
from trainwright.tables.columns import require_columns, require_distinct, schema_difference
from trainwright.tables.files import FileWriter
from trainwright.tables.plain import plain


class SnapshotWriter:
    """Writes a snapshot whose rows arrive in any order of splits; memory stays flat.

    Use it as a context manager and call :meth:`commit` at the end. Without a commit nothing is published
    and what was written is removed; a snapshot that was there before stays as it was.

    Args:
        folder: The snapshot's folder; made if it is not there.
        splits: The order in which the manifest lists the splits; others follow as they come.
        rows_per_file: A new file is begun after this many rows of a split.
    """

    def __init__(self, folder: Path, splits: Sequence[str] = (), *, rows_per_file: int = 1_000_000) -> None:
        self.folder = folder
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
        """Add rows to the end of a split.

        Raises:
            InputError: The rows have other columns or types than those before them.
        """
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

    def _begin(self, split: str) -> None:
        _require_folder_name(split, self.folder)
        self._splits[split] = _SplitWriter(self._attempt, split, self._rows_per_file)

    def commit(
        self,
        *,
        parents: Mapping[str, str],
        roles: Mapping[str, str],
        quality: Mapping[str, float] | None = None,
    ) -> Snapshot:
        """Publish the data, and then the manifest, and return it.

        Args:
            parents: Digests of what the rows were made from, by name.
            roles: Column names by role.
            quality: Figures beside those counted here (``nulls.<column>``).

        Raises:
            InputError: There is not even an empty batch, or a role names no column.
        """
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
        )
        (self.folder / Snapshot.FILE).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        (self._attempt / "data").rename(self.folder / "data")
        snapshot.write(self.folder)
        return snapshot


def _require_folder_name(split: str, folder: Path) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", split):
        raise InputError(
            f"split {split!r} cannot be a folder's name",
            where=str(folder),
            hint="Use letters, digits, _ . and -.",
        )


class _SplitWriter:
    """Writes the files of one split, each of the same number of rows however they arrive."""

    def __init__(self, root: Path, split: str, rows_per_file: int) -> None:
        self._root, self._split, self._rows_per_file = root, split, rows_per_file
        self._writer: FileWriter | None = None
        self._done: list[SnapshotFile] = []

    def append(self, table: pa.Table) -> None:
        """Add rows, and begin another file where one is full. A split without rows has one empty file."""
        if self._done and not table.num_rows:
            return
        while True:
            self._writer = self._writer or self._begin_file()
            room = self._rows_per_file - self._writer.rows
            self._writer.append(table.slice(0, room))
            if self._writer.rows == self._rows_per_file:
                self._end_file()
            table = table.slice(room)
            if not table.num_rows:
                return

    def finish(self) -> list[SnapshotFile]:
        """End the last file, and return all."""
        self._end_file()
        return self._done

    def close(self) -> None:
        """Give up what is not finished."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None

    def _begin_file(self) -> FileWriter:
        return FileWriter(self._root / "data" / self._split / f"part-{len(self._done):05d}.parquet")

    def _end_file(self) -> None:
        if self._writer is None:
            return
        written, self._writer = self._writer.finish(), None
        self._done.append(
            SnapshotFile(
                uri=written.path.relative_to(self._root).as_posix(),
                size=written.size,
                checksum=written.checksum,
                rows=written.rows,
                split=self._split,
            )
        )


def write_snapshot(
    folder: Path,
    tables_by_split: Mapping[str, Iterable[pa.RecordBatch | pa.Table]],
    *,
    parents: Mapping[str, str],
    roles: Mapping[str, str],
    rows_per_file: int = 1_000_000,
    quality: Mapping[str, float] | None = None,
) -> Snapshot:
    """Write a snapshot split by split: data first, manifest last.

    Timestamps are stored in microseconds (finer digits are cut off) and, where they have a zone, in UTC;
    dictionaries as their values; nothing of pandas is kept.

    Args:
        folder: The snapshot's folder; made if it is not there.
        tables_by_split: Rows by split, as tables or batches of one schema; iterables are read once.
        parents: Digests of what the rows were made from, by name.
        roles: Column names by role (``key``, ``time``, ``label``, ``score``).
        rows_per_file: A new file is begun after this many rows of a split.
        quality: Figures beside the rows without a value, which are counted here.

    Returns:
        The manifest; its digest is the data version.

    Raises:
        InputError: Rows differ in columns or types, a role names no column, or there is no schema at all.
    """
    with SnapshotWriter(folder, list(tables_by_split), rows_per_file=rows_per_file) as writer:
        for split, tables in tables_by_split.items():
            for rows in tables:
                writer.append(split, rows)
        return writer.commit(parents=parents, roles=roles, quality=quality)

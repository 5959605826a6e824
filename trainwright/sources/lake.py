"""Tables of Parquet files that a log lists: common code of Delta and Iceberg."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.artifacts import SourceFile
from trainwright.errors import InputError, PermissionRefused
from trainwright.sources.formats import File, read_footer, read_groups
from trainwright.sources.parts import FileSchema, SourcePart, Sources, split_file
from trainwright.storage import Access, list_files, local_path
from trainwright.storage.checksums import digest_files
from trainwright.tables import plain

_AT_A_TIME = 16


@dataclass(frozen=True)
class LakeFile:
    """One data file of a table.

    Attributes:
        uri: Where it lies.
        constants: Values of columns that are in the log, and not in the file.
        deletes: Files with the positions of its deleted rows.
    """

    uri: str
    constants: Mapping[str, Any] = field(default_factory=dict)
    deletes: tuple[str, ...] = ()


def entries_of(root: str, uris: Sequence[str], access: Access) -> list[SourceFile]:
    """Return the entries of a table's files, listed in its folder.

    Raises:
        PermissionRefused: One is outside of the folder.
        InputError: One is gone.
    """
    base = _absolute(root)
    if outside := sorted(uri for uri in uris if not _absolute(uri).startswith(f"{base}/") or ".." in uri):
        raise PermissionRefused(
            f"the table's log names a file outside of its folder: {outside[0]}",
            where=root,
            hint="A table that borrows files of another is not read; copy it whole.",
        )
    if not uris:
        return []
    there = {_absolute(entry.uri): entry for entry in list_files(root, (".parquet",), access)}
    if gone := sorted(uri for uri in uris if _absolute(uri) not in there):
        raise InputError(
            f"{len(gone):,} of {len(uris):,} files of this version of the table are gone, such as {gone[0]}",
            where=root,
            hint="They may have been vacuumed or expired: choose a later version, or keep files for longer.",
        )
    return [there[_absolute(uri)] for uri in sorted(set(uris))]


def with_checksums(entries: Sequence[SourceFile], remember: str | None) -> tuple[SourceFile, ...]:
    """Return the files with their checksums; only local ones are read for that."""
    local = bool(entries) and local_path(entries[0].uri) is not None
    return digest_files(entries, remember) if local else tuple(entries)


def _absolute(uri: str) -> str:
    path = local_path(uri)
    return (str(path) if path else uri).rstrip("/")


class LakeSources(Sources):
    """The data files of one version of a table.

    Args:
        files: The data files.
        entries: All files of the listing, which pin the versions.
        schema: The table's columns.
        shard_rows: Rows of a part.
        access: What may be reached.

    Raises:
        InputError: A file is broken, or lacks columns.
    """

    def __init__(
        self,
        files: Sequence[LakeFile],
        entries: Sequence[SourceFile],
        schema: pa.Schema,
        shard_rows: int,
        access: Access,
    ) -> None:
        self._files = {_absolute(file.uri): file for file in files}
        self._versions = {_absolute(entry.uri): entry.version for entry in entries}
        self._shard_rows, self._access = shard_rows, access
        self.schema = plain(schema.empty_table()).schema
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            self._found = list(pool.map(self._find, sorted(self._files)))

    def parts(self) -> list[SourcePart]:
        """Return parts of about ``shard_rows`` rows, counting deleted ones."""
        parts = [
            SourcePart(index=0, uri=found.uri, first=first, last=last, start=start, rows=rows)
            for found in self._found
            for first, last, start, rows in split_file(found, self._shard_rows)
        ] or [SourcePart(index=0, uri="", last=0, rows=0)]
        return [
            replace(part, index=index, rows=None if part.uri and self._files[part.uri].deletes else part.rows)
            for index, part in enumerate(parts)
        ]

    def batches(self, part: SourcePart) -> Iterator[tuple[str, int, pa.Table]]:
        """Yield a part's rows, without the deleted ones, with the number of the file's rows before them."""
        if not part.uri:
            return
        file, start = self._files[part.uri], part.start
        deleted = self._deleted(file)
        for batch in read_groups(self._open(part.uri), part.first, part.last):
            rows = self._complete(pa.Table.from_batches([batch]), file)
            if deleted is not None:
                place = pa.array(range(start, start + len(rows)), pa.int64())
                rows = rows.filter(pc.invert(pc.is_in(place, value_set=deleted)))
            yield part.uri, start, rows
            start += batch.num_rows

    def _column(self, table: pa.Table, file: LakeFile, wanted: pa.Field) -> Any:  # noqa: ARG002
        """Return a column of a file by its name in the table; None if the file lacks it."""
        return table[wanted.name] if wanted.name in table.column_names else None

    def _deleted(self, file: LakeFile) -> Any:  # noqa: ARG002
        """Return the positions of the deleted rows of a file; None if there are none."""
        return None

    def _open(self, uri: str) -> File:
        return File(
            uri=uri, version=self._versions[_absolute(uri)], kind="parquet", codec=None, access=self._access
        )

    def _find(self, uri: str) -> FileSchema:
        schema, groups = read_footer(self._open(uri))
        self._complete(schema.empty_table(), self._files[uri])
        return FileSchema(uri=uri, schema=schema, groups=groups)

    def _complete(self, table: pa.Table, file: LakeFile) -> pa.Table:
        """Cast rows of a file to the table's columns: missing ones are in the log, or null."""
        columns, size = [], len(table)
        for wanted in self.schema:
            if wanted.name in file.constants:
                value = pa.scalar(file.constants[wanted.name]).cast(wanted.type)
                columns.append(pa.chunked_array([pa.repeat(value, size)]))
                continue
            column = self._column(table, file, wanted)
            columns.append(pa.chunked_array([pa.nulls(size, wanted.type)]) if column is None else column)
        found = pa.Table.from_arrays(columns, names=self.schema.names)
        try:
            return plain(found, file.uri).cast(self.schema)
        except pa.ArrowException as error:
            raise InputError(
                f"the file does not have the columns that the table's log says: {error!s:.200}",
                where=file.uri,
            ) from None

"""Tables of Parquet files that a log lists: common code of Delta and Iceberg."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.artifacts import Listing, SourceFile
from trainwright.documents import MAX_BYTES
from trainwright.errors import InputError, PermissionRefused
from trainwright.sources.formats import File, read_footer, read_groups
from trainwright.sources.sources import FileSchema, SourcePart, Sources, split
from trainwright.storage import Access, list_files, local_path
from trainwright.storage.local import digest_files
from trainwright.storage.uris import absolute
from trainwright.tables import plain

_PARALLEL_FOOTERS = 16


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


def list_lake(
    source: str,
    root: str,
    files: Sequence[LakeFile],
    access: Access,
    remember: str | None,
    inspect: Callable[[Sequence[SourceFile]], None] | None,
) -> Listing:
    """List a table's files, with checksums; only local ones are read for that."""
    named = sorted({uri for file in files for uri in (file.uri, *file.deletes)})
    entries = _entries_of(root, named, access) if named else []
    if inspect is not None:
        inspect(entries)
    local = bool(entries) and local_path(entries[0].uri) is not None
    return Listing(source=source, files=digest_files(entries, remember) if local else tuple(entries))


def require_size(uri: str, size: int) -> None:
    """Reject a document of a log that is larger than any this library reads: its parser has no limit."""
    if size > MAX_BYTES:
        raise InputError(
            f"this document has {size:,} bytes; at most {MAX_BYTES:,} are read",
            where=uri,
            hint="Write a checkpoint, expire old snapshots, or compact the table.",
        )


def require_inside(root: str, uri: str, document: str) -> None:
    """Reject a file outside of the table's folder."""
    if not absolute(uri).startswith(f"{absolute(root)}/") or ".." in uri.split("/"):
        raise PermissionRefused(
            f"the table's {document} names a file outside of its folder: {uri}",
            where=root,
            hint="A table that borrows files of another is not read; copy it whole.",
        )


def _entries_of(root: str, uris: Sequence[str], access: Access) -> list[SourceFile]:
    for uri in uris:
        require_inside(root, uri, "log")
    there = {absolute(entry.uri): entry for entry in list_files(root, (".parquet",), access)}
    if gone := [uri for uri in uris if absolute(uri) not in there]:
        raise InputError(
            f"{len(gone):,} of {len(uris):,} files of this version of the table are gone, such as {gone[0]}",
            where=root,
            hint="They may have been vacuumed or expired: choose a later version, or keep files for longer.",
        )
    return [there[absolute(uri)] for uri in uris]


class LakeSources(Sources):
    """The data files of one version of a table; the listing pins their versions."""

    def __init__(
        self, files: Sequence[LakeFile], listing: Listing, schema: pa.Schema, shard_rows: int, access: Access
    ) -> None:
        self._files = {absolute(file.uri): file for file in files}
        self._versions = {absolute(entry.uri): entry.version for entry in listing.files}
        self._shard_rows, self._access = shard_rows, access
        self.schema = plain(schema.empty_table()).schema
        with ThreadPoolExecutor(_PARALLEL_FOOTERS) as pool:
            self._found = list(pool.map(self._read_schema, sorted(self._files)))

    def parts(self) -> list[SourcePart]:
        """Return parts of about ``shard_rows`` rows; how many of them are deleted is not known."""
        parts = split(self._found, self._shard_rows) or [SourcePart(index=0, uri="", last=0, rows=0)]
        return [
            replace(part, rows=None) if part.uri and self._files[part.uri].deletes else part for part in parts
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
        version = self._versions[absolute(uri)]
        return File(uri=uri, version=version, kind="parquet", codec=None, access=self._access)

    def _read_schema(self, uri: str) -> FileSchema:
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
            what = f"the file does not have the columns that the table's log says: {error!s:.200}"
            raise InputError(what, where=file.uri) from None

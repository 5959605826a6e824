"""Iceberg tables, pinned by snapshot id: ``pyiceberg`` plans the scan, our own storage reads all files.

See ``docs/decisions/0015-kept-readers.md``.
"""

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StaticTable

from trainwright.artifacts import Listing
from trainwright.errors import InputError, PermissionRefused, TrainwrightError
from trainwright.experiment import Data
from trainwright.redaction import redacted
from trainwright.sources.formats import naming_parquet, open_parquet
from trainwright.sources.lake import LakeFile, LakeSources, list_lake, require_inside, require_size
from trainwright.sources.sources import pinned, unpinned
from trainwright.storage import Access, join, list_files, open_file

_PIN = "snapshot"
_METADATA = re.compile(r"(?:v(?P<hadoop>\d+)|(?P<number>\d+)-[0-9a-f-]+)\.(?:gz\.)?metadata\.json")
_FIELD_ID = b"PARQUET:field_id"
_HINT = "Rewrite the table where it is written: rewrite_data_files, or a copy of it as Parquet."


@dataclass(frozen=True)
class _State:
    """One snapshot of a table.

    Attributes:
        snapshot: Its id.
        schema: Its columns.
        ids: The field ids of the columns, by name.
        identities: Columns that partition the table as they are.
        files: Its data files, each with the files of its deleted rows.
    """

    snapshot: int
    schema: pa.Schema
    ids: dict[str, int]
    identities: frozenset[str]
    files: tuple[LakeFile, ...]


def list_source(source: str, data: Data, access: Access, inspect: Callable[..., None] | None) -> Listing:
    """List the files of an Iceberg table's snapshot: the pinned one, ``data.version``, or the current.

    The source is the table's folder, or one of its ``.metadata.json``.
    """
    place, pin = unpinned(source.rstrip("/"), _PIN)
    metadata = _newest_metadata(place, access)
    state = _read(metadata, pin or data.version or "", access)
    source = pinned(metadata, _PIN, str(state.snapshot))
    return list_lake(source, _root(metadata), state.files, access, data.remember, inspect)


def open_source(listing: Listing, data: Data, access: Access) -> "IcebergSources":
    """Open the snapshot of an Iceberg table that was listed."""
    metadata, pin = unpinned(listing.source, _PIN)
    return IcebergSources(_read(metadata, pin, access), listing, data.shard_rows, access)


def column_names(listing: Listing, data: Data, access: Access, wanted: object) -> list[str]:  # noqa: ARG001 - of JSONL
    """Return the columns in the table's metadata."""
    metadata, pin = unpinned(listing.source, _PIN)
    return list(_read(metadata, pin, access).schema.names)


class IcebergSources(LakeSources):
    """The data files of one snapshot; columns are matched by field id, so a renamed one is the same."""

    def __init__(self, state: _State, listing: Listing, shard_rows: int, access: Access) -> None:
        self._ids, self._identities = state.ids, state.identities
        super().__init__(state.files, listing, state.schema, shard_rows, access)

    def _column(self, table: pa.Table, file: LakeFile, wanted: pa.Field) -> Any:
        ids = {int((field.metadata or {}).get(_FIELD_ID, -1)): field.name for field in table.schema}
        name = ids.get(self._ids[wanted.name]) if set(ids) != {-1} else wanted.name
        if name in table.column_names:
            return table[name]
        if wanted.name in self._identities:
            what = f"column {wanted.name!r} stands in the folders alone, and not in the file"
            raise InputError(what, where=file.uri, hint=_HINT)
        return None

    def _deleted(self, file: LakeFile) -> Any:
        found = []
        for uri in file.deletes:
            opened = self._open(uri)
            with naming_parquet(opened), open_parquet(opened) as stream:
                table = stream.read(columns=["file_path", "pos"])
            chosen = table.filter(pc.equal(table["file_path"], file.uri))["pos"]
            found.append(chosen.combine_chunks().cast(pa.int64()))
        return pa.concat_arrays(found) if found else None


class StorageIO(FileIO):
    """Read-only access for pyiceberg to the files below a table's folder, by our own storage."""

    root: str = ""
    access: Access = Access()

    def new_input(self, location: str) -> InputFile:
        """Return a file for reading; reject one outside of the table's folder."""
        require_inside(self.root, location, "metadata")
        return _Input(location, self.access)

    def new_output(self, location: str) -> OutputFile:
        """Raise PermissionRefused: a source is never written."""
        raise PermissionRefused("a source is never written", where=location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Raise PermissionRefused: a source is never written."""
        raise PermissionRefused("a source is never written", where=str(location))


class _Input(InputFile):
    def __init__(self, location: str, access: Access) -> None:
        super().__init__(location)
        self._access = access

    def __len__(self) -> int:
        with self.open() as stream:
            return stream.seek(0, io.SEEK_END)

    def exists(self) -> bool:
        """Tell whether it is there."""
        try:
            self.open().close()
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002 - ours always are
        """Open it."""
        stream: Any = open_file(self.location, access=self._access)
        return stream  # type: ignore[no-any-return]


def _root(metadata: str) -> str:
    return metadata.rsplit("/metadata/", 1)[0]


def _newest_metadata(place: str, access: Access) -> str:
    """Return the newest metadata file of a table's folder, or the source if it is one."""
    if place.endswith(".metadata.json"):
        return place
    try:
        found = list_files(join(place, "metadata"), (".metadata.json",), access)
    except InputError:
        raise InputError(
            "no Iceberg table: there is no metadata in it",
            where=place,
            hint="Name the folder that holds metadata/.",
        ) from None
    numbers: dict[int, list[str]] = {}
    for entry in found:
        if match := _METADATA.fullmatch(entry.uri.rsplit("/", 1)[-1]):
            numbers.setdefault(int(match["hadoop"] or match["number"]), []).append(entry.uri)
    newest = numbers[max(numbers)] if numbers else []
    if len(newest) != 1:
        raise InputError(
            f"the newest metadata file of the table is ambiguous: {newest or 'none has a number'}",
            where=place,
            hint="Name the one that the catalog names, as the source.",
        )
    return newest[0]


@contextmanager
def _naming(what: str, metadata: str, hint: str = "") -> Iterator[None]:
    """Translate the errors of a parser of bytes that others wrote: it raises anything."""
    try:
        yield
    except TrainwrightError:
        raise
    except Exception as error:
        said = " ".join(redacted(str(error)).split())
        raise InputError(f"{what}: {said:.300}", where=metadata, hint=hint) from None


def _read(metadata: str, wanted: str, access: Access) -> _State:
    """Read a snapshot from the table's metadata alone, ignoring its own settings for reading."""
    if wanted and not wanted.isdigit():
        raise InputError(f"{wanted!r:.80} is no snapshot id", where="data.version", hint="It is a number.")
    files = StorageIO()
    files.root, files.access = _root(metadata), access
    with _naming("no metadata of an Iceberg table", metadata):
        document = files.new_input(metadata)
        require_size(metadata, len(document))
        found = FromInputFile.table_metadata(document)
    table = StaticTable(("static-table", metadata), found, metadata, files, NoopCatalog("static-table"))
    with _naming("this snapshot of the Iceberg table cannot be read", metadata, _HINT):
        return _state_of(table, int(wanted) if wanted else None, metadata)


def _state_of(table: StaticTable, wanted: int | None, metadata: str) -> _State:
    snapshot = table.snapshot_by_id(wanted) if wanted else table.current_snapshot()
    if snapshot is None:
        known = ", ".join(str(each.snapshot_id) for each in table.snapshots()[-5:]) or "none"
        raise InputError(
            f"the Iceberg table has no snapshot {wanted or 'yet'}",
            where=metadata,
            hint=f"Its latest: {known}.",
        )
    scan, schema = table.scan(snapshot_id=snapshot.snapshot_id), table.schema()
    projected = scan.projection()
    return _State(
        snapshot=snapshot.snapshot_id,
        schema=projected.as_arrow(),
        ids={field.name: field.field_id for field in projected.fields},
        identities=frozenset(  # old files may lack these columns
            name
            for spec in table.specs().values()
            for field in spec.fields
            if str(field.transform) == "identity" and (name := schema.find_column_name(field.source_id))
        ),
        files=tuple(_file_of(task, metadata) for task in scan.plan_files()),
    )


def _file_of(task: Any, metadata: str) -> LakeFile:
    formats = {str(file.file_format).rpartition(".")[2] for file in (task.file, *task.delete_files)}
    if others := sorted(formats - {"PARQUET"}):
        what = f"the Iceberg table holds {', '.join(others)}, and only Parquet is read"
        raise InputError(what, where=metadata, hint=_HINT)
    return LakeFile(task.file.file_path, {}, tuple(sorted(file.file_path for file in task.delete_files)))

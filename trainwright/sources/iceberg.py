"""Iceberg tables, pinned by snapshot id: ``pyiceberg`` plans the scan, our own storage reads all files.

See ``docs/decisions/0015-kept-readers.md``.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.artifacts import Listing, SourceFile
from trainwright.errors import DependencyError, InputError, TrainwrightError
from trainwright.experiment import Data
from trainwright.sources.formats import naming_parquet, open_parquet
from trainwright.sources.lake import LakeFile, LakeSources, entries_of, with_checksums
from trainwright.sources.parts import pinned, unpinned
from trainwright.storage import Access, join, list_files, redacted

if TYPE_CHECKING:
    from pyiceberg.table import StaticTable

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


def list_iceberg(
    source: str, data: Data, access: Access, inspect: Callable[[Sequence[SourceFile]], None] | None = None
) -> Listing:
    """List the files of an Iceberg table's snapshot: the pinned one, ``data.version``, or the current.

    Args:
        source: The table's folder, or one of its ``.metadata.json``.
        data: The snapshot, and the checksum cache.
        access: What may be reached.
        inspect: Check of the files.

    Raises:
        InputError: There is no such table or snapshot, or it uses an unsupported feature.
        PermissionRefused: It has files outside of its folder.
        DependencyError: The package for Iceberg tables is not installed.
    """
    place, pin = unpinned(source.rstrip("/"), _PIN)
    metadata = _newest_metadata(place, access)
    root = metadata.rsplit("/metadata/", 1)[0]
    state = _read(metadata, root, pin or data.version or "", access)
    named = [file.uri for file in state.files] + [uri for file in state.files for uri in file.deletes]
    entries = entries_of(root, sorted(set(named)), access)
    if inspect is not None:
        inspect(entries)
    files = with_checksums(entries, data.remember)
    return Listing(source=pinned(metadata, _PIN, str(state.snapshot)), files=files)


def open_iceberg(listing: Listing, data: Data, access: Access) -> "IcebergSources":
    """Open the snapshot of an Iceberg table that was listed."""
    metadata, pin = unpinned(listing.source, _PIN)
    state = _read(metadata, metadata.rsplit("/metadata/", 1)[0], pin, access)
    return IcebergSources(state, listing, data.shard_rows, access)


class IcebergSources(LakeSources):
    """The data files of one snapshot; columns are matched by field id, so a renamed one is the same."""

    def __init__(self, state: _State, listing: Listing, shard_rows: int, access: Access) -> None:
        self._ids, self._identities = state.ids, state.identities
        super().__init__(state.files, listing.files, state.schema, shard_rows, access)

    def _column(self, table: pa.Table, file: LakeFile, wanted: pa.Field) -> Any:
        ids = {int((field.metadata or {}).get(_FIELD_ID, -1)): field.name for field in table.schema}
        known = set(ids) != {-1}
        name = ids.get(self._ids[wanted.name]) if known else wanted.name
        if name in table.column_names:
            return table[name]
        if wanted.name in self._identities:
            raise InputError(
                f"column {wanted.name!r} stands in the folders alone, and not in the file",
                where=file.uri,
                hint=_HINT,
            )
        return None

    def _deleted(self, file: LakeFile) -> Any:
        if not file.deletes:
            return None
        found = [self._positions(uri, file.uri) for uri in file.deletes]
        return pa.concat_arrays(found)

    def _positions(self, uri: str, data_file: str) -> Any:
        opened = self._open(uri)
        with naming_parquet(opened), open_parquet(opened) as stream:
            table = stream.read(columns=["file_path", "pos"])
        chosen = table.filter(pc.equal(table["file_path"], data_file))["pos"]
        return chosen.combine_chunks().cast(pa.int64())


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


def _read(metadata: str, root: str, wanted: str, access: Access) -> _State:
    if wanted and not wanted.isdigit():
        raise InputError(f"{wanted!r:.80} is no snapshot id", where="data.version", hint="It is a number.")
    table = _open(metadata, root, access)
    try:
        return _state_of(table, int(wanted) if wanted else None, metadata)
    except TrainwrightError:
        raise
    except Exception as error:  # a parser of bytes that others wrote raises anything
        raise InputError(
            f"this snapshot of the Iceberg table cannot be read: {redacted(str(error)):.300}",
            where=metadata,
            hint=_HINT,
        ) from None


def _open(metadata: str, root: str, access: Access) -> "StaticTable":
    """Open a table from its metadata alone, ignoring its own settings for reading."""
    try:
        from pyiceberg.catalog.noop import NoopCatalog
        from pyiceberg.serializers import FromInputFile
        from pyiceberg.table import StaticTable

        from trainwright.sources.iceberg_files import StorageIO
    except ImportError as error:
        raise DependencyError(
            f"an Iceberg table needs a package that is not here: {error}",
            where=metadata,
            hint="Install the extra: pip install 'trainwright[iceberg]'; a pipeline has the image ingest.",
        ) from None
    files = StorageIO.below(root, access)
    try:
        found = FromInputFile.table_metadata(files.new_input(metadata))
    except TrainwrightError:
        raise
    except Exception as error:  # as above
        said = " ".join(str(error).split())
        raise InputError(f"no metadata of an Iceberg table: {said:.200}", where=metadata) from None
    return StaticTable(("static-table", metadata), found, metadata, files, NoopCatalog("static-table"))


def _state_of(table: "StaticTable", wanted: int | None, metadata: str) -> _State:
    snapshot = table.snapshot_by_id(wanted) if wanted else table.current_snapshot()
    if snapshot is None:
        known = ", ".join(str(each.snapshot_id) for each in table.snapshots()[-5:]) or "none"
        raise InputError(
            f"the Iceberg table has no snapshot {wanted or 'yet'}",
            where=metadata,
            hint=f"Its latest: {known}.",
        )
    scan = table.scan(snapshot_id=snapshot.snapshot_id)
    files = tuple(_file_of(task, metadata) for task in scan.plan_files())
    projected = scan.projection()
    return _State(
        snapshot=snapshot.snapshot_id,
        schema=projected.as_arrow(),
        ids={field.name: field.field_id for field in projected.fields},
        identities=_identities(table),
        files=files,
    )


def _file_of(task: Any, metadata: str) -> LakeFile:
    formats = {str(file.file_format).rpartition(".")[2] for file in (task.file, *task.delete_files)}
    if formats != {"PARQUET"}:
        raise InputError(
            f"the Iceberg table holds {', '.join(sorted(formats - {'PARQUET'}))}, and only Parquet is read",
            where=metadata,
            hint=_HINT,
        )
    return LakeFile(task.file.file_path, {}, tuple(sorted(file.file_path for file in task.delete_files)))


def _identities(table: "StaticTable") -> frozenset[str]:
    """Return the columns of identity partitions; old files may lack them."""
    schema = table.schema()
    return frozenset(
        name
        for spec in table.specs().values()
        for field in spec.fields
        if str(field.transform) == "identity" and (name := schema.find_column_name(field.source_id))
    )

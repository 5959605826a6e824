"""Reference mode: objects are pinned where they lie, so only the columns with a role are read of them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from trainwright import storage
from trainwright.artifacts import Listing, SnapshotFile, SourceFile
from trainwright.errors import InputError
from trainwright.experiment import Data
from trainwright.ingest.reports import ColumnFigures, ShardReport, Span
from trainwright.ingest.roles import TIME
from trainwright.ingest.splits import written
from trainwright.sources import SourcePart
from trainwright.storage import Access
from trainwright.tables import ROW_GROUP, open_parquet, plain, stream_batches

_COPY = "Use mode copy, which rewrites the rows."


def columns_read(data: Data) -> list[str]:
    """Name the columns that are read: those with a role, and those that a limit is set for."""
    return list(dict.fromkeys([data.key, data.time, data.label, *data.disjoint, *data.quality.max_missing]))


def require_referable(listing: Listing, schema: pa.Schema, data: Data) -> None:
    """Reject a source that readers could not read in place.

    Raises:
        InputError: It is not of Parquet files, a store cannot pin them, or time and label are of a type
            that cannot be read as the stored one without loss.
    """
    for entry in listing.files:
        if data.format not in {"auto", "parquet"} or (
            data.format == "auto" and not entry.uri.lower().endswith((".parquet", ".pq"))
        ):
            raise InputError(
                "mode reference pins Parquet files, and this is none", where=entry.uri, hint=_COPY
            )
        if storage.local_path(entry.uri) is None and (not entry.version or entry.uri.startswith("https://")):
            raise InputError(
                "mode reference needs objects that a store pins by version", where=entry.uri, hint=_COPY
            )
    time, label = schema.field(data.time).type, schema.field(data.label).type
    if time != TIME:
        raise InputError(
            f"time column {data.time!r} is {time}; mode reference takes timestamps with a zone",
            where="data.mode",
            hint=_COPY,
        )
    if not pa.types.is_integer(label):
        raise InputError(
            f"label column {data.label!r} is {label}; mode reference takes integers",
            where="data.mode",
            hint=_COPY,
        )


def read_referenced(
    entry: SourceFile, part: SourcePart, schema: pa.Schema, columns: Sequence[str], access: Access
) -> Iterator[tuple[str, int, pa.Table]]:
    """Read some columns of a part, from where it lies.

    Yields:
        The file's URI, the number of rows of that file before these, and the rows.

    Raises:
        InputError: The file is broken, does not have every column, or has times finer than a microsecond.
    """
    wanted = pa.schema([schema.field(name) for name in columns])
    with _opened(entry, access) as file:
        if absent := sorted(set(schema.names) - set(file.schema_arrow.names)):
            raise InputError(
                f"columns {absent} are not in the file; mode reference adds none", where=entry.uri, hint=_COPY
            )
        start = part.start
        for batch in stream_batches(file, ROW_GROUP, columns, slice(part.first, part.last)):
            table = pa.Table.from_batches([batch]).select(columns)
            _require_whole_ticks(table, entry.uri)
            yield entry.uri, start, plain(table, entry.uri).cast(wanted)
            start += table.num_rows


def footer_figures(entry: SourceFile, part: SourcePart, access: Access) -> dict[str, ColumnFigures]:
    """Return the missing values of every column that the file's footer counts them of."""
    with _opened(entry, access) as file:
        metadata, names = file.metadata, file.schema_arrow.names
        last = metadata.num_row_groups if part.last is None else part.last
        nulls: dict[str, int] = dict.fromkeys(names, 0)
        for index in range(part.first, last):
            group = metadata.row_group(index)
            counted = {
                column.path_in_schema: column.statistics.null_count
                for column in map(group.column, range(group.num_columns))
                if column.statistics is not None and column.statistics.has_null_count
            }
            for name in names:
                known = name in counted and nulls[name] >= 0
                nulls[name] = nulls[name] + counted[name] if known else -1
    return {name: ColumnFigures(nulls=count) for name, count in nulls.items()}


@contextmanager
def _opened(entry: SourceFile, access: Access) -> Iterator[pq.ParquetFile]:
    path = storage.local_path(entry.uri)
    try:
        with ExitStack() as stack:
            source = path or stack.enter_context(storage.open_file(entry.uri, entry.version, access))
            yield stack.enter_context(open_parquet(source))
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"the Parquet file cannot be read: {error!s:.300}",
            where=entry.uri,
            hint="Write the file again: it is broken, or was not written to its end.",
        ) from None


def _require_whole_ticks(table: pa.Table, where: str) -> None:
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            try:
                column.cast(pa.timestamp("us", tz=column.type.tz))
            except pa.ArrowInvalid:
                raise InputError(
                    f"column {name!r} has times finer than a microsecond, which readers would cut off",
                    where=where,
                    hint=_COPY,
                ) from None


def referenced_files(
    listing: Listing, reports: Sequence[ShardReport], names: Sequence[str]
) -> list[SnapshotFile]:
    """Return the pinned files, split by split; a file without rows is in none.

    Raises:
        InputError: The rows of a file are in more than one split.
    """
    spans: dict[str, list[Span]] = {}
    for report in reports:
        for span in report.spans:
            spans.setdefault(span.uri, []).append(span)
    found = {entry.uri: _pinned(entry, spans[entry.uri]) for entry in listing.files if entry.uri in spans}
    return [entry for name in names for entry in found.values() if entry.split == name]


def _pinned(entry: SourceFile, spans: Sequence[Span]) -> SnapshotFile:
    if len({span.split for span in spans}) > 1:
        oldest, newest = min(span.oldest for span in spans), max(span.newest for span in spans)
        ordered = sorted(spans, key=lambda span: span.split)
        shown = ", ".join(
            f"{sum(span.rows for span in group):,} in {split}"
            for split, group in (
                (name, list(group)) for name, group in groupby(ordered, lambda span: span.split)
            )
        )
        raise InputError(
            f"the rows of this file are in more than one split: {shown}; they go from {written(oldest)} "
            f"to {written(newest)}",
            where=entry.uri,
            hint="Move the windows to where files begin and end, or use mode copy, which rewrites the rows.",
        )
    return SnapshotFile(
        uri=entry.uri,
        size=entry.size,
        checksum=entry.checksum,
        rows=sum(span.rows for span in spans),
        split=spans[0].split,
        version=entry.version,
    )


def stored_types(schema: pa.Schema, data: Data) -> Mapping[str, pa.DataType]:
    """Return the types that a manifest declares: the source's, but for the columns with a stored form."""
    types = dict(zip(schema.names, schema.types, strict=True))
    return types | {data.time: TIME, data.label: pa.int64()}

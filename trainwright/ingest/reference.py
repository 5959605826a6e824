"""Reference mode: objects are pinned where they lie, so only the columns with a role are read of them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright import storage
from trainwright.artifacts import Listing, SnapshotFile, SourceFile
from trainwright.errors import InputError
from trainwright.experiment import Data
from trainwright.ingest.reports import ShardReport, Span
from trainwright.ingest.roles import TIME, LabelRule
from trainwright.ingest.splits import written
from trainwright.sources import SourcePart
from trainwright.storage import Access
from trainwright.tables import ROW_GROUP, open_parquet, plain, stream_batches

_COPY = "Use mode copy, which rewrites the rows."


def columns_read(data: Data) -> list[str]:
    """Name the columns that are read: those with a role, and those that a limit is set for."""
    roles = [name for name in (data.key, data.time, data.label) if name]
    return list(dict.fromkeys([*roles, *data.disjoint, *data.quality.max_missing]))


def require_referable(listing: Listing, schema: pa.Schema, data: Data, label: LabelRule | None) -> None:
    """Reject a source that readers could not read in place."""
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
    if data.time and (time := schema.field(data.time).type) != TIME:
        raise InputError(
            f"time column {data.time!r} is {time}; mode reference takes timestamps with a zone",
            where="data.mode",
            hint=_COPY,
        )
    if label is None:
        return
    kind = schema.field(label.name).type
    number = pa.types.is_floating(kind) and label.kind == "regression"
    if not (pa.types.is_integer(kind) or number):
        raise InputError(
            f"label column {label.name!r} is {kind}; "
            "mode reference takes integers, and floats for a regression",
            where="data.mode",
            hint=_COPY,
        )


def read_referenced(
    entry: SourceFile, part: SourcePart, schema: pa.Schema, columns: Sequence[str], access: Access
) -> Iterator[tuple[str, int, pa.Table]]:
    """Read some columns of a part, from where it lies."""
    try:
        with ExitStack() as stack:
            path = storage.local_path(entry.uri)
            source = path or stack.enter_context(storage.open_file(entry.uri, entry.version, access))
            file = stack.enter_context(open_parquet(source))
            if absent := sorted(set(schema.names) - set(file.schema_arrow.names)):
                what = f"columns {absent} are not in the file; mode reference adds none"
                raise InputError(what, where=entry.uri, hint=_COPY)
            start = part.start
            for batch in stream_batches(file, ROW_GROUP, columns, slice(part.first, part.last)):
                table = pa.Table.from_batches([batch]).select(columns)
                _require_whole_ticks(table, entry.uri)
                wanted = pa.schema([schema.field(name) for name in columns])
                yield entry.uri, start, plain(table, entry.uri).cast(wanted)
                start += table.num_rows
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
                what = f"column {name!r} has times finer than a microsecond, which readers would cut off"
                raise InputError(what, where=where, hint=_COPY) from None


def referenced_files(
    listing: Listing, reports: Sequence[ShardReport], names: Sequence[str]
) -> list[SnapshotFile]:
    """Return the pinned files, split by split; a file without rows is in none."""
    spans: dict[str, list[Span]] = {}
    for report in reports:
        for span in report.spans:
            spans.setdefault(span.uri, []).append(span)
    found = {entry.uri: _pinned(entry, spans[entry.uri]) for entry in listing.files if entry.uri in spans}
    return [entry for name in names for entry in found.values() if entry.split == name]


def _pinned(entry: SourceFile, spans: Sequence[Span]) -> SnapshotFile:
    rows: Counter[str] = Counter()
    for span in spans:
        rows[span.split] += span.rows
    if len(rows) > 1:
        oldest = min(span.oldest for span in spans if span.oldest is not None)
        newest = max(span.newest for span in spans if span.newest is not None)
        shown = ", ".join(f"{count:,} in {split}" for split, count in sorted(rows.items()))
        raise InputError(
            f"the rows of this file are in more than one split: {shown}; they go from {written(oldest)} "
            f"to {written(newest)}",
            where=entry.uri,
            hint="Move the windows to where files begin and end, or use mode copy, which rewrites the rows.",
        )
    ((split, count),) = rows.items()
    return SnapshotFile(
        uri=entry.uri,
        size=entry.size,
        checksum=entry.checksum,
        rows=count,
        split=split,
        version=entry.version,
    )

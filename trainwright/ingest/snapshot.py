"""A snapshot of a source: read once, checked, split by time, written with its manifest last."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright import storage
from trainwright.artifacts import UNASSIGNED, Listing, Snapshot
from trainwright.errors import InputError
from trainwright.experiment import Data
from trainwright.ingest.roles import KeyCheck, prepare_label, prepare_time
from trainwright.ingest.sources import Sources
from trainwright.ingest.splits import Splits
from trainwright.report.markdown import escape, table
from trainwright.tables import SnapshotWriter, require_columns
from trainwright.tracking import Stopwatch

_LISTED = 20
"""A source of at most this many files has each of them, with its checksum, in the step's record."""


def ingest(source: str, source_version: str, data: Data, folder: Path, summary: Path) -> Snapshot:
    """Read a source and write it as a snapshot.

    Rows keep the order of the source within each split; rows in no window go to ``unassigned``. The time
    column is stored in UTC and the label as int64 of 0, 1 and null; other columns as they are.

    Args:
        source: A Parquet or CSV file, a folder of them, or a glob.
        source_version: The content digest that ``resolve`` found.
        data: Roles of columns, windows of splits, limits.
        folder: The snapshot's folder.
        summary: Markdown file: rows and values missing.

    Returns:
        The manifest; its digest is the data version.

    Raises:
        InputError: The source changed since it was resolved, a file is broken, files differ, or a column
            with a role is missing or holds what it must not.
        DataRefused: There are no rows, or a split has fewer than ``data.min_rows``.
    """
    watch = Stopwatch()
    listing = storage.take_listing(source)
    if listing.content_digest != source_version:
        raise _changed(source, f"{listing.content_digest[:12]}, expected {source_version[:12]}")
    sources = Sources([entry.uri for entry in listing.files], data.missing)
    splits = Splits(data.splits)
    with SnapshotWriter(folder, [*splits.names, UNASSIGNED]) as writer:
        quality = _copy(sources, data, splits, source, writer)
        if [replace(file, checksum="") for file in listing.files] != storage.list_files(
            source, storage.TABLE_SUFFIXES
        ):
            raise _changed(source, "a file was written while it was read")
        roles = {"key": data.key, "time": data.time, "label": data.label}
        snapshot = writer.commit(parents={"source": source_version}, roles=roles, quality=quality)
    listing.write(folder)
    watch.record(
        folder,
        "ingest",
        f"{snapshot.rows:,} rows, {len(snapshot.columns)} columns, data {snapshot.digest[:6]}…",
        config=data.model_dump(mode="json") | {"source": source},
        inputs={"source": source_version} | _files_by_name(listing),
        outputs={"data": snapshot.digest},
    )
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(_summary(source, snapshot))
    return snapshot


def _changed(source: str, how: str) -> InputError:
    return InputError(
        f"the source changed since it was resolved: {how}",
        where=source,
        hint="Run the pipeline again: resolve looks at the source anew.",
    )


def _files_by_name(listing: Listing) -> dict[str, str]:
    if len(listing.files) > _LISTED:
        return {}
    return {f"file {entry.uri}": entry.checksum for entry in listing.files}


def _copy(
    sources: Sources, data: Data, splits: Splits, source: str, writer: SnapshotWriter
) -> dict[str, float]:
    """Read every row once: check it, divide it, write it. Returns labels counted by split."""
    require_columns(sources.schema, (data.key, data.time, data.label), where=source)
    keys = KeyCheck(data.key, source)
    quality: dict[str, float] = {}
    for uri, start, rows in sources.batches():
        keys.add(rows[data.key], uri, start)
        time = prepare_time(rows[data.time], data.time, uri, start)
        ready = _with(
            _with(rows, data.time, time), data.label, prepare_label(rows[data.label], data.label, uri)
        )
        for split, part in splits.divide(ready, time):
            writer.append(split, part)
            _count_labels(quality, split, part[data.label])
    splits.require(data.min_rows, source)
    keys.finish(lambda: (rows[data.key] for _, _, rows in sources.batches()))
    return quality


def _with(rows: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, column)


def _count_labels(quality: dict[str, float], split: str, label: pa.ChunkedArray) -> None:
    for figure, count in (
        ("labels", len(label) - label.null_count),
        ("positives", pc.sum(label).as_py() or 0),
    ):
        quality[f"{figure}.{split}"] = quality.get(f"{figure}.{split}", 0.0) + count


def _summary(source: str, snapshot: Snapshot) -> str:
    """Say in Markdown what the snapshot holds."""
    return "\n".join(
        [
            f"**{snapshot.rows:,} rows, {len(snapshot.columns)} columns** from {escape(source)}\n",
            f"Data version `{snapshot.digest}`\n",
            table(("split", "rows", "with label", "positive"), list(_split_rows(snapshot)), (1, 2, 3)),
            table(("column", "type", "missing"), list(_column_rows(snapshot)), (2,)),
        ]
    )


def _split_rows(snapshot: Snapshot) -> Iterator[tuple[str, str, str, str]]:
    for split, rows in snapshot.splits.items():
        labels, positives = (snapshot.quality[f"{figure}.{split}"] for figure in ("labels", "positives"))
        share = f"{positives / labels:.1%}" if labels else "-"
        yield split, f"{rows:,}", f"{labels:,.0f}", share


def _column_rows(snapshot: Snapshot) -> Iterator[tuple[str, str, str]]:
    role_of = {name: role for role, name in snapshot.roles.items()}
    for column in snapshot.columns:
        nulls = snapshot.quality[f"nulls.{column.name}"]
        name = f"{column.name} ({role_of[column.name]})" if column.name in role_of else column.name
        yield name, column.type, f"{nulls:,.0f} ({nulls / snapshot.rows:.1%})" if nulls else "0"

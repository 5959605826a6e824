"""Snapshots as Parquet: rows in, rows out, errors that name the file and the column.

A snapshot's folder holds ``manifest.json`` and ``data/<split>/part-00000.parquet``. Data files are written
first and the manifest last, so a folder without a manifest is not a snapshot and one with a manifest is
whole. The same rows give the same bytes, and so the same digest, however they were cut into batches.
Works with pyarrow 10 (the newest that TFDV takes) and later.
"""

from trainwright.tables.columns import plain, require_columns, require_distinct, schema_difference
from trainwright.tables.reading import STREAM_BUFFER, iter_batches, read_split, stream_batches
from trainwright.tables.writing import ROW_GROUP, SnapshotWriter, write_snapshot

__all__ = [
    "ROW_GROUP",
    "STREAM_BUFFER",
    "SnapshotWriter",
    "iter_batches",
    "plain",
    "read_split",
    "require_columns",
    "require_distinct",
    "schema_difference",
    "stream_batches",
    "write_snapshot",
]

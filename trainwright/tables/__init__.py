"""Snapshots as Parquet: rows in, rows out, errors that name the file and the column.

A snapshot's folder holds ``manifest.json`` and ``data/<split>/part-00000.parquet``. Data files are written
first and the manifest last, so a folder without a manifest is not a snapshot and one with a manifest is
whole. The same rows give the same bytes, and so the same digest, however they were cut into batches. A
manifest may name files anywhere: beside it, elsewhere on a disk, or in a store, pinned by their version.
Works with pyarrow 10 (the newest that TFDV takes) and later.
"""

from trainwright.tables.columns import plain, require_columns, require_distinct, schema_difference
from trainwright.tables.fingerprint import fingerprints
from trainwright.tables.reading import (
    Piece,
    iter_batches,
    open_parquet,
    pieces,
    read_piece,
    read_split,
    stream_batches,
)
from trainwright.tables.writing import ROW_GROUP, FileWriter, SnapshotWriter, WrittenFile, write_snapshot

__all__ = [
    "ROW_GROUP",
    "FileWriter",
    "Piece",
    "SnapshotWriter",
    "WrittenFile",
    "fingerprints",
    "iter_batches",
    "open_parquet",
    "pieces",
    "plain",
    "read_piece",
    "read_split",
    "require_columns",
    "require_distinct",
    "schema_difference",
    "stream_batches",
    "write_snapshot",
]

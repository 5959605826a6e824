"""Parquet files: the footer says columns, types and rows; parts are row groups."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import parquet as pq

from trainwright import tables
from trainwright.errors import InputError
from trainwright.sources.formats import File, magic_of
from trainwright.storage import local_path
from trainwright.tables import require_distinct

BATCH = 16_384
"""Rows a batch: a few megabytes, so that what waits to be written is all that counts in memory."""


def open_parquet(file: File) -> pq.ParquetFile:
    """Open a Parquet file; whoever closes it closes the stream below it, too."""
    path = local_path(file.uri)
    return tables.open_parquet(path or file.open())


def read_footer(file: File) -> tuple[pa.Schema, tuple[int, ...]]:
    """Return the columns and the rows of each row group.

    Raises:
        InputError: The footer is missing or broken, or a column has no name or one that is there twice.
    """
    with naming_parquet(file), open_parquet(file) as opened:
        metadata = opened.metadata
        rows = tuple(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
        return require_distinct(opened.schema_arrow, file.uri), rows


def read_groups(file: File, first: int, last: int | None) -> Iterator[pa.RecordBatch]:
    """Read row groups ``first`` to ``last`` (not included), one after the other; memory is that of one.

    Raises:
        InputError: The file is broken.
    """
    with naming_parquet(file), open_parquet(file) as opened:
        for index in range(first, opened.num_row_groups if last is None else last):
            yield from opened.iter_batches(BATCH, row_groups=[index])


@contextmanager
def naming_parquet(file: File) -> Iterator[None]:
    """Turn what Arrow says about a Parquet file into an error that names it."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(_plainly(file, str(error)), where=file.uri) from None


def _plainly(file: File, text: str) -> str:
    if "magic bytes not found" not in text and "Parquet file size is" not in text:
        return f"the Parquet file cannot be read: {text:.300}"
    head = file.head()
    if head.startswith(b"PAR1"):
        return "Parquet footer missing: the file is incomplete; it may still be written"
    found = magic_of(head) or "no kind of file that is known here"
    return f"Parquet footer missing: the file is not Parquet; its first bytes {head[:8]!r} say {found}"

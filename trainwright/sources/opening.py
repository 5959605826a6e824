"""Which kind a source is of, and who lists and opens it."""

from collections.abc import Callable, Sequence

from trainwright import storage
from trainwright.artifacts import Listing, SourceFile
from trainwright.experiment import Data
from trainwright.sources.parts import Sources
from trainwright.storage import Access

Inspect = Callable[[Sequence[SourceFile]], None]
"""Looks at the files of a source before any is read, and raises if they must not be."""


def list_source(source: str, data: Data, access: Access, inspect: Inspect | None = None) -> Listing:
    """Say what a source holds now, as cheaply as its kind allows.

    Args:
        source: A path, URI, glob, table or database; what ``resolve`` handed on is taken as it is pinned.
        data: How it is read.
        access: What may be reached.
        inspect: Is shown the files first; not for a database, which has none.

    Returns:
        The listing. Its ``source`` is pinned where a pin exists: a table that moves on, or a database,
        is listed the same again from it.

    Raises:
        InputError: Nothing is there, or it is not what ``data`` says.
    """
    if data.format == "sql":
        from trainwright.sources.sql import list_query

        return list_query(source, data, access)
    if data.format == "delta":
        from trainwright.sources.delta import list_delta

        return list_delta(source, data, access, inspect)
    if data.format == "iceberg":
        from trainwright.sources.iceberg import list_iceberg

        return list_iceberg(source, data, access, inspect)
    if inspect is not None:
        inspect(storage.list_files(source, storage.TABLE_SUFFIXES, access))
    return storage.take_listing(source, access, data.remember)


def open_source(listing: Listing, data: Data, access: Access) -> Sources:
    """Open what was listed as one table.

    Args:
        listing: What :func:`list_source` found.
        data: How it is read: format, types, texts that mean no value, rows a shard, the query.
        access: What may be reached.

    Returns:
        The source; finding the types of CSV and JSONL files reads them once.

    Raises:
        InputError: A file is incomplete, not of its kind, or differs from the others in its columns.
    """
    if data.format == "sql":
        from trainwright.sources.sql import QuerySources

        return QuerySources(listing, data, access)
    if data.format == "delta":
        from trainwright.sources.delta import open_delta

        return open_delta(listing, data, access)
    if data.format == "iceberg":
        from trainwright.sources.iceberg import open_iceberg

        return open_iceberg(listing, data, access)
    from trainwright.sources.files import FileSources

    return FileSources(listing, data, access)

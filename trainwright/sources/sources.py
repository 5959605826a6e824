"""Listing and opening of sources by their kind, and the record of where a content was seen.

Kubeflow's cache keys on a step's parameters, and a location is one. So with a store, ``resolve`` passes on
not the location but a folder of the store, whose name depends on the content alone; the locations are
recorded in it.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from trainwright import storage
from trainwright.artifacts import Listing, SourceFile
from trainwright.documents import canonical, digest_text, read_json
from trainwright.experiment import Data
from trainwright.sources.parts import Sources
from trainwright.storage import Access, AlreadyExists


def example_values(column: Any, count: int = 3) -> str:
    """Format at most ``count`` distinct values of an Arrow column, for an error."""
    values = column.drop_null().slice(0, 1000).to_pylist()
    shown = dict.fromkeys(repr(value) if isinstance(value, str) else str(value) for value in values)
    return ", ".join(itertools.islice(shown, count)) or "no value"


FOLDER = "sources"


def note_place(listing: Listing, version: str, data: Data, access: Access) -> str:
    """Record the location of a content in ``data.store``, and return the folder that names the content.

    Without a store, for a table or database (which have a pin), and for a snapshot that only refers to its
    objects (and so needs their location), the source itself is returned.

    Args:
        listing: The files.
        version: Their content digest.
        data: How they are read.
        access: What may be reached.
    """
    if data.store is None or data.mode == "reference" or data.format in {"sql", "delta", "iceberg"}:
        return listing.source
    folder = storage.join(data.store, FOLDER, version)
    place = storage.join(folder, f"{digest_text(listing.source)}.json")
    with suppress(AlreadyExists):
        storage.create(place, canonical({"source": listing.source}).encode(), access)
    return folder


def places_of(source: str, version: str, data: Data, access: Access) -> Iterator[str]:
    """Yield the recorded locations of a content, the last first; any other source as it is.

    Args:
        source: The source that ``resolve`` returned.
        version: The content digest.
        data: How it is read.
        access: What may be reached.

    Raises:
        InputError: The store has no such record.
    """
    if data.store is None or source != storage.join(data.store, FOLDER, version):
        yield source
        return
    notes = storage.list_files(source, (".json",), access)
    for note in sorted(notes, key=lambda entry: entry.written, reverse=True):
        yield read_json(storage.read_bytes(note.uri, access=access), where=note.uri)["source"]


Inspect = Callable[[Sequence[SourceFile]], None]
"""Check of a source's files before any is read; raises to reject them."""


def list_source(source: str, data: Data, access: Access, inspect: Inspect | None = None) -> Listing:
    """List the content of a source, as cheaply as its kind allows.

    Args:
        source: A path, URI, glob, table or database; a pin of ``resolve`` is respected.
        data: How it is read.
        access: What may be reached.
        inspect: Check of the files; not called for a database, which has none.

    Returns:
        The listing. The ``source`` of a table or a database is pinned: from it the same is listed again.

    Raises:
        InputError: Nothing is there, or it is not of the kind that ``data`` says.
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
    """Open a listing as one table.

    Args:
        listing: Result of :func:`list_source`.
        data: How it is read: format, types, texts that mean no value, rows of a shard, the query.
        access: What may be reached.

    Returns:
        The source; inferring the types of CSV and JSONL files reads them once.

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

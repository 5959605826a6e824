"""Listing and opening of sources by their kind, and the record of where a content was seen.

Kubeflow's cache keys on a step's parameters, and a location is one. So with a store, ``resolve`` passes on
not the location but a folder of the store, whose name depends on the content alone; the locations are
recorded in it.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

from trainwright import storage
from trainwright.artifacts import Listing, SourceFile
from trainwright.documents import canonical, digest_text, read_json
from trainwright.errors import DependencyError
from trainwright.experiment import Data
from trainwright.sources.parts import Sources
from trainwright.storage import Access, AlreadyExists

FOLDER = "sources"
PINNED = frozenset({"sql", "delta", "iceberg"})
"""Formats whose sources are pinned in their location, and need libraries of their own."""

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
    listing: Listing = _reader(source, data).list_source(source, data, access, inspect)
    return listing


def open_source(listing: Listing, data: Data, access: Access) -> Sources:
    """Open a listing as one table; inferring the types of CSV and JSONL files reads them once.

    Raises:
        InputError: A file is incomplete, not of its kind, or differs from the others in its columns.
    """
    source: Sources = _reader(listing.source, data).open_source(listing, data, access)
    return source


def column_names(listing: Listing, data: Data, access: Access, wanted: Collection[str]) -> list[str]:
    """Return the columns of a listing: of a table's log, a query, or the first of several files.

    Each line of a JSONL file may bring another column: it is read until it has those that are wanted.
    """
    names: list[str] = _reader(listing.source, data).column_names(listing, data, access, wanted)
    return names


def _reader(source: str, data: Data) -> Any:
    """Import the module that reads this kind of source; each needs libraries of its own."""
    try:
        match data.format:
            case "sql":
                from trainwright.sources import sql

                return sql
            case "delta":
                from trainwright.sources import delta

                return delta
            case "iceberg":
                from trainwright.sources import iceberg

                return iceberg
            case _:
                from trainwright.sources import files

                return files
    except ImportError as error:
        raise DependencyError(
            f"a source of format {data.format} needs a package that is not here: {error}",
            where=storage.redacted(source),
            hint=f"Install the extra: pip install 'trainwright[{data.format}]'; in a pipeline, use the image "
            "ingest.",
        ) from None


def note_place(listing: Listing, version: str, data: Data, access: Access) -> str:
    """Record the location of a content in ``data.store``, and return the folder that names the content.

    Without a store, for a table or database (which have a pin), and for a snapshot that only refers to its
    objects (and so needs their location), the source itself is returned. ``version`` is the content digest.
    """
    if data.store is None or data.mode == "reference" or data.format in PINNED:
        return listing.source
    folder = storage.join(data.store, FOLDER, version)
    place = storage.join(folder, f"{digest_text(listing.source)}.json")
    with suppress(AlreadyExists):
        storage.create(place, canonical({"source": listing.source}).encode(), access)
    return folder


def places_of(source: str, version: str, data: Data, access: Access) -> Iterator[str]:
    """Yield the recorded locations of a content, the last first; any other source as it is."""
    if data.store is None or source != storage.join(data.store, FOLDER, version):
        yield source
        return
    notes = storage.list_files(source, (".json",), access)
    for note in sorted(notes, key=lambda entry: entry.written, reverse=True):
        yield read_json(storage.read_bytes(note.uri, access=access), where=note.uri)["source"]


def example_values(column: Any) -> str:
    """Format at most three distinct values of an Arrow column, for an error."""
    values = column.drop_null().slice(0, 1000).to_pylist()
    shown = dict.fromkeys(repr(value) if isinstance(value, str) else str(value) for value in values)
    return ", ".join(itertools.islice(shown, 3)) or "no value"

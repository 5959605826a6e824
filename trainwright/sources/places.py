"""Where a content lies: noted in the store under the content's digest, so that a copy has the same name.

Kubeflow's cache looks at a step's parameters, and a place is one. So with a store, what ``resolve`` hands on
is not the place but this folder, whose name depends on the content alone; the places are noted inside.
"""

import json
from collections.abc import Iterator
from contextlib import suppress

from trainwright import storage
from trainwright.artifacts import Listing
from trainwright.documents import canonical, digest_text
from trainwright.experiment import Data
from trainwright.storage import Access, AlreadyThere

FOLDER = "sources"


def note_place(listing: Listing, version: str, data: Data, access: Access) -> str:
    """Note where a content lies now, and return what names the content wherever it lies.

    Without a store there is nowhere to note it, a table or database has its own pin, and a snapshot that only
    refers to its objects needs their place: the source itself is returned.

    Args:
        listing: What was found.
        version: Its content digest.
        data: How it will be read, and where its shards will go.
        access: What may be reached.
    """
    if data.store is None or data.mode == "reference" or data.format in {"sql", "delta", "iceberg"}:
        return listing.source
    folder = storage.join(data.store, FOLDER, version)
    place = storage.join(folder, f"{digest_text(listing.source)}.json")
    with suppress(AlreadyThere):
        storage.create(place, canonical({"source": listing.source}).encode(), access)
    return folder


def places_of(source: str, version: str, data: Data, access: Access) -> Iterator[str]:
    """Give the places where a content was seen, the last noted first; any other source as it is.

    Args:
        source: What ``resolve`` handed on.
        version: The content digest.
        data: How it is read.
        access: What may be reached.

    Raises:
        InputError: The store has no such note.
    """
    if data.store is None or source != storage.join(data.store, FOLDER, version):
        yield source
        return
    notes = storage.list_files(source, (".json",), access)
    for note in sorted(notes, key=lambda entry: entry.written, reverse=True):
        yield json.loads(storage.read_bytes(note.uri, access=access))["source"]

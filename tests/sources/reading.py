"""Listing, opening and reading a source in one go, as resolve and ingest do one after the other."""

from pathlib import Path

import pyarrow as pa

from trainwright.artifacts import Listing
from trainwright.experiment import Data
from trainwright.sources import Sources, list_source, open_source
from trainwright.storage import Access

SECTION = {"source": "x", "key": "id", "time": "at", "label": "late", "splits": {"train": {"fraction": 1}}}


def section(**changes: object) -> Data:
    return Data.check(SECTION | changes, "test")


def opened(*sources: object, access: Access = Access(), **changes: object) -> Sources:  # noqa: B008 - it is frozen
    """Open one source, or several files as if they lay in one folder."""
    data = section(**changes)
    found = [list_source(str(source), data, access) for source in sources]
    files = tuple(entry for listing in found for entry in listing.files)
    return open_source(Listing(source=found[0].source, files=files), data, access)


def read(*sources: object, access: Access = Access(), **changes: object) -> pa.Table:  # noqa: B008 - it is frozen
    """Read every part of a source, in order, as one table."""
    source = opened(*sources, access=access, **changes)
    tables = [rows for part in source.parts() for _, _, rows in source.batches(part)]
    assert all(table.schema == source.schema for table in tables)
    return pa.concat_tables([source.schema.empty_table(), *tables])


def text(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path

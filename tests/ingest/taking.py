"""Small sources and what ingest makes of them, for the tests of this folder."""

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trainwright import tables
from trainwright.artifacts import Snapshot
from trainwright.experiment import Data
from trainwright.ingest.ingest import ingest
from trainwright.sources import list_source
from trainwright.storage import Access

START = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
WINDOWS = {
    "train": {"start": "2013-01-01", "end": "2013-01-08"},
    "evaluate": {"start": "2013-01-10", "end": "2013-01-12"},
}


def flights(count: int = 400, **columns: object) -> pa.Table:
    """One row an hour from 2013 on; label and figures repeat, some are missing."""
    base: dict[str, object] = {
        "id": [f"f{n}" for n in range(count)],
        "at": [START + dt.timedelta(hours=n) for n in range(count)],
        "late": [None if n % 10 == 0 else n % 3 == 0 for n in range(count)],
        "delay": [None if n % 10 == 0 else float(n) for n in range(count)],
        "carrier": ["UA" if n % 2 else "NA" for n in range(count)],
    }
    return pa.table(base | columns)


def data(**changes: object) -> Data:
    section = {"source": "x", "key": "id", "time": "at", "label": "late", "splits": WINDOWS}
    return Data.check(section | changes, "test")


def version_of(source: str | Path, section: Data | None = None) -> str:
    return list_source(str(source), section or data(), Access()).content_digest


def take(source: str | Path, folder: Path, section: Data | None = None) -> Snapshot:
    section = section or data()
    version = version_of(source, section)
    return ingest(str(source), version, section, folder / "snapshot", folder / "summary.md")


def put(path: Path, table: pa.Table, row_group_size: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group_size)
    return path


def whole(folder: Path) -> Snapshot:
    """Open the snapshot in a folder and check every file of it as a reader does."""
    found = Snapshot.read(folder)
    batches = tables.iter_batches(folder, found, list(found.splits))
    assert sum(batch.num_rows for batch in batches) == found.rows
    return found

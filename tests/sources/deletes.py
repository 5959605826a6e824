"""Commits deletes beside the data of an Iceberg table, as Spark does; pyiceberg itself only rewrites."""

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.typedef import Record

SNAPSHOT = 4_242_424_242


class DeleteWriter(ManifestWriterV2):
    """Writes a manifest of deletes; the public writer only knows data."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def commit(table: Table, positions: Mapping[Path, Sequence[int]], *, equality: bool = False) -> Path:
    """Delete rows of data files by their places, and return the new metadata file."""
    place = Path(table.location().removeprefix("file://"))
    pairs = [(f"file://{path}", row) for path, rows in positions.items() for row in rows]
    path = place / "data" / "deletes.parquet"
    pq.write_table(
        pa.table({"file_path": [name for name, _ in pairs], "pos": [row for _, row in pairs]}), path
    )
    current = table.current_snapshot()
    assert current is not None
    sequence = (current.sequence_number or 0) + 1
    entry = ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=SNAPSHOT,
        sequence_number=sequence,
        file_sequence_number=sequence,
        data_file=_data_file(path, len(pairs), equality),
    )
    output = table.io.new_output(f"{table.location()}/metadata/deletes-m0.avro")
    with DeleteWriter(table.spec(), table.schema(), output, SNAPSHOT, "null") as writer:
        writer.add_entry(entry)
    manifests = f"{table.location()}/metadata/snap-{SNAPSHOT}.avro"
    listed = table.io.new_output(manifests)
    with write_manifest_list(2, listed, SNAPSHOT, current.snapshot_id, sequence, "null") as lister:
        lister.add_manifests([*current.manifests(table.io), writer.to_manifest_file()])
    return _metadata(table, manifests, sequence)


def _data_file(path: Path, rows: int, equality: bool) -> DataFile:
    return DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES if equality else DataFileContent.POSITION_DELETES,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=path.stat().st_size,
        equality_ids=[1] if equality else None,
        spec_id=0,
    )


def _metadata(table: Table, manifests: str, sequence: int) -> Path:
    """Write the table's metadata with one more snapshot, which is the current one."""
    before = Path(table.metadata_location.removeprefix("file://"))
    content: dict[str, Any] = json.loads(before.read_text())
    snapshot = dict(content["snapshots"][-1])
    snapshot |= {"snapshot-id": SNAPSHOT, "sequence-number": sequence, "manifest-list": manifests}
    snapshot |= {"parent-snapshot-id": content["current-snapshot-id"], "summary": {"operation": "delete"}}
    content["snapshots"].append(snapshot)
    content |= {"current-snapshot-id": SNAPSHOT, "last-sequence-number": sequence}
    content["refs"]["main"]["snapshot-id"] = SNAPSHOT
    after = before.with_name(f"00099-{uuid.uuid4()}.metadata.json")
    after.write_text(json.dumps(content))
    return after

"""Rows that validation took out of the entities: they get no features and go no further."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright import tables
from trainwright.artifacts import RUN_AGAIN, Snapshot
from trainwright.errors import InputError


class LeftOut:
    """The keys of rows in quarantine, and how many rows were met that have one.

    Args:
        keys: Their keys; null for a row that has none.
        version: Digest of the quarantine.
    """

    def __init__(self, keys: pa.ChunkedArray, version: str) -> None:
        self.version, self.rows = version, len(keys)
        self._keys, self._nulls = keys.drop_null(), keys.null_count > 0
        self._met: dict[str, int] = {}

    @property
    def met(self) -> dict[str, int]:
        """Rows that were left out, by split; splits without any are missing."""
        return {split: rows for split, rows in self._met.items() if rows}

    def without(self, split: str, rows: pa.Table, key: str) -> pa.Table:
        """Return the rows that go on, and count the others."""
        if not self.rows:
            return rows
        kept = rows.filter(pc.invert(self._among(rows[key])))
        self._met[split] = self._met.get(split, 0) + rows.num_rows - kept.num_rows
        return kept

    def keys(self, keys: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return those of the rows' keys that must be there and distinct; a null may be in quarantine."""
        return keys.drop_null() if self._nulls else keys

    def _among(self, keys: pa.ChunkedArray) -> pa.ChunkedArray:
        known = pc.is_in(keys, value_set=self._keys.combine_chunks())
        return pc.or_(known, pc.is_null(keys)) if self._nulls else known

    def require_met(self) -> None:
        """Check that every row in quarantine was met among the entities.

        Raises:
            InputError: More or fewer were.
        """
        met = sum(self._met.values())
        if met != self.rows:
            raise InputError(
                f"{self.rows:,} rows are in quarantine, and {met:,} of the entities have one of their keys",
                where="quarantine",
                hint="The key has to tell every row from every other.",
            )


def read_left_out(folder: Path | None, version: str, data_version: str, key: str) -> LeftOut:
    """Read the keys of the rows in quarantine.

    Args:
        folder: Snapshot of the quarantine; None if there is none.
        version: Digest that it must have.
        data_version: Digest of the entities that it must have been taken from.
        key: Their key column.

    Raises:
        InputError: The quarantine is gone or changed, or is that of other rows.
    """
    if folder is None:
        return LeftOut(pa.chunked_array([], pa.string()), "")
    snapshot = Snapshot.open(folder, version)
    if snapshot.parents.get("snapshot") != data_version:
        named = snapshot.parents.get("snapshot", "")[:12] or "(not named)"
        raise InputError(
            f"the quarantine was taken from data {named}, these rows are {data_version[:12]}",
            where=str(folder),
            hint=RUN_AGAIN,
        )
    batches = list(_keys(folder, snapshot, key))
    return LeftOut(pa.chunked_array(batches or [pa.array([], pa.string())]), version)


def _keys(folder: Path, snapshot: Snapshot, key: str) -> Iterator[pa.Array]:
    for split, rows in snapshot.splits.items():
        if rows:
            for batch in tables.iter_batches(folder, snapshot, [split], [key]):
                yield batch.column(0)

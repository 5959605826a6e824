"""The quarantine: rows that validation took out, which get no features and go no further."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright import tables
from trainwright.artifacts import RUN_AGAIN, Snapshot
from trainwright.errors import InputError


class QuarantinedKeys:
    """The keys of quarantined rows, and how many rows of the entities have one of them.

    Args:
        keys: Their keys; null for a row without one.
        version: Digest of the quarantine.
    """

    def __init__(self, keys: pa.ChunkedArray, version: str) -> None:
        self.version, self.rows = version, len(keys)
        self._keys, self._nulls = keys.drop_null(), keys.null_count > 0
        self._met: dict[str, int] = {}

    @property
    def met(self) -> dict[str, int]:
        """Rows that were left out, by split; splits without any are absent."""
        return {split: rows for split, rows in self._met.items() if rows}

    def without(self, split: str, rows: pa.Table, key: str) -> pa.Table:
        """Return the other rows, and count the quarantined ones."""
        if not self.rows:
            return rows
        kept = rows.filter(pc.invert(self._among(rows[key])))
        self._met[split] = self._met.get(split, 0) + rows.num_rows - kept.num_rows
        return kept

    def keys(self, keys: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the rows' keys that must be present and distinct; a null may be in quarantine."""
        return keys.drop_null() if self._nulls else keys

    def _among(self, keys: pa.ChunkedArray) -> pa.ChunkedArray:
        known = pc.is_in(keys, value_set=self._keys.combine_chunks())
        return pc.or_(known, pc.is_null(keys)) if self._nulls else known

    def require_met(self) -> None:
        """Check that every quarantined row was among the entities.

        Raises:
            InputError: More or fewer were.
        """
        met = sum(self._met.values())
        if met != self.rows:
            raise InputError(
                f"{self.rows:,} rows are in quarantine, and {met:,} of the entities have one of their keys",
                where="quarantine",
                hint="The key has to be unique.",
            )


def read_quarantine(folder: Path | None, version: str, data_version: str, key: str) -> QuarantinedKeys:
    """Read the keys of the quarantined rows.

    Args:
        folder: Snapshot of the quarantine; None if there is none.
        version: Expected digest.
        data_version: Digest of the entities that it must belong to.
        key: Their key column.

    Raises:
        InputError: The quarantine is gone or changed, or belongs to other rows.
    """
    if folder is None:
        return QuarantinedKeys(pa.chunked_array([], pa.string()), "")
    snapshot = Snapshot.open(folder, version)
    if snapshot.parents.get("snapshot") != data_version:
        named = snapshot.parents.get("snapshot", "")[:12] or "(not named)"
        raise InputError(
            f"the quarantine was taken from data {named}, these rows are {data_version[:12]}",
            where=str(folder),
            hint=RUN_AGAIN,
        )
    batches = list(_keys(folder, snapshot, key))
    return QuarantinedKeys(pa.chunked_array(batches or [pa.array([], pa.string())]), version)


def _keys(folder: Path, snapshot: Snapshot, key: str) -> Iterator[pa.Array]:
    for split, rows in snapshot.splits.items():
        if rows:
            for batch in tables.iter_batches(folder, snapshot, [split], [key]):
                yield batch.column(0)

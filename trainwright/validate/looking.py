"""Looks at the splits of one snapshot: each thing once, and what is kept not at all."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainwright.artifacts import Snapshot
from trainwright.documents import digest_text
from trainwright.experiment.data import Runner
from trainwright.tables import iter_batches
from trainwright.validate.bins import Counts, Cuts
from trainwright.validate.combiners import QUANTILES, VALUES_KEPT, counted_as
from trainwright.validate.forms import unreadable
from trainwright.validate.kept import Shelf, cuts_digest
from trainwright.validate.scan import FAN_IN, PIECE_ROWS, Wanted, scan
from trainwright.validate.tfdv import tfdv

ENGINE = f"1 tfdv-{tfdv.__version__} values-{VALUES_KEPT} quantiles-{QUANTILES} pieces-{PIECE_ROWS}-{FAN_IN}"
"""What else a result depends on; the first number is raised when this library takes statistics otherwise."""


@dataclass(frozen=True)
class Lookout:
    """Where to look, and how.

    Attributes:
        folder: The snapshot's folder.
        snapshot: Its manifest.
        schema: The reviewed schema.
        runner: On what the rows are read; it changes nothing of the result.
        store: Folder or URI where results are kept; none are if empty.
        new_columns: Whether statistics are taken of columns, too, that the schema does not name.
    """

    folder: Path
    snapshot: Snapshot
    schema: Any
    runner: Runner = field(default_factory=Runner)
    store: str = ""
    new_columns: bool = True

    def statistics(self, split: str) -> Any:
        """Return TFDV's statistics of a split."""
        return self.both(split, {})[0]

    def counts(self, split: str, cuts: Mapping[str, Cuts]) -> dict[str, Counts]:
        """Count the rows of a split in the given bins; all columns of ``cuts`` must be there."""
        if not cuts:
            return {}
        of = self._of(split, cuts=cuts_digest(cuts))
        if (known := Shelf(self.store).counts(of, cuts)) is not None:
            return known
        _, counts = self._scan(split, Wanted(b"", (), cuts))
        Shelf(self.store).put(of, counts=counts)
        return counts

    def both(self, split: str, cuts: Mapping[str, Cuts]) -> tuple[Any, dict[str, Counts]]:
        """Return a split's statistics and its rows in the given bins, in one pass if neither is kept."""
        wanted = Wanted(self._counted(), self._columns(split), cuts)
        of = self._of(split, schema=digest_text(wanted.schema.hex()), columns=list(wanted.columns))
        if (known := Shelf(self.store).statistics(of)) is not None:
            return known, self.counts(split, cuts)
        counts = Shelf(self.store).counts(self._of(split, cuts=cuts_digest(cuts)), cuts) if cuts else {}
        if counts is not None:
            wanted = replace(wanted, cuts={})
        statistics, taken = self._scan(split, wanted)
        Shelf(self.store).put(of, statistics)
        if counts is None:
            Shelf(self.store).put(self._of(split, cuts=cuts_digest(cuts)), counts=taken)
        return statistics, taken if counts is None else counts

    def _scan(self, split: str, wanted: Wanted) -> tuple[Any, dict[str, Counts]]:
        return scan(self.folder, self.snapshot, split, wanted, self.runner, self.store)

    def _of(self, split: str, **options: Any) -> dict[str, Any]:
        return {"data_version": self.snapshot.digest, "split": split, "engine": ENGINE, **options}

    def _counted(self) -> bytes:
        key = [self.snapshot.roles["key"]] if "key" in self.snapshot.roles else []
        return bytes(counted_as(self.schema, key).SerializeToString(deterministic=True))

    def _columns(self, split: str) -> tuple[str, ...]:
        left_out = foreign_columns(self.folder, self.snapshot, [split])
        if not self.new_columns:
            left_out |= unnamed_columns(self.snapshot, self.schema)
        return tuple(column.name for column in self.snapshot.columns if column.name not in left_out)


def foreign_columns(folder: Path, snapshot: Snapshot, splits: list[str]) -> dict[str, str]:
    """Return the columns of a type that TFDV cannot read, with the type; none if there is no split."""
    for batch in iter_batches(folder, snapshot, splits, batch_rows=1):
        return unreadable(batch.schema)
    return {}


def unnamed_columns(snapshot: Snapshot, schema: Any) -> dict[str, str]:
    """Return the columns that the schema does not name, with their types, from the manifest alone."""
    named = {feature.name for feature in schema.feature}
    return {column.name: column.type for column in snapshot.columns if column.name not in named}

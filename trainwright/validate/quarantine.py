"""Rows that violate the schema, taken out of the way with the reasons beside them.

TFDV says that a column holds something wrong; here it is said of each row, so that the others can go on. Only
what the schema forbids of a single value counts: a required value that is missing, one outside its domain or
range, NaN or infinity where the schema disallows them.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.artifacts import Snapshot
from trainwright.experiment import Quarantine
from trainwright.tables import SnapshotWriter, iter_batches, read_split
from trainwright.validate.columns import readable
from trainwright.validate.policy import DataFinding
from trainwright.validate.schema import expected
from trainwright.validate.tfdv import schema_pb2
from trainwright.verdicts import Rule

REASONS = "quarantine_reasons"
"""The column with the reason for rejecting a row, added after its own."""

_PARTS = {
    "missing": frozenset({"FEATURE_TYPE_LOW_FRACTION_PRESENT", "FEATURE_TYPE_NOT_PRESENT"}),
    "not a number": frozenset({"FLOAT_TYPE_HAS_NAN"}),
    "infinite": frozenset({"FLOAT_TYPE_HAS_INF"}),
    "too small": frozenset({"INT_TYPE_SMALL_INT", "FLOAT_TYPE_SMALL_FLOAT"}),
    "too large": frozenset({"INT_TYPE_BIG_INT", "FLOAT_TYPE_BIG_FLOAT", "INT_TYPE_INT_EXPECTED"}),
    "not in its domain": frozenset({"ENUM_TYPE_UNEXPECTED_STRING_VALUES"}),
    "not 0 or 1": frozenset({"BOOL_TYPE_BIG_INT", "BOOL_TYPE_SMALL_INT", "BOOL_TYPE_UNEXPECTED_FLOAT"}),
}
"""The findings that are settled once the rows with such values are out."""


@dataclass(frozen=True)
class RowCheck:
    """Constraints on the values of one column.

    Attributes:
        required: It must have a value.
        low: Smallest accepted number; None for any.
        high: Largest accepted number; None for any.
        values: Accepted texts; None for any.
        flag: Only 0 and 1 are accepted.
    """

    column: str
    required: bool = False
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] | None = None
    flag: bool = False
    no_nan: bool = False
    no_inf: bool = False

    def broken(self, column: pa.Array) -> Iterator[tuple[str, pa.Array]]:
        """Yield each violation with a mask of its rows; a null breaks only ``required``."""
        if self.required:
            yield "missing", column.is_null()
        flat = readable(column)
        if flat is None or pa.types.is_large_list(flat.type):
            return
        if pa.types.is_large_binary(flat.type):
            if self.values is not None:
                yield "not in its domain", _outside(flat, [value.encode() for value in self.values])
            return
        yield from self._numbers(flat if pa.types.is_floating(flat.type) else _whole(flat))

    def _numbers(self, flat: pa.Array) -> Iterator[tuple[str, pa.Array]]:
        if self.flag:
            yield "not 0 or 1", _outside(flat, [0, 1])
        if pa.types.is_floating(flat.type):
            if self.no_nan:
                yield "not a number", pc.is_nan(flat)
            if self.no_inf:
                yield "infinite", pc.is_inf(flat)
        if self.low is not None:
            yield "too small", pc.less(flat, pa.scalar(self.low, flat.type))
        if self.high is not None:
            yield "too large", pc.greater(flat, pa.scalar(self.high, flat.type))


def _outside(flat: pa.Array, values: Sequence[object]) -> pa.Array:
    """Return a mask of the rows with a value that is none of these."""
    return pc.and_(pc.is_valid(flat), pc.invert(pc.is_in(flat, value_set=pa.array(values, flat.type))))


def _whole(flat: pa.Array) -> pa.Array:
    """Bring whole numbers into a type that holds every bound; the largest unsigned ones lose digits."""
    return flat.cast(pa.float64() if pa.types.is_uint64(flat.type) else pa.int64(), safe=False)


def checks(schema: Any, columns: Iterable[str]) -> tuple[RowCheck, ...]:
    """Return what the schema asks of single values.

    A domain that the schema lets some rows leave (``min_domain_mass`` below 1) is asked of none.
    """
    domains = {domain.name: tuple(domain.value) for domain in schema.string_domain}
    features = expected(schema)
    found = (_check(features[name], domains) for name in columns if name in features)
    return tuple(check for check in found if check != RowCheck(check.column))


def _check(feature: Any, domains: Mapping[str, tuple[str, ...]]) -> RowCheck:
    limits = next((x for x in (feature.int_domain, feature.float_domain) if x.ByteSize()), None)
    borne = feature.distribution_constraints
    lenient = feature.HasField("distribution_constraints") and borne.min_domain_mass < 1
    values = tuple(feature.string_domain.value) or domains.get(feature.domain)
    floats = feature.float_domain
    return RowCheck(
        column=feature.name,
        required=feature.presence.min_fraction >= 1,
        low=limits.min if limits is not None and limits.HasField("min") else None,
        high=limits.max if limits is not None and limits.HasField("max") else None,
        values=values if feature.type == schema_pb2.BYTES and values and not lenient else None,
        flag=feature.type == schema_pb2.INT and feature.HasField("bool_domain"),
        no_nan=floats.disallow_nan,
        no_inf=floats.disallow_inf,
    )


@dataclass(frozen=True)
class Quarantined:
    """The rows that were taken out.

    Attributes:
        snapshot: Their manifest; no rows where none were asked to be taken out.
        asked: What was accepted; None if rows stay where they are.
        reasons: Rows by split, column and problem; a row can have several.
    """

    snapshot: Snapshot
    asked: Quarantine | None
    rows: dict[str, int] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)
    reasons: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """Rows taken out of all splits."""
        return sum(self.rows.values())

    def over(self) -> list[str]:
        """Return the splits that more rows were taken out of than are accepted."""
        if self.asked is None:
            return []
        return [name for name, rows in self.rows.items() if rows > self.asked.max_share * self.splits[name]]

    def findings(self) -> Iterator[DataFinding]:
        """Return a finding for each split where more rows violate the schema than may be taken out."""
        for name in self.over():
            share, (column, what) = self.rows[name] / self.splits[name], self._commonest(name)
            assert self.asked is not None  # noqa: S101 - nothing is over what nobody asked for
            yield DataFinding(
                split=name,
                kind="QUARANTINE_SHARE_HIGH",
                rule=f"quarantine/{name}",
                what=f"{self.rows[name]:,} rows of {name} ({share:.2%}) violate the schema, at most "
                f"{self.asked.max_share:.2%} may; most often {column} is {what}",
            )

    def _commonest(self, split: str) -> tuple[str, str]:
        own = {(column, what): rows for (name, column, what), rows in self.reasons.items() if name == split}
        return max(own, key=lambda key: (own[key], key))

    def rules(self) -> Iterator[Rule]:
        """Return a rule for each split: its share of rows, and the accepted one."""
        if self.asked is not None:
            for name, rows in self.rows.items():
                share = rows / self.splits[name] if self.splits[name] else 0.0
                yield Rule(
                    name=f"quarantine/{name}", value=share, limit=self.asked.max_share,
                    passed=name not in self.over(), detail=f"{rows:,} of {self.splits[name]:,} rows",
                )  # fmt: skip

    def settle(self, finding: DataFinding) -> DataFinding:
        """Set a finding aside if the rows that it is about are out, and were few enough."""
        if self.asked is None or not finding.of_schema or finding.split in self.over():
            return finding
        whats = [what for what, kinds in _PARTS.items() if finding.kind in kinds]
        rows = sum(self.reasons[finding.split, finding.column, what] for what in whats)
        return replace(finding, waived=f"{rows:,} rows are in quarantine") if rows else finding


def take_out(
    folder: Path, data_version: str, snapshot: Snapshot, schema: Any, asked: Quarantine | None, out: Path
) -> Quarantined:
    """Write the rows that violate the schema to a snapshot of their own, batch by batch.

    Args:
        data_version: Its digest.
        asked: How many may be taken out; None for a snapshot without rows.
        out: Folder of the quarantine.
    """
    found = Quarantined(snapshot, asked, splits=dict(snapshot.splits))
    names = [column.name for column in snapshot.columns]
    kept = checks(schema, names) if asked else ()
    with SnapshotWriter(out, list(snapshot.splits)) as writer:
        writer.append(next(iter(snapshot.splits), "train"), _nothing(folder, snapshot))
        for split, rows in snapshot.splits.items() if asked else ():
            found.rows[split] = 0
            for batch in iter_batches(folder, snapshot, [split]) if rows and kept else ():
                taken = _violating(batch, kept, split, found.reasons)
                found.rows[split] += taken.num_rows
                if taken.num_rows:
                    writer.append(split, taken)
        quality = {f"rows.{split}": float(rows) for split, rows in found.rows.items()}
        made = writer.commit(parents={"snapshot": data_version}, roles=snapshot.roles, quality=quality)
    return replace(found, snapshot=made)


def _violating(
    batch: pa.RecordBatch, kept: Sequence[RowCheck], split: str, reasons: Counter[tuple[str, str, str]]
) -> pa.Table:
    """Return the rows of a batch that break any check, with their reasons, and count those."""
    table = pa.Table.from_batches([batch])
    broken: list[tuple[str, pa.Array]] = []
    for check in kept:
        for what, mask in check.broken(batch.column(batch.schema.get_field_index(check.column))):
            if rows := pc.sum(mask).as_py():
                reasons[split, check.column, what] += rows
                broken.append((f"{check.column} is {what}", pc.fill_null(mask, False)))
    taken = functools.reduce(pc.or_, (mask for _, mask in broken), pa.array([False] * len(batch)))
    words = [pc.if_else(mask.filter(taken), f"{text}; ", "") for text, mask in broken]
    told = pc.binary_join_element_wise(*words, "", "") if words else pa.array([], pa.string())
    return table.filter(taken).append_column(REASONS, pc.utf8_rtrim(told, characters="; "))


def _nothing(folder: Path, snapshot: Snapshot) -> pa.Table:
    """Return a table without rows, with the columns of a snapshot and that of the reasons."""
    with_rows = [name for name, rows in snapshot.splits.items() if rows]
    if with_rows:
        batch = next(iter(iter_batches(folder, snapshot, with_rows[:1], batch_rows=1)))
        table = pa.Table.from_batches([batch.slice(0, 0)])
    else:
        table = read_split(folder, snapshot, next(iter(snapshot.splits)))
    return table.append_column(REASONS, pa.array([], pa.string()))

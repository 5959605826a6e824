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
from trainwright.drift.findings import DataFinding
from trainwright.experiment import Quarantine
from trainwright.tables import SnapshotWriter, iter_batches, read_split
from trainwright.validate.columns import readable
from trainwright.validate.schema import expected
from trainwright.validate.tfdv import schema_pb2
from trainwright.verdicts import AT_MOST, Rule

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
    """Constraints on the values of one column: None for any; ``flag`` accepts 0 and 1 only."""

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
        if not pa.types.is_floating(flat.type):
            # A type that holds every bound; the largest unsigned numbers lose digits.
            flat = flat.cast(pa.float64() if pa.types.is_uint64(flat.type) else pa.int64(), safe=False)
        yield from self._broken_numbers(flat)

    def _broken_numbers(self, flat: pa.Array) -> Iterator[tuple[str, pa.Array]]:
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


def row_checks(schema: Any, columns: Iterable[str]) -> tuple[RowCheck, ...]:
    """Return the constraints of a schema on single values.

    A domain that the schema lets some rows leave (``min_domain_mass`` below 1) is none.
    """
    domains = {domain.name: tuple(domain.value) for domain in schema.string_domain}
    features = expected(schema)
    found = (_row_check(features[name], domains) for name in columns if name in features)
    return tuple(check for check in found if check != RowCheck(check.column))


def _row_check(feature: Any, domains: Mapping[str, tuple[str, ...]]) -> RowCheck:
    limits = next((x for x in (feature.int_domain, feature.float_domain) if x.ByteSize()), None)
    constraints = feature.distribution_constraints
    lenient = feature.HasField("distribution_constraints") and constraints.min_domain_mass < 1
    values = tuple(feature.string_domain.value) or domains.get(feature.domain)
    return RowCheck(
        column=feature.name,
        required=feature.presence.min_fraction >= 1,
        low=limits.min if limits is not None and limits.HasField("min") else None,
        high=limits.max if limits is not None and limits.HasField("max") else None,
        values=values if feature.type == schema_pb2.BYTES and values and not lenient else None,
        flag=feature.type == schema_pb2.INT and feature.HasField("bool_domain"),
        no_nan=feature.float_domain.disallow_nan,
        no_inf=feature.float_domain.disallow_inf,
    )


@dataclass(frozen=True)
class Quarantined:
    """The rows that were removed, and the configured limit; without one, rows stay where they are.

    ``reasons`` counts rows by split, column and problem; a row can have several.
    """

    snapshot: Snapshot
    limit: Quarantine | None
    rows: dict[str, int] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)
    reasons: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """Rows removed from all splits."""
        return sum(self.rows.values())

    def rules(self) -> list[Rule]:
        """Return a rule for each split: its share of rows, and the limit."""
        if self.limit is None:
            return []
        most = self.limit.max_share
        return [
            Rule(
                name=f"quarantine/{name}",
                value=rows / self.splits[name] if self.splits[name] else 0.0,
                limit=most,
                test=AT_MOST,
                detail=f"{rows:,} of {self.splits[name]:,} rows",
            )
            for name, rows in self.rows.items()
        ]

    def findings(self) -> Iterator[DataFinding]:
        """Return a finding for each split with more violations of the schema than may be removed."""
        for rule in (rule for rule in self.rules() if not rule.passed):
            name = rule.name.partition("/")[2]
            own = {(column, what): n for (split, column, what), n in self.reasons.items() if split == name}
            column, what = max(own, key=lambda key: (own[key], key))
            yield DataFinding(
                split=name,
                kind="QUARANTINE_SHARE_HIGH",
                rule=rule.name,
                what=f"{self.rows[name]:,} rows of {name} ({rule.value:.2%}) violate the schema, at most "
                f"{rule.limit:.2%} may; most often {column} is {what}",
            )

    def settle(self, finding: DataFinding) -> DataFinding:
        """Waive a finding if the rows that it is about were removed, and were few enough."""
        over = {rule.name for rule in self.rules() if not rule.passed}
        if self.limit is None or not finding.of_schema or f"quarantine/{finding.split}" in over:
            return finding
        whats = [what for what, kinds in _PARTS.items() if finding.kind in kinds]
        rows = sum(self.reasons[finding.split, finding.column, what] for what in whats)
        return replace(finding, waived=f"{rows:,} rows are in quarantine") if rows else finding


def take_out(
    folder: Path, data_version: str, snapshot: Snapshot, schema: Any, limit: Quarantine | None, out: Path
) -> Quarantined:
    """Write the rows that violate the schema to a snapshot of their own, batch by batch.

    Without a limit, the snapshot has no rows.
    """
    found = Quarantined(snapshot, limit, splits=dict(snapshot.splits))
    checks = row_checks(schema, [column.name for column in snapshot.columns]) if limit else ()
    with SnapshotWriter(out, list(snapshot.splits)) as writer:
        writer.append(next(iter(snapshot.splits), "train"), _nothing(folder, snapshot))
        for split, rows in snapshot.splits.items() if limit else ():
            found.rows[split] = 0
            for batch in iter_batches(folder, snapshot, [split]) if rows and checks else ():
                taken = _violating(batch, checks, split, found.reasons)
                found.rows[split] += taken.num_rows
                if taken.num_rows:
                    writer.append(split, taken)
        quality = {f"rows.{split}": float(rows) for split, rows in found.rows.items()}
        made = writer.commit(
            parents={"snapshot": data_version},
            roles=snapshot.roles,
            quality=quality,
            target=snapshot.target,
        )
    return replace(found, snapshot=made)


def _violating(
    batch: pa.RecordBatch, checks: Sequence[RowCheck], split: str, reasons: Counter[tuple[str, str, str]]
) -> pa.Table:
    """Return the rows of a batch that break any check, with their reasons, and count those."""
    table = pa.Table.from_batches([batch])
    broken: list[tuple[str, pa.Array]] = []
    for check in checks:
        for what, mask in check.broken(batch.column(batch.schema.get_field_index(check.column))):
            if rows := pc.sum(mask).as_py():
                reasons[split, check.column, what] += rows
                broken.append((f"{check.column} is {what}", pc.fill_null(mask, False)))
    taken = functools.reduce(pc.or_, (mask for _, mask in broken), pa.array([False] * len(batch)))
    words = [pc.if_else(mask.filter(taken), f"{text}; ", "") for text, mask in broken]
    text = pc.binary_join_element_wise(*words, "", "") if words else pa.array([], pa.string())
    return table.filter(taken).append_column(REASONS, pc.utf8_rtrim(text, characters="; "))


def _nothing(folder: Path, snapshot: Snapshot) -> pa.Table:
    """Return a table without rows, with the columns of a snapshot and that of the reasons."""
    with_rows = [name for name, rows in snapshot.splits.items() if rows]
    if with_rows:
        batch = next(iter(iter_batches(folder, snapshot, with_rows[:1], batch_rows=1)))
        table = pa.Table.from_batches([batch.slice(0, 0)])
    else:
        table = read_split(folder, snapshot, next(iter(snapshot.splits)))
    return table.append_column(REASONS, pa.array([], pa.string()))

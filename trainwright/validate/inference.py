"""Infer a first schema from rows, for a person to review.

A schema that follows the data accepts whatever comes. So an inferred one holds the data it was inferred from,
until a person reviews it, or ``validation.on_missing_schema: bootstrap`` accepts it for later data.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.artifacts import Snapshot, SnapshotTarget
from trainwright.artifacts.snapshot import UNASSIGNED
from trainwright.errors import InputError
from trainwright.experiment import DataEngine
from trainwright.tables import iter_batches
from trainwright.validate.columns import by_column, is_text, prepared
from trainwright.validate.profile import unreadable_columns
from trainwright.validate.schema import SERVING, TRAINING, format_message
from trainwright.validate.statistics import VALUES_KEPT, ScanRequest, packed, scan
from trainwright.validate.tfdv import schema_pb2, text_format, tfdv

_DOMAIN_VALUES = 50
"""Distinct values up to which a column of strings gets a domain."""

_TEXT_BYTES = 50
"""Mean length of a value from which on a column of strings is text, whose values are not counted."""

_SAMPLE_ROWS = 10_000
"""Rows whose lengths are looked at before the values of a column are counted."""


def infer_schema(
    folder: Path,
    split: str,
    also: Sequence[str] | None = None,
    engine: DataEngine = DataEngine(),  # noqa: B008 - it is frozen
    store: str = "",
) -> str:
    """Return a first schema of a snapshot in its text form, with comments on what to review.

    Args:
        folder: The snapshot's folder.
        split: Rows to infer from.
        also: Splits with rows that the schema must accept, too: missing values and new values in them relax
            it. All but ``unassigned`` if absent.
        engine: Engine that reads the rows.
        store: Folder or URI that an engine shares.

    Raises:
        InputError: The split has no rows.
    """
    snapshot = Snapshot.read(folder)
    if not snapshot.splits.get(split):
        known = ", ".join(f"{name} ({rows:,} rows)" for name, rows in snapshot.splits.items())
        raise InputError(
            f"split {split!r} has no rows to infer a schema from; the snapshot has {known or 'none'}",
            where=str(folder),
            hint="Name a split with rows.",
        )
    if also is None:
        also = [name for name in snapshot.splits if name != UNASSIGNED]
    foreign = unreadable_columns(folder, snapshot, [split])
    columns = [column.name for column in snapshot.columns if column.name not in foreign]
    provisional = _uncounted_columns(folder, snapshot, split, columns)
    request = ScanRequest(packed(provisional), tuple(columns), {})
    statistics = [
        scan(folder, snapshot, name, request, engine, store)[0]
        for name in dict.fromkeys([split, *also])
        if snapshot.splits.get(name)
    ]
    schema = tfdv.infer_schema(statistics[0], max_string_domain_size=_DOMAIN_VALUES)
    for others in statistics[1:]:
        schema = tfdv.update_schema(schema, others, max_string_domain_size=_DOMAIN_VALUES)
    schema.default_environment.extend([TRAINING, SERVING])
    _declare_text(schema, {feature.name for feature in provisional.feature} | _text_columns(statistics))
    _declare_label(schema, snapshot, by_column(statistics[0]))
    return _header(snapshot, split, also) + _text(schema)


def _line(feature: Any) -> str:
    return str(text_format.MessageToString(feature, as_one_line=True))


def _text(schema: Any) -> str:
    """Write a schema with a line for each column, so that a person can review it."""
    environments = " ".join(f'default_environment: "{name}"' for name in schema.default_environment)
    columns = [f"feature {{ {_line(feature)} }}" for feature in schema.feature]
    domains = [format_message("string_domain", domain) for domain in schema.string_domain]
    return "\n".join([environments, *columns, *domains]) + "\n"


def _uncounted_columns(folder: Path, snapshot: Snapshot, split: str, columns: Sequence[str]) -> Any:
    """Return a schema of the columns whose values must not be counted: the key, and long text."""
    schema = schema_pb2.Schema()
    batch = next(iter(iter_batches(folder, snapshot, [split], columns, batch_rows=_SAMPLE_ROWS)))
    for name, column in prepared(batch).items():
        if not is_text(column.type):
            continue
        length = pc.mean(pc.binary_length(column)).as_py() or 0.0
        if name == snapshot.roles.get("key") or length > _TEXT_BYTES:
            feature = schema.feature.add(name=name, type=schema_pb2.BYTES)
            feature.string_domain.is_categorical = schema_pb2.StringDomain.CATEGORICAL_NO
    return schema


def _text_columns(statistics: Sequence[Any]) -> set[str]:
    """Return the columns of strings that are text or identifiers: long, or mostly of different values."""
    found = set()
    for split in statistics:
        for name, feature in by_column(split).items():
            strings = feature.string_stats
            values = strings.common_stats.num_non_missing
            distinct = strings.unique > max(_DOMAIN_VALUES, values / 2) or strings.unique > VALUES_KEPT
            if distinct or strings.avg_length > _TEXT_BYTES:
                found.add(name)
    return found


def _declare_text(schema: Any, names: set[str]) -> None:
    """Declare columns as text, whose values are not counted, and remove the lists of their values."""
    for feature in schema.feature:
        if feature.name in names and feature.type == schema_pb2.BYTES:
            feature.string_domain.is_categorical = schema_pb2.StringDomain.CATEGORICAL_NO
    used = {feature.domain for feature in schema.feature}
    kept = [domain for domain in schema.string_domain if domain.name in used]
    del schema.string_domain[:]
    schema.string_domain.extend(kept)


def _declare_label(schema: Any, snapshot: Snapshot, features: dict[str, Any]) -> None:
    """Declare the label: unknown when a model predicts, and a category if it is a class."""
    name = snapshot.roles.get("label", "")
    for feature in schema.feature:
        if feature.name != name:
            continue
        feature.not_in_environment.append(SERVING)
        if snapshot.target.kind in ("binary", "multiclass") and feature.type == schema_pb2.INT:
            feature.int_domain.min = 0
            feature.int_domain.max = _last_class(snapshot.target, features[name])
            feature.int_domain.is_categorical = True


def _last_class(target: SnapshotTarget, label: Any) -> int:
    if target.classes:
        return len(target.classes) - 1
    return 1 if target.kind == "binary" else int(label.num_stats.max)


def _header(snapshot: Snapshot, split: str, also: Sequence[str]) -> str:
    rows = " and ".join(
        f"{snapshot.splits[name]:,} rows of {name}"
        for name in dict.fromkeys([split, *also])
        if snapshot.splits.get(name)
    )
    classes = ", ".join(f"{number} {name}" for number, name in enumerate(snapshot.target.classes))
    label = f"# Label {snapshot.roles.get('label')}: {classes}\n" if classes else ""
    return (
        f"# Inferred from {rows}, data {snapshot.digest[:12]}.\n"
        "# Review it before use: what was seen is not what is allowed. Presence, domains, ranges, types.\n"
        f"{label}#\n"
    )

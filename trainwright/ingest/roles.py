"""Columns with a role: the key that identifies each row, the time that places it, and the label.

The label is stored as a class number (int64) or as a number (float64). That type has to be known before the
first shard is written, so a column of text or floats is read once before. The kind of a label of class
numbers is settled afterwards, from the counts of all shards.
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.artifacts import SnapshotTarget
from trainwright.errors import InputError
from trainwright.experiment import Data
from trainwright.experiment.data import LabelKind
from trainwright.sources import Sources, example_values

TIME = pa.timestamp("us", tz="UTC")
"""How the time column is stored."""

_FIRST, _LAST = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999, in seconds from 1970: what people write, and what Python's datetime takes."""

_WHOLE = 2**53
"""From here on not every integer is a float."""


def prepare_time(column: pa.ChunkedArray, name: str, where: str, start: int) -> pa.ChunkedArray:
    """Return the time column in UTC; a time without a zone is UTC, a date is its midnight."""
    kind = column.type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_null(kind)):
        raise InputError(
            f"time column {name!r} holds {kind}, not times: {example_values(column)}",
            where=where,
            hint="Name a column of timestamps or dates, or convert this one where it is written.",
        )
    _reject_nulls(column, "time", name, where, start)
    seconds = column.cast(pa.timestamp("s", tz=getattr(kind, "tz", None)), safe=False).cast(pa.int64())
    outside = pc.or_(pc.less(seconds, _FIRST), pc.greater(seconds, _LAST))
    if wrong := pc.sum(outside).as_py():
        numbers = column.filter(outside).cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
        raise InputError(
            f"time column {name!r} has {wrong:,} times outside the years 1 to 9999, as {kind}: "
            f"{example_values(numbers)}; the first is in row {_first_row(outside, start):,}",
            where=where,
            hint="The unit may be wrong, or a number that means no time was taken for one.",
        )
    return column.cast(pa.timestamp("us", tz=getattr(kind, "tz", None)), safe=False).cast(TIME)


def require_names(column: pa.ChunkedArray, role: str, name: str, where: str, start: int) -> None:
    """Reject a column that cannot identify rows or groups of them: the key, and ``data.split_by``."""
    if pa.types.is_nested(column.type):
        raise InputError(
            f"{role} column {name!r} holds {column.type}, not single values",
            where=where,
            hint="Name another column, or write single values into this one.",
        )
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        _reject_lost_digits(column, role, name, where, start)
    _reject_nulls(column, role, name, where, start)


def _reject_nulls(column: pa.ChunkedArray, role: str, name: str, where: str, start: int) -> None:
    if column.null_count:
        raise InputError(
            f"{role} column {name!r} has no value in {column.null_count:,} of {len(column):,} rows read; "
            f"the first is row {_first_row(column.is_null(), start):,}",
            where=where,
            hint=f"Every row needs its {role}: leave such rows out where the source is written.",
        )


def _first_row(flags: pa.ChunkedArray, start: int) -> int:
    """Return the number of the first row that is flagged, from 1 on in its file."""
    return start + int(np.argmax(flags.to_numpy())) + 1


def _reject_lost_digits(column: pa.ChunkedArray, role: str, name: str, where: str, start: int) -> None:
    """Reject large floats as names: an integer beyond 64 bits in a CSV file became one, without its end."""
    large = pc.fill_null(pc.greater_equal(pc.abs(column), _WHOLE), False)
    if pc.any(large, min_count=0).as_py():
        raise InputError(
            f"{role} column {name!r} holds floats too large to keep every digit: "
            f"{example_values(column.filter(large))}; the first is in row {_first_row(large, start):,}",
            where=where,
            hint="Write such values as text, in Parquet.",
        )


INFERRED_CLASSES = 100
"""Most classes that `label_kind: auto` infers from integers; more are rather counts or amounts."""

_MOST_CLASSES = 10_000
_LISTED = 20
_PLAIN = re.compile(r"[A-Za-z][\w -]*|0|-?[1-9][0-9]*")
_WORDS = {"yes", "no", "on", "off", "y", "n", "true", "false", "null"}


@dataclass(frozen=True, kw_only=True)
class LabelRule:
    """The type in which every shard stores the label.

    Attributes:
        name: The column.
        kind: The configured kind; `auto` for class numbers whose kind the counts of all shards settle.
        classes: Values by class number, as text; empty where the column has the numbers.
    """

    name: str
    kind: LabelKind
    classes: tuple[str, ...] = ()

    @property
    def type(self) -> pa.DataType:
        """The type in which a snapshot stores the label."""
        return pa.float64() if self.kind == "regression" else pa.int64()


def label_rule(sources: Sources, data: Data) -> LabelRule | None:
    """Return how to store the label; None without one. A column of text or floats may be read for it.

    Raises:
        InputError: The label is text, and ``data.classes`` is absent.
    """
    if data.label is None:
        return None
    kind = sources.schema.field(data.label).type
    if data.classes:
        several: LabelKind = "binary" if len(data.classes) == 2 else "multiclass"  # noqa: PLR2004
        return LabelRule(name=data.label, kind=several, classes=data.classes)
    if pa.types.is_string(kind) and data.label_kind != "regression":
        raise _unnamed_classes(_columns(sources, data.label), data.label)
    decimal = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if data.label_kind == "auto" and decimal and any(map(_has_fraction, _columns(sources, data.label))):
        return LabelRule(name=data.label, kind="regression")
    return LabelRule(name=data.label, kind=data.label_kind)


def _columns(sources: Sources, name: str) -> Iterable[pa.ChunkedArray]:
    return itertools.chain.from_iterable(sources.column(part, name) for part in sources.parts())


def _has_fraction(column: pa.ChunkedArray) -> bool:
    numbers = column.drop_null().cast(pa.float64()).to_numpy()
    finite = numbers[np.isfinite(numbers)]
    return bool((finite != np.floor(finite)).any())


def _unnamed_classes(columns: Iterable[pa.ChunkedArray], name: str) -> InputError:
    found: set[str] = set()
    for column in columns:
        found.update(pc.unique(column.drop_null()).to_pylist())
        if len(found) > _LISTED:
            shown = ", ".join(map(repr, sorted(found)[:3]))
            return InputError(
                f"label column {name!r} holds text with more than {_LISTED} different values: {shown}",
                where="data.label",
                hint="Name another column, or all its values in data.classes, in the order of the classes.",
            )
    return InputError(
        f"label column {name!r} holds text; expected data.classes, which names its "
        f"{len(found)} values in the order of the classes: {', '.join(map(repr, sorted(found)))}",
        where="data.classes",
        hint=f"Write {_line(sorted(found))} under data; of two, the second is label 1.",
    )


def _line(values: Iterable[str]) -> str:
    """Write the line of the experiment file; YAML reads an unquoted `no` as false."""

    def written(value: str) -> str:
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if plain else json.dumps(value, ensure_ascii=False)

    return f"classes: [{', '.join(map(written, values))}]"


def prepare_label(column: pa.ChunkedArray, rule: LabelRule, where: str, start: int) -> pa.ChunkedArray:
    """Return the label in its stored form; NaN counts as null."""
    kind = column.type
    if pa.types.is_null(kind):
        return column.cast(rule.type)
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    named = bool(rule.classes) and pa.types.is_string(kind)
    if not (number or named or (pa.types.is_boolean(kind) and rule.kind != "regression")):
        expected = "numbers" if rule.kind == "regression" else "classes or numbers"
        raise InputError(
            f"label column {rule.name!r} holds {kind}, not {expected}: {example_values(column)}",
            where=where,
            hint="Name another column in data.label, or convert this one where it is written.",
        )
    if pa.types.is_floating(kind):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column)
    if rule.kind == "regression":
        return _numbers(column, rule, where, start)
    prepare = _named_classes if rule.classes else _classes
    return prepare(column, rule, where, start)


def _numbers(column: pa.ChunkedArray, rule: LabelRule, where: str, start: int) -> pa.ChunkedArray:
    numbers = column.cast(pa.float64(), safe=not pa.types.is_integer(column.type))
    _reject(
        pc.invert(pc.is_finite(numbers)),
        column,
        rule,
        where,
        start,
        expected="a finite number",
        hint="Correct the value where the source is written, or leave it empty: it is then no label.",
    )
    return numbers


def _classes(column: pa.ChunkedArray, rule: LabelRule, where: str, start: int) -> pa.ChunkedArray:
    if pa.types.is_boolean(column.type):
        return column.cast(pa.int64())
    integers = pa.types.is_integer(column.type)
    limit = _MOST_CLASSES if rule.kind == "multiclass" else 2
    expected = f"a class from 0 to {limit - 1:,}" if rule.kind == "multiclass" else "0 or 1"
    if rule.kind == "auto":
        expected = "0 and 1, classes 0 to n-1 as integers, or numbers with fractions"
        limit = INFERRED_CLASSES if integers else 2
    numbers = column.cast(pa.float64(), safe=False)
    inside = pc.and_(pc.greater_equal(numbers, 0.0), pc.less(numbers, float(limit)))
    right = pc.and_(inside, pc.equal(numbers, pc.floor(numbers)))
    values = pc.unique(column.drop_null()).sort()
    named = _line(_as_text(values).to_pylist()) if len(values) <= _LISTED else "classes, with all values"
    hint = f"Write under data what the values mean: label_kind: regression, or {named}."
    _reject(pc.invert(right), column, rule, where, start, expected=expected, hint=hint)
    return numbers.cast(pa.int64())


def _named_classes(column: pa.ChunkedArray, rule: LabelRule, where: str, start: int) -> pa.ChunkedArray:
    found = pc.index_in(_as_text(column), value_set=pa.array(rule.classes, pa.string()))
    _reject(
        pc.and_(column.is_valid(), pc.is_null(found)),
        column,
        rule,
        where,
        start,
        expected=f"one of data.classes, {', '.join(rule.classes[:_LISTED])}",
        hint="Add the value to data.classes, correct it, or list it in data.missing. "
        "Quote words such as 'no' and 'yes' in YAML.",
    )
    return found.cast(pa.int64())


def _as_text(column: Any) -> Any:
    """Return values as people write them in a list of classes: integers that became floats as integers."""
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        numbers = column.cast(pa.float64())
        if pc.all(pc.equal(numbers, pc.floor(numbers)), min_count=0).as_py():
            column = numbers.cast(pa.int64(), safe=False)
    return column.cast(pa.string())


def _reject(
    wrong: Any, column: pa.ChunkedArray, rule: LabelRule, where: str, start: int, *, expected: str, hint: str
) -> None:
    """Reject values of a label; name the first with its row number."""
    wrong = pc.fill_null(wrong, False)
    if not (count := pc.sum(wrong).as_py()):
        return
    place = int(np.argmax(wrong.to_numpy()))
    found = f"{column[place].as_py()!r} in row {start + place + 1:,}"
    if count > 1:  # of the rows that are read at once
        found += f", and in at least {count - 1:,} more rows: {example_values(column.filter(wrong)[1:])}"
    raise InputError(
        f"label column {rule.name!r}: expected {expected}; found {found}",
        where=where,
        hint=hint,
    )


def target_of(rule: LabelRule | None, counts: Mapping[int, int], where: str) -> SnapshotTarget:
    """Return what the label means, by the rows of each class number.

    Raises:
        InputError: The class numbers are not exactly 0 to n-1.
    """
    if rule is None:
        return SnapshotTarget(kind="text")
    if rule.kind == "regression":
        return SnapshotTarget(kind="regression")
    if rule.classes:
        return SnapshotTarget(kind="binary" if rule.kind == "binary" else "multiclass", classes=rule.classes)
    present = sorted(number for number, rows in counts.items() if rows)
    if rule.kind == "binary" or (rule.kind == "auto" and set(present) <= {0, 1}):
        return SnapshotTarget()
    if len(present) > 2 and present == list(range(len(present))):  # noqa: PLR2004
        return SnapshotTarget(kind="multiclass", classes=tuple(map(str, present)))
    shown = ", ".join(map(str, present[:_LISTED])) or "no value"
    expected = "0 and 1, or classes" if rule.kind == "auto" else "three or more classes"
    raise InputError(
        f"label column {rule.name!r}: expected {expected} from 0 to n-1, each in some row; found {shown}",
        where=where,
        hint="Write under data what the values mean: label_kind: regression, or "
        f"{_line(map(str, present)) if len(present) > 1 else 'classes, with all values'}.",
    )

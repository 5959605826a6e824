"""Find what a label means: two classes, several, or a number; and the columns that give it away."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.artifacts import TargetKind
from trainwright.draft.profiles import ColumnProfile
from trainwright.errors import DataRefused, InputError

MOST_CLASSES = 20
"""With more distinct values, whole numbers are numbers to predict, and text is no label."""

_BINARY = 2
_POSITIVE = {"yes", "y", "true", "t", "1", "positive", "pos", "+"}
_NEGATIVE = {"no", "n", "false", "f", "0", "negative", "neg", "-"}
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class LabelMeaning:
    """The kind of a label, its classes, and the values found.

    Attributes:
        classes: Values by class, where they are not 0 to n-1 themselves.
        reason: The values found, in a few words.
    """

    kind: TargetKind
    classes: tuple[str, ...] = ()
    reason: str


def infer_target(profile: ColumnProfile, requested: str, source: str) -> LabelMeaning:
    """Return the meaning of a label.

    Args:
        profile: The label.
        requested: ``binary``, ``multiclass`` or ``regression``; empty to infer it from the values.
        source: For errors.

    Raises:
        DataRefused: The label has fewer than two values.
        InputError: Its values cannot be the label of the requested or of any kind.
    """
    _require_values(profile, source)
    whole = _is_whole(profile)
    kind = requested or _infer_kind(profile, whole, source)
    if kind == "regression":
        if profile.kind not in {"integer", "float"}:
            raise InputError(
                f"label {profile.name!r} holds {profile.values.type}, not numbers",
                where=source,
                hint="Leave out --kind, or name another label.",
            )
        ends = pc.min_max(profile.values).as_py()
        span = f"numbers from {ends['min']:g} to {ends['max']:g}, {profile.distinct:,} different"
        return LabelMeaning(kind="regression", reason=f"{span}: regression{_missing(profile)}")
    if kind == "binary" and profile.distinct != _BINARY:
        raise InputError(
            f"label {profile.name!r} has {profile.distinct:,} values, and --kind is binary",
            where=source,
            hint="Leave out --kind, or name another label.",
        )
    if profile.kind == "float" and not whole:
        value = next(value for value in profile.counts if value != int(value))  # type: ignore[call-overload]
        raise InputError(
            f"label {profile.name!r} holds fractions such as {value!r}, and --kind is {kind}",
            where=source,
            hint="Predict them with --kind regression.",
        )
    return _classes(profile)


def _require_values(profile: ColumnProfile, source: str) -> None:
    if profile.kind in {"nested", "binary", "time", "clock"}:
        raise InputError(
            f"label {profile.name!r} holds {profile.values.type}; expected classes or numbers",
            where=source,
            hint="Name another column with --label.",
        )
    if profile.distinct < _BINARY:
        found = f"only {next(iter(profile.counts))!r:.80}" if profile.present else "no value"
        raise DataRefused(
            f"label {profile.name!r} holds {found} in {profile.rows:,} rows; nothing can be learned from it",
            where=source,
            hint="Name another column with --label.",
        )


def _is_whole(profile: ColumnProfile) -> bool:
    """Return whether all values are whole numbers: pandas stores integers with missing values as floats."""
    if profile.kind != "float":
        return profile.kind == "integer"
    return bool(pc.all(pc.equal(pc.floor(profile.values), profile.values)).as_py())


def _infer_kind(profile: ColumnProfile, whole: bool, source: str) -> str:
    if profile.kind == "boolean" or (profile.distinct == _BINARY and (whole or profile.kind == "text")):
        return "binary"
    if profile.kind == "text":
        if profile.distinct > MOST_CLASSES:
            values = ", ".join(repr(value) for value in list(profile.counts)[:_SHOWN])
            raise InputError(
                f"label {profile.name!r} holds {profile.distinct:,} different texts, "
                f"more than {MOST_CLASSES} classes: {values} …",
                where=source,
                hint="Name another column with --label; if these are the classes, add --kind multiclass.",
            )
        return "multiclass"
    return "multiclass" if whole and profile.distinct <= MOST_CLASSES else "regression"


def _classes(profile: ColumnProfile) -> LabelMeaning:
    counts = {_text(value): count for value, count in profile.counts.items()}
    names, binary = list(counts), len(counts) == _BINARY
    numbered = profile.kind == "boolean" or names == [str(number) for number in range(len(names))]
    if binary:
        names = names if numbered else _negative_first(counts)
    shown = [f"{name} ({counts[name] / profile.present:.0%})" for name in names[:_SHOWN]]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    number = profile.kind in {"integer", "float"} and not binary
    hint = " (or --kind regression)" if number else ""
    return LabelMeaning(
        kind="binary" if binary else "multiclass",
        classes=() if numbered else tuple(names),
        reason=f"{', '.join(shown)}{more}: {'binary' if binary else f'{len(names)} classes'}{hint}"
        f"{_missing(profile)}",
    )


def _missing(profile: ColumnProfile) -> str:
    """Say how many rows have no label: nothing is learned from them."""
    missing = profile.rows - profile.present
    return f"; {missing:,} of {profile.rows:,} rows have none" if missing else ""


def _text(value: object) -> str:
    """Write a value as ``data.classes`` has it: 1.0 as 1, True as true."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) else str(value)


def _negative_first(counts: Mapping[str, int]) -> list[str]:
    """Return two classes, the one to detect second: by its name, else the rarer one."""
    first, second = counts
    for name, other in ((first, second), (second, first)):
        if name.strip().lower() in _POSITIVE or other.strip().lower() in _NEGATIVE:
            return [other, name]
    return [second, first] if counts[first] < counts[second] else [first, second]


def find_leaks(label: ColumnProfile, meaning: LabelMeaning, columns: Sequence[ColumnProfile]) -> list[str]:
    """Return the columns that alone predict the label in every row."""
    return [one.name for one in columns if _gives_away(one, label, meaning)]


def _gives_away(column: ColumnProfile, label: ColumnProfile, meaning: LabelMeaning) -> bool:
    both = pc.and_(pc.is_valid(column.values), pc.is_valid(label.values))
    values, labels = column.values.filter(both), label.values.filter(both)
    if len(values) < _FEWEST_ROWS:
        return False
    if meaning.kind == "regression":
        if column.kind not in {"integer", "float"}:
            return False
        one, two = (part.cast(pa.float64()).to_numpy() for part in (values, labels))
        if np.ptp(one) == 0 or np.ptp(two) == 0:
            return False
        return bool(abs(np.corrcoef(one, two)[0, 1]) >= _NEARLY_ONE)
    table = pa.table({"value": values, "label": labels})
    if column.kind in {"integer", "float", "time"}:
        return _is_separated(table)
    pairs = table.group_by(["value", "label"]).aggregate([]).num_rows
    return 1 < column.distinct <= _FEW * len(values) and pairs == pc.count_distinct(values).as_py()


_FEWEST_ROWS = 50
_NEARLY_ONE = 0.99999
_FEW = 0.2


def _is_separated(table: pa.Table) -> bool:
    """Return whether every label has a range of values of its own."""
    ranges = table.group_by("label").aggregate([("value", "min"), ("value", "max")]).sort_by("value_min")
    lows, highs = ranges["value_min"], ranges["value_max"]
    if len(ranges) < _BINARY:
        return False
    return bool(pc.all(pc.greater(lows.slice(1), highs.slice(0, len(ranges) - 1))).as_py())

"""Profile the columns of a sample: kind, missing values, distinct values."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

ColumnKind: TypeAlias = Literal["boolean", "integer", "float", "text", "time", "clock", "nested", "binary"]

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, kw_only=True)
class ColumnProfile:
    """Figures of a column; NaN counts as missing.

    Attributes:
        kind: Of its values; ``clock`` is a time of the day or a duration.
        present: Values without the missing ones, in the order of the rows.
        rows: All rows.
        distinct: Distinct values; 0 for lists and objects, which are not counted.
    """

    name: str
    kind: ColumnKind
    values: pa.ChunkedArray
    rows: int
    distinct: int

    @property
    def present(self) -> int:
        """Rows with a value."""
        return self.rows - int(self.values.null_count)

    @property
    def is_unique(self) -> bool:
        """True if every row has a value that no other row has."""
        return self.distinct == self.rows

    @property
    def is_constant(self) -> bool:
        """True if all rows have one value, or none has a value."""
        return self.kind != "nested" and (
            not self.present or (self.distinct == 1 and self.present == self.rows)
        )

    @property
    def is_free_text(self) -> bool:
        """True if a text is another in nearly every row, so that no row says anything of the next."""
        many = self.distinct > _FEW_TEXTS and self.distinct >= _NEARLY_ALL * self.present
        return self.kind == "text" and (many or self.mean_length > _LONG_TEXT)

    @cached_property
    def mean_length(self) -> float:
        """Mean number of characters; 0 if it is not text."""
        return float(pc.mean(pc.utf8_length(self.values)).as_py() or 0) if self.kind == "text" else 0.0

    @cached_property
    def counts(self) -> dict[object, int]:
        """Rows by value, in the order of the values."""
        found = pc.value_counts(self.values.drop_null()).to_pylist()
        return {one["values"]: one["counts"] for one in sorted(found, key=lambda one: one["values"])}

    @property
    def is_in_schema(self) -> bool:
        """True if TFDV reads the column: it takes no structs, maps or lists of lists."""
        kind = self.values.type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return _kind_of(kind.value_type) in {"boolean", "integer", "float", "text"}
        return self.kind != "nested" and not pa.types.is_fixed_size_binary(kind)

    @property
    def words(self) -> list[str]:
        """Words of the name."""
        return words_of(self.name)


_FEW_TEXTS = 20
_NEARLY_ALL = 0.9
_LONG_TEXT = 60


def words_of(name: str) -> list[str]:
    """Return the words of a name in lower case: ``createdAt`` and ``created_at`` have the same."""
    return re.split(r"[\W_]+", _CAMEL.sub("_", name).lower().strip("_ "))


def profile_columns(rows: pa.Table) -> list[ColumnProfile]:
    """Return the profile of each column."""
    return list(_profiles(rows))


def _profiles(rows: pa.Table) -> Iterator[ColumnProfile]:
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        kind = _kind_of(column.type)
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())  # noqa: PLW2901
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)  # noqa: PLW2901
        counted = kind not in {"nested", "binary"} and len(column) > column.null_count
        distinct = pc.count_distinct(column).as_py() if counted else 0
        yield ColumnProfile(name=name, kind=kind, values=column, rows=len(column), distinct=distinct)


def _kind_of(kind: pa.DataType) -> ColumnKind:
    tests: list[tuple[ColumnKind, bool]] = [
        ("boolean", pa.types.is_boolean(kind)),
        ("integer", pa.types.is_integer(kind)),
        ("float", pa.types.is_floating(kind) or pa.types.is_decimal(kind)),
        ("time", pa.types.is_timestamp(kind) or pa.types.is_date(kind)),
        ("clock", pa.types.is_time(kind) or pa.types.is_duration(kind)),
        ("nested", pa.types.is_nested(kind)),
        ("binary", pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)),
    ]
    return next((name for name, matches in tests if matches), "text")

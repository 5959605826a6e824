"""The key that identifies each row, and the time that places it."""

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.errors import InputError
from trainwright.sources import example_values

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

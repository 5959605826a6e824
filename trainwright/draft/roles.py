"""Choose the key, time, label and splits of a table by the names and values of its columns.

A guess that could be wrong without a sign is not made: a column has a role only if its name and its values
say so, and every choice comes with its reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.draft.profiles import ColumnProfile, words_of
from trainwright.errors import DataRefused, InputError

_KEYS = {"id", "key", "uuid", "guid", "pk", "rowid", "identifier"}
_TIMES = {"time", "date", "datetime", "timestamp", "ts", "created", "at", "day", "when"}
_BIRTHS = {"birth", "born", "birthday", "birthdate", "dob"}
_LABELS = {"label", "labels", "target", "y", "class", "outcome", "response"}
_FEW_TEXTS = 20
_FIRST_YEAR, _LAST_YEAR = 1900, 2200
_FEWEST_TIMES = 3


@dataclass(frozen=True, kw_only=True)
class RoleChoice:
    """The column of a role, empty for none, and the reason in a few words."""

    column: str = ""
    reason: str


def is_key_name(name: str) -> bool:
    """Return whether a name is that of a key, such as ``id`` or ``customer_id``."""
    return words_of(name)[-1] in _KEYS


def choose_key(profiles: Sequence[ColumnProfile], requested: str, source: str) -> RoleChoice:
    """Return the column that identifies a row.

    Raises:
        DataRefused: The requested column has no value in a row, or the same value in two.
    """
    if requested:
        _require_unique(_find(profiles, requested), source)
        return RoleChoice(column=requested, reason="as requested")
    unique = [one for one in profiles if one.is_unique and one.kind in {"integer", "text"}]
    named = [one for one in unique if is_key_name(one.name)]
    if named:
        found = next((one for one in named if len(one.words) == 1), named[0])
        return RoleChoice(column=found.name, reason="unique, and named like a key")
    first = profiles[0]
    if (
        first in unique
        and (first.kind == "text" or _counts_up(first))
        and not first.mean_length > _LONGEST_KEY
    ):
        return RoleChoice(column=first.name, reason="the first column, and unique")
    return RoleChoice(reason="no unique column is named like a key: rows are numbered (or --key COLUMN)")


_LONGEST_KEY = 40


def _counts_up(profile: ColumnProfile) -> bool:
    """Return whether integers are consecutive: a number that is unique by chance is a feature."""
    ends = pc.min_max(profile.values).as_py()
    return bool(ends["max"] - ends["min"] + 1 == profile.rows)


def _require_unique(profile: ColumnProfile, source: str) -> None:
    if profile.kind in {"nested", "binary"}:
        raise InputError(f"key {profile.name!r} holds {profile.values.type}, not single values", where=source)
    if profile.values.null_count:
        raise DataRefused(
            f"key {profile.name!r} {_nulls(profile)}",
            where=source,
            hint="Name another column, or leave out --key: rows are then numbered.",
        )
    if not profile.is_unique:
        value, count = next((value, count) for value, count in profile.counts.items() if count > 1)
        rows = [number for number, one in enumerate(profile.values.to_pylist(), 1) if one == value][:2]
        raise DataRefused(
            f"key {profile.name!r} has {value!r:.80} in {count:,} rows, such as {rows[0]:,} and {rows[1]:,}",
            where=source,
            hint="Name another column, or leave out --key: rows are then numbered. "
            "For rows that belong together, such as those of one customer, use --group.",
        )


def choose_time(profiles: Sequence[ColumnProfile], requested: str, source: str) -> RoleChoice:
    """Return the column with the time of the prediction.

    Raises:
        InputError: The requested column does not hold times, lacks some, or has too few different ones.
    """
    if requested:
        profile = _find(profiles, requested)
        if problem := _time_problem(profile):
            raise InputError(
                f"time {requested!r} {problem}",
                where=source,
                hint="Name another column, or leave out --time: rows are then divided by a hash.",
            )
        return RoleChoice(column=requested, reason="as requested")
    times = [one for one in profiles if not _time_problem(one) and not set(one.words) & _BIRTHS]
    if len(times) == 1:
        return RoleChoice(column=times[0].name, reason="the only complete column of times")
    named = [one for one in times if set(one.words) & _TIMES]
    if len(named) == 1:
        return RoleChoice(column=named[0].name, reason="complete, and named like a time")
    if times:
        names = ", ".join(one.name for one in times)
        return RoleChoice(reason=f"{names} could all be it: name one with --time to split by time")
    return RoleChoice(reason="no complete column of times: splits by a hash")


def _time_problem(profile: ColumnProfile) -> str:
    """Return why a column cannot be the time; empty if it can."""
    if profile.kind != "time":
        value = next((one for one in profile.values.to_pylist() if one is not None), None)
        return f"holds {profile.values.type}, not times: {value!r:.80}"
    if profile.values.null_count:
        return _nulls(profile)
    ends = pc.min_max(profile.values).as_py()
    for end in ends.values():
        if not _FIRST_YEAR <= end.year < _LAST_YEAR:
            return f"holds {end}, outside the years {_FIRST_YEAR} to {_LAST_YEAR - 1}"
    if profile.distinct < _FEWEST_TIMES:
        return f"holds only {profile.distinct} different times, and three splits need {_FEWEST_TIMES}"
    return ""


def _nulls(profile: ColumnProfile) -> str:
    row = pc.index(pc.is_null(profile.values), True).as_py() + 1
    return f"has no value in {profile.values.null_count:,} rows; the first is row {row:,}"


def choose_label(
    profiles: Sequence[ColumnProfile], requested: str, taken: Sequence[str], source: str
) -> RoleChoice:
    """Return the column to predict.

    Raises:
        InputError: No name says which it is and the last column cannot be it, or several names do.
    """
    if requested:
        _find(profiles, requested)
        return RoleChoice(column=requested, reason="as requested")
    free = [one for one in profiles if one.name not in taken]
    exact = [one for one in free if len(one.words) == 1 and one.words[0] in _LABELS]
    for named in (exact, [one for one in free if one.words[-1] in _LABELS]):
        if len(named) > 1:
            raise InputError(
                f"several columns are named like a label: {', '.join(one.name for one in named)}",
                where=source,
                hint="Name the one to predict: --label COLUMN; remove or exclude the others.",
            )
        if named:
            return RoleChoice(column=named[0].name, reason="named like a label")
    last = profiles[-1]
    problem = "it has another role" if last.name in taken else _label_problem(last)
    if problem:
        names = [one.name for one in free]
        shown = ", ".join(names[:_SHOWN]) + (
            f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
        )
        raise InputError(
            f"no column is named like a label, and the last, {last.name!r}, cannot be one: {problem}",
            where=source,
            hint=f"Name the column to predict: --label COLUMN. Columns: {shown}.",
        )
    return RoleChoice(column=last.name, reason="the last column (or --label COLUMN)")


_SHOWN = 30


def _label_problem(profile: ColumnProfile) -> str:
    """Return why the last column is not taken for the label; empty if it is."""
    if profile.kind in {"nested", "binary", "time", "clock"}:
        return f"it holds {profile.values.type}"
    if profile.distinct < 2:  # noqa: PLR2004
        return "it holds one value" if profile.present else "it holds no value"
    if profile.kind == "text" and profile.distinct > _FEW_TEXTS:
        return f"it holds {profile.distinct:,} different texts"
    if profile.kind != "float" and profile.is_unique:
        return "it is another in every row"
    return ""


def choose_text(profiles: Sequence[ColumnProfile], requested: str, source: str) -> RoleChoice:
    """Return the column of text that a language model learns.

    Raises:
        InputError: The column, or every column, holds no text.
    """
    texts = [one for one in profiles if one.kind == "text" and one.present and _is_string(one)]
    if requested:
        profile = _find(profiles, requested)
        if profile not in texts:
            raise InputError(f"text {requested!r} holds {profile.values.type}, not text", where=source)
        return RoleChoice(column=requested, reason="as requested")
    if not texts:
        kinds = ", ".join(f"{one.name} ({one.values.type})" for one in profiles[:_SHOWN])
        raise InputError(f"expected a column of text, found {kinds}", where=source)
    longest = max(texts, key=lambda one: one.mean_length)
    only = len(texts) == 1
    return RoleChoice(
        column=longest.name,
        reason="the only column of text" if only else "the longest text (or --text COLUMN)",
    )


def _is_string(profile: ColumnProfile) -> bool:
    return bool(pa.types.is_string(profile.values.type))


def _find(profiles: Sequence[ColumnProfile], name: str) -> ColumnProfile:
    return next(one for one in profiles if one.name == name)


def utc_ticks(profile: ColumnProfile) -> pa.ChunkedArray:
    """Return times as microseconds from 1970 on; a time without a zone is UTC, a date its midnight."""
    kind = pa.timestamp("us", tz=getattr(profile.values.type, "tz", None))
    return profile.values.cast(kind, safe=False).cast(pa.int64())


def moment(ticks: int) -> datetime:
    """Return microseconds from 1970 on as a time in UTC."""
    return datetime.fromtimestamp(ticks // 1_000_000, UTC).replace(microsecond=ticks % 1_000_000)


SHARES = {"train": 0.7, "evaluate": 0.15, "holdout": 0.15}
"""Splits and their shares of the rows; with a time, in this order."""

_SECOND = 1_000_000
_UNITS = (86_400 * _SECOND, 3_600 * _SECOND, 60 * _SECOND, _SECOND, 1)
_TOLERANCE = 0.02
_FEWEST = 0.05

SplitTable: TypeAlias = Mapping[str, Mapping[str, float | datetime]]


@dataclass(frozen=True, kw_only=True)
class SplitChoice:
    """The splits as ``data.splits`` has them, and the reason."""

    splits: SplitTable
    reason: str
    split_by: str = ""

    @property
    def has_windows(self) -> bool:
        """True if the splits are windows of time."""
        return "start" in self.splits["train"]


def choose_splits(time: ColumnProfile | None, group: str, key: RoleChoice) -> SplitChoice:
    """Return windows of a time, or shares: of the groups, if rows belong together, or of the rows."""
    if group:
        return _shares(f"70, 15 and 15 % of the values of {group}: rows of one stay together", group)
    by = f"a hash of {key.column}" if key.column else "a hash of the row number"
    if time is None:
        return _shares(f"70, 15 and 15 % of the rows, by {by}")
    ticks = np.sort(utc_ticks(time).to_numpy())
    for unit in _UNITS:
        ends = _window_ends(ticks, unit)
        shares = np.diff(np.searchsorted(ticks, ends)) / len(ticks)
        if np.all(np.abs(shares - list(SHARES.values())) <= _TOLERANCE):
            break
    if np.any(np.diff(ends) <= 0) or np.any(shares < _FEWEST):
        return _shares(f"70, 15 and 15 % of the rows, by {by}: too many have the same {time.name}")
    moments = [moment(int(end)) for end in ends]
    windows = {
        name: {"start": moments[place], "end": moments[place + 1]} for place, name in enumerate(SHARES)
    }
    percent = ", ".join(f"{name} {share:.0%}" for name, share in zip(SHARES, shares, strict=True))
    return SplitChoice(splits=windows, reason=f"in the order of {time.name}: {percent}")


def _shares(reason: str, split_by: str = "") -> SplitChoice:
    splits = {name: {"fraction": share} for name, share in SHARES.items()}
    return SplitChoice(splits=splits, reason=reason, split_by=split_by)


def _window_ends(ticks: NDArray[np.int64], unit: int) -> NDArray[np.int64]:
    """Return the start of the first window and the end of each, as whole units."""
    quantiles = np.cumsum(list(SHARES.values()))[:-1]
    inner = ticks[(quantiles * len(ticks)).astype(int)]
    return np.array([ticks[0] // unit, *((inner + unit // 2) // unit), ticks[-1] // unit + 1]) * unit

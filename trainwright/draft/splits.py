"""Divide rows into splits: windows at quantiles of the time, or shares by a hash."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainwright.draft.profiles import ColumnProfile
from trainwright.draft.roles import RoleChoice, moment, utc_ticks

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

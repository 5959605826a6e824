"""Which row of a history was the newest one known at a time: the definition, without any store."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

NOTHING = -1
"""In place of a position: no row of the history is meant."""

_UNITS = (1, 1_000, 1_000_000, 60_000_000)
"""Microseconds, milliseconds, seconds, minutes: what times are commonly whole numbers of."""


@dataclass(frozen=True)
class Found:
    """What a lookup found; arrays of shape (lookups,).

    Attributes:
        position: Row of the history, as it was given; ``NOTHING`` where none is valid.
        expired: A row was known, but the newest one is older than the limit.
        held_back: A newer row describes an earlier time, but was only created after it was asked for.
    """

    position: Ints
    expired: NDArray[np.bool_]
    held_back: NDArray[np.bool_]


class History:
    """The rows of one table of values, ordered for lookups by key and time.

    Args:
        key: Code of each row's key, from 0 and below 2**31; shape (rows,).
        event: Time that a row's values describe, in microseconds; shape (rows,).
        created: Time from which on they were known; the same as ``event`` if nobody recorded it.
    """

    def __init__(self, key: Ints, event: Ints, created: Ints) -> None:
        self._line = _Line(key, event)
        place = self._line.of(key, event)
        order = np.argsort(place)
        self._places = place[order]
        if (self._places[1:] == self._places[:-1]).any():
            order = np.lexsort((created, place))
        self.order: Ints = order.astype(np.int64, copy=False)
        self._key, self._event, self._created = key[self.order], event[self.order], created[self.order]

    def ties(self) -> tuple[Ints, Ints]:
        """Return pairs of rows, as given, that have the same key, event and creation: neither is newer."""
        same = (self._places[1:] == self._places[:-1]) & (self._created[1:] == self._created[:-1])
        first = np.flatnonzero(same)
        return self.order[first], self.order[first + 1]

    def newest(self, key: Ints, at: Ints, *, max_age: int) -> Found:
        """Find, for each key and time, the row with the latest event, then creation, that was known by then.

        Feast's definition: event <= at, created <= at, event >= at - max_age; ties go to the latest created.

        Args:
            key: Codes of the same keys; a key that the history never had is any other code. Shape (lookups,).
            at: Times in microseconds, shape (lookups,).
            max_age: Oldest accepted event before ``at``, in microseconds; 0 is any age.
        """
        if not self._key.size:
            nothing = np.zeros(at.size, dtype=bool)
            return Found(np.full(at.size, NOTHING, dtype=np.int64), nothing, nothing)
        latest = self._same_key(_count_up_to(self._places, self._line.of(key, at)) - 1, key)
        place = self._known(latest, at)
        held_back = place != latest
        known = place != NOTHING
        expired = known & (max_age > 0) & (self._event[place] < at - max_age)
        position = np.where(known & ~expired, self.order[place], NOTHING)
        return Found(position.astype(np.int64, copy=False), expired, held_back)

    @cached_property
    def _earlier(self) -> Ints:
        return _earlier_created(self._key, self._created)

    def _same_key(self, place: Ints, key: Ints) -> Ints:
        return np.where((place >= 0) & (self._key[place] == key), place, NOTHING)

    def _known(self, place: Ints, at: Ints) -> Ints:
        """Step back from rows that were created only after ``at``, over all that cannot be known either."""
        place = place.copy()
        late = np.flatnonzero((place != NOTHING) & (self._created[place] > at))
        while late.size:
            place[late] = self._earlier[place[late]]
            late = late[(place[late] != NOTHING) & (self._created[place[late]] > at[late])]
        return place


class _Line:
    """One number for a key and a time that orders by both, so that one sort and one search do.

    Keys and times as they are often fit into 64 bits together, or do when the times are whole seconds; where
    they do not, the places of the times among the history's take their part.
    """

    def __init__(self, key: Ints, event: Ints) -> None:
        self._first, last = (int(event.min()), int(event.max())) if event.size else (0, 0)
        self._keys = int(key.max(initial=-1)) + 1
        self._times: Ints | None = None
        for self._unit in _UNITS:
            self._width = (last - self._first) // self._unit + 2
            fits = self._keys * self._width <= np.iinfo(np.int64).max
            if fits and (self._unit == 1 or not ((event - self._first) % self._unit).any()):
                return
        self._times = np.unique(event)
        self._width = self._times.size + 1

    def of(self, key: Ints, time: Ints) -> Ints:
        """Return the places of keys and times; of a key that the history never had, any place."""
        place: Ints = np.clip(key, -1, self._keys - 1) * self._width
        if self._times is not None:
            return place + _count_up_to(self._times, time)
        # 0 is before the first time; rounding down keeps each asked time after the times that it was after.
        step = np.maximum(time - self._first, -self._unit) // self._unit + 1
        place += np.minimum(step, self._width - 1)
        return place


def _count_up_to(values: Ints, asked: Ints) -> Ints:
    """Return how many of some ordered values are at most each of those that are asked for."""
    # Asked in order, the search walks through memory once: that saves more than sorting first costs.
    order = np.argsort(asked)
    found = np.empty(asked.size, dtype=np.int64)
    found[order] = np.searchsorted(values, asked[order], side="right")
    return found


def _earlier_created(key: Ints, created: Ints) -> Ints:
    """For each row the nearest one before it, of the same key, that was created earlier.

    Everything between was created no earlier than the row itself, so a lookup that comes too early for the
    row can skip it: a backfill of a million rows at once costs one step.
    """
    before = np.arange(-1, key.size - 1, dtype=np.int64)
    if not key.size:
        return before
    before[np.flatnonzero(np.diff(key, prepend=key[0] - 1))] = NOTHING
    # Where creation follows the events the answer is the row before; the few others are walked.
    late = np.flatnonzero((before != NOTHING) & (created[before] >= created))
    while late.size:
        before[late] = before[before[late]]
        late = late[(before[late] != NOTHING) & (created[before[late]] >= created[late])]
    return before

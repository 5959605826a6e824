"""Which row of a history was the newest one known at a time: the definition, without any store."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

NOTHING = -1
"""In place of a position: no row of the history is meant."""


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
        key: Code of each row's key, at least 0; shape (rows,).
        event: Time that a row's values describe, in microseconds; shape (rows,).
        created: Time from which on they were known; the same as ``event`` if nobody recorded it.
    """

    def __init__(self, key: Ints, event: Ints, created: Ints) -> None:
        self.order: Ints = np.lexsort((created, event, key)).astype(np.int64)
        self._key, self._event, self._created = key[self.order], event[self.order], created[self.order]
        self._times = np.unique(self._event)
        self._places = self._composite(self._key, self._event)
        self._earlier = _earlier_created(self._key, self._created)

    def ties(self) -> tuple[Ints, Ints]:
        """Return pairs of rows, as given, that have the same key, event and creation: neither is newer."""
        same = (np.diff(self._key) == 0) & (np.diff(self._event) == 0) & (np.diff(self._created) == 0)
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
        latest = np.searchsorted(self._places, self._composite(key, at), side="right") - 1
        latest = self._same_key(latest, key)
        place = self._known(latest, at)
        held_back = place != latest
        known = place != NOTHING
        expired = known & (max_age > 0) & (self._event[place] < at - max_age)
        position = np.where(known & ~expired, self.order[place], NOTHING)
        return Found(position.astype(np.int64), expired, held_back)

    def _composite(self, key: Ints, time: Ints) -> Ints:
        """One number that orders by key, then by place among the history's times."""
        rank = np.searchsorted(self._times, time, side="right")
        return key.astype(np.int64) * (self._times.size + 1) + rank

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

"""The rows of both splits, value by value or bin by bin: what a distance is measured on, and drawn from."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainwright.validate.bins import cut_points, edges
from trainwright.validate.profile import Profile
from trainwright.validate.statistics import by_column


@dataclass(frozen=True)
class Distribution:
    """One column in both splits.

    Attributes:
        values: The values, if they were counted one by one; else empty.
        bounds: The bounds of the bins, one more than there are bins; empty if values were counted.
        current: Rows by value or bin in the current split.
        previous: The same in the previous split.
    """

    values: Sequence[str]
    bounds: Sequence[float]
    current: Sequence[float]
    previous: Sequence[float]

    def shares(self) -> list[tuple[str, float, float]]:
        """Return the name of each value or bin, and its share of both splits."""
        now, before = sum(self.current) or 1, sum(self.previous) or 1
        pairs = zip(self.names(), self.current, self.previous, strict=True)
        return [(name, a / now, b / before) for name, a, b in pairs]

    def names(self) -> list[str]:
        """Return what to call each value or bin."""
        if self.values or not self.bounds:
            return list(self.values)
        low, high = self.bounds[1], self.bounds[-2]
        inner = [f"{a:g} to {b:g}" for a, b in zip(self.bounds[1:-2], self.bounds[2:-1], strict=True)]
        return [f"less than {low:g}", *inner, f"more than {high:g}"]

    def drawn(self, most: int) -> "Distribution":
        """Return what to draw: the commonest values with the others together, or the bins that are not empty.

        Values that are whole numbers are put in their order, if there are few enough to show them all.

        Args:
            most: Values to show, at least 2.
        """
        if self.bounds:
            first = 0 if self.current[0] or self.previous[0] else 1
            last = len(self.current) - (0 if self.current[-1] or self.previous[-1] else 1)
            kept = slice(first, last)
            return Distribution((), self.bounds[first : last + 1], self.current[kept], self.previous[kept])
        if len(self.values) > most:
            return self._with_others(most - 1)
        if all(value.lstrip("-").isdecimal() for value in self.values):
            return self._ordered(sorted(range(len(self.values)), key=lambda place: int(self.values[place])))
        return self

    def _with_others(self, kept: int) -> "Distribution":
        return Distribution(
            (*self.values[:kept], f"{len(self.values) - kept} others"),
            (),
            (*self.current[:kept], sum(self.current[kept:])),
            (*self.previous[:kept], sum(self.previous[kept:])),
        )

    def _ordered(self, places: Sequence[int]) -> "Distribution":
        columns = (self.values, self.current, self.previous)
        values, now, before = ([column[place] for place in places] for column in columns)
        return Distribution(values, (), now, before)  # type: ignore[arg-type]


def distribution(column: str, current: Profile, previous: Profile) -> Distribution:
    """Put together what both splits hold in a column; values come in the order of their larger share."""
    if column in current.counts and column in previous.counts:
        cuts = cut_points(by_column(previous.statistics)[column])
        now = [float(rows) for rows in current.counts[column]]
        return Distribution((), [] if cuts is None else edges(cuts), now, previous.counts[column].tolist())
    after, before = current.values(column), previous.values(column)
    now_total, before_total = sum(after.values()) or 1, sum(before.values()) or 1
    most = {
        name: max(after.get(name, 0) / now_total, before.get(name, 0) / before_total)
        for name in after | before
    }
    names = sorted(most, key=lambda name: (-most[name], name))
    return Distribution(
        names, (), [after.get(name, 0.0) for name in names], [before.get(name, 0.0) for name in names]
    )

"""The rows of two samples, value by value or bin by bin: what a distance is measured on, and drawn from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainwright.validate.bins import Cuts, edges
from trainwright.validate.findings import Against
from trainwright.validate.profile import Profile


@dataclass(frozen=True)
class Pair:
    """Two samples that are compared.

    Attributes:
        against: What is compared with.
        current: The sample that is judged; its counts are in the bins of ``cuts``.
        reference: The sample it is compared with; its counts are in the same bins.
        cuts: Where the numeric columns were cut, by column.
        known: What :func:`distribution` has put together so far.
    """

    against: Against
    current: Profile
    reference: Profile
    cuts: Mapping[str, Cuts] = field(default_factory=dict)
    known: dict[str, "Distribution"] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Distribution:
    """One column in both samples.

    Attributes:
        values: The values, if they were counted one by one; else empty.
        bounds: The bounds of the bins, one more than there are bins; empty if values were counted.
        current: Rows by value or bin in the current sample.
        previous: The same in the reference.
    """

    values: Sequence[str]
    bounds: Sequence[float]
    current: Sequence[float]
    previous: Sequence[float]

    def shares(self) -> list[tuple[str, float, float]]:
        """Return the name of each value or bin, and its share of both samples."""
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


def distribution(column: str, pair: Pair) -> Distribution:
    """Put together what both samples hold in a column; values come in the order of their larger share."""
    if column not in pair.known:
        pair.known[column] = _put_together(column, pair)
    return pair.known[column]


def _put_together(column: str, pair: Pair) -> Distribution:
    current, reference = pair.current, pair.reference
    if column in pair.cuts and column in current.counts and column in reference.counts:
        now, then = ([float(rows) for rows in profile.counts[column]] for profile in (current, reference))
        return Distribution((), edges(pair.cuts[column]), now, then)
    after, before = current.values(column), reference.values(column)
    now_total, before_total = sum(after.values()) or 1, sum(before.values()) or 1
    most = {
        name: max(after.get(name, 0) / now_total, before.get(name, 0) / before_total)
        for name in after | before
    }
    names = sorted(most, key=lambda name: (-most[name], name))
    return Distribution(
        names, (), [after.get(name, 0.0) for name in names], [before.get(name, 0.0) for name in names]
    )

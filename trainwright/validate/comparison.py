"""Distances beside what chance makes of them, and which of them count as moved."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainwright.validate.chance import Chance, Still
from trainwright.validate.findings import Against, Finding
from trainwright.validate.limits import JENSEN_SHANNON, L_INFINITY, MEASURES

_DIGITS = 10

MISSING, UNSEEN = "missing share", "new values"
"""The measures beside the distances: how many rows have no value, and how many one never seen before."""

KINDS = {
    MEASURES[JENSEN_SHANNON]: "COMPARATOR_JENSEN_SHANNON_DIVERGENCE_HIGH",
    MEASURES[L_INFINITY]: "COMPARATOR_L_INFTY_HIGH",
    MISSING: "MISSING_SHARE_HIGH",
    UNSEEN: "NEW_VALUES_HIGH",
}
"""The kind of finding of a measure that is beyond its limit."""

_GROUPS = {MISSING: "missing", UNSEEN: "new"}
_SUFFIXES = {MISSING: ", missing", UNSEEN: ", new values"}
_PREFIXES: dict[Against, str] = {"baseline": "baseline/", "serving": "serving/"}


@dataclass(frozen=True)
class Measured:
    """One distance between two samples of a column.

    Attributes:
        column: The column.
        measure: Name of the distance.
        against: What it is compared with.
        value: The distance, a fraction in [0, 1].
        limit: The largest that is accepted, as configured.
        chance: What the distance comes to when nothing has moved.
        rows: Rows that count, in the current sample and in the reference.
    """

    column: str
    measure: str
    against: Against
    value: float
    limit: float
    chance: Chance
    rows: tuple[int, int]


@dataclass(frozen=True)
class Comparison:
    """One distance that was judged.

    Attributes:
        column: The column.
        measure: Name of the distance.
        against: What it is compared with.
        value: The distance, a fraction in [0, 1].
        limit: The largest that is accepted, as configured.
        floor: What chance alone stays below, at these numbers of rows and this many comparisons.
        probability: How probable a distance this large is when nothing has moved; for this column alone.
        rows: Rows that count, in the current sample and in the reference.
    """

    column: str
    measure: str
    value: float
    limit: float
    floor: float
    rows: tuple[int, int]
    against: Against = "previous"
    probability: float = 1.0

    @property
    def name(self) -> str:
        """What to call it: the column, and what it is about if it is not its distribution."""
        return self.column + _SUFFIXES.get(self.measure, "")

    @property
    def rule(self) -> str:
        """Its name among the rules of the verdict, such as ``drift/hour`` or ``baseline/missing/hour``."""
        return rule_name(self.column, self.measure, self.against)

    @property
    def is_distance(self) -> bool:
        """Whether two whole distributions are compared, and not one share of rows."""
        return self.measure not in _GROUPS

    @property
    def effective(self) -> float:
        """The limit that is applied: never below what chance alone reaches."""
        return max(self.limit, self.floor)

    @property
    def moved(self) -> bool:
        """Whether it is further than accepted; equal passes."""
        return self.value > self.effective

    @property
    def ratio(self) -> float:
        """The value as a share of the applied limit."""
        if self.effective:
            return self.value / self.effective
        return math.inf if self.value else 0.0

    def written(self, digits: int) -> tuple[str, str]:
        """Write the value and the applied limit, with as many digits as it takes to tell them apart.

        Args:
            digits: Digits after the point, at least.
        """
        pairs = ((f"{self.value:.{n}f}", f"{self.effective:.{n}f}") for n in range(digits, _DIGITS))
        exact = (repr(self.value), repr(self.effective))
        return next((pair for pair in pairs if pair[0] != pair[1] or self.value == self.effective), exact)

    def finding(self) -> Finding:
        """Say that it moved."""
        value, limit = self.written(4)
        return Finding(
            column=self.column,
            kind=KINDS[self.measure],
            against=self.against,
            rule=self.rule,
            what=f"{self.name} moved by {value} ({self.measure}) against {self.against}, limit {limit}",
        )


def rule_name(column: str, measure: str, against: Against) -> str:
    """Name a comparison as the verdict does."""
    return f"{_PREFIXES.get(against, '')}{_GROUPS.get(measure, 'drift')}/{column}"


def decide(measured: Sequence[Measured], rate: float) -> tuple[Comparison, ...]:
    """Judge all distances of a run together, so that chance raises any false alarm at most this often.

    Holm's step-down procedure (Scandinavian Journal of Statistics 6, 1979): the least probable distance is
    held to ``rate`` shared by all, the next to ``rate`` shared by all but one, and so on until one could be
    chance; so are then all that are more probable. It bounds the chance of any false alarm however the
    columns depend on each other, as sharing the rate evenly does, and finds at least as much. What a
    distance is held to is its floor.

    Distances that chance cannot move, such as the missing values of a column that has none on either side,
    raise no false alarm and take no part of the rate (Tarone, Biometrics 46, 1990).

    Args:
        measured: Every distance of the run, whatever it is compared with.
        rate: Accepted chance of one or more false alarms among them, in (0, 1).
    """
    tails = [entry.chance.tail(entry.value) for entry in measured]
    open_to_chance = [place for place, entry in enumerate(measured) if not isinstance(entry.chance, Still)]
    levels = [rate] * len(measured)
    for place, level in zip(open_to_chance, _levels([tails[x] for x in open_to_chance], rate), strict=True):
        levels[place] = level
    return tuple(
        Comparison(
            column=entry.column,
            measure=entry.measure,
            against=entry.against,
            value=entry.value,
            limit=entry.limit,
            floor=entry.chance.floor(level),
            probability=tail,
            rows=entry.rows,
        )
        for entry, tail, level in zip(measured, tails, levels, strict=True)
    )


def _levels(tails: Sequence[float], rate: float) -> list[float]:
    """Return the level that Holm's procedure holds each test to, in the order given."""
    levels = [rate] * len(tails)
    stopped: float | None = None
    for rank, place in enumerate(sorted(range(len(tails)), key=lambda index: tails[index])):
        level = stopped or rate / (len(tails) - rank)
        levels[place] = level
        if stopped is None and tails[place] > level:
            stopped = level
    return levels

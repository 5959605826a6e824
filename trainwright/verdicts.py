"""Verdicts of gates, with the numbers they follow from: one form for all gates and the smoke test.

A rule has its number, its limit and how the two are compared. Its outcome is computed from them and is in no
document, so nobody can write an outcome that the numbers do not have. Only the standard library is needed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from trainwright.documents import Document
from trainwright.errors import InputError, InternalError

DECISIONS = ("PASS", "HOLD", "FAIL", "INCONCLUSIVE")
"""What a judging step can decide. Only PASS is a pass."""

SEVERITY = ("PASS", "INCONCLUSIVE", "HOLD", "FAIL")
"""Decisions from best to worst: a verdict is the worst of its rules."""

AT_LEAST = "at least"
"""Of an exact number, without an interval: holds from the limit on."""

AT_MOST = "at most"
"""Of an exact number, without an interval: holds up to the limit."""

ABOVE = "above"
"""Holds where the whole interval lies above the limit, is broken where none of it does."""

BELOW = "below"
"""Holds where the whole interval lies below the limit, is broken where none of it does."""

SIZE = "size"
"""Of a size that noise only enlarges: holds up to the limit, is broken where the interval is beyond it."""

UP_TO = "up to"
"""Of a difference whose noise goes both ways: holds where the whole interval lies at the limit or below, is
broken where it lies beyond."""

RATIO = "ratio"
"""Of a ratio that noise only lowers: holds from the limit on, is broken where the interval is below it."""

EXACT = (AT_LEAST, AT_MOST)
"""The tests of exact numbers."""

TESTS = (*EXACT, ABOVE, BELOW, UP_TO, SIZE, RATIO)
"""How the outcome of a rule follows from its numbers."""

SCHEMA_INFERRED = "SCHEMA_INFERRED"
"""Kind of the finding that nobody has reviewed the schema; it ends the name of its rule."""

BASELINE = "baseline"
"""Name of the rule that there is a baseline: the only one that a model's verdict may excuse."""

_ENDS = 2


def worst(decisions: Iterable[str]) -> str:
    """Return the worst of some decisions; INCONCLUSIVE of none, because nothing judged is no pass."""
    return max(decisions, key=SEVERITY.index, default="INCONCLUSIVE")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One thing that was judged: its number, its limit, and how they are compared.

    Attributes:
        name: What is judged.
        value: The number.
        limit: What it is held against.
        test: One of :data:`TESTS`.
        detail: What else a reader needs to know.
        interval: Low and high end around the number; empty for an exact number.
        broken: What the rule says where it is surely broken: FAIL or HOLD; PASS for a rule that is excused,
            with the reason in ``detail``.
        unsure: What it says where the numbers cannot tell; PASS for a rule that is only to find harm.
        p_value: Chance of a number this far beyond the limit if the truth were at it, one-sided, adjusted for
            the other slices that the rule looks at (Holm).
        level: The rule is broken only where ``p_value`` is at most this.
        needed: Rows like these with which the rule would tell with 80 %; 0 where that is not known.
    """

    name: str
    value: float
    limit: float
    test: str
    detail: str = ""
    interval: tuple[float, ...] = ()
    broken: str = "FAIL"
    unsure: str = "INCONCLUSIVE"
    p_value: float = 0.0
    level: float = 1.0
    needed: int = 0

    def __post_init__(self) -> None:
        """Reject a rule that no reader could decide again."""
        known = {self.broken, self.unsure} <= {*DECISIONS} and self.test in TESTS
        if not known or len(self.interval) != (0 if self.test in EXACT else _ENDS):
            raise InternalError(f"rule {self.name!r} cannot be decided again: {self}")

    def outcome(self) -> str:
        """Return the decision that follows from the numbers, one of :data:`DECISIONS`."""
        # With the number itself, so that no interval beside it decides against it.
        ends = (self.value, *self.interval)
        low, high = min(ends), max(ends)
        holds, broken = {
            AT_LEAST: (self.value >= self.limit, self.value < self.limit),
            AT_MOST: (self.value <= self.limit, self.value > self.limit),
            ABOVE: (low > self.limit, high <= self.limit),
            BELOW: (high < self.limit, low >= self.limit),
            UP_TO: (high <= self.limit, low > self.limit),
            SIZE: (self.value <= self.limit, low > self.limit),
            RATIO: (self.value >= self.limit, high < self.limit),
        }[self.test]
        if holds:
            return "PASS"
        return self.broken if broken and self.p_value <= self.level else self.unsure

    @property
    def passed(self) -> bool:
        """True if the outcome is PASS, because the rule holds or is excused."""
        return self.outcome() == "PASS"

    @property
    def excused(self) -> bool:
        """True if the rule passes although its number is surely beyond its limit."""
        return self.passed and replace(self, broken="FAIL").outcome() == "FAIL"


@dataclass(frozen=True, kw_only=True)
class NotJudged:
    """One configured check that could not be judged, and why.

    Attributes:
        name: What it is.
        reason: Why.
        decision: What it makes of the verdict: one of :data:`DECISIONS`, or empty if it is only reported.
        needed: Rows like these with which it could be judged; 0 where that is not known.
    """

    name: str
    reason: str
    decision: str = ""
    needed: int = 0

    def __post_init__(self) -> None:
        """Reject a decision that no reader knows."""
        if self.decision not in ("", *DECISIONS):
            raise InternalError(f"{self.name!r} decides one of {DECISIONS}, not {self.decision!r}")


@dataclass(frozen=True, kw_only=True)
class Verdict(Document):
    """The decision of a gate, its rules, and the digests of everything judged.

    Attributes:
        decision: One of :data:`DECISIONS`.
        rules: Every rule with its number and limit.
        judged: Digests of everything judged, by name. Of an evaluation: ``predictions``,
            ``predictions.model`` and ``predictions.<parent>``; ``evaluation``, the section that was asked;
            ``baseline`` and ``baseline.model``, where there was one.
        not_judged: Configured checks that could not be judged; never empty on an INCONCLUSIVE.
        baseline_version: Number of the registered version that was in production when this was decided;
            empty for none. Promotion compares it with the one that is there then.
    """

    SCHEMA_VERSION: ClassVar[int] = 2
    """1 had rules whose outcome was read from ``passed``: such a verdict is not read any more."""

    FILE: ClassVar[str] = "verdict.json"
    decision: str
    rules: tuple[Rule, ...]
    judged: dict[str, str]
    not_judged: tuple[NotJudged, ...] = ()
    baseline_version: str = ""

    def __post_init__(self) -> None:
        """Reject a decision that no reader knows."""
        if self.decision not in DECISIONS:
            raise InternalError(f"a verdict decides one of {DECISIONS}, not {self.decision!r}")

    @classmethod
    def from_json(cls, data: object, where: str = "") -> Self:
        """Read plain JSON data: what no reader could decide again is bad input, whoever wrote it.

        Raises:
            InputError: It is not this document, or a decision is unknown.
        """
        try:
            return super().from_json(data, where)
        except InternalError as error:
            raise InputError(error.what, where=where) from None

    def recomputed(self) -> str:
        """Return the decision that follows from the numbers; a reader refuses a verdict that says another."""
        said = [entry.decision for entry in self.not_judged if entry.decision and entry.decision != "PASS"]
        return worst([*(rule.outcome() for rule in self.rules), *said])

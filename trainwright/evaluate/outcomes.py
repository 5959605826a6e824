"""A number, its interval and its limit: what follows, and how many rows would tell where nothing does."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainwright.evaluate.findings import Ruling
from trainwright.significance import Estimate, beyond, rows_needed
from trainwright.verdicts import ABOVE, BELOW, RATIO, SEVERITY, SIZE, UP_TO, NotJudged, Rule, worst

_SIGNS = {
    ABOVE: (">", "<="),
    BELOW: ("<", ">="),
    UP_TO: ("<=", ">"),
    SIZE: ("of", ">"),
    RATIO: ("of", "<"),
}
_SHORT = {"auc": "AUC", "mae": "MAE", "rmse": "RMSE", "r2": "R2", "f1": "F1"}


@dataclass(frozen=True)
class Terms:
    """How a number is judged.

    Attributes:
        limit: What it is held against.
        test: One of :data:`trainwright.verdicts.TESTS`.
        confidence: Of its interval.
        broken: FAIL or HOLD: what it decides where the limit is surely broken.
        unsure: INCONCLUSIVE, or PASS where it is only to find harm.
    """

    limit: float
    test: str
    confidence: float
    broken: str = "FAIL"
    unsure: str = "INCONCLUSIVE"

    @property
    def level(self) -> float:
        """The one-sided chance of a wrong claim that is accepted."""
        return (1 - self.confidence) / 2


def spoken(metric: str) -> str:
    """Name a metric as a reader would: ``AUC``, ``log loss``, ``recall of class 2``."""
    base, _, number = metric.partition("/")
    named = _SHORT.get(base, base.replace("_", " "))
    return f"{named} of class {number}" if number else named


def judge(
    name: str, found: Estimate, rows: int, terms: Terms, *, detail: str = "", p_value: float | None = None
) -> tuple[Rule, tuple[NotJudged, ...]]:
    """Judge one number.

    Args:
        name: What it is.
        found: The number with its interval.
        rows: Rows that it was taken over.
        terms: How it is judged.
        detail: What else a reader needs to know.
        p_value: Of being beyond the limit, adjusted for others; calculated for this one alone if None.

    Returns:
        The rule, and what it leaves undecided.
    """
    chance = tail(found, terms) if p_value is None else p_value
    level = max(terms.level, 1e-9) if p_value is not None else 1.0
    drawn = Rule(
        name=name,
        value=found.value,
        limit=terms.limit,
        passed=False,
        test=terms.test,
        interval=(found.low, found.high),
        broken=terms.broken,
        unsure=terms.unsure,
        p_value=chance,
        level=level,
    )
    decision = drawn.outcome()
    left = _undecided(drawn, found, rows, terms)
    told = f"{decision}; {terms.confidence:.0%} interval {found.low:.4f} to {found.high:.4f}"
    rule = replace(
        drawn,
        decision=decision,
        passed=decision == "PASS",
        detail="; ".join(part for part in (told, detail) if part),
        needed=left[0].needed if left else 0,
    )
    return rule, left


def tail(found: Estimate, terms: Terms) -> float:
    """Return the one-sided chance of a number this far on the wrong side, if the truth were at the limit."""
    chance = beyond(found, terms.limit, terms.confidence)
    wrong = found.value < terms.limit if terms.test in (ABOVE, RATIO) else found.value > terms.limit
    return chance if wrong else 1 - chance


def _undecided(rule: Rule, found: Estimate, rows: int, terms: Terms) -> tuple[NotJudged, ...]:
    holds = replace(rule, unsure="INCONCLUSIVE").outcome()
    if holds != "INCONCLUSIVE":
        return ()
    tests = 1.0
    if terms.test in (SIZE, RATIO):
        reason = (
            f"{found.value:.4f} is beyond {terms.limit:.4f}, but may be by chance: "
            f"its interval is {found.low:.4f} to {found.high:.4f}"
        )
    elif found.low <= terms.limit <= found.high:
        reason = f"the interval {found.low:.4f} to {found.high:.4f} holds the limit {terms.limit:.4f}"
    else:
        reason = f"beyond the limit {terms.limit:.4f}, but among so many slices it may be by chance"
        alone = tail(found, terms)
        tests = max(1.0, rule.p_value / alone) if alone > 0 else 1.0  # as Holm counted them here
    needed = rows_needed(found, terms.limit, rows, terms.confidence, tests=tests)
    if needed > rows:
        reason += f"; about {needed:,} rows like these {rows:,} would tell"
    decision = "" if terms.unsure == "PASS" else terms.unsure
    return (NotJudged(name=rule.name, reason=reason, decision=decision, needed=needed),)


def fact(name: str, rule: Rule, ends: str = "") -> str:
    """Say a number and its limit in a few words."""
    outcome = replace(rule, broken="FAIL", unsure="INCONCLUSIVE").outcome()
    beside = f": {ends}" if ends and outcome != "PASS" else ""
    if rule.test in (SIZE, RATIO):
        sign = _SIGNS[rule.test][outcome != "PASS"]
        return f"{name} {rule.value:.3f} {sign} {rule.limit:.3f}{beside}"
    sign = {"PASS": _SIGNS[rule.test][0], "FAIL": _SIGNS[rule.test][1]}.get(outcome, "around")
    number = Estimate(rule.value, *rule.interval)
    return f"{name} {number} {sign} {rule.limit:.3f}{beside}"


def rule_on(
    name: str, found: Estimate, rows: int, terms: Terms, *, kind: str = "absolute", ends: str = ""
) -> Ruling:
    """Judge one number over all rows, as a ruling."""
    rule, left = judge(name, found, rows, terms, detail=ends)
    return Ruling(name, rule.decision, fact(name, rule, ends), (rule,), left, kind)


def cannot(name: str, reason: str, *, kind: str = "absolute", scope: str = "overall") -> Ruling:
    """Say that something that was asked for cannot be judged: that is no pass."""
    left = NotJudged(name=name, reason=reason, decision="INCONCLUSIVE")
    return Ruling(name, "INCONCLUSIVE", f"{name} not judged", (), (left,), kind, scope)


def gather(
    name: str, judged: Sequence[tuple[Rule, tuple[NotJudged, ...]]], more: Sequence[NotJudged], kind: str
) -> Ruling:
    """Put the rules on many slices into one ruling, the worst first.

    Args:
        name: What is judged.
        judged: The rule on each slice, and what it leaves undecided.
        more: What could not be judged at all.
        kind: As in :class:`trainwright.evaluate.findings.Ruling`.
    """
    rules = sorted((rule for rule, _ in judged), key=_gravest)
    left = (*(entry for _, entries in judged for entry in entries), *more)
    said = [entry.decision for entry in left if entry.decision]
    if not rules:
        return Ruling(name, worst(said), f"{name}: no slice is judged", (), left, kind, "slice")
    decision = worst([*(rule.decision for rule in rules), *said])
    alike = sum(1 for rule in rules if rule.decision == rules[0].decision)
    told = f"{fact(rules[0].name, rules[0])}, the worst of {len(rules)} slices"
    if decision != "PASS" and alike > 1:
        told = f"{fact(rules[0].name, rules[0])}, the worst of {alike} such slices"
    return Ruling(name, decision, told, tuple(rules), left, kind, "slice")


def _gravest(rule: Rule) -> tuple[int, float, str]:
    towards = rule.value - rule.limit if rule.test in (ABOVE, RATIO) else rule.limit - rule.value
    return -SEVERITY.index(rule.decision), towards, rule.name

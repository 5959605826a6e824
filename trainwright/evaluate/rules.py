"""The rules a model must keep: each number against its limit, with what chance alone could do.

A rule has three answers, because a number from a sample has an interval. Where the interval lies on one
side of the limit the rule holds or is broken; where it does not, more rows are needed, and that is not a
pass. The gap of recall and the calibration error are sizes, which noise can only enlarge on average (Jensen's
inequality), so for them a number within the limit is enough.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainwright.artifacts import NotJudged, Rule
from trainwright.evaluate.metrics import Performance
from trainwright.evaluate.slices import Cut, Slice
from trainwright.experiment import Evaluation
from trainwright.significance import Estimate

SEVERITY = ("PASS", "INCONCLUSIVE", "HOLD", "FAIL")
"""Decisions from best to worst: a verdict is the worst of its rules."""

MIN_ROWS = 30
"""With fewer rows of either label the interval of the AUC is too narrow to stand on (coverage below 90 %)."""

GAP = "recall gap over "
"""What the name of a rule on slices begins with; the column follows."""


@dataclass(frozen=True)
class Ruling:
    """What one rule says.

    Attributes:
        name: What is judged.
        decision: One of :data:`SEVERITY`.
        fact: The number and its limit, in a few words.
        limit: The limit.
        estimate: The number with its interval; None where there is none.
        detail: What else a reader needs to know.
        reason: Why it could not be judged; empty if it could.
    """

    name: str
    decision: str
    fact: str
    limit: float
    estimate: Estimate | None
    detail: str = ""
    reason: str = ""

    def rule(self) -> Rule | None:
        """Return the rule for the verdict, or None where there is no number."""
        if self.estimate is None:
            return None
        return Rule(
            name=self.name,
            value=self.estimate.value,
            limit=self.limit,
            passed=self.decision == "PASS",
            detail=f"{self.decision}; 95 % interval {self.estimate.low:.4f} to {self.estimate.high:.4f}"
            + (f"; {self.detail}" if self.detail else ""),
        )

    def not_judged(self) -> NotJudged | None:
        """Return what could not be judged, or None."""
        return NotJudged(name=self.name, reason=self.reason) if self.reason else None


def rule_on(performance: Performance, cuts: Sequence[Cut], evaluation: Evaluation) -> list[Ruling]:
    """Apply every rule.

    Args:
        performance: Figures over all judged rows.
        cuts: The slices of each column that was asked for.
        evaluation: The limits.
    """
    negatives, positives = (sum(row) for row in performance.confusion)
    return [
        rule_on_auc(performance.auc, (negatives, positives), evaluation.min_auc),
        *(rule_on_gap(cut, evaluation) for cut in cuts),
        rule_on_calibration(performance.calibration.error, evaluation.max_calibration_error),
    ]


def rule_on_auc(auc: Estimate, rows: tuple[int, int], limit: float) -> Ruling:
    """PASS above the limit, FAIL below it, INCONCLUSIVE where the interval holds the limit.

    Args:
        auc: The area with its interval.
        rows: Rows of label 0 and of label 1; with fewer than :data:`MIN_ROWS` of either it is INCONCLUSIVE.
        limit: What the interval must lie above.
    """
    if min(rows) < MIN_ROWS:
        reason = (
            f"{rows[0]:,} rows of label 0 and {rows[1]:,} of label 1; its interval needs {MIN_ROWS} of each"
        )
        fact = f"AUC {auc.value:.3f} of too few rows"
        return Ruling("AUC", "INCONCLUSIVE", fact, limit, auc, reason=reason)
    if auc.low > limit:
        return Ruling("AUC", "PASS", f"AUC {auc} > {limit:.3f}", limit, auc)
    if auc.high <= limit:
        return Ruling("AUC", "FAIL", f"AUC {auc} <= {limit:.3f}", limit, auc)
    reason = f"the interval {auc.low:.4f} to {auc.high:.4f} holds the limit {limit:.4f}"
    if distance := abs(auc.value - limit):
        needed = float(f"{sum(rows) * ((auc.high - auc.low) / 2 / distance) ** 2:.1e}")
        reason += f"; about {needed:,.0f} rows like these {sum(rows):,} would tell"
    return Ruling("AUC", "INCONCLUSIVE", f"AUC {auc} around {limit:.3f}", limit, auc, reason=reason)


def rule_on_gap(cut: Cut, evaluation: Evaluation) -> Ruling:
    """PASS within the limit, HOLD where the gap is surely larger, INCONCLUSIVE where it may be chance."""
    name, limit = f"{GAP}{cut.column}", evaluation.recall_gap(cut.column)
    if cut.gap is None or cut.highest is None or cut.lowest is None:
        reason = (
            f"a gap needs 2 slices with at least {evaluation.min_positives} positives, "
            f"{cut.column} has {len(cut.judged)} of {len(cut.slices)}"
        )
        return Ruling(name, "INCONCLUSIVE", f"{name} not judged", limit, None, reason=reason)
    ends = [
        f"{_spoken(cut, entry)} {entry.hits / entry.positives:.3f}" for entry in (cut.lowest, cut.highest)
    ]
    return _rule_on_size(name, cut.gap.size, limit, ", ".join(ends))


def _spoken(cut: Cut, entry: Slice) -> str:
    """Name a slice so that its number is not taken for another number: ``EWR``, but ``hour 6``."""
    return entry.name if entry.name[:1].isalpha() else f"{cut.column} {entry.name}"


def rule_on_calibration(error: Estimate, limit: float) -> Ruling:
    """PASS within the limit, HOLD where the error is surely larger, INCONCLUSIVE where it may be chance."""
    return _rule_on_size("calibration error", error, limit, "")


def _rule_on_size(name: str, size: Estimate, limit: float, ends: str) -> Ruling:
    if size.value <= limit:
        return Ruling(name, "PASS", f"{name} {size.value:.3f} of {limit:.3f}", limit, size, ends)
    fact = f"{name} {size.value:.3f} > {limit:.3f}{': ' if ends else ''}{ends}"
    if size.low > limit:
        return Ruling(name, "HOLD", fact, limit, size, ends)
    reason = (
        f"{size.value:.4f} is above {limit:.4f}, but may be by chance: its interval begins at {size.low:.4f}"
    )
    return Ruling(name, "INCONCLUSIVE", fact, limit, size, ends, reason)


def worst(decisions: Iterable[str]) -> str:
    """Return the worst of some decisions."""
    return max(decisions, key=SEVERITY.index)


def headline(rulings: Sequence[Ruling]) -> str:
    """Say in one line what was decided and why, the limit beside the number."""
    decision = worst(ruling.decision for ruling in rulings)
    decisive = [ruling.fact for ruling in rulings if ruling.decision == decision]
    if decision == "PASS":
        return ", ".join([rulings[0].fact, *_closest_gap(rulings)])
    more = f", and {len(decisive) - 1} more" if len(decisive) > 1 else ""
    return f"{decision}: {decisive[0]}{more}"


def _closest_gap(rulings: Sequence[Ruling]) -> list[str]:
    """Return the fact of the recall gap that is closest to its limit, if there is any."""
    gaps = [
        (ruling.estimate.value - ruling.limit, ruling.fact)
        for ruling in rulings
        if ruling.name.startswith(GAP) and ruling.estimate
    ]
    return [max(gaps)[1]] if gaps else []

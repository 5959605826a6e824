"""The judgement of data: findings, comparisons, the decision that follows, and its headline."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from trainwright.drift.comparison import KINDS, MISSING, UNSEEN, ColumnComparison, rule_name
from trainwright.drift.findings import MEASURES, ORDER, Against, DataFinding, Limit, SeverityPolicy
from trainwright.experiment import Validation
from trainwright.verdicts import AT_LEAST, AT_MOST, NotJudged, Rule, worst

_SHOWN = 3
"""Names in a headline; the others are counted."""

_COUNTS = ("HOLD", "BLOCK")
"""The severities that a decision depends on."""

_OUTCOMES = {"BLOCK": "FAIL", "HOLD": "HOLD"}
"""What a rule that does not hold says, by the severity of its finding."""

_COMPARED = frozenset({*KINDS.values(), "COMPARISON_NOT_DONE", "TEXT_NOT_COMPARED", "TOO_FEW_ROWS"})


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Everything that a gate on data knows; ``counted`` has the rules on numbers of rows."""

    limits: tuple[Limit, ...]
    findings: tuple[DataFinding, ...]
    comparisons: tuple[ColumnComparison, ...]
    not_judged: tuple[NotJudged, ...]
    counted: tuple[Rule, ...] = ()

    @cached_property
    def moved(self) -> tuple[ColumnComparison, ...]:
        """The comparisons beyond their limit, the furthest first."""
        return tuple(entry for entry in self.ranked if entry.moved)

    @property
    def moved_columns(self) -> set[str]:
        """The columns that moved in any way."""
        return {entry.column for entry in self.moved}

    @cached_property
    def ranked(self) -> tuple[ColumnComparison, ...]:
        """All comparisons, the closest to its limit first."""
        return tuple(sorted(self.comparisons, key=lambda entry: (-entry.ratio, -entry.value, entry.column)))

    @cached_property
    def anomalies(self) -> tuple[DataFinding, ...]:
        """Findings other than comparisons: schema and row counts."""
        return tuple(finding for finding in self.findings if finding.kind not in _COMPARED)

    @property
    def unjudged(self) -> dict[str, list[str]]:
        """Columns that could not be judged, by reason; each once, and those that count first."""
        columns: dict[str, dict[str, None]] = {}
        for entry in sorted(self.not_judged, key=lambda entry: ORDER[self.weight_of(entry.name)]):
            columns.setdefault(entry.reason, {})[entry.name.rpartition("/")[2]] = None
        return {reason: list(names) for reason, names in columns.items()}

    def weight_of(self, rule: str) -> str:
        """Return what a rule that does not hold adds to the decision; empty if it adds nothing."""
        return min(
            (finding.weight for finding in self._by_rule.get(rule, ())), key=ORDER.__getitem__, default=""
        )

    @cached_property
    def _by_rule(self) -> dict[str, list[DataFinding]]:
        found: dict[str, list[DataFinding]] = {}
        for finding in self.findings:
            found.setdefault(finding.rule, []).append(finding)
        return found

    @property
    def decision(self) -> str:
        """FAIL if anything blocks; HOLD if anything holds, such as what could not be judged; else PASS."""
        weights = {finding.weight for finding in self.findings}
        if "BLOCK" in weights:
            return "FAIL"
        return "HOLD" if "HOLD" in weights else "PASS"

    @property
    def headline(self) -> str:
        """The one fact that matters, with the limit beside the number."""
        grave = [finding.what for finding in self.findings if finding.weight == "BLOCK"]
        if grave:
            return f"FAIL: {grave[0]}{_more(len(grave) - 1)}"
        held = [entry for entry in self.moved if self.weight_of(entry.rule) in _COUNTS]
        columns = {entry.column for entry in held}
        if columns:
            shown = ", ".join(_distance(entry) for entry in held[:_SHOWN])
            rest = _more(len(held) - _SHOWN)
            return f"HOLD: {len(columns)} of {len(self.limits)} columns moved: {shown}{rest}"
        if others := [finding.what for finding in self.anomalies if finding.weight == "HOLD"]:
            return f"HOLD: {others[0]}{_more(len(others) - 1)}"
        if self.decision == "HOLD":
            names = {entry.name.rpartition("/")[2] for entry in self.undecided() if entry.decision}
            reason, first = next(iter(self.unjudged.items()))
            shown = ", ".join(first[:_SHOWN]) + _more(len(first) - _SHOWN)
            rest = _more(len(names) - len(first))
            return f"HOLD: {len(names)} columns could not be compared: {reason} ({shown}){rest}"
        decided = [entry for entry in self.ranked if not entry.is_undecided]
        closest = f"; closest {_distance(decided[0])}" if decided else ""
        waived = sum(1 for finding in self.findings if finding.waived.startswith("suppressed"))
        suppressed = f"; {waived} suppressed" if waived else ""
        undecided = sum(1 for entry in self.comparisons if entry.is_undecided)
        suppressed += f"; too few rows to tell in {undecided}" if undecided else ""
        return f"0 of {len(self.limits)} columns moved{closest}{suppressed}{self.remarks}"

    @property
    def remarks(self) -> str:
        """Remarks at the end of the headline of a PASS."""
        return ""

    def rules(self) -> tuple[Rule, ...]:
        """Return every rule with its number and the limit that was applied."""
        schema = [finding for finding in self.anomalies if not finding.rule]
        grave = [finding for finding in schema if finding.weight in _COUNTS]
        whole = Rule(
            name="schema",
            value=float(len(grave)),
            limit=0.0,
            test=AT_MOST,
            detail="anomalies",
            broken=worst(["PASS", *(_OUTCOMES[finding.weight] for finding in grave)]),
        )
        decided = [entry for entry in self.comparisons if not entry.is_undecided]
        numbers = (*self.counted, *map(_distance_rule, decided))
        return (whole, *map(_anomaly_rule, schema), *map(self._excused, numbers))

    def _excused(self, rule: Rule) -> Rule:
        """Let a broken rule pass whose finding is only reported or suppressed, and note it."""
        if rule.passed:
            return rule
        if outcome := _OUTCOMES.get(self.weight_of(rule.name)):
            return replace(rule, broken=outcome)
        why = "; ".join(finding.waived or "only told" for finding in self._by_rule[rule.name])
        return replace(rule, broken="PASS", detail=f"{rule.detail}; beyond its limit: {why}")

    def undecided(self) -> tuple[NotJudged, ...]:
        """Return what could not be judged, each with what it makes of the decision."""
        return tuple(
            replace(entry, decision=_OUTCOMES.get(self.weight_of(entry.name), ""))
            for entry in self.not_judged
        )


def _more(count: int) -> str:
    return f", and {count} more" if count > 0 else ""


def _distance(entry: ColumnComparison) -> str:
    name, sign = entry.name.replace(",", ""), ">" if entry.moved else "of"
    value, limit = entry.written(3)
    against = "" if entry.against == "previous" else f" against {entry.against}"
    return f"{name}{against} {value} {sign} {limit}"


def _distance_rule(entry: ColumnComparison) -> Rule:
    detail = (
        f"{entry.measure}; limit {entry.limit:g}, chance alone {entry.floor:.2g}; "
        f"{entry.rows[0]:,} rows against {entry.rows[1]:,}"
    )
    return Rule(name=entry.rule, value=entry.value, limit=entry.effective, test=AT_MOST, detail=detail)


def _anomaly_rule(finding: DataFinding) -> Rule:
    place = "/".join(part for part in ("schema", finding.split, finding.column, finding.kind) if part)
    detail = f"{finding.what}; {finding.waived}" if finding.waived else finding.what
    outcome = _OUTCOMES.get(finding.weight, "PASS")
    return Rule(name=place, value=1.0, limit=0.0, test=AT_MOST, detail=detail, broken=outcome)


def weigh(
    found: Sequence[DataFinding],
    comparisons: Sequence[ColumnComparison],
    not_judged: Sequence[NotJudged],
    policy: SeverityPolicy,
    text_columns: Collection[str] = (),
) -> tuple[list[DataFinding], tuple[NotJudged, ...]]:
    """Return all findings with their severities, and all that could not be judged.

    A column that moved, a comparison that was not done and one that the rows cannot decide are findings, too,
    beside those that were ``found``. Of ``text_columns`` only the missing values are compared.
    """
    findings = [*found, *(entry.finding() for entry in comparisons if entry.moved)]
    explained = {finding.rule for finding in findings}
    findings += [_not_done(entry, text_columns) for entry in not_judged if entry.name not in explained]
    undecided = [entry for entry in comparisons if entry.is_undecided]
    findings += [entry.too_few_rows() for entry in undecided]
    weighed = [policy.judge(finding) for finding in findings]
    weighed += [policy.judge(finding) for finding in policy.lapsed(weighed)]
    return weighed, (*not_judged, *(entry.not_judged() for entry in undecided))


def _not_done(entry: NotJudged, text_columns: Collection[str]) -> DataFinding:
    parts = entry.name.split("/")
    references: dict[str, Against] = {"baseline": "baseline", "serving": "serving"}
    compared = len(parts) > 1 and parts[0] != "label"
    is_text = parts[-1] in text_columns and parts[-2:-1] == ["drift"]
    return DataFinding(
        column=parts[-1] if compared else "",
        kind="TEXT_NOT_COMPARED" if is_text else "COMPARISON_NOT_DONE",
        rule=entry.name,
        against=references.get(parts[0], "previous") if compared else "",
        what=f"{entry.name} could not be judged: {entry.reason}",
    )


def not_compared(against: Against, limits: Sequence[Limit], reason: str) -> Iterator[NotJudged]:
    """Yield every comparison that could not be done for one reason."""
    for limit in limits:
        unseen = [UNSEEN] if limit.kind == "categories" else []
        for name in (MEASURES[limit.comparator], MISSING, *unseen):
            yield NotJudged(name=rule_name(limit.column, name, against), reason=reason)


def baseline_check(
    validation: Validation, *, there: bool, what: str = ""
) -> tuple[tuple[Rule, ...], tuple[DataFinding, ...]]:
    """Return the rule that there is a baseline, and the finding if not: ``what``, if more is known."""
    how = validation.on_missing_baseline
    if how == "skip":
        return (), ()
    rule = Rule(name="baseline", value=float(there), limit=1.0, test=AT_LEAST)
    what = what or "there is no accepted baseline of the model in production to compare with"
    if how == "bootstrap":
        what += ": validation.on_missing_baseline is bootstrap; accept the one that was calculated here"
    elif how == "hold":
        what += ": `trainwright baseline accept RUN --to FILE` makes one, which validation.baseline names"
    missing = DataFinding(kind="BASELINE_MISSING", against="baseline", rule="baseline", what=what)
    return (rule,), () if there else (missing,)

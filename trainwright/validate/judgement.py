"""The judgement of a snapshot: findings, comparisons, the decision that follows, and its headline."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from trainwright.artifacts import Snapshot
from trainwright.experiment import Suppression, Validation
from trainwright.validate.baseline import Baseline
from trainwright.validate.comparison import KINDS, ColumnComparison, SamplePair
from trainwright.validate.policy import ORDER, Against, DataFinding, Limit
from trainwright.validate.profile import Profile
from trainwright.validate.quarantine import Quarantined
from trainwright.verdicts import AT_LEAST, AT_MOST, NotJudged, Rule, worst

_SHOWN = 3
"""Names in a headline; the others are counted."""

_COUNTS = ("HOLD", "BLOCK")
"""The severities that a decision depends on."""

_OUTCOMES = {"BLOCK": "FAIL", "HOLD": "HOLD"}
"""What a rule that does not hold says, by the severity of its finding."""

_COMPARED = frozenset({*KINDS.values(), "COMPARISON_NOT_DONE", "TEXT_NOT_COMPARED", "TOO_FEW_ROWS"})


@dataclass(frozen=True)
class SnapshotJudgement:
    """Everything the gate knows; the verdict and the report are written from it alone.

    ``counted`` has the rules on numbers of rows: volume, freshness, label, quarantine. ``inferred`` is the
    text of the schema if nobody has reviewed it.
    """

    snapshot: Snapshot
    validation: Validation
    schema_digest: str
    baseline: Baseline | None
    limits: tuple[Limit, ...]
    profiles: dict[str, Profile]
    pairs: Mapping[Against, SamplePair]
    findings: tuple[DataFinding, ...]
    comparisons: tuple[ColumnComparison, ...]
    not_judged: tuple[NotJudged, ...]
    counted: tuple[Rule, ...]
    quarantined: Quarantined
    in_force: tuple[Suppression, ...]
    inferred: str = ""

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
        suppressed += "; the schema was inferred" if self.inferred else ""
        total = self.quarantined.total
        rows = f"; {total:,} rows in quarantine" if total else ""
        return f"0 of {len(self.limits)} columns moved{closest}{suppressed}{rows}"

    def rules(self) -> tuple[Rule, ...]:
        """Return every rule with its number and the limit that was applied."""
        counts = self.snapshot.splits
        names = dict.fromkeys([self.validation.previous, self.validation.current])
        rows = [
            Rule(name=f"rows/{name}", value=float(counts[name]), limit=1.0, test=AT_LEAST)
            for name in names
            if name in counts
        ]
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
        return (*rows, whole, *map(_anomaly_rule, schema), *map(self._excused, numbers))

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

    def metrics(self) -> dict[str, float]:
        """Return the figures for the page of the run."""
        counts = {"columns_moved": len(self.moved_columns), "not_judged": len(self.not_judged)}
        rows = {"rows_in_quarantine": self.quarantined.total} if self.quarantined.limit else {}
        return counts | rows | {entry.rule: entry.value for entry in self.comparisons}


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

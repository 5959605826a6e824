"""What was found in a snapshot, and what follows from it."""

from dataclasses import dataclass
from functools import cached_property

from trainwright.artifacts import NotJudged, Rule, Snapshot
from trainwright.experiment import Validation
from trainwright.validate.anomalies import Anomaly
from trainwright.validate.drift import MISSING, Comparison
from trainwright.validate.limits import Limit
from trainwright.validate.profile import Profile

_SHOWN = 3
"""Names in a headline; the others are counted."""


@dataclass(frozen=True)
class Judgement:
    """Everything the gate knows; the verdict and the report are drawn from it alone.

    Attributes:
        snapshot: What was judged.
        validation: What was asked.
        limits: What was to be compared.
        profiles: The splits that were looked at, by name.
        anomalies: Where the data is not what the schema says, the gravest first.
        comparisons: Every distance that was measured.
        not_judged: Every comparison that was asked for and could not be made.
    """

    snapshot: Snapshot
    validation: Validation
    limits: tuple[Limit, ...]
    profiles: dict[str, Profile]
    anomalies: tuple[Anomaly, ...]
    comparisons: tuple[Comparison, ...]
    not_judged: tuple[NotJudged, ...]

    @property
    def current(self) -> Profile | None:
        """The split that is judged for drift, if it has rows."""
        return self.profiles.get(self.validation.current)

    @property
    def previous(self) -> Profile | None:
        """The split it is compared with, if it has rows."""
        return self.profiles.get(self.validation.previous)

    @cached_property
    def moved(self) -> tuple[Comparison, ...]:
        """The comparisons beyond their limit, the furthest first."""
        return tuple(entry for entry in self.ranked if entry.moved)

    @property
    def moved_columns(self) -> set[str]:
        """The columns that moved in any way."""
        return {entry.column for entry in self.moved}

    @cached_property
    def ranked(self) -> tuple[Comparison, ...]:
        """All comparisons, the closest to its limit first."""
        return tuple(sorted(self.comparisons, key=lambda entry: (-entry.ratio, -entry.value, entry.column)))

    @property
    def unjudged(self) -> dict[str, list[str]]:
        """The columns that could not be compared, by the reason."""
        columns: dict[str, list[str]] = {}
        for entry in self.not_judged:
            columns.setdefault(entry.reason, []).append(entry.name.partition("/")[2])
        return columns

    @property
    def decision(self) -> str:
        """FAIL if anything blocks; HOLD if anything moved, or could not be judged; else PASS."""
        severities = {anomaly.severity for anomaly in self.anomalies}
        if "BLOCK" in severities:
            return "FAIL"
        return "HOLD" if "HOLD" in severities or self.moved or self.not_judged else "PASS"

    @property
    def headline(self) -> str:
        """The one fact that matters, with the limit beside the number."""
        grave = [anomaly.what for anomaly in self.anomalies if anomaly.severity == "BLOCK"]
        if grave:
            return f"FAIL: {grave[0]}{_more(len(grave) - 1)}"
        if self.moved:
            shown = ", ".join(_distance(entry) for entry in self.moved[:_SHOWN])
            rest = _more(len(self.moved) - _SHOWN)
            return f"HOLD: {len(self.moved_columns)} of {len(self.limits)} columns moved: {shown}{rest}"
        if held := [anomaly.what for anomaly in self.anomalies if anomaly.severity == "HOLD"]:
            return f"HOLD: {held[0]}{_more(len(held) - 1)}"
        if self.not_judged:
            reason, columns = next(iter(self.unjudged.items()))
            rest = _more(len(self.not_judged) - len(columns))
            shown = ", ".join(columns[:_SHOWN]) + _more(len(columns) - _SHOWN)
            return f"HOLD: {len(self.not_judged)} columns could not be compared: {reason} ({shown}){rest}"
        return f"0 of {len(self.limits)} columns moved{self._closest()}"

    def _closest(self) -> str:
        return f"; closest {_distance(self.ranked[0])}" if self.ranked else ""

    def rules(self) -> tuple[Rule, ...]:
        """Return every rule with its number and the limit that was applied."""
        counts = self.snapshot.splits
        names = (self.validation.previous, self.validation.current)
        rows = [
            Rule(name=f"rows/{name}", value=float(counts[name]), limit=1.0, passed=counts[name] > 0)
            for name in names
            if name in counts
        ]
        grave = [anomaly for anomaly in self.anomalies if anomaly.severity != "WARN"]
        schema = Rule(name="schema", value=float(len(grave)), limit=0.0, passed=not grave, detail="anomalies")
        return (*rows, schema, *map(_anomaly_rule, self.anomalies), *map(_distance_rule, self.comparisons))

    def metrics(self) -> dict[str, float]:
        """Return the figures for the page of the run."""
        distances = {f"drift/{x.column}": x.value for x in self.comparisons if x.measure != MISSING}
        return {"columns_moved": len(self.moved_columns), "not_judged": len(self.not_judged)} | distances


def _more(count: int) -> str:
    return f", and {count} more" if count > 0 else ""


def _distance(entry: Comparison) -> str:
    name, sign = entry.name.replace(",", ""), ">" if entry.moved else "of"
    value, limit = entry.written(3)
    return f"{name} {value} {sign} {limit}"


def _anomaly_rule(anomaly: Anomaly) -> Rule:
    place = "/".join(part for part in ("schema", anomaly.split, anomaly.column, anomaly.kind) if part)
    return Rule(name=place, value=1.0, limit=0.0, passed=anomaly.severity == "WARN", detail=anomaly.what)


def _distance_rule(entry: Comparison) -> Rule:
    detail = (
        f"{entry.measure}; limit {entry.limit:g}, chance alone {entry.floor:.2g}; "
        f"{entry.rows[0]:,} rows against {entry.rows[1]:,}"
    )
    group = "missing" if entry.measure == MISSING else "drift"
    return Rule(
        name=f"{group}/{entry.column}",
        value=entry.value,
        limit=entry.effective,
        passed=not entry.moved,
        detail=detail,
    )

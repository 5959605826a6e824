"""Findings about data, their severity and suppressions, and the limits that columns are compared with."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Literal

from trainwright.errors import InputError
from trainwright.experiment import Severity, SeverityRule, Suppression, Validation
from trainwright.experiment.validation import NEVER_LOWERED, DriftLimit
from trainwright.verdicts import SCHEMA_INFERRED

Against = Literal["", "previous", "baseline", "serving"]
"""What a comparison is with: the previous span, the data that the model in production learned from, or rows
as they were served; empty if a finding is no comparison."""

ORDER: dict[str, int] = {"BLOCK": 0, "HOLD": 1, "WARN": 2, "": 3}


TOO_FEW = "too few rows to tell"
"""What begins the reason of a check that the number of rows cannot decide."""


@dataclass(frozen=True)
class DataFinding:
    """One way in which the data is not what it should be.

    Attributes:
        kind: TFDV's name of the anomaly, or one like it.
        split: The split; empty for the whole snapshot, as ``column`` is for the whole split.
        severity: BLOCK rejects the snapshot, HOLD asks a person, WARN is only reported; empty until the
            policy sets it.
        waived: Why it does not count; empty if it does.
        rule: Name of the verdict's rule that it breaks; empty if it is a rule of its own.
        of_schema: Whether it violates the schema: such a finding in the label rejects the snapshot.
    """

    kind: str
    what: str
    split: str = ""
    column: str = ""
    against: Against = ""
    severity: Severity | Literal[""] = ""
    waived: str = ""
    rule: str = ""
    of_schema: bool = False

    @property
    def weight(self) -> str:
        """Its severity; empty if it is waived."""
        return "" if self.waived else self.severity


def merged(findings: Iterable[DataFinding]) -> tuple[DataFinding, ...]:
    """Put together what was found alike in several splits, and the gravest first, what is waived last."""
    found: dict[tuple[str, ...], DataFinding] = {}
    for finding in findings:
        key = (finding.column, finding.kind, finding.what, finding.against, finding.waived)
        found[key] = replace(finding, split="") if key in found else finding
    return tuple(sorted(found.values(), key=lambda finding: ORDER[finding.weight]))


_BLOCK = frozenset({
    "SCHEMA_MISSING_COLUMN", "FEATURE_TYPE_NOT_PRESENT", "FEATURE_TYPE_NO_VALUES", "UNEXPECTED_DATA_TYPE",
    "VALUE_NESTEDNESS_MISMATCH", "INVALID_FEATURE_SHAPE", "DOMAIN_INVALID_FOR_TYPE",
    "INVALID_SCHEMA_SPECIFICATION", "INVALID_DOMAIN_SPECIFICATION", "FEATURE_MISSING_TYPE",
    "FLOAT_TYPE_HAS_NAN", "FLOAT_TYPE_HAS_INF", "DATASET_LOW_NUM_EXAMPLES", "NO_DATA_IN_SPAN",
    "LABEL_CONSTANT", "QUARANTINE_SHARE_HIGH",
})  # fmt: skip
_WARN = frozenset({
    "SCHEMA_NEW_COLUMN", "ENUM_TYPE_UNEXPECTED_STRING_VALUES", "SUPPRESSION_EXPIRED", "TEXT_NOT_COMPARED",
    "TOO_FEW_ROWS",
})  # fmt: skip

OURS = frozenset({
    "COMPARISON_NOT_DONE", "BASELINE_MISSING", "MISSING_SHARE_HIGH", "NEW_VALUES_HIGH", "DATA_STALE",
    "LABEL_CONSTANT", "LABEL_SHARE_LOW", "QUARANTINE_SHARE_HIGH", "SUPPRESSION_EXPIRED",
    "COMPARATOR_LOW_NUM_EXAMPLES", "COMPARATOR_HIGH_NUM_EXAMPLES", "TEXT_NOT_COMPARED", "TOO_FEW_ROWS",
    SCHEMA_INFERRED,
})  # fmt: skip

_MISSING_BASELINE: dict[str, Severity] = {"hold": "HOLD", "fail": "BLOCK", "bootstrap": "WARN"}


@dataclass(frozen=True)
class SeverityPolicy:
    """Severities by kind of finding, and suppressions.

    Attributes:
        moment: The time that ends of suppressions are compared with; None if it is unknown.
        label: The column to predict; any violation of the schema in it rejects the data.
    """

    validation: Validation
    moment: datetime | None
    label: str = ""

    def judge(self, finding: DataFinding) -> DataFinding:
        """Return a finding with its severity, waived if a suppression in force fits it."""
        severity, what = finding.severity or self._default(finding), finding.what
        if finding.of_schema and self.label and finding.column == self.label:
            severity, what = "BLOCK", f"{what}; it is the label"
        for rule in self.validation.severity:  # the last that fits counts
            lowered = finding.kind in NEVER_LOWERED and rule.severity == "WARN"
            if _fits(rule, finding) and not lowered:
                severity = rule.severity
        judged = replace(finding, severity=severity, what=what)
        for entry in self.validation.suppressions:
            if finding.kind != SCHEMA_INFERRED and _fits(entry, judged) and self.in_force(entry):
                return replace(judged, waived=f"suppressed until {entry.until}: {entry.reason}")
        return judged

    def _default(self, finding: DataFinding) -> Severity:
        if finding.kind == "BASELINE_MISSING":
            return _MISSING_BASELINE.get(self.validation.on_missing_baseline, "WARN")
        if finding.kind == SCHEMA_INFERRED:
            return "WARN" if self.validation.on_missing_schema == "bootstrap" else "HOLD"
        if finding.kind in _BLOCK:
            return "BLOCK"
        return "WARN" if finding.kind in _WARN else "HOLD"

    def in_force(self, entry: Suppression) -> bool:
        """Return whether a suppression still counts: its last day is not over, and the time is known."""
        return self.moment is not None and self.moment.astimezone(UTC).date() <= entry.until

    def lapsed(self, found: Sequence[DataFinding]) -> Iterator[DataFinding]:
        """Return a finding for each suppression that fits something and no longer counts."""
        for entry in self.validation.suppressions:
            if self.in_force(entry) or not any(_fits(entry, finding) for finding in found):
                continue
            why = "does not count: neither a time of the rows nor a date says whether it has ended"
            if self.moment is not None:
                why = f"ended with {entry.until}, and this run is of {self.moment.astimezone(UTC).date()}"
            name = f"{entry.kind} in {entry.column}" if entry.column else entry.kind
            yield DataFinding(
                column=entry.column or "",
                kind="SUPPRESSION_EXPIRED",
                severity="WARN",
                what=f"the suppression of {name} {why} (it said: {entry.reason})",
            )


def _fits(entry: SeverityRule | Suppression, finding: DataFinding) -> bool:
    return (
        fnmatchcase(finding.kind, entry.kind)
        and entry.column in (None, finding.column)
        and entry.against in (None, finding.against)
    )


def moment_of(newest: float | None, newest_since: str, day: str) -> datetime | None:
    """Return the time that suppressions are judged at: the latest of the times of the run.

    Args:
        newest: Time of the newest row, in seconds since 1970 in UTC; None if the rows have no time.
        newest_since: Time that the newest row had to reach, ISO 8601; empty if any will do.
        day: The run's date, as 2026-01-31; empty if unknown.
    """
    times = [] if newest is None else [datetime.fromtimestamp(newest, UTC)]
    for text, where in ((newest_since, "parameter newest_since"), (day, "parameter date")):
        if text:
            times.append(parse_time(text, where))
    return max(times, default=None)


def parse_time(text: str, where: str) -> datetime:
    """Read a time in ISO 8601; without a zone it is in UTC."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"{text!r:.80} is no time", where=where, hint="Such as 2026-01-31 or 2026-01-31T05:00:00Z."
        ) from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


JENSEN_SHANNON, L_INFINITY = "jensen_shannon_divergence", "infinity_norm"
"""The comparators, as TFDV and the experiment file call them."""

MEASURES = {JENSEN_SHANNON: "Jensen-Shannon", L_INFINITY: "L-infinity"}
"""The comparators, as people call them."""


Kind = Literal["numbers", "categories", "text", "nested"]


@dataclass(frozen=True)
class Limit:
    """The largest accepted distance of one column, a fraction in [0, 1]."""

    column: str
    kind: Kind
    comparator: str
    threshold: float


def limit_of(column: str, kind: Kind, own: DriftLimit | None, validation: Validation) -> Limit:
    """Return the limit of a column: its own one, or that of its kind."""
    if own:
        return Limit(column, kind, own.comparator, own.threshold)
    if kind == "numbers":
        return Limit(column, kind, JENSEN_SHANNON, validation.numeric_threshold)
    return Limit(column, kind, L_INFINITY, validation.categorical_threshold)


def learned_from(validation: Validation) -> str:
    """Return the split that the model learns from."""
    return validation.trained_on or validation.previous

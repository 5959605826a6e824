"""How grave a finding is, and which findings a person has set aside for now.

A kind has a gravity of its own; a rule of ``validation.severity`` changes it, in all columns or in one. A
suppression keeps a finding on the page and out of the decision, until a day of the *data*: validation is
cached on what it is given, so a clock of the machine would be asked only now and then, and would judge the
same rows one way today and another tomorrow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from trainwright.errors import InputError
from trainwright.experiment import Gravity, Severity, Suppression, Validation
from trainwright.validate.findings import Finding
from trainwright.validate.tfdv import anomalies_pb2

_BLOCK = frozenset({
    "SCHEMA_MISSING_COLUMN", "FEATURE_TYPE_NOT_PRESENT", "FEATURE_TYPE_NO_VALUES", "UNEXPECTED_DATA_TYPE",
    "VALUE_NESTEDNESS_MISMATCH", "INVALID_FEATURE_SHAPE", "DOMAIN_INVALID_FOR_TYPE",
    "INVALID_SCHEMA_SPECIFICATION", "INVALID_DOMAIN_SPECIFICATION", "FEATURE_MISSING_TYPE",
    "FLOAT_TYPE_HAS_NAN", "FLOAT_TYPE_HAS_INF", "DATASET_LOW_NUM_EXAMPLES", "NO_DATA_IN_SPAN",
    "LABEL_CONSTANT", "QUARANTINE_SHARE_HIGH",
})  # fmt: skip
_WARN = frozenset({"SCHEMA_NEW_COLUMN", "ENUM_TYPE_UNEXPECTED_STRING_VALUES", "SUPPRESSION_EXPIRED"})

_OURS = frozenset({
    "COMPARISON_NOT_DONE", "BASELINE_MISSING", "MISSING_SHARE_HIGH", "NEW_VALUES_HIGH", "DATA_STALE",
    "LABEL_CONSTANT", "LABEL_SHARE_LOW", "QUARANTINE_SHARE_HIGH", "SUPPRESSION_EXPIRED",
    "COMPARATOR_LOW_NUM_EXAMPLES", "COMPARATOR_HIGH_NUM_EXAMPLES",
})  # fmt: skip

_MISSING_BASELINE: dict[str, Severity] = {"hold": "HOLD", "fail": "BLOCK", "bootstrap": "WARN"}


def known_kinds() -> frozenset[str]:
    """Return the name of every kind of finding: TFDV's, and those of this step."""
    return _OURS | set(anomalies_pb2.AnomalyInfo.Type.keys())


@dataclass(frozen=True)
class Policy:
    """What counts, and how much.

    Attributes:
        rules: Changes of gravity; the last that fits counts.
        suppressions: What does not count for now.
        moment: The time that ends of suppressions are compared with; None if nothing tells it.
        label: The column to predict; whatever is wrong with it against the schema refuses the data.
        missing_baseline: Gravity of a baseline that is not there.
    """

    rules: tuple[Gravity, ...]
    suppressions: tuple[Suppression, ...]
    moment: datetime | None
    label: str = ""
    missing_baseline: Severity = "HOLD"

    def judge(self, finding: Finding) -> Finding:
        """Give a finding its gravity, and set it aside if a suppression in force says so."""
        judged = self._graded(finding)
        for entry in self.suppressions:
            if _fits(entry, judged) and self.in_force(entry):
                return replace(judged, waived=f"suppressed until {entry.until}: {entry.reason}")
        return judged

    def in_force(self, entry: Suppression) -> bool:
        """Whether a suppression still counts: its last day is not over, and something tells the time."""
        return self.moment is not None and self.moment.astimezone(UTC).date() <= entry.until

    def lapsed(self, found: Sequence[Finding]) -> Iterator[Finding]:
        """Tell of each suppression that fits something and no longer counts."""
        for entry in self.suppressions:
            fitting = [finding for finding in found if _fits(entry, finding)]
            if fitting and not self.in_force(entry):
                yield Finding(
                    column=entry.column or "",
                    kind="SUPPRESSION_EXPIRED",
                    severity="WARN",
                    what=f"the suppression of {_name(entry)} {self._why(entry)} (it said: {entry.reason})",
                )

    def _why(self, entry: Suppression) -> str:
        if self.moment is None:
            return "does not count: neither a time of the rows nor a date says whether it has ended"
        return f"ended with {entry.until}, and this run is of {self.moment.astimezone(UTC).date()}"

    def _graded(self, finding: Finding) -> Finding:
        severity, what = finding.severity or self._usual(finding), finding.what
        if finding.of_schema and self.label and finding.column == self.label:
            severity, what = "BLOCK", f"{what}; it is the label"
        for rule in self.rules:
            if _fits(rule, finding):
                severity = rule.severity
        return replace(finding, severity=severity, what=what)

    def _usual(self, finding: Finding) -> Severity:
        if finding.kind == "BASELINE_MISSING":
            return self.missing_baseline
        if finding.kind in _BLOCK:
            return "BLOCK"
        return "WARN" if finding.kind in _WARN else "HOLD"


def _fits(entry: Gravity | Suppression, finding: Finding) -> bool:
    return (
        fnmatchcase(finding.kind, entry.kind)
        and entry.column in (None, finding.column)
        and entry.against in (None, finding.against)
    )


def _name(entry: Suppression) -> str:
    return f"{entry.kind} in {entry.column}" if entry.column else entry.kind


def policy(validation: Validation, *, label: str, moment: datetime | None) -> Policy:
    """Read the policy of a run from its section.

    Args:
        validation: The section.
        label: The column to predict; empty if there is none.
        moment: As :func:`moment_of` tells it.
    """
    missing = _MISSING_BASELINE.get(validation.on_missing_baseline, "WARN")
    return Policy(validation.severity, validation.suppressions, moment, label, missing)


def moment_of(newest: float | None, newest_since: str, day: str) -> datetime | None:
    """Return the time that suppressions are judged at: the latest that the run was told of.

    Args:
        newest: Time of the newest row, in seconds since 1970 in UTC; None if the rows have no time.
        newest_since: Time that the newest row had to reach, ISO 8601; empty if none was asked for.
        day: The run's date, as 2026-01-31; empty if it was not given.

    Raises:
        InputError: A time is not written as ISO 8601.
    """
    told = [] if newest is None else [datetime.fromtimestamp(newest, UTC)]
    if newest_since:
        told.append(parse_time(newest_since, "parameter newest_since"))
    if day:
        told.append(parse_time(day, "parameter date"))
    return max(told, default=None)


def parse_time(text: str, where: str) -> datetime:
    """Read a time; without a zone it is in UTC.

    Raises:
        InputError: It is not written as ISO 8601.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"{text!r:.80} is no time", where=where, hint="Such as 2026-01-31 or 2026-01-31T05:00:00Z."
        ) from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def policy_faults(validation: Validation, columns: Sequence[str]) -> Iterator[str]:
    """Name the rules and suppressions that could never fit anything."""
    kinds = known_kinds()
    entries: dict[str, Sequence[Gravity | Suppression]] = {
        "severity": validation.severity,
        "suppressions": validation.suppressions,
    }
    for section, own in entries.items():
        for place, entry in enumerate(own):
            if not any(fnmatchcase(kind, entry.kind) for kind in kinds):
                yield f"{section}.{place}.kind: no kind of finding is called {entry.kind!r}"
            if entry.column is not None and entry.column not in columns and entry.kind != "SCHEMA_NEW_COLUMN":
                yield f"{section}.{place}.column: no column {entry.column!r} in the schema"

"""Findings, their severity and suppressions, and the limits that columns are compared with."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Literal

from trainwright.errors import InputError
from trainwright.experiment import Severity, SeverityRule, Suppression, Validation
from trainwright.validate.schema import SERVING, Kind, expected, kind
from trainwright.validate.tfdv import anomalies_pb2

Against = Literal["", "previous", "baseline", "serving"]
"""What a comparison is with: the previous span, the data that the model in production learned from, or rows
as they were served; empty if a finding is no comparison."""

ORDER: dict[str, int] = {"BLOCK": 0, "HOLD": 1, "WARN": 2, "": 3}


@dataclass(frozen=True)
class DataFinding:
    """One way in which the data is not what it should be.

    Attributes:
        kind: TFDV's name of the anomaly, or one like it.
        split: The split; empty if it concerns the snapshot as a whole.
        column: The column; empty if it concerns the split as a whole.
        against: What was compared with, if it is a comparison.
        severity: BLOCK refuses the snapshot, HOLD asks a person, WARN is only reported; empty until the
            policy sets it.
        waived: Why it does not count; empty if it does.
        rule: Name of the verdict's rule that it breaks; empty if it is a rule of its own.
        of_schema: Whether the schema was not kept: such a finding in the label refuses the snapshot.
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
    """Severities by kind of finding, and suppressions.

    Attributes:
        rules: Changes of gravity; the last that fits counts.
        moment: The time that ends of suppressions are compared with; None if nothing tells it.
        label: The column to predict; whatever is wrong with it against the schema refuses the data.
    """

    rules: tuple[SeverityRule, ...]
    suppressions: tuple[Suppression, ...]
    moment: datetime | None
    label: str = ""
    missing_baseline: Severity = "HOLD"

    def judge(self, finding: DataFinding) -> DataFinding:
        """Return a finding with its severity, waived if a suppression in force fits it."""
        judged = self._graded(finding)
        for entry in self.suppressions:
            if _fits(entry, judged) and self.in_force(entry):
                return replace(judged, waived=f"suppressed until {entry.until}: {entry.reason}")
        return judged

    def in_force(self, entry: Suppression) -> bool:
        """Return whether a suppression still counts: its last day is not over, and the time is known."""
        return self.moment is not None and self.moment.astimezone(UTC).date() <= entry.until

    def lapsed(self, found: Sequence[DataFinding]) -> Iterator[DataFinding]:
        """Return a finding for each suppression that fits something and no longer counts."""
        for entry in self.suppressions:
            fitting = [finding for finding in found if _fits(entry, finding)]
            if fitting and not self.in_force(entry):
                yield DataFinding(
                    column=entry.column or "",
                    kind="SUPPRESSION_EXPIRED",
                    severity="WARN",
                    what=f"the suppression of {_name(entry)} {self._why(entry)} (it said: {entry.reason})",
                )

    def _why(self, entry: Suppression) -> str:
        if self.moment is None:
            return "does not count: neither a time of the rows nor a date says whether it has ended"
        return f"ended with {entry.until}, and this run is of {self.moment.astimezone(UTC).date()}"

    def _graded(self, finding: DataFinding) -> DataFinding:
        severity, what = finding.severity or self._usual(finding), finding.what
        if finding.of_schema and self.label and finding.column == self.label:
            severity, what = "BLOCK", f"{what}; it is the label"
        for rule in self.rules:
            if _fits(rule, finding):
                severity = rule.severity
        return replace(finding, severity=severity, what=what)

    def _usual(self, finding: DataFinding) -> Severity:
        if finding.kind == "BASELINE_MISSING":
            return self.missing_baseline
        if finding.kind in _BLOCK:
            return "BLOCK"
        return "WARN" if finding.kind in _WARN else "HOLD"


def _fits(entry: SeverityRule | Suppression, finding: DataFinding) -> bool:
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
        label: The column to predict; empty if there is none.
    """
    missing = _MISSING_BASELINE.get(validation.on_missing_baseline, "WARN")
    return Policy(validation.severity, validation.suppressions, moment, label, missing)


def moment_of(newest: float | None, newest_since: str, day: str) -> datetime | None:
    """Return the time that suppressions are judged at: the latest that the run knows.

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
    entries: dict[str, Sequence[SeverityRule | Suppression]] = {
        "severity": validation.severity,
        "suppressions": validation.suppressions,
    }
    for section, own in entries.items():
        for place, entry in enumerate(own):
            if not any(fnmatchcase(kind, entry.kind) for kind in kinds):
                yield f"{section}.{place}.kind: no kind of finding is called {entry.kind!r}"
            if entry.column is not None and entry.column not in columns and entry.kind != "SCHEMA_NEW_COLUMN":
                yield f"{section}.{place}.column: no column {entry.column!r} in the schema"


JENSEN_SHANNON, L_INFINITY = "jensen_shannon_divergence", "infinity_norm"
"""The comparators, as TFDV and the experiment file call them."""

MEASURES = {JENSEN_SHANNON: "Jensen-Shannon", L_INFINITY: "L-infinity"}
"""The comparators, as people call them."""


@dataclass(frozen=True)
class Limit:
    """The largest accepted distance of one column.

    Attributes:
        threshold: Largest accepted distance, a fraction in [0, 1].
    """

    column: str
    kind: Kind
    comparator: str
    threshold: float


def plan(schema: Any, validation: Validation, roles: Mapping[str, str]) -> tuple[Limit, ...]:
    """Return a limit for every column of the schema, unless it is ignored or is the key or the time.

    Args:
        validation: Which columns are ignored, and which have limits of their own.

    Raises:
        InputError: The section names an unknown column, or asks for a measure that cannot see; all faults
            are named.
    """
    columns = expected(schema)
    if faults := [*_faults(columns, validation, roles), *policy_faults(validation, list(columns))]:
        count = "1 error" if len(faults) == 1 else f"{len(faults)} errors"
        raise InputError(
            f"found {count}\n" + "\n".join(f"  {fault}" for fault in faults), where="parameter validation"
        )
    left_out = {*validation.ignore, roles.get("key"), roles.get("time")} - validation.drift.keys()
    return tuple(
        _limit(name, feature, validation) for name, feature in columns.items() if name not in left_out
    )


def served(limits: Sequence[Limit], schema: Any) -> tuple[Limit, ...]:
    """Return the limits of the columns that are known when a model predicts."""
    known = expected(schema, SERVING)
    return tuple(limit for limit in limits if limit.column in known)


def _limit(name: str, feature: Any, validation: Validation) -> Limit:
    holds = kind(feature)
    if own := validation.drift.get(name):
        return Limit(name, holds, own.comparator, own.threshold)
    if holds == "numbers":
        return Limit(name, holds, JENSEN_SHANNON, validation.numeric_threshold)
    return Limit(name, holds, L_INFINITY, validation.categorical_threshold)


def _faults(columns: Mapping[str, Any], validation: Validation, roles: Mapping[str, str]) -> Iterator[str]:
    if validation.current == validation.previous:
        yield f"current and previous are both {validation.current!r}: a split never moves from itself"
    if validation.serving == learned_from(validation):
        yield f"serving is {validation.serving!r}, which the model learns from: it never moves from itself"
    if validation.quarantine and "key" not in roles:
        yield "quarantine: the rows have no key (data.key), so nobody could leave them out"
    if validation.min_label_share and "label" not in roles:
        yield "min_label_share: the rows have no label (data.label)"
    yield from _drift_faults(columns, validation)
    for name in validation.ignore:
        if name not in columns:
            yield f"ignore: {_unknown(name, list(columns))}"


def _drift_faults(columns: Mapping[str, Any], validation: Validation) -> Iterator[str]:
    for name in validation.drift:
        if name not in columns:
            yield f"drift.{name}: {_unknown(name, list(columns))}"
        elif name in validation.ignore:
            yield f"drift.{name}: also in ignore"
        elif kind(columns[name]) == "numbers" and validation.drift[name].comparator == L_INFINITY:
            yield (
                f"drift.{name}: infinity_norm counts single values, and for numbers TFDV reports 0 for ever; "
                "use jensen_shannon_divergence for numeric columns, or declare it a category in the schema "
                "(int_domain { is_categorical: true })"
            )


def learned_from(validation: Validation) -> str:
    """Return the split that the model learns from."""
    return validation.trained_on or validation.previous


def _unknown(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    advice = f"did you mean {', '.join(close)}?" if close else f"known are {', '.join(known)}"
    return f"no column {name!r} in the schema; {advice}"


def split_names(validation: Validation) -> list[str]:
    """Return the splits that are looked at, the reference of the drift first."""
    names = (validation.previous, validation.current, learned_from(validation), validation.serving)
    return [name for name in dict.fromkeys(names) if name]

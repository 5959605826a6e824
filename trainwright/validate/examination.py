"""Everything that is asked of a snapshot, asked in turn, and put together into one judgement."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.artifacts import Snapshot
from trainwright.documents import digest_text
from trainwright.experiment import Validation
from trainwright.validate.anomalies import check, missing_columns, missing_rows, nested_columns
from trainwright.validate.baseline import Reference
from trainwright.validate.comparison import MISSING, Measured, decide, rule_name
from trainwright.validate.distribution import Pair
from trainwright.validate.drift import measure, measure_missing, measure_unseen
from trainwright.validate.findings import Against, Finding, merged
from trainwright.validate.judgement import Judgement
from trainwright.validate.limits import Limit, learned_from
from trainwright.validate.policy import Policy, moment_of, policy
from trainwright.validate.profile import foreign_columns
from trainwright.validate.quarantine import Quarantined
from trainwright.validate.rows import Tally, freshness, label_balance, together, volume
from trainwright.validate.samples import (
    Bench,
    Samples,
    asked_for,
    nothing_compared,
    plan_of,
    samples,
    split_names,
)
from trainwright.validate.schema import SERVING, TRAINING
from trainwright.verdicts import NotJudged, Rule


@dataclass(frozen=True)
class Given:
    """What the step was given beside the snapshot and its section.

    Attributes:
        schema: Text of the reviewed schema.
        baseline: The accepted baseline: a file or a URI; empty if there is none.
        baseline_version: Its content digest.
        newest_since: Time that the newest row must reach, ISO 8601; empty if none is asked for.
        date: The run's date; empty if it was not given.
    """

    schema: str
    baseline: str = ""
    baseline_version: str = ""
    newest_since: str = ""
    date: str = ""


@dataclass(frozen=True)
class Subject:
    """What is judged, opened and checked.

    Attributes:
        folder: The snapshot's folder.
        snapshot: Its manifest.
        schema: The reviewed schema.
        limits: What is compared, and how far it may move.
        validation: What was asked.
        given: The rest of what was given.
        baseline: The accepted baseline; None if there is none.
    """

    folder: Path
    snapshot: Snapshot
    schema: Any
    limits: tuple[Limit, ...]
    validation: Validation
    given: Given
    baseline: Reference | None

    @property
    def label(self) -> str:
        """The column to predict; empty if there is none."""
        return self.snapshot.roles.get("label", "")

    @property
    def types(self) -> dict[str, str]:
        """The Arrow type of every column."""
        return {column.name: column.type for column in self.snapshot.columns}

    @property
    def newest(self) -> float | None:
        """Time of the newest row, in seconds since 1970 in UTC; None if the rows have no time."""
        return self.snapshot.quality.get("time.newest")


@dataclass(frozen=True)
class Examined:
    """What came of it.

    Attributes:
        judgement: Everything that was found.
        accounts: TFDV's own accounts (``Anomalies``), by name.
        samples: What was looked at.
    """

    judgement: Judgement
    accounts: dict[str, Any]
    samples: Samples


def examine(subject: Subject, quarantined: Quarantined) -> Examined:
    """Look at the splits, check them against the schema, compare them, and weigh what was found.

    Args:
        subject: What is judged.
        quarantined: The rows that were taken out; all comparisons are with them still in.
    """
    numbers = [limit.column for limit in subject.limits if limit.kind == "numbers"]
    bench = Bench(subject.folder, subject.snapshot, subject.schema, numbers, subject.validation)
    looked = samples(bench, subject.snapshot, subject.validation, subject.baseline)
    foreign = foreign_columns(subject.folder, subject.snapshot, list(looked.profiles), subject.schema)
    readable = {name: kind for name, kind in subject.types.items() if name not in foreign}
    anomalies, accounts = _against_schema(subject, looked, readable, foreign)
    compared = _compare(subject, looked, readable)
    comparisons = decide(compared.measured, subject.validation.false_alarm_rate)
    tally = together(_tallies(subject, looked))
    not_judged = (*compared.not_judged, *tally.not_judged)
    found = [*anomalies, *tally.findings, *quarantined.findings()]
    found += [entry.finding() for entry in comparisons if entry.moved]
    found += [_not_done(entry) for entry in not_judged]
    rules = _policy(subject)
    judgement = Judgement(
        snapshot=subject.snapshot,
        validation=subject.validation,
        schema_digest=digest_text(subject.given.schema),
        baseline=subject.baseline.document if subject.baseline else None,
        limits=subject.limits,
        profiles=looked.profiles,
        pairs=looked.pairs,
        findings=_weighed(found, rules, quarantined),
        comparisons=comparisons,
        not_judged=not_judged,
        counted=(*tally.rules, *quarantined.rules()),
        quarantined=quarantined,
        in_force=tuple(entry for entry in rules.suppressions if rules.in_force(entry)),
    )
    return Examined(judgement, accounts | dict(compared.accounts), looked)


def _policy(subject: Subject) -> Policy:
    given = subject.given
    moment = moment_of(subject.newest, given.newest_since, given.date)
    return policy(subject.validation, label=subject.label, moment=moment)


def _weighed(found: list[Finding], rules: Policy, quarantined: Quarantined) -> tuple[Finding, ...]:
    """Give every finding its gravity, set aside what does not count, and put the gravest first."""
    judged = [rules.judge(finding) for finding in found]
    judged += [rules.judge(finding) for finding in rules.lapsed(judged)]
    return merged(finding if finding.waived else quarantined.settle(finding) for finding in judged)


def _against_schema(
    subject: Subject, looked: Samples, readable: Mapping[str, str], foreign: Mapping[str, str]
) -> tuple[list[Finding], dict[str, Any]]:
    """Check every split that has rows against the schema, in the environment that it belongs to."""
    validation, splits = subject.validation, subject.snapshot.splits
    found = [*missing_columns(subject.schema, subject.types), *nested_columns(subject.schema, foreign)]
    required = [validation.current, *([validation.serving] if validation.serving else [])]
    found += missing_rows(splits, split_names(validation), required)
    accounts = {}
    for name, profile in looked.profiles.items():
        where = SERVING if name == validation.serving else TRAINING
        anomalies, accounts[f"schema/{name}"] = check(profile, subject.schema, readable, where)
        found += anomalies
    return found, accounts


@dataclass(frozen=True)
class _Compared:
    measured: tuple[Measured, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()
    accounts: Mapping[str, Any] = field(default_factory=dict)


def _compare(subject: Subject, looked: Samples, readable: Mapping[str, str]) -> _Compared:
    """Compare with every reference that was asked for."""
    measured: list[Measured] = []
    not_judged: list[NotJudged] = []
    accounts: dict[str, Any] = {}
    asked = asked_for(subject.validation, subject.baseline, looked.profiles)
    for against, reason in asked.items():
        limits = plan_of(against, subject.limits, subject.schema)
        if reason:
            not_judged += nothing_compared(against, limits, reason)
            continue
        found = _with(looked.pairs[against], limits, subject, readable)
        measured += found.measured
        not_judged += found.not_judged
        accounts |= found.accounts
    return _Compared(tuple(measured), tuple(not_judged), accounts)


def _with(pair: Pair, limits: tuple[Limit, ...], subject: Subject, readable: Mapping[str, str]) -> _Compared:
    """Compare two samples in their distributions, their missing values and their new values."""
    validation = subject.validation
    drift = measure(pair, subject.schema, limits)
    unseen = measure_unseen(pair, limits, threshold=validation.new_values_threshold)
    columns = [limit.column for limit in limits if limit.column in readable]
    missing = measure_missing(pair, columns, threshold=validation.missing_threshold)
    unread = [limit.column for limit in limits if limit.column not in readable]
    gone = tuple(
        NotJudged(name=rule_name(name, MISSING, pair.against), reason=_unread(name, subject))
        for name in unread
    )
    name = "drift" if pair.against == "previous" else f"drift/{pair.against}"
    return _Compared(
        (*drift.measured, *missing, *unseen.measured),
        (*drift.not_judged, *gone, *unseen.not_judged),
        {name: drift.account},
    )


def _unread(column: str, subject: Subject) -> str:
    kind = subject.types.get(column)
    return f"it is {kind}, which TFDV cannot read" if kind else "the snapshot has no such column"


def _not_done(entry: NotJudged) -> Finding:
    """Make a finding of a comparison that was asked for and could not be made."""
    parts = entry.name.split("/")
    references: dict[str, Against] = {"baseline": "baseline", "serving": "serving"}
    compared = len(parts) > 1 and parts[0] != "label"
    return Finding(
        column=parts[-1] if compared else "",
        kind="COMPARISON_NOT_DONE",
        rule=entry.name,
        against=references.get(parts[0], "previous") if compared else "",
        what=f"{entry.name} could not be judged: {entry.reason}",
    )


def _baseline(subject: Subject) -> Tally:
    """Say whether there is a baseline, unless nobody asked for one."""
    how, there = subject.validation.on_missing_baseline, subject.baseline is not None
    if how == "skip":
        return Tally()
    rule = Rule(name="baseline", value=float(there), limit=1.0, passed=there)
    what = "there is no accepted baseline of the model in production to compare with"
    if how == "bootstrap":
        what += ": validation.on_missing_baseline is bootstrap; accept the one that was calculated here"
    missing = Finding(kind="BASELINE_MISSING", against="baseline", rule="baseline", what=what)
    return Tally((rule,), () if there else (missing,))


def _tallies(subject: Subject, looked: Samples) -> Iterator[Tally]:
    """Judge what numbers of rows alone tell."""
    validation = subject.validation
    document = subject.baseline.document if subject.baseline else None
    yield _baseline(subject)
    yield volume(subject.snapshot.splits, validation, document)
    yield freshness(subject.newest, subject.given.newest_since)
    for name in dict.fromkeys([learned_from(validation), validation.current]):
        if subject.label and name in looked.profiles:
            yield label_balance(looked.profiles[name], subject.label, validation.min_label_share)

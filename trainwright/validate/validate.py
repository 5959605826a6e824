"""Validate a snapshot: profile its splits, check and compare them, write the verdict and the report."""

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trainwright.artifacts import Snapshot
from trainwright.documents import digest_file, digest_text
from trainwright.experiment import Validation
from trainwright.tracking import Stopwatch
from trainwright.validate.baseline import Baseline, Reference, read_baseline
from trainwright.validate.checks import (
    Tally,
    check,
    freshness,
    label_balance,
    missing_columns,
    missing_rows,
    nested_columns,
    together,
    volume,
)
from trainwright.validate.columns import Cuts
from trainwright.validate.comparison import (
    MISSING,
    UNSEEN,
    Measured,
    Pair,
    decide,
    measure,
    measure_missing,
    measure_unseen,
    rule_name,
)
from trainwright.validate.judgement import Judgement
from trainwright.validate.policy import (
    MEASURES,
    Against,
    Finding,
    Limit,
    Policy,
    learned_from,
    merged,
    moment_of,
    plan,
    policy,
    served,
    split_names,
)
from trainwright.validate.profile import Profile, count_split, foreign_columns, own_cuts, profile_splits
from trainwright.validate.quarantine import Quarantined, take_out
from trainwright.validate.report import write_report, write_summary
from trainwright.validate.schema import SERVING, TRAINING, parse_schema
from trainwright.validate.tfdv import json_format
from trainwright.verdicts import NotJudged, Rule, Verdict


@dataclass(frozen=True)
class Samples:
    """What was looked at.

    Attributes:
        learned: The split that the model learns from, in bins of its own, and those; None if it has no rows.
    """

    profiles: dict[str, Profile]
    pairs: dict[Against, Pair]
    learned: tuple[Profile, Mapping[str, Cuts]] | None


@dataclass(frozen=True)
class Bench:
    """Where splits are looked at, and how.

    Attributes:
        schema: The reviewed schema; columns that it does not name are not read.
    """

    folder: Path
    snapshot: Snapshot
    schema: Any
    numbers: Sequence[str]
    validation: Validation

    def profiles(self, names: Sequence[str]) -> dict[str, Profile]:
        """Look at splits with rows, counted in the bins of the first."""
        if not names:
            return {}
        runner, store = self.validation.runner, self.validation.statistics_store or ""
        return profile_splits(
            self.folder, self.snapshot, names, self.schema, self.numbers,
            runner=runner, store=store, new_columns=False,
        )  # fmt: skip

    def cuts_of(self, profile: Profile) -> dict[str, Cuts]:
        """Return where the numeric columns of a sample are cut by its own quantiles."""
        return own_cuts(profile.statistics, self.numbers)

    def counted(self, profile: Profile, cuts: Mapping[str, Cuts]) -> Profile:
        """Return a split with its rows counted in the given bins; columns that it has not are left out."""
        there = {column.name for column in self.snapshot.columns}
        known = {name: points for name, points in cuts.items() if name in there}
        runner, store = self.validation.runner, self.validation.statistics_store or ""
        counts = count_split(self.folder, self.snapshot, profile.split, known, runner=runner, store=store)
        return replace(profile, counts=counts)


def samples(bench: Bench, snapshot: Snapshot, validation: Validation, baseline: Reference | None) -> Samples:
    """Look at the splits, and pair those that are compared.

    Args:
        baseline: The accepted baseline; None if there is none.
    """
    present = [name for name in split_names(validation) if snapshot.splits.get(name)]
    profiles = bench.profiles(present)
    pairs: dict[Against, Pair] = {}
    previous, current = profiles.get(validation.previous), profiles.get(validation.current)
    of_previous: Mapping[str, Cuts] = bench.cuts_of(previous) if previous else {}
    if previous and current:
        pairs["previous"] = Pair("previous", current, previous, of_previous)
    if baseline and current:
        judged = bench.counted(current, baseline.cuts)
        pairs["baseline"] = Pair("baseline", judged, baseline.profile, baseline.cuts)
    learned = _learned(bench, profiles, validation, of_previous)
    serving = profiles.get(validation.serving or "")
    if learned and serving:
        profile, cuts = learned
        judged = serving if cuts is of_previous else bench.counted(serving, cuts)
        pairs["serving"] = Pair("serving", judged, profile, cuts)
    return Samples(profiles, pairs, learned)


def _learned(
    bench: Bench, profiles: Mapping[str, Profile], validation: Validation, of_previous: Mapping[str, Cuts]
) -> tuple[Profile, Mapping[str, Cuts]] | None:
    """Return the split that the model learns from, counted in bins of its own."""
    name = learned_from(validation)
    profile = profiles.get(name)
    if profile is None:
        return None
    if name == validation.previous and profile.counts:
        return profile, of_previous
    cuts = bench.cuts_of(profile)
    return bench.counted(profile, cuts), cuts


def plan_of(against: Against, limits: tuple[Limit, ...], schema: Any) -> tuple[Limit, ...]:
    """Return what is compared with one reference: with serving, only what is known when a model predicts."""
    return served(limits, schema) if against == "serving" else limits


def asked_for(
    validation: Validation, baseline: Reference | None, there: Container[str]
) -> dict[Against, str]:
    """Return what the data is to be compared with, and why it cannot be; empty text if it can.

    Args:
        baseline: The accepted baseline; None if there is none.
    """
    wanted: dict[Against, tuple[str, ...]] = {"previous": (validation.previous, validation.current)}
    if baseline:
        wanted["baseline"] = (validation.current,)
    if validation.serving:
        wanted["serving"] = (learned_from(validation), validation.serving)
    gone = {against: [name for name in names if name not in there] for against, names in wanted.items()}
    return {
        against: f"split {names[0]} has no rows, or is not there" if names else ""
        for against, names in gone.items()
    }


def nothing_compared(against: Against, limits: Sequence[Limit], reason: str) -> list[NotJudged]:
    """Say of every comparison with one reference that it could not be made."""
    return [
        NotJudged(name=rule_name(limit.column, measure, against), reason=reason)
        for limit in limits
        for measure in (
            MEASURES[limit.comparator],
            MISSING,
            *([UNSEEN] if limit.kind == "categories" else []),
        )
    ]


@dataclass(frozen=True)
class Given:
    """What the step was given beside the snapshot and its section.

    Attributes:
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
    """What came of it."""

    judgement: Judgement
    accounts: dict[str, Any]
    samples: Samples


def examine(subject: Subject, quarantined: Quarantined) -> Examined:
    """Look at the splits, check them against the schema, compare them, and weigh what was found.

    Args:
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


__all__ = ["Given", "Outcome", "Places", "judge_snapshot"]


@dataclass(frozen=True)
class Outcome:
    """What the step tells the run.

    Attributes:
        quarantine_version: Digest of the snapshot of the rows that were taken out.
    """

    decision: str
    quarantine_version: str
    headline: str
    metrics: dict[str, float]


@dataclass(frozen=True)
class Places:
    """Where the step leaves what it makes.

    Attributes:
        verdict: Folder for the verdict, the statistics, the baseline and TFDV's account.
        quarantine: Folder of the snapshot of rows that were taken out.
    """

    verdict: Path
    quarantine: Path
    report: Path
    summary: Path


def judge_snapshot(
    folder: Path, data_version: str, validation: Validation, given: Given, places: Places
) -> Outcome:
    """Judge a snapshot against its reviewed schema, and against what it was and what the model knows.

    Args:
        data_version: Digest that the snapshot must have.

    Raises:
        InputError: The snapshot or the baseline is gone or changed, or the schema or the section is wrong.
    """
    watch = Stopwatch()
    snapshot = Snapshot.open(folder, data_version)
    schema = parse_schema(given.schema, where="parameter schema")
    limits = plan(schema, validation, snapshot.roles)
    baseline = read_baseline(given.baseline, given.baseline_version)
    subject = Subject(folder, snapshot, schema, limits, validation, given, baseline)
    asked = validation.quarantine
    quarantined = take_out(folder, data_version, snapshot, schema, asked, places.quarantine)
    examined = examine(subject, quarantined)
    judgement = examined.judgement
    files = _write_evidence(places.verdict, examined)
    write_report(judgement, places.report)
    write_summary(judgement, places.summary)
    _publish(places.verdict, judgement, watch, files, parent=folder)
    version = quarantined.snapshot.digest
    return Outcome(judgement.decision, version, judgement.headline, judgement.metrics())


def _write_evidence(folder: Path, examined: Examined) -> dict[str, str]:
    """Write statistics, the baseline and TFDV's accounts; return the digests of the files by name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / Verdict.FILE).unlink(missing_ok=True)  # of an attempt that did not end
    judgement, files = examined.judgement, {}
    for name, profile in judgement.profiles.items():
        path = folder / f"statistics-{name}.pb"
        path.write_bytes(profile.statistics.SerializeToString(deterministic=True))
        files[path.name] = digest_file(path)
    files |= _write_baseline(folder, examined, files)
    path = folder / "anomalies.json"
    content = {
        "found": [asdict(finding) for finding in judgement.findings],
        "tfdv": {name: json_format.MessageToDict(account) for name, account in examined.accounts.items()},
    }
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    return files | {path.name: digest_file(path)}


def _write_baseline(folder: Path, examined: Examined, files: Mapping[str, str]) -> dict[str, str]:
    """Write the baseline that was calculated, if the split that the model learns from has rows."""
    if examined.samples.learned is None:
        (folder / Baseline.FILE).unlink(missing_ok=True)
        return {}
    profile, cuts = examined.samples.learned
    name = f"statistics-{profile.split}.pb"
    baseline = Baseline.of(
        profile,
        cuts,
        data_version=examined.judgement.snapshot.digest,
        schema=examined.judgement.schema_digest,
        statistics=name,
        statistics_sha256=files[name],
    )
    baseline.write(folder)
    return {Baseline.FILE: baseline.digest}


def _publish(
    folder: Path, judgement: Judgement, watch: Stopwatch, files: Mapping[str, str], *, parent: Path
) -> None:
    """Write the verdict and the step's record: last, so that neither ever stands without its evidence."""
    judged = {"data": judgement.snapshot.digest, "schema": judgement.schema_digest}
    if judgement.baseline:
        judged["baseline"] = judgement.baseline.digest
    made: dict[str, Any] = {"quarantine": judgement.quarantined.snapshot.digest}
    document = Verdict(
        decision=judgement.decision,
        rules=judgement.rules(),
        judged={**judged, **files},
        not_judged=judgement.undecided(),
    )
    document.write(folder)
    watch.record(
        folder,
        "validate",
        judgement.headline,
        decision=judgement.decision,
        config=judgement.validation.model_dump(mode="json"),
        inputs=judged,
        outputs={"verdict": document.digest, **made, **files},
        parents=[parent],
    )

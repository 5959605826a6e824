"""Validate a snapshot: profile its splits, check and compare them, write the verdict and the report."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainwright.artifacts import Snapshot
from trainwright.documents import digest_file, digest_text
from trainwright.experiment import Validation
from trainwright.tracking import Stopwatch
from trainwright.validate.baseline import Baseline, Reference, read_baseline
from trainwright.validate.checks import (
    CheckOutcome,
    check,
    freshness,
    label_balance,
    missing_columns,
    missing_rows,
    nested_columns,
    volume,
)
from trainwright.validate.columns import Cuts
from trainwright.validate.comparison import (
    MISSING,
    UNSEEN,
    Distance,
    SamplePair,
    decide,
    measure,
    measure_missing,
    measure_unseen,
    rule_name,
)
from trainwright.validate.judgement import SnapshotJudgement
from trainwright.validate.policy import (
    MEASURES,
    Against,
    DataFinding,
    Limit,
    learned_from,
    merged,
    moment_of,
    plan,
    policy,
    served,
    split_names,
)
from trainwright.validate.profile import Profile, Profiler, own_cuts
from trainwright.validate.quarantine import Quarantined, take_out
from trainwright.validate.report import write_report, write_summary
from trainwright.validate.schema import SERVING, TRAINING, parse_schema
from trainwright.validate.tfdv import json_format
from trainwright.verdicts import NotJudged, Rule, Verdict


@dataclass(frozen=True)
class ValidationContext:
    """Inputs of a validation, beside the snapshot and the section ``validation``.

    Attributes:
        schema: Text of the reviewed schema.
        baseline: The accepted baseline: a file or a URI; empty if there is none.
        baseline_version: Its content digest.
        newest_since: Time that the newest row must reach, ISO 8601; empty if any will do.
        date: The run's date; empty if unknown.
    """

    schema: str
    baseline: str = ""
    baseline_version: str = ""
    newest_since: str = ""
    date: str = ""


@dataclass(frozen=True)
class ValidationOutputs:
    """Output paths.

    Attributes:
        verdict: Folder for the verdict, the statistics, the baseline and TFDV's anomalies.
        quarantine: Folder of the snapshot of rows that violate the schema.
        report: HTML file.
        summary: Markdown file.
    """

    verdict: Path
    quarantine: Path
    report: Path
    summary: Path


@dataclass(frozen=True)
class ValidationResult:
    """The outputs of the step.

    Attributes:
        decision: PASS, HOLD or FAIL.
        quarantine_version: Digest of the quarantine's snapshot.
        headline: One line: the fact that decided.
        metrics: Figures by name.
    """

    decision: str
    quarantine_version: str
    headline: str
    metrics: dict[str, float]


def validate_snapshot(
    folder: Path,
    data_version: str,
    validation: Validation,
    context: ValidationContext,
    outputs: ValidationOutputs,
) -> ValidationResult:
    """Check a snapshot against its schema, and compare it with earlier data, the baseline and served rows.

    Args:
        folder: The snapshot's folder.
        data_version: Digest that the snapshot must have.
        validation: What to compare, and the limits.
        context: Schema, baseline and times.
        outputs: Paths to write to.

    Raises:
        InputError: The snapshot or the baseline is gone or changed, or the schema or the section is wrong.
    """
    watch = Stopwatch()
    snapshot = Snapshot.open(folder, data_version)
    schema = parse_schema(context.schema, where="parameter schema")
    limits = plan(schema, validation, snapshot.roles)
    baseline = read_baseline(context.baseline, context.baseline_version)
    run = _Run(folder, snapshot, schema, limits, validation, context, baseline)
    quarantined = take_out(folder, data_version, snapshot, schema, validation.quarantine, outputs.quarantine)
    samples = run.samples()
    judgement, anomalies = run.judge(samples, quarantined)
    files = _write_evidence(outputs.verdict, judgement, anomalies, samples)
    write_report(judgement, outputs.report)
    write_summary(judgement, outputs.summary)
    _publish(outputs.verdict, judgement, watch, files, parent=folder)
    version = quarantined.snapshot.digest
    return ValidationResult(judgement.decision, version, judgement.headline, judgement.metrics())


@dataclass(frozen=True)
class _Samples:
    """Profiles of the splits with rows, and the pairs that are compared.

    Attributes:
        learned: The split that the model learns from, and the cuts of its own bins; None if it has no rows.
    """

    profiles: dict[str, Profile]
    pairs: dict[Against, SamplePair]
    learned: tuple[Profile, Mapping[str, Cuts]] | None


@dataclass(frozen=True)
class _Run:
    """One validation: the opened inputs, and the steps over them."""

    folder: Path
    snapshot: Snapshot
    schema: Any
    limits: tuple[Limit, ...]
    validation: Validation
    context: ValidationContext
    baseline: Reference | None

    @property
    def profiler(self) -> Profiler:
        runner, store = self.validation.runner, self.validation.statistics_store or ""
        return Profiler(self.folder, self.snapshot, self.schema, runner, store, new_columns=False)

    @property
    def types(self) -> dict[str, str]:
        """The Arrow type of every column."""
        return {column.name: column.type for column in self.snapshot.columns}

    @property
    def newest(self) -> float | None:
        """Time of the newest row, in seconds since 1970 in UTC; None if the rows have no time."""
        return self.snapshot.quality.get("time.newest")

    def samples(self) -> _Samples:
        """Profile the splits, and pair those that are compared, each pair counted in the same bins."""
        config = self.validation
        numbers = [limit.column for limit in self.limits if limit.kind == "numbers"]
        present = [name for name in split_names(config) if self.snapshot.splits.get(name)]
        profiles = self.profiler.profiles(present, numbers)
        pairs: dict[Against, SamplePair] = {}
        previous, current = profiles.get(config.previous), profiles.get(config.current)
        own: Mapping[str, Cuts] = own_cuts(previous.statistics, numbers) if previous else {}
        if previous and current:
            pairs["previous"] = SamplePair("previous", current, previous, own)
        if self.baseline and current:
            cuts = self.baseline.cuts
            pairs["baseline"] = SamplePair(
                "baseline", self._counted(current, cuts), self.baseline.profile, cuts
            )
        learned = profiles.get(learned_from(config))
        if learned is None:
            return _Samples(profiles, pairs, None)
        if learned is not previous or not learned.counts:
            own = own_cuts(learned.statistics, numbers)
            learned = self._counted(learned, own)
        if serving := profiles.get(config.serving or ""):
            judged = serving if learned is previous else self._counted(serving, own)
            pairs["serving"] = SamplePair("serving", judged, learned, own)
        return _Samples(profiles, pairs, (learned, own))

    def _counted(self, profile: Profile, cuts: Mapping[str, Cuts]) -> Profile:
        """Return a split counted in the given bins; columns that it does not have are left out."""
        known = {name: points for name, points in cuts.items() if name in self.types}
        return replace(profile, counts=self.profiler.counts(profile.split, known))

    def judge(self, samples: _Samples, quarantined: Quarantined) -> tuple[SnapshotJudgement, dict[str, Any]]:
        """Check and compare the samples; return the judgement, and TFDV's ``Anomalies`` by name.

        The comparisons are with the quarantined rows still in.
        """
        skipped = self.profiler.skipped_columns(list(samples.profiles))
        readable = {name: kind for name, kind in self.types.items() if name not in skipped}
        found, anomalies = self._schema_findings(samples, readable, skipped)
        measured, not_judged, drift = self._compare(samples, readable)
        comparisons = decide(measured, self.validation.false_alarm_rate)
        checks = list(self._row_checks(samples))
        not_judged += [entry for result in checks for entry in result.not_judged]
        found += [finding for result in checks for finding in result.findings]
        found += [*quarantined.findings(), *(entry.finding() for entry in comparisons if entry.moved)]
        found += [_not_done(entry) for entry in not_judged]
        rules = policy(
            self.validation,
            label=self.snapshot.roles.get("label", ""),
            moment=moment_of(self.newest, self.context.newest_since, self.context.date),
        )
        weighed = [rules.judge(finding) for finding in found]
        weighed += [rules.judge(finding) for finding in rules.lapsed(weighed)]
        judgement = SnapshotJudgement(
            snapshot=self.snapshot,
            validation=self.validation,
            schema_digest=digest_text(self.context.schema),
            baseline=self.baseline.document if self.baseline else None,
            limits=self.limits,
            profiles=samples.profiles,
            pairs=samples.pairs,
            findings=merged(x if x.waived else quarantined.settle(x) for x in weighed),
            comparisons=comparisons,
            not_judged=tuple(not_judged),
            counted=(*(rule for result in checks for rule in result.rules), *quarantined.rules()),
            quarantined=quarantined,
            in_force=tuple(entry for entry in rules.suppressions if rules.in_force(entry)),
        )
        return judgement, anomalies | drift

    def _schema_findings(
        self, samples: _Samples, readable: Mapping[str, str], skipped: Mapping[str, str]
    ) -> tuple[list[DataFinding], dict[str, Any]]:
        """Check every split that has rows against the schema, in its own environment."""
        config = self.validation
        required = [config.current, *([config.serving] if config.serving else [])]
        found = [
            *missing_columns(self.schema, self.types),
            *nested_columns(self.schema, skipped),
            *missing_rows(self.snapshot.splits, split_names(config), required),
        ]
        anomalies = {}
        for name, profile in samples.profiles.items():
            where = SERVING if name == config.serving else TRAINING
            findings, anomalies[f"schema/{name}"] = check(profile, self.schema, readable, where)
            found += findings
        return found, anomalies

    def _compare(
        self, samples: _Samples, readable: Mapping[str, str]
    ) -> tuple[list[Distance], list[NotJudged], dict[str, Any]]:
        """Compare the pairs in their distributions, their missing values and their new values."""
        measured: list[Distance] = []
        not_judged: list[NotJudged] = []
        anomalies: dict[str, Any] = {}
        for against, limits, reason in self._references(samples):
            if reason:
                not_judged += _not_compared(against, limits, reason)
                continue
            pair, threshold = samples.pairs[against], self.validation.missing_threshold
            drift = measure(pair, self.schema, limits)
            unseen = measure_unseen(pair, limits, threshold=self.validation.new_values_threshold)
            there = [limit.column for limit in limits if limit.column in readable]
            measured += [
                *drift.measured,
                *measure_missing(pair, there, threshold=threshold),
                *unseen.measured,
            ]
            unread = [limit.column for limit in limits if limit.column not in readable]
            not_judged += [*drift.not_judged, *self._unread(unread, against), *unseen.not_judged]
            anomalies["drift" if against == "previous" else f"drift/{against}"] = drift.account
        return measured, not_judged, anomalies

    def _references(self, samples: _Samples) -> Iterator[tuple[Against, tuple[Limit, ...], str]]:
        """Yield what to compare with, the limits, and why that is not possible; empty text if it is."""
        config = self.validation
        wanted: dict[Against, tuple[str, ...]] = {"previous": (config.previous, config.current)}
        if self.baseline:
            wanted["baseline"] = (config.current,)
        if config.serving:
            wanted["serving"] = (learned_from(config), config.serving)
        for against, names in wanted.items():
            absent = [name for name in names if name not in samples.profiles]
            # Rows as served have only the columns that are known when a model predicts.
            limits = served(self.limits, self.schema) if against == "serving" else self.limits
            yield against, limits, f"split {absent[0]} has no rows, or is not there" if absent else ""

    def _unread(self, columns: list[str], against: Against) -> Iterator[NotJudged]:
        for column in columns:
            kind = self.types.get(column)
            reason = f"it is {kind}, which TFDV cannot read" if kind else "the snapshot has no such column"
            yield NotJudged(name=rule_name(column, MISSING, against), reason=reason)

    def _row_checks(self, samples: _Samples) -> Iterator[CheckOutcome]:
        config, label = self.validation, self.snapshot.roles.get("label", "")
        yield self._baseline_check()
        yield volume(self.snapshot.splits, config, self.baseline.document if self.baseline else None)
        yield freshness(self.newest, self.context.newest_since)
        for name in dict.fromkeys([learned_from(config), config.current]):
            if label and name in samples.profiles:
                yield label_balance(samples.profiles[name], label, config.min_label_share)

    def _baseline_check(self) -> CheckOutcome:
        how, there = self.validation.on_missing_baseline, self.baseline is not None
        if how == "skip":
            return CheckOutcome()
        rule = Rule(name="baseline", value=float(there), limit=1.0, passed=there)
        what = "there is no accepted baseline of the model in production to compare with"
        if how == "bootstrap":
            what += ": validation.on_missing_baseline is bootstrap; accept the one that was calculated here"
        missing = DataFinding(kind="BASELINE_MISSING", against="baseline", rule="baseline", what=what)
        return CheckOutcome((rule,), () if there else (missing,))


def _not_compared(against: Against, limits: tuple[Limit, ...], reason: str) -> list[NotJudged]:
    return [
        NotJudged(name=rule_name(limit.column, measure, against), reason=reason)
        for limit in limits
        for measure in (
            MEASURES[limit.comparator],
            MISSING,
            *([UNSEEN] if limit.kind == "categories" else []),
        )
    ]


def _not_done(entry: NotJudged) -> DataFinding:
    parts = entry.name.split("/")
    references: dict[str, Against] = {"baseline": "baseline", "serving": "serving"}
    compared = len(parts) > 1 and parts[0] != "label"
    return DataFinding(
        column=parts[-1] if compared else "",
        kind="COMPARISON_NOT_DONE",
        rule=entry.name,
        against=references.get(parts[0], "previous") if compared else "",
        what=f"{entry.name} could not be judged: {entry.reason}",
    )


def _write_evidence(
    folder: Path, judgement: SnapshotJudgement, anomalies: Mapping[str, Any], samples: _Samples
) -> dict[str, str]:
    """Write statistics, baseline and anomalies; return the digests of the files by name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / Verdict.FILE).unlink(missing_ok=True)  # of an attempt that did not end
    files = {}
    for name, profile in judgement.profiles.items():
        path = folder / f"statistics-{name}.pb"
        path.write_bytes(profile.statistics.SerializeToString(deterministic=True))
        files[path.name] = digest_file(path)
    if samples.learned is None:
        (folder / Baseline.FILE).unlink(missing_ok=True)
    else:
        profile, cuts = samples.learned
        name = f"statistics-{profile.split}.pb"
        baseline = Baseline.of(
            profile,
            cuts,
            data_version=judgement.snapshot.digest,
            schema=judgement.schema_digest,
            statistics=name,
            statistics_sha256=files[name],
        )
        baseline.write(folder)
        files[Baseline.FILE] = baseline.digest
    path = folder / "anomalies.json"
    content = {
        "found": [asdict(finding) for finding in judgement.findings],
        "tfdv": {name: json_format.MessageToDict(account) for name, account in anomalies.items()},
    }
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    return files | {path.name: digest_file(path)}


def _publish(
    folder: Path, judgement: SnapshotJudgement, watch: Stopwatch, files: Mapping[str, str], *, parent: Path
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

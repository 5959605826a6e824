"""Validate a snapshot: profile its splits, check and compare them, write the verdict and the report."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainwright import storage
from trainwright.artifacts import Snapshot
from trainwright.documents import digest_file, digest_text
from trainwright.drift.baseline import Baseline
from trainwright.drift.comparison import (
    MISSING,
    ColumnComparison,
    Cuts,
    Drift,
    SamplePair,
    column_counts,
    compared,
    decide,
    measure_missing,
    measure_unseen,
    obstacle,
    rule_name,
)
from trainwright.drift.findings import (
    JENSEN_SHANNON,
    L_INFINITY,
    MEASURES,
    Against,
    DataFinding,
    Limit,
    SeverityPolicy,
    learned_from,
    merged,
    moment_of,
)
from trainwright.drift.judgement import baseline_check, not_compared, weigh
from trainwright.errors import InputError
from trainwright.experiment import Validation
from trainwright.tracking import Stopwatch
from trainwright.validate.baseline import Reference, describe, read_baseline
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
from trainwright.validate.columns import with_bins
from trainwright.validate.inference import infer_schema
from trainwright.validate.judgement import SnapshotJudgement, plan, split_names
from trainwright.validate.profile import Profile, Profiler, own_cuts
from trainwright.validate.quarantine import Quarantined, take_out
from trainwright.validate.report import write_report, write_summary
from trainwright.validate.schema import SCHEMA_FILE, SERVING, TRAINING, environment, expected, parse_schema
from trainwright.validate.statistics import packed
from trainwright.validate.tfdv import anomalies_pb2, json_format, schema_pb2, tfdv
from trainwright.verdicts import SCHEMA_INFERRED, NotJudged, Verdict

_TYPES = {
    JENSEN_SHANNON: anomalies_pb2.DriftSkewInfo.Measurement.JENSEN_SHANNON_DIVERGENCE,
    L_INFINITY: anomalies_pb2.DriftSkewInfo.Measurement.L_INFTY,
}


def measure(pair: SamplePair[Profile], schema: Any, limits: Sequence[Limit]) -> Drift:
    """Measure by TFDV how far the distributions moved.

    A comparison that yields no number, or whose counts are not complete, is reported as not judged; TFDV
    would pass over it in silence.
    """
    reasons = {limit: obstacle(limit, pair) for limit in limits}
    possible = [limit for limit, reason in reasons.items() if not reason]
    wanted = schema_pb2.Schema.FromString(schema.SerializeToString())
    by_name = {limit.column: limit for limit in possible}
    for feature in wanted.feature:
        if limit := by_name.get(feature.name):
            getattr(feature.drift_comparator, limit.comparator).threshold = limit.threshold
    account = tfdv.validate_statistics(
        with_bins(pair.current.statistics, pair.current.counts),
        wanted,
        environment(schema),
        previous_statistics=with_bins(pair.reference.statistics, pair.reference.counts),
    )
    found = {
        (info.path.step[0], measurement.type): measurement.value
        for info in account.drift_skew_info
        for measurement in info.drift_measurements
    }
    measured = []
    for limit in possible:
        value = found.get((limit.column, _TYPES[limit.comparator]), math.nan)
        if math.isfinite(value):
            rows = column_counts(limit.column, pair)
            measured.append(
                compared(limit.column, MEASURES[limit.comparator], pair, value, limit.threshold, rows)
            )
        else:
            reasons[limit] = "TFDV gave no number for it"
    not_judged = tuple(
        NotJudged(name=rule_name(x.column, MEASURES[x.comparator], pair.against), reason=why)
        for x, why in reasons.items()
        if why
    )
    return Drift(tuple(measured), not_judged, account)


@dataclass(frozen=True)
class ValidationContext:
    """Inputs of a validation, beside the snapshot and the section ``validation``.

    Attributes:
        schema: Text of the reviewed schema; empty to infer one.
        schema_place: File or URI of the schema, also of one that is to be inferred; empty for none.
        schema_version: Its content digest; empty to infer one.
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
    schema_place: str = ""
    schema_version: str = ""

    @property
    def files(self) -> dict[str, dict[str, str]]:
        """Location and content digest of schema and baseline, for the record."""
        return {
            "schema": {"source": self.schema_place, "version": self.schema_version},
            "baseline": {"source": self.baseline, "version": self.baseline_version},
        }


@dataclass(frozen=True)
class ValidationOutputs:
    """Output paths.

    Attributes:
        verdict: Folder for the verdict, the statistics, the baseline, TFDV's anomalies, and the schema if it
            was inferred.
        quarantine: Folder of the snapshot of rows that violate the schema.
        report: HTML file.
        summary: Markdown file.
    """

    verdict: Path
    quarantine: Path
    report: Path
    summary: Path


def validate_snapshot(
    folder: Path,
    data_version: str,
    validation: Validation,
    context: ValidationContext,
    outputs: ValidationOutputs,
) -> SnapshotJudgement:
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
    _require_kind(validation, snapshot)
    inferred = "" if context.schema else _infer_schema(folder, validation, context)
    context = replace(context, schema=context.schema or inferred)
    schema = parse_schema(context.schema, where="parameter schema")
    limits = plan(schema, validation, snapshot.roles, snapshot.target)
    baseline = read_baseline(context.baseline, context.baseline_version)
    run = _Run(folder, snapshot, schema, limits, validation, context, baseline, inferred)
    quarantined = take_out(folder, data_version, snapshot, schema, validation.quarantine, outputs.quarantine)
    samples = run.samples()
    judgement, anomalies = run.judge(samples, quarantined)
    files = _write_evidence(outputs.verdict, judgement, anomalies, samples)
    if inferred and context.schema_place and judgement.decision != "FAIL":
        _write_schema(context.schema_place, inferred)
    write_report(judgement, outputs.report)
    write_summary(judgement, outputs.summary)
    _publish(outputs.verdict, judgement, watch, files, context.files, parent=folder)
    return judgement


def _require_kind(validation: Validation, snapshot: Snapshot) -> None:
    """Reject a label, whose kind `ingest` found, that lacks a metric of the run: before the training."""
    kind = snapshot.target.kind
    if validation.kinds and kind not in validation.kinds:
        raise InputError(
            f"expected a label of kind {' or '.join(validation.kinds)}, as evaluation and training need; its "
            f"values make it {kind}",
            where=f"label {snapshot.roles['label']!r}",
            hint=f"Set data.label_kind: {kind}: the next run names each key to change before it reads data.",
        )


def _infer_schema(folder: Path, validation: Validation, context: ValidationContext) -> str:
    """Infer a schema from the rows that the model learns from; the other compared splits fit it, too."""
    if context.schema_place and validation.on_missing_schema != "bootstrap":
        raise InputError(
            "there is no schema",
            where=context.schema_place,
            hint="Write one there; or set validation.on_missing_schema: bootstrap, and this step infers it.",
        )
    also = (validation.previous, validation.current)
    store = validation.statistics_store or ""
    return infer_schema(folder, learned_from(validation), also, validation.engine, store)


def _write_schema(place: str, text: str) -> None:
    """Write an inferred schema for later runs, unless an earlier attempt of this step did."""
    try:
        storage.create(place, text.encode())
    except storage.AlreadyExists:
        if storage.read_bytes(place) != text.encode():
            raise InputError(
                "another run wrote a different schema while this one inferred its own",
                where=place,
                hint="Run again: `resolve` reads the schema that is there now.",
            ) from None


@dataclass(frozen=True)
class _Samples:
    """Profiles of the splits with rows, the pairs that are compared, and the training split with its cuts."""

    profiles: dict[str, Profile]
    pairs: dict[Against, SamplePair[Profile]]
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
    inferred: str = ""

    @property
    def profiler(self) -> Profiler:
        store = self.validation.statistics_store or ""
        return Profiler(self.folder, self.snapshot, self.schema, self.validation.engine, store)

    @property
    def types(self) -> dict[str, str]:
        """The Arrow type of every column."""
        return {column.name: column.type for column in self.snapshot.columns}

    def samples(self) -> _Samples:
        """Profile the splits, and pair those that are compared, each pair counted in the same bins."""
        config = self.validation
        numbers = [limit.column for limit in self.limits if limit.kind == "numbers"]
        present = [name for name in split_names(config) if self.snapshot.splits.get(name)]
        profiles = {name: self.profiler.profile(name) for name in present}
        references: dict[str, tuple[Profile, Mapping[str, Cuts]]] = {}
        for name in dict.fromkeys([config.previous, learned_from(config)]):
            if name in profiles:
                cuts = own_cuts(profiles[name].statistics, numbers)
                references[name] = self._counted(profiles[name], cuts), cuts
        pairs: dict[Against, SamplePair[Profile]] = {}

        def pair(against: Against, split: str, reference: Profile, cuts: Mapping[str, Cuts]) -> None:
            if split in profiles:
                pairs[against] = SamplePair(against, self._counted(profiles[split], cuts), reference, cuts)

        learned = references.get(learned_from(config))
        if config.previous in references:
            pair("previous", config.current, *references[config.previous])
        if self.baseline:
            pair("baseline", config.current, self.baseline.profile, self.baseline.cuts)
        if learned:
            pair("serving", config.serving or "", *learned)
        return _Samples(profiles, pairs, learned)

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
        found += quarantined.findings()
        found += self._schema_inferred()
        moment = moment_of(self._newest, self.context.newest_since, self.context.date)
        policy = SeverityPolicy(self.validation, moment, self.snapshot.roles.get("label", ""))
        weighed, undecided = weigh(found, comparisons, not_judged, policy, self._text_columns)
        judgement = SnapshotJudgement(
            snapshot=self.snapshot,
            validation=self.validation,
            schema_digest=digest_text(self.context.schema),
            inferred=self.inferred,
            baseline=self.baseline.document if self.baseline else None,
            limits=self.limits,
            profiles=samples.profiles,
            pairs=samples.pairs,
            findings=merged(x if x.waived else quarantined.settle(x) for x in weighed),
            comparisons=comparisons,
            not_judged=undecided,
            counted=(*(rule for result in checks for rule in result.rules), *quarantined.rules()),
            quarantined=quarantined,
            in_force=tuple(entry for entry in self.validation.suppressions if policy.in_force(entry)),
        )
        return judgement, anomalies | drift

    @property
    def _newest(self) -> float | None:
        """Time of the newest row, in seconds since 1970 in UTC; None if the rows have no time."""
        return self.snapshot.quality.get("time.newest")

    @property
    def _text_columns(self) -> set[str]:
        """The columns of text without a limit of their own: only their missing values are compared."""
        return {x.column for x in self.limits if x.kind == "text"} - self.validation.drift.keys()

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

    def _schema_inferred(self) -> Iterator[DataFinding]:
        """Yield the finding that nobody has reviewed the schema."""
        if not self.inferred:
            return
        split = learned_from(self.validation)
        what = f"no reviewed schema: it was inferred from the {self.snapshot.splits[split]:,} rows of {split}"
        if self.context.schema_place:
            what += f", and later runs are held to {self.context.schema_place}: review it"
        else:
            what += "; review schema.pbtxt beside this report, and name it in schema_file"
        yield DataFinding(kind=SCHEMA_INFERRED, what=what)

    def _compare(
        self, samples: _Samples, readable: Mapping[str, str]
    ) -> tuple[list[ColumnComparison], list[NotJudged], dict[str, Any]]:
        """Compare the pairs in their distributions, their missing values and their new values."""
        measured: list[ColumnComparison] = []
        not_judged: list[NotJudged] = []
        anomalies: dict[str, Any] = {}
        config = self.validation
        for against, splits in self._references().items():
            limits = self.limits
            if against == "serving":  # served rows have only the columns that are known at prediction
                known = expected(self.schema, SERVING)
                limits = tuple(limit for limit in limits if limit.column in known)
            if absent := [name for name in splits if name not in samples.profiles]:
                not_judged += not_compared(against, limits, f"split {absent[0]} has no rows, or is not there")
                continue
            pair = samples.pairs[against]
            drift = measure(pair, self.schema, limits)
            unseen = measure_unseen(pair, limits, threshold=config.new_values_threshold)
            there = [limit.column for limit in limits if limit.column in readable]
            missing = measure_missing(pair, there, threshold=config.missing_threshold)
            measured += [*drift.measured, *missing.measured, *unseen.measured]
            not_judged += drift.not_judged
            for column in (limit.column for limit in limits if limit.column not in readable):
                kind = self.types.get(column)
                reason = (
                    f"it is {kind}, which TFDV cannot read" if kind else "the snapshot has no such column"
                )
                not_judged.append(NotJudged(name=rule_name(column, MISSING, against), reason=reason))
            not_judged += unseen.not_judged
            anomalies["drift" if against == "previous" else f"drift/{against}"] = drift.account
        return measured, not_judged, anomalies

    def _references(self) -> dict[Against, tuple[str, ...]]:
        """Return what to compare with, and the splits that this needs."""
        config = self.validation
        found: dict[Against, tuple[str, ...]] = {"previous": (config.previous, config.current)}
        if self.baseline:
            found["baseline"] = (config.current,)
        if config.serving:
            found["serving"] = (learned_from(config), config.serving)
        return found

    def _row_checks(self, samples: _Samples) -> Iterator[CheckOutcome]:
        config, label = self.validation, self.snapshot.roles.get("label", "")
        yield CheckOutcome(*baseline_check(config, there=self.baseline is not None))
        yield volume(self.snapshot.splits, config, self.baseline.document if self.baseline else None)
        yield freshness(self._newest, self.context.newest_since)
        learned, classes = samples.profiles.get(learned_from(config)), self.snapshot.target.classes
        for name in dict.fromkeys([learned_from(config), config.current]):
            if label and name in samples.profiles:
                other = learned if name != learned_from(config) else None
                yield label_balance(samples.profiles[name], label, config, classes, other)


def _write_evidence(
    folder: Path, judgement: SnapshotJudgement, anomalies: Mapping[str, Any], samples: _Samples
) -> dict[str, str]:
    """Write statistics, baseline and anomalies; return the digests of the files by name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / Verdict.FILE).unlink(missing_ok=True)  # of an attempt that did not end
    (folder / Baseline.FILE).unlink(missing_ok=True)
    files = {}
    if judgement.inferred:
        path = folder / SCHEMA_FILE
        path.write_text(judgement.inferred)
        files[path.name] = digest_file(path)
    for name, profile in judgement.profiles.items():
        path = folder / f"statistics-{name}.pb"
        path.write_bytes(packed(profile.statistics))
        files[path.name] = digest_file(path)
    if samples.learned is not None:
        profile, cuts = samples.learned
        name = f"statistics-{profile.split}.pb"
        baseline = describe(
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
    folder: Path,
    judgement: SnapshotJudgement,
    watch: Stopwatch,
    files: Mapping[str, str],
    read: Mapping[str, Any],
    *,
    parent: Path,
) -> None:
    """Write the verdict and the step's record: last, so that neither ever exists without its evidence."""
    judged = {"data": judgement.snapshot.digest, "schema": judgement.schema_digest}
    if judgement.baseline:
        judged["baseline"] = judgement.baseline.digest
    document = Verdict(
        decision=judgement.decision,
        rules=judgement.rules(),
        judged={**judged, **files},
        not_judged=judgement.undecided(),
    )
    document.write(folder)
    quarantine = judgement.quarantined.snapshot.digest
    watch.record(
        folder,
        "validate",
        judgement.headline,
        decision=judgement.decision,
        config=judgement.validation.model_dump(mode="json") | {"files": read},
        inputs=judged,
        outputs={"verdict": document.digest, "quarantine": quarantine, **files},
        parents=[parent],
    )

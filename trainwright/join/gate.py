"""The gate on a training set: the types and the drift of its joined features, and its skew to served rows."""

import difflib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright import tables
from trainwright.artifacts import Column, Snapshot
from trainwright.drift.baseline import CountedSample, FeatureStatistics, read_features
from trainwright.drift.comparison import (
    ColumnComparison,
    Cuts,
    Drift,
    SamplePair,
    decide,
    measure_counts,
    measure_missing,
    measure_unseen,
)
from trainwright.drift.counting import ServedRows, count, find_cuts, kind_of
from trainwright.drift.findings import (
    L_INFINITY,
    Against,
    DataFinding,
    Kind,
    Limit,
    SeverityPolicy,
    learned_from,
    limit_of,
    merged,
    moment_of,
)
from trainwright.drift.judgement import Judgement, baseline_check, not_compared, weigh
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Features, Validation
from trainwright.featurestore import Service
from trainwright.report.markdown import escape, table
from trainwright.verdicts import NotJudged, Verdict

PREFIX = "features/"
"""What the names of these rules begin with in the verdict."""


@dataclass(frozen=True, kw_only=True)
class GateContext:
    """References that a training set is compared with, each with its content digest; empty for none.

    Attributes:
        verdict: Folder for the verdict.
        validation: Section ``validation``: splits, limits, severities.
        baseline: The accepted ``baseline.json``: a file or a URI.
        serving: The log of served rows: a file, a folder, a glob or a URI.
        data_verdict: Folder of the verdict of ``validate``.
    """

    verdict: Path
    validation: Validation = field(default_factory=Validation)
    baseline: str = ""
    baseline_version: str = ""
    serving: str = ""
    serving_version: str = ""
    data_verdict: Path | None = None

    @property
    def inputs(self) -> dict[str, str]:
        """The digest of the data verdict, by name."""
        return {"data_verdict": Verdict.read(self.data_verdict).digest} if self.data_verdict else {}


@dataclass(frozen=True)
class TrainingSetJudgement(Judgement):
    """The judgement of a training set, with the statistics of its features for a later baseline."""

    features: FeatureStatistics | None
    judged: Mapping[str, str]

    @property
    def headline(self) -> str:
        """The one fact that matters, with the limit beside the number."""
        if self.comparisons or self.decision != "PASS":
            return super().headline
        return f"{len(self.limits)} features, no baseline to compare them with"


def judge_training_set(
    folder: Path,
    snapshot: Snapshot,
    service: Service | None,
    inputs: Sequence[str],
    features: Features,
    context: GateContext,
    newest: float | None,
) -> TrainingSetJudgement | None:
    """Compare the joined features with those of the model in production, and all with served rows.

    Without a service and a serving log there is nothing that `validate` did not measure: None.

    Args:
        folder: The training set's folder.
        snapshot: Its manifest.
        service: The service that was joined.
        inputs: Columns of the rows that a model learns from.
        features: Section ``features``: limits of single features.
        context: What is compared with.
        newest: Time of the newest row in seconds since 1970, for the end of suppressions.

    Raises:
        InputError: A key names no feature, or the baseline or the log is gone or changed.
    """
    log, joined = context.validation.serving_log, tuple(service.features) if service else ()
    if not (joined or log):
        return None
    gate = _Gate(folder, snapshot, joined, tuple(inputs) if log else (), features, context)
    views = service.views if service else ()
    return gate.judge({name: kind for view in views for name, kind in view.features.items()}, newest)


_FEAST_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("Int32", "Int64", "Float32", "Float64", "UnixTimestamp"), "numbers"),
    **dict.fromkeys(("String", "Bool"), "categories"),
}


@dataclass(frozen=True)
class _Gate:
    """One training set: its joined features, and the columns of the rows that only a log is compared with."""

    folder: Path
    snapshot: Snapshot
    joined: tuple[str, ...]
    carried: tuple[str, ...]
    features: Features
    context: GateContext

    def judge(self, declared: Mapping[str, str], newest: float | None) -> TrainingSetJudgement:
        """Compare all pairs of samples, and weigh what was found."""
        config, baseline = self.context.validation, None
        if self.joined:
            baseline = read_features(self.context.baseline, self.context.baseline_version)
        learned, cuts = self._counted(learned_from(config))
        own = self._statistics(learned, cuts) if self.joined else None
        what = "the accepted baseline has no joined features" if self.context.baseline else ""
        rules, missing = baseline_check(config, there=baseline is not None or not self.joined, what=what)
        found = [*self._type_findings(declared, baseline), *missing]
        measured: list[ColumnComparison] = []
        not_judged: list[NotJudged] = []
        for against, limits, pair in self._pairs(learned, cuts, baseline):
            if isinstance(pair, str):
                not_judged += not_compared(against, limits, pair)
                continue
            for drift in self._measured(pair, limits):
                measured += drift.measured
                not_judged += drift.not_judged
        comparisons = decide(measured, config.false_alarm_rate)
        policy = SeverityPolicy(config, moment_of(newest, "", ""))
        texts = learned.reasons.keys() - self.features.drift.keys()
        weighed, undecided = weigh(found, comparisons, not_judged, policy, texts)
        return TrainingSetJudgement(
            limits=self.limits,
            findings=merged(weighed),
            comparisons=comparisons,
            not_judged=undecided,
            counted=rules if self.joined else (),
            features=own,
            judged=self._judged(own),
        )

    def _judged(self, own: FeatureStatistics | None) -> dict[str, str]:
        found = {
            "training_set": self.snapshot.digest,
            "baseline": self.context.baseline_version if self.joined else "",
            "serving": self.context.serving_version,
            FeatureStatistics.FILE: own.digest if own else "",
        }
        return {name: digest for name, digest in found.items() if digest}

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        """The Arrow type of every feature."""
        names = [*self.joined, *self.carried]
        split = max(self.snapshot.splits, key=lambda name: self.snapshot.splits[name])
        batch = next(iter(tables.iter_batches(self.folder, self.snapshot, [split], names, 1)))
        return {field.name: field.type for field in batch.schema}

    @cached_property
    def limits(self) -> tuple[Limit, ...]:
        """The limit of every feature that is compared: the joined ones, and for a log those of the rows."""
        config = self.context.validation
        known = {
            **dict.fromkeys(self.joined, self.features.drift),
            **dict.fromkeys(self.carried, config.drift),
        }
        self._require_known()
        ignored = {*self.features.ignore, *(set(config.ignore) & set(self.carried))}
        return tuple(
            limit_of(name, kind_of(self.types[name]), overrides.get(name), config)
            for name, overrides in known.items()
            if name not in ignored
        )

    def _require_known(self) -> None:
        """Reject limits of features that the service does not have, or that do not fit their type."""
        faults = []
        for key, names in (("drift", self.features.drift), ("ignore", self.features.ignore)):
            for name in names:
                if name not in self.joined:
                    close = difflib.get_close_matches(name, self.joined, n=1)
                    advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(self.joined)}"
                    faults.append(f"features.{key}: no joined feature {name!r}; {advice}")
        for name, limit in self.features.drift.items():
            if name in self.features.ignore:
                faults.append(f"features.drift.{name}: also in ignore")
            elif (
                name in self.joined
                and kind_of(self.types[name]) == "numbers"
                and limit.comparator == L_INFINITY
            ):
                faults.append(
                    f"features.drift.{name}: infinity_norm counts single values, and it is "
                    f"{self.types[name]}; use jensen_shannon_divergence"
                )
        if faults:
            raise InputError("\n".join(faults), where="section features", hint="Correct these keys.")

    @cached_property
    def _kinds(self) -> dict[str, Kind]:
        return {limit.column: limit.kind for limit in self.limits}

    def _counted(
        self, split: str, cuts: Mapping[str, Cuts] | None = None
    ) -> tuple[CountedSample, dict[str, Cuts]]:
        """Count a split, by default in bins that its own quantiles bound; return the bins, too."""

        def batches() -> Iterator[pa.RecordBatch]:
            return tables.iter_batches(self.folder, self.snapshot, [split], list(self._kinds))

        rows = self.snapshot.splits.get(split, 0)
        numbers = [name for name, kind in self._kinds.items() if kind == "numbers"]
        if cuts is None:
            cuts = find_cuts(batches() if rows else (), rows, numbers)
        return count(split, batches() if rows else (), self._kinds, cuts), dict(cuts)

    def _statistics(self, learned: CountedSample, cuts: Mapping[str, Cuts]) -> FeatureStatistics:
        """Return what a later baseline says of the joined features."""
        names = set(self.joined)
        return FeatureStatistics(
            training_set=self.snapshot.digest,
            data_version=self.snapshot.parents["entities"],
            split=learned_from(self.context.validation),
            rows=learned.rows,
            types={name: str(self.types[name]) for name in self.joined},
            cuts={name: tuple(map(float, points)) for name, points in cuts.items() if name in names},
            counts={name: tuple(map(int, rows)) for name, rows in learned.counts.items() if name in names},
            absent={name: rows for name, rows in learned.absent.items() if name in names},
            by_value={name: dict(rows) for name, rows in learned.by_value.items() if name in names},
            reasons={name: reason for name, reason in learned.reasons.items() if name in names},
        )

    def _pairs(
        self, learned: CountedSample, cuts: Mapping[str, Cuts], baseline: FeatureStatistics | None
    ) -> Iterator[tuple[Against, tuple[Limit, ...], SamplePair[CountedSample] | str]]:
        """Yield each comparison with its limits and two samples, or the reason why there are none.

        Features are not compared from one split to the next: an average over 30 days differs between any two
        windows of time. Where a limit of its own asks for a feature, lacking a baseline is not passed over.
        """
        limits = tuple(limit for limit in self.limits if limit.column in self.joined)
        if baseline:
            bins = {name: points for name, points in baseline.bins().items() if name in self._kinds}
            now = self._counted(learned_from(self.context.validation), bins)[0]
            yield "baseline", limits, _pair("baseline", now, baseline.sample(), bins)
        elif self.context.validation.on_missing_baseline != "bootstrap":
            asked = tuple(limit for limit in limits if limit.column in self.features.drift)
            yield "baseline", asked, "there is no accepted baseline with joined features"
        if self._served:
            kinds = {name: kind for name, kind in self._kinds.items() if name in self._served.columns}
            bins = {name: points for name, points in cuts.items() if name in kinds}
            sample = count("serving log", self._served.batches(), kinds, bins)
            yield "serving", self.limits, _pair("serving", sample, learned, cuts)

    @cached_property
    def _served(self) -> ServedRows | None:
        log, context = self.context.validation.serving_log, self.context
        return ServedRows.open(log, context.serving, context.serving_version, self._kinds) if log else None

    def _measured(self, pair: SamplePair[CountedSample], limits: Sequence[Limit]) -> Iterator[Drift]:
        """Measure distributions, missing values and new values of one pair."""
        config = self.context.validation
        yield measure_counts(pair, limits)
        there = [limit.column for limit in limits]
        yield measure_missing(pair, there, threshold=config.missing_threshold)
        counted = [limit for limit in limits if not pair.reference.uncounted(limit.column)]
        yield measure_unseen(pair, counted, threshold=config.new_values_threshold)

    def _type_findings(
        self, declared: Mapping[str, str], baseline: FeatureStatistics | None
    ) -> Iterator[DataFinding]:
        """Yield features whose type does not suit Feast's definition, the baseline or the log."""
        before = baseline.types if baseline else {}
        for name, kind in self._kinds.items():
            own = str(self.types[name])
            others = []
            if _FEAST_KINDS.get(declared.get(name, ""), kind) != kind:
                others.append(f"Feast declares {declared[name]}")
            if _model_kind(before.get(name, own)) != _model_kind(own):
                others.append(f"it is {before[name]} in the baseline")
            if self._served and name in self._served.unlike:
                others.append(f"it is {self._served.unlike[name]} in the serving log")
            for other in others:
                what = f"{name} is {own} in the training set, and {other}"
                yield DataFinding(kind="UNEXPECTED_DATA_TYPE", column=name, what=what, of_schema=True)


def _model_kind(text: str) -> str | None:
    return Column(name="", type=text).kind


def _pair(
    against: Against, current: CountedSample, reference: CountedSample, cuts: Mapping[str, Cuts]
) -> SamplePair[CountedSample] | str:
    """Return two samples to compare, or the reason why they cannot be."""
    empty = next((sample.split for sample in (current, reference) if not sample.rows), "")
    return f"{empty} has no rows" if empty else SamplePair(against, current, reference, cuts)


def write_verdict(
    own: TrainingSetJudgement | None, context: GateContext, data_version: str, summary: Path
) -> Verdict:
    """Write the data's verdict with the rules about the training set added, beside the evidence of both.

    The summary gets a section about the features. The names of the added rules begin with :data:`PREFIX`.
    """
    context.verdict.mkdir(parents=True, exist_ok=True)
    data = Verdict(decision="INCONCLUSIVE", rules=(), judged={"data": data_version})
    if context.data_verdict:
        data = Verdict.read(context.data_verdict)
        for path in context.data_verdict.glob("*.json"):
            shutil.copyfile(path, context.verdict / path.name)
    if own:
        with summary.open("a") as stream:
            stream.write(f"\n{_summary(own)}")
        if own.features:
            own.features.write(context.verdict)
    whole = _whole_verdict(own, data)
    whole.write(context.verdict)
    return whole


def _whole_verdict(own: TrainingSetJudgement | None, data: Verdict) -> Verdict:
    if own is None:
        return data
    rules = tuple(replace(rule, name=PREFIX + rule.name) for rule in own.rules())
    undecided = tuple(replace(entry, name=PREFIX + entry.name) for entry in own.undecided())
    whole = replace(
        data,
        rules=(*data.rules, *rules),
        judged=data.judged | {PREFIX + name: digest for name, digest in own.judged.items()},
        not_judged=(*data.not_judged, *undecided),
    )
    return replace(whole, decision=whole.recomputed())


def require_accepted(judgement: TrainingSetJudgement, validation: Validation) -> None:
    """Reject features that are judged FAIL, or HOLD where ``on_data_hold`` is ``stop``."""
    if validation.stops(judgement.decision):
        raise DataRefused(
            f"the features of the training set were judged {judgement.headline}",
            where="the training set",
            hint="The summary of `join` has every comparison. If the change is right, move its limit in "
            "features.drift, or accept a new baseline.",
        )


_ROWS = 50
"""Comparisons that the summary shows, the closest to their limits first."""


def _summary(judgement: TrainingSetJudgement) -> str:
    """Return the Markdown section about the features: the decision, what was found, the distances."""
    header = ["feature", "against", "measure", "value", "limit", "chance alone", "rows"]
    rows = [
        [
            entry.column,
            entry.against,
            entry.measure,
            *entry.written(4),
            f"{entry.floor:.4f}",
            f"{entry.rows[0]:,} / {entry.rows[1]:,}",
        ]
        for entry in judgement.ranked[:_ROWS]
    ]
    lines = [f"- {finding.severity}: {escape(finding.what)}\n" for finding in judgement.findings]
    return "\n".join(
        [
            f"## Features: {judgement.decision}\n",
            f"{escape(judgement.headline)}\n",
            *(["".join(lines)] if lines else []),
            table(header, rows, numeric=range(3, len(header))),
        ]
    )

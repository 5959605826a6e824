"""Drift of a serving log against the accepted baseline of the model in production."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np
from tensorflow_metadata.proto.v0 import statistics_pb2  # type: ignore[import-untyped]

from trainwright.drift.baseline import Baseline, CountedSample, read_accepted, read_beside, read_features
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
from trainwright.drift.counting import ServedRows, count
from trainwright.drift.findings import Kind, Limit, SeverityPolicy, limit_of
from trainwright.drift.judgement import Judgement, not_compared, weigh
from trainwright.errors import InputError
from trainwright.experiment import Features, Validation
from trainwright.report import markdown
from trainwright.tracking import Stopwatch
from trainwright.verdicts import NotJudged

_ABSENT = "the serving log does not have it as a text or a number; if it is no input, put it under ignore"


@dataclass(frozen=True)
class LearnedRows:
    """Rows that the model learned from: how each column is compared, its bins, and its counts."""

    kinds: Mapping[str, Kind]
    cuts: Mapping[str, Cuts]
    sample: CountedSample
    numbered: frozenset[str] = frozenset()  # categories that are whole numbers

    @property
    def log_kinds(self) -> dict[str, Kind]:
        """Return the kind of each column's type in a log."""
        return {name: "numbers" if name in self.numbered else kind for name, kind in self.kinds.items()}

    def without(self, ignored: Collection[str]) -> "LearnedRows":
        """Leave columns out."""
        return replace(self, kinds={name: kind for name, kind in self.kinds.items() if name not in ignored})


@dataclass(frozen=True, kw_only=True)
class References:
    """Baseline and serving log, each with its content digest as `resolve` found it."""

    baseline: str
    baseline_version: str
    serving: str
    serving_version: str


def monitor(
    validation: Validation,
    features: Features,
    references: References,
    record: Path,
    summary: Path,
    now: datetime,
) -> tuple[str, str]:
    """Compare served rows with the baseline, and write the record and the summary.

    Returns:
        The decision and its reason: PASS, or HOLD or FAIL if a column moved, by its severity; INCONCLUSIVE if
        none moved and one could not be compared.

    Raises:
        InputError: There is no baseline or no log, one of them changed, or they have no column in common.
    """
    watch = Stopwatch()
    made = judge(validation, features, references, now)
    moved = any(made.weight_of(entry.rule) in ("HOLD", "BLOCK") for entry in made.moved)
    decision = made.decision if moved or made.decision == "PASS" else "INCONCLUSIVE"
    record.mkdir(parents=True, exist_ok=True)
    digests = {"baseline": references.baseline_version, "serving": references.serving_version}
    watch.record(record, "monitor", made.headline, decision=decision, inputs=digests)
    rows = [
        [entry.column, entry.measure, *entry.written(4), f"{entry.rows[0]:,} / {entry.rows[1]:,}"]
        for entry in made.ranked
    ]
    table = markdown.table(["column", "measure", "value", "limit", "rows"], rows, numeric=(2, 3, 4))
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(f"**{decision}** {markdown.escape(made.headline)}\n\n{table}")
    return decision, made.headline


def judge(validation: Validation, features: Features, references: References, now: datetime) -> Judgement:
    """Measure every column that both have, and weigh what moved."""
    log = validation.serving_log
    if not (log and references.baseline):
        raise InputError(
            "drift needs validation.serving_log and validation.baseline",
            where="section validation",
            hint="`trainwright baseline accept RUN --to FILE` makes the baseline.",
        )
    ignored = {*validation.ignore, *features.ignore}
    known = [one.without(ignored) for one in _references(references, features)]
    types = {name: kind for one in known for name, kind in one.log_kinds.items()}
    served = ServedRows.open(log, references.serving, references.serving_version, types)
    limits: list[Limit] = []
    measured: list[ColumnComparison] = []
    not_judged: list[NotJudged] = []
    for one in known:
        limited = validation.drift | features.drift
        own = [limit_of(name, kind, limited.get(name), validation) for name, kind in one.kinds.items()]
        there = [limit for limit in own if limit.column in served.untimed]
        not_judged += not_compared("serving", [limit for limit in own if limit not in there], _ABSENT)
        for drift in _measured(one, there, served, validation):
            measured += drift.measured
            not_judged += drift.not_judged
        limits += own
    comparisons = decide(measured, validation.false_alarm_rate)
    findings, undecided = weigh([], comparisons, not_judged, SeverityPolicy(validation, now))
    return Judgement(
        limits=tuple(limits), findings=tuple(findings), comparisons=comparisons, not_judged=undecided
    )


def _measured(
    reference: LearnedRows, limits: Sequence[Limit], served: ServedRows, validation: Validation
) -> Iterator[Drift]:
    """Measure distributions, missing values and new values of the columns that the log has."""
    kinds = {limit.column: limit.kind for limit in limits}
    bins = {name: points for name, points in reference.cuts.items() if name in kinds}
    sample = count("serving log", served.batches(), kinds, bins)
    if not sample.rows:
        raise InputError("the serving log has no rows", where="validation.serving_log")
    pair = SamplePair("serving", sample, reference.sample, bins)
    yield measure_counts(pair, limits)
    yield measure_missing(pair, list(kinds), threshold=validation.missing_threshold)
    yield measure_unseen(pair, limits, threshold=validation.new_values_threshold)


def _references(references: References, features: Features) -> Iterator[LearnedRows]:
    """Yield the columns of the rows, and the joined features if the baseline has them."""
    document = read_accepted(references.baseline, references.baseline_version)
    rows = _rows_of(document, references.baseline)
    yield rows.without(rows.kinds.keys() - features.request) if features.request else rows
    if joined := read_features(references.baseline, references.baseline_version):
        sample = joined.sample()
        kinds: dict[str, Kind] = dict.fromkeys(sample.by_value, "categories")
        yield LearnedRows(kinds | dict.fromkeys(sample.counts, "numbers"), joined.bins(), sample)


def _rows_of(document: Baseline, uri: str) -> LearnedRows:
    """Read the columns of the rows: numbers by their bins, texts by the values that TFDV counted."""
    content = read_beside(uri, document.statistics, document.statistics_sha256)
    (dataset,) = statistics_pb2.DatasetFeatureStatisticsList.FromString(content).datasets
    texts = {one.path.step[0] for one in dataset.features if one.type == one.STRING}
    by_value: dict[str, dict[str, int]] = {}
    reasons: dict[str, str] = {}
    for feature in dataset.features:
        name, strings = feature.path.step[0], feature.string_stats
        if name in document.counts or not strings.rank_histogram.buckets:
            continue
        by_value[name] = {one.label: round(one.sample_count) for one in strings.rank_histogram.buckets}
        if sum(by_value[name].values()) != strings.common_stats.tot_num_values:
            reasons[name] = f"about {strings.unique:,} distinct values in the baseline, not all counted"
    sample = CountedSample(
        split=f"split {document.split} of the baseline",
        rows=document.rows,
        counts={name: np.asarray(rows, np.int64) for name, rows in document.counts.items()},
        absent={name: document.rows - there for name, there in document.values.items()},
        by_value=by_value,
        reasons=reasons,
    )
    cuts = {name: np.asarray(points, np.float64) for name, points in document.cuts.items()}
    kinds: dict[str, Kind] = dict.fromkeys(by_value, "categories")
    numbered = frozenset(name for name in by_value if name not in texts)
    return LearnedRows(kinds | dict.fromkeys(document.counts, "numbers"), cuts, sample, numbered)

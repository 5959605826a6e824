"""Drift of a serving log against the accepted baseline of the model in production."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from tensorflow_metadata.proto.v0 import statistics_pb2  # type: ignore[import-untyped]

from trainwright.drift.baseline import Baseline, CountedSample, read_accepted, read_beside, read_features
from trainwright.drift.comparison import (
    Cuts,
    SamplePair,
    decide,
    measure_counts,
    measure_missing,
    measure_unseen,
)
from trainwright.drift.counting import count
from trainwright.drift.findings import JENSEN_SHANNON, L_INFINITY, Kind, Limit, SeverityPolicy
from trainwright.drift.judgement import Judgement, weigh
from trainwright.drift.serving_log import ServedRows
from trainwright.errors import InputError
from trainwright.experiment import Features, Validation
from trainwright.report import markdown
from trainwright.tracking import Stopwatch


@dataclass(frozen=True)
class Reference:
    """Rows that the model learned from: how each column is compared, its bins, and its counts."""

    kinds: Mapping[str, Kind]
    cuts: Mapping[str, Cuts]
    sample: CountedSample


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
    known = list(_references(references))
    ignored = {*validation.ignore, *features.ignore}
    kinds = {name: kind for one in known for name, kind in one.kinds.items() if name not in ignored}
    served = ServedRows.open(log, references.serving, references.serving_version, kinds)
    limits, measured, not_judged = [], [], []
    for one in known:
        own = {name: kinds[name] for name in one.kinds if name in kinds and name in served.untimed}
        bins = {name: points for name, points in one.cuts.items() if name in own}
        sample = count("serving log", served.batches(), own, bins)
        if not sample.rows:
            raise InputError("the serving log has no rows", where=references.serving)
        pair = SamplePair("serving", sample, one.sample, bins)
        compared = [_limit(name, kind, validation, features) for name, kind in own.items()]
        found = (
            measure_counts(pair, compared),
            measure_unseen(pair, compared, threshold=validation.new_values_threshold),
        )
        measured += measure_missing(pair, list(own), threshold=validation.missing_threshold)
        for drift in found:
            measured += drift.measured
            not_judged += drift.not_judged
        limits += compared
    if not limits:
        raise InputError(
            "the serving log and the baseline have no column in common",
            where=references.serving,
            hint=f"Map them in validation.serving_log.columns. The baseline has {', '.join(kinds)}.",
        )
    comparisons = decide(measured, validation.false_alarm_rate)
    findings, undecided = weigh([], comparisons, not_judged, SeverityPolicy(validation, now))
    return Judgement(
        limits=tuple(limits), findings=tuple(findings), comparisons=comparisons, not_judged=undecided
    )


def _limit(name: str, kind: Kind, validation: Validation, features: Features) -> Limit:
    if own := features.drift.get(name) or validation.drift.get(name):
        return Limit(name, kind, own.comparator, own.threshold)
    if kind == "numbers":
        return Limit(name, kind, JENSEN_SHANNON, validation.numeric_threshold)
    return Limit(name, kind, L_INFINITY, validation.categorical_threshold)


def _references(references: References) -> Iterator[Reference]:
    """Yield the columns of the rows, and the joined features if the baseline has them."""
    document = read_accepted(references.baseline, references.baseline_version)
    yield _rows_of(document, references.baseline)
    if joined := read_features(references.baseline, references.baseline_version):
        sample = joined.sample()
        kinds: dict[str, Kind] = dict.fromkeys(sample.by_value, "categories")
        yield Reference(kinds | dict.fromkeys(sample.counts, "numbers"), joined.bins(), sample)


def _rows_of(document: Baseline, uri: str) -> Reference:
    """Read the columns of the rows: numbers by their bins, texts by the values that TFDV counted."""
    content = read_beside(uri, document.statistics, document.statistics_sha256)
    (dataset,) = statistics_pb2.DatasetFeatureStatisticsList.FromString(content).datasets
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
    return Reference(kinds | dict.fromkeys(document.counts, "numbers"), cuts, sample)

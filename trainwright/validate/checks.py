"""Check splits against the schema, and row counts, freshness and labels against their limits.

TFDV finds most violations of the schema. Two that it misses are found here: a column that is gone although
the schema has it (TFDV is silent if the schema asks for no presence), and a number outside a boolean domain.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainwright.drift.baseline import Baseline
from trainwright.drift.findings import TOO_FEW, DataFinding, learned_from, parse_time
from trainwright.experiment import Validation
from trainwright.validate.profile import Profile
from trainwright.validate.schema import TRAINING, environment, expected, optional
from trainwright.validate.tfdv import anomalies_pb2, schema_pb2, statistics_pb2, tfdv
from trainwright.verdicts import AT_LEAST, AT_MOST, NotJudged, Rule

_SPARSE = "FEATURE_TYPE_LOW_FRACTION_PRESENT"
_NEW_VALUES = "ENUM_TYPE_UNEXPECTED_STRING_VALUES"
_LONGEST = 300
_FORMS = {
    statistics_pb2.FeatureNameStatistics.INT: "INT",
    statistics_pb2.FeatureNameStatistics.FLOAT: "FLOAT",
    statistics_pb2.FeatureNameStatistics.STRING: "BYTES",
    statistics_pb2.FeatureNameStatistics.BYTES: "BYTES",
    statistics_pb2.FeatureNameStatistics.STRUCT: "STRUCT",
}


def missing_columns(schema: Any, types: Mapping[str, str]) -> list[DataFinding]:
    """Find the columns that the schema has and the snapshot has not."""
    return [
        DataFinding(
            column=name,
            kind="SCHEMA_MISSING_COLUMN",
            of_schema=True,
            what=f"column {name} is missing: the schema expects "
            f"{schema_pb2.FeatureType.Name(feature.type)}, the snapshot has no such column",
        )
        for name, feature in expected(schema).items()
        if name not in types and not optional(feature)
    ]


def missing_rows(
    splits: Mapping[str, int], names: Sequence[str], required: Sequence[str]
) -> list[DataFinding]:
    """Find the splits without rows; one that is not in the snapshot at all only if it is required."""
    empty = [(name, f"split {name} has no rows") for name in dict.fromkeys(names) if splits.get(name) == 0]
    known = ", ".join(f"{name} ({rows:,} rows)" for name, rows in splits.items())
    empty += [
        (name, f"there is no split {name}; the snapshot has {known or 'none'}")
        for name in required
        if name not in splits
    ]
    return [DataFinding(split=name, kind="NO_DATA_IN_SPAN", what=what) for name, what in empty]


def nested_columns(schema: Any, foreign: Mapping[str, str]) -> list[DataFinding]:
    """Find the columns that TFDV cannot read and that are new, or should hold something else."""
    found = []
    declared = {feature.name: feature.type for feature in schema.feature}
    for name, kind in foreign.items():
        if name not in declared:
            what = f"column {name} is new: {kind}, not in the schema"
            found.append(DataFinding(column=name, kind="SCHEMA_NEW_COLUMN", what=what, of_schema=True))
        elif declared[name] != schema_pb2.STRUCT:
            wanted = schema_pb2.FeatureType.Name(declared[name])
            what = f"column {name} has another type: expected {wanted}, got {kind}"
            found.append(DataFinding(column=name, kind="UNEXPECTED_DATA_TYPE", what=what, of_schema=True))
    return found


def check(
    profile: Profile, schema: Any, types: Mapping[str, str], where: str = TRAINING
) -> tuple[list[DataFinding], Any]:
    """Check one split against the schema."""
    account = tfdv.validate_statistics(profile.statistics, schema, environment(schema, where))
    columns = {feature.name: feature for feature in schema.feature}
    found = list(_retyped(profile, columns, types))
    outside = columns.keys() - expected(schema, where).keys()
    known = {finding.column for finding in found} | (columns.keys() - types.keys()) | outside
    for name, info in sorted(account.anomaly_info.items()):
        if name not in known:
            for reason in info.reason:
                found.append(_from_tfdv(profile.split, name, reason, columns.get(name), types))
    whole = account.dataset_anomaly_info.reason
    found += [_from_tfdv(profile.split, "", reason, None, types) for reason in whole]
    found += _outside_booleans(profile, columns)
    return found, account


def _retyped(profile: Profile, columns: Mapping[str, Any], types: Mapping[str, str]) -> Iterator[DataFinding]:
    for name, feature in profile.features.items():
        declared = columns.get(name)
        if declared is None or profile.missing(name) == profile.rows:
            continue
        wanted, got = schema_pb2.FeatureType.Name(declared.type), _FORMS[feature.type]
        if wanted != got:
            example = f"{feature.num_stats.min:.6g}"
            if feature.HasField("string_stats"):
                values = feature.string_stats.top_values
                example = next((repr(top.value[:_LONGEST]) for top in values), "values too many to show")
            yield DataFinding(
                split=profile.split,
                column=name,
                kind="UNEXPECTED_DATA_TYPE",
                of_schema=True,
                what=f"column {name} has another type: expected {wanted}, got {got} "
                f"({types.get(name, 'unknown')}), such as {example}",
            )


def _from_tfdv(split: str, name: str, reason: Any, declared: Any, types: Mapping[str, str]) -> DataFinding:
    kind = anomalies_pb2.AnomalyInfo.Type.Name(reason.type)
    text = reason.description.strip() or reason.short_description or kind.lower().replace("_", " ")
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"  # it may quote whole texts
    what = f"column {name}: {text}" if name else f"split {split}: {text}"
    if kind == "SCHEMA_NEW_COLUMN":
        what = f"column {name} is new: {types.get(name, 'unknown')}, not in the schema"
    if kind == _SPARSE and (shares := re.findall(r"= ([0-9.]+)", text)):
        least, actual = (float(share.rstrip(".")) for share in shares)
        what = f"column {name}: {actual:.2%} of rows have a value, at least {least:.2%} must"
    # Values outside a domain are reported, unless the schema bounds their number: these are too many.
    strict = kind == _NEW_VALUES and declared is not None and declared.HasField("distribution_constraints")
    return DataFinding(
        split=split, column=name, kind=kind, severity="HOLD" if strict else "", what=what, of_schema=True
    )


def _outside_booleans(profile: Profile, columns: Mapping[str, Any]) -> Iterator[DataFinding]:
    """Find numbers other than 0 and 1 under a boolean domain, which TFDV does not check."""
    for name, feature in columns.items():
        boolean = feature.type == schema_pb2.INT and feature.HasField("bool_domain")
        if boolean and (others := sorted(profile.values(name).keys() - {"0", "1"})):
            what = f"column {name}: a boolean domain, but the values {', '.join(others[:5])} are there"
            yield DataFinding(
                split=profile.split, column=name, kind="BOOL_TYPE_BIG_INT", what=what, of_schema=True
            )


_SHOWN = 5


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of one check: numbers with their limits; a rule that is broken has a finding."""

    rules: tuple[Rule, ...] = ()
    findings: tuple[DataFinding, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()


def volume(splits: Mapping[str, int], validation: Validation, baseline: Baseline | None) -> CheckOutcome:
    """Compare the rows that a model would learn from with those of the accepted baseline, if there is one."""
    if baseline is None:
        return CheckOutcome()
    name, limits = learned_from(validation), validation.volume
    if not splits.get(name):
        missing = NotJudged(name="volume", reason=f"split {name} has no rows, or is not there")
        return CheckOutcome(not_judged=(missing,))
    ratio = splits[name] / baseline.rows
    text = f"split {name} has {splits[name]:,} rows, {ratio:.3g} times the {baseline.rows:,} of the baseline"
    rules, found = [], []
    for bound, limit, test, kind in (
        ("min", limits.min_ratio, AT_LEAST, "COMPARATOR_LOW_NUM_EXAMPLES"),
        ("max", limits.max_ratio, AT_MOST, "COMPARATOR_HIGH_NUM_EXAMPLES"),
    ):
        rule = Rule(name=f"volume/{bound}", value=ratio, limit=limit, test=test, detail=text)
        rules.append(rule)
        if not rule.passed:
            what = f"{text}; {test} {limit:g} times are accepted"
            found.append(DataFinding(split=name, kind=kind, against="baseline", rule=rule.name, what=what))
    return CheckOutcome(tuple(rules), tuple(found))


def freshness(newest: float | None, newest_since: str) -> CheckOutcome:
    """Check that the newest row is as new as it has to be.

    Args:
        newest: Its time in seconds since 1970 in UTC; None if the rows have no time.
        newest_since: Time that it must reach, ISO 8601; empty if any will do.
    """
    if not newest_since:
        return CheckOutcome()
    since = parse_time(newest_since, "parameter newest_since")
    if newest is None:
        reason = "the snapshot does not say how new its newest row is (time.newest); name data.time"
        return CheckOutcome(not_judged=(NotJudged(name="freshness", reason=reason),))

    def written(time: datetime) -> str:
        return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")

    late = since.timestamp() - newest
    text, wanted = f"the newest row is of {written(datetime.fromtimestamp(newest, UTC))}", written(since)
    rule = Rule(
        name="freshness", value=newest, limit=since.timestamp(), test=AT_LEAST,
        detail=f"{text}; it has to reach {wanted}; seconds since 1970",
    )  # fmt: skip
    if rule.passed:
        return CheckOutcome((rule,))
    hours = late / 3600
    span = f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"  # noqa: PLR2004
    what = f"{text}, {span} too old: it has to reach {wanted}"
    return CheckOutcome((rule,), (DataFinding(kind="DATA_STALE", rule=rule.name, what=what),))


def label_balance(
    profile: Profile,
    label: str,
    validation: Validation,
    classes: Sequence[str] = (),
    learned: Profile | None = None,
) -> CheckOutcome:
    """Check that there is something to learn: a label with one value teaches nothing.

    Args:
        profile: The split.
        label: The column.
        validation: ``min_label_share``, the smallest accepted share of any value that is counted.
        classes: Names of the classes by number; empty if the values are their own names.
        learned: The split that the model learns from, if ``profile`` is another: with its shares, few rows
            can have one value by chance.
    """
    feature, least = profile.features.get(label), validation.min_label_share
    if feature is None or profile.missing(label) >= profile.rows:
        return CheckOutcome()  # a column that is gone or empty is found as such
    values = {class_name(value, classes): rows for value, rows in profile.values(label).items()}
    if not values:
        return _number_balance(profile, label, feature.num_stats, least)
    if len(values) == 1:
        return _constant_label(profile, label, next(iter(values)), classes, learned, validation)
    total = sum(values.values())
    rules = [_at_least(f"label/{profile.split}/values", len(values), 2)]
    found = []
    if least:
        rare = min(values, key=lambda name: (values[name], name))
        share = values[rare] / total
        rules.append(_at_least(f"label/{profile.split}/rarest", share, least))
        if share < least:
            ordered = sorted(values.items(), key=lambda item: -item[1])
            counts = ", ".join(f"{name}: {rows:,.0f}" for name, rows in ordered[:_SHOWN])
            rest = f", and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
            what = (
                f"the label {label} is {rare} in {share:.2%} of the labelled rows of {profile.split}, "
                f"at least {least:.2%} must be ({counts}{rest})"
            )
            found.append(_label_finding("LABEL_SHARE_LOW", label, rules[1], profile, what))
    return CheckOutcome(tuple(rules), tuple(found))


def class_name(value: str, classes: Sequence[str]) -> str:
    """Return the name of a class by its number; the value itself if it has none."""
    return classes[int(value)] if value.isdecimal() and int(value) < len(classes) else value


def _constant_label(
    profile: Profile,
    label: str,
    only: str,
    classes: Sequence[str],
    learned: Profile | None,
    validation: Validation,
) -> CheckOutcome:
    """Reject a label with one value, unless the rows are so few that chance explains it."""
    rows = sum(profile.values(label).values())
    rule = _at_least(f"label/{profile.split}/values", 1, 2)
    what = f"the label {label} is {only} in all {rows:,.0f} labelled rows of {profile.split}"
    before = learned.values(label) if learned else {}
    same = sum(n for value, n in before.items() if class_name(value, classes) == only)
    share = same / sum(before.values()) if before else 0.0
    if share < 1 and share**rows > validation.false_alarm_rate:
        needed = math.ceil(math.log(validation.false_alarm_rate) / math.log(share))
        reason = f"{TOO_FEW}: {what}, and in {share:.1%} of those of {learned.split if learned else ''}"
        finding = DataFinding(
            split=profile.split, column=label, kind="TOO_FEW_ROWS", rule=rule.name, what=reason
        )
        return CheckOutcome((), (finding,), (NotJudged(name=rule.name, reason=reason, needed=needed),))
    return CheckOutcome((rule,), (_label_finding("LABEL_CONSTANT", label, rule, profile, what),))


def _number_balance(profile: Profile, label: str, numbers: Any, least: float) -> CheckOutcome:
    """Check a label whose values are not counted: a number to be predicted, or text."""
    rules, found, not_judged = [], [], []
    if numbers.common_stats.num_non_missing:
        rules.append(_at_least(f"label/{profile.split}/values", 1 + (numbers.min < numbers.max), 2))
        if not rules[0].passed:
            what = f"the label {label} is {numbers.min:g} in every labelled row of {profile.split}"
            found.append(_label_finding("LABEL_CONSTANT", label, rules[0], profile, what))
    if least:
        reason = f"the values of the label {label} are not counted one by one: the schema calls it a number"
        not_judged.append(NotJudged(name=f"label/{profile.split}/rarest", reason=reason))
    return CheckOutcome(tuple(rules), tuple(found), tuple(not_judged))


def _label_finding(kind: str, label: str, rule: Rule, profile: Profile, what: str) -> DataFinding:
    return DataFinding(split=profile.split, column=label, kind=kind, rule=rule.name, what=what)


def _at_least(name: str, value: float, limit: float) -> Rule:
    return Rule(name=name, value=float(value), limit=float(limit), test=AT_LEAST)

"""Where the data is not what the schema says, and how much that matters.

TFDV finds. What it overlooks is found here: a column that is gone although the schema has it (TFDV is silent
if the schema asks for no presence), and a number outside a boolean domain.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from trainwright.validate.profile import Profile
from trainwright.validate.schema import environment, expected, optional
from trainwright.validate.statistics import by_column
from trainwright.validate.tfdv import anomalies_pb2, schema_pb2, statistics_pb2, tfdv

Severity = Literal["WARN", "HOLD", "BLOCK"]
_ORDER: dict[Severity, int] = {"BLOCK": 0, "HOLD": 1, "WARN": 2}

_BLOCK = {
    "SCHEMA_MISSING_COLUMN",
    "FEATURE_TYPE_NOT_PRESENT",
    "FEATURE_TYPE_NO_VALUES",
    "UNEXPECTED_DATA_TYPE",
    "VALUE_NESTEDNESS_MISMATCH",
    "INVALID_FEATURE_SHAPE",
    "DOMAIN_INVALID_FOR_TYPE",
    "INVALID_SCHEMA_SPECIFICATION",
    "INVALID_DOMAIN_SPECIFICATION",
    "FEATURE_MISSING_TYPE",
    "FLOAT_TYPE_HAS_NAN",
    "FLOAT_TYPE_HAS_INF",
    "DATASET_LOW_NUM_EXAMPLES",
    "NO_DATA_IN_SPAN",
}
_WARN = {"SCHEMA_NEW_COLUMN"}
_SPARSE = "FEATURE_TYPE_LOW_FRACTION_PRESENT"
_NEW_VALUES = "ENUM_TYPE_UNEXPECTED_STRING_VALUES"
_FORMS = {
    statistics_pb2.FeatureNameStatistics.INT: "INT",
    statistics_pb2.FeatureNameStatistics.FLOAT: "FLOAT",
    statistics_pb2.FeatureNameStatistics.STRING: "BYTES",
    statistics_pb2.FeatureNameStatistics.BYTES: "BYTES",
    statistics_pb2.FeatureNameStatistics.STRUCT: "STRUCT",
}


@dataclass(frozen=True)
class Anomaly:
    """One way in which a split is not what it should be.

    Attributes:
        split: The split; empty if it concerns the snapshot as a whole.
        column: The column; empty if it concerns the split as a whole.
        kind: TFDV's name of the anomaly, or one like it.
        severity: BLOCK refuses the snapshot, HOLD asks a person, WARN is only told.
        what: What is wrong, in words, with the values that show it.
    """

    split: str
    column: str
    kind: str
    severity: Severity
    what: str


def missing_columns(schema: Any, types: Mapping[str, str]) -> list[Anomaly]:
    """Find the columns that the schema has and the snapshot has not.

    Args:
        schema: The reviewed schema.
        types: The snapshot's columns, with their Arrow types.
    """
    return [
        Anomaly(
            split="",
            column=name,
            kind="SCHEMA_MISSING_COLUMN",
            severity="BLOCK",
            what=f"column {name} is missing: the schema expects "
            f"{schema_pb2.FeatureType.Name(feature.type)}, the snapshot has no such column",
        )
        for name, feature in expected(schema).items()
        if name not in types and not optional(feature)
    ]


def missing_rows(splits: Mapping[str, int], previous: str, current: str) -> list[Anomaly]:
    """Find the splits without rows. A previous split that was never made is no anomaly: there is no baseline.

    Args:
        splits: Rows by split.
        previous: Name of the split that is compared with.
        current: Name of the split that is judged.
    """
    empty = [(name, f"split {name} has no rows") for name in (previous, current) if splits.get(name) == 0]
    if current not in splits:
        known = ", ".join(f"{name} ({rows:,} rows)" for name, rows in splits.items())
        empty.append((current, f"there is no split {current}; the snapshot has {known or 'none'}"))
    return [Anomaly(name, "", "NO_DATA_IN_SPAN", "BLOCK", what) for name, what in empty]


def merged(anomalies: Iterable[Anomaly]) -> tuple[Anomaly, ...]:
    """Put together what was found alike in several splits, and the gravest first."""
    found: dict[tuple[str, str, str], Anomaly] = {}
    for anomaly in anomalies:
        key = (anomaly.column, anomaly.kind, anomaly.what)
        found[key] = replace(anomaly, split="") if key in found else anomaly
    return tuple(sorted(found.values(), key=lambda anomaly: _ORDER[anomaly.severity]))


def nested_columns(schema: Any, foreign: Mapping[str, str]) -> list[Anomaly]:
    """Find the columns that TFDV cannot read and that are new, or should hold something else.

    Args:
        schema: The reviewed schema.
        foreign: The columns that TFDV cannot read, with their Arrow types.
    """
    found = []
    declared = {feature.name: feature.type for feature in schema.feature}
    for name, kind in foreign.items():
        if name not in declared:
            what = f"column {name} is new: {kind}, not in the schema"
            found.append(Anomaly("", name, "SCHEMA_NEW_COLUMN", "WARN", what))
        elif declared[name] != schema_pb2.STRUCT:
            wanted = schema_pb2.FeatureType.Name(declared[name])
            what = f"column {name} has another type: expected {wanted}, got {kind}"
            found.append(Anomaly("", name, "UNEXPECTED_DATA_TYPE", "BLOCK", what))
    return found


def check(
    profile: Profile, schema: Any, types: Mapping[str, str], label: str = ""
) -> tuple[list[Anomaly], Any]:
    """Check one split against the schema.

    Args:
        profile: The split.
        schema: The reviewed schema.
        types: The snapshot's columns that TFDV can read, with their Arrow types.
        label: The column to predict; whatever is wrong with it refuses the snapshot.

    Returns:
        What is wrong, and TFDV's own account (``Anomalies``).
    """
    account = tfdv.validate_statistics(profile.statistics, schema, environment(schema))
    columns = {feature.name: feature for feature in schema.feature}
    found = list(_retyped(profile, columns, types))
    known = {anomaly.column for anomaly in found} | (columns.keys() - types.keys())
    for name, info in sorted(account.anomaly_info.items()):
        if name not in known:
            for reason in info.reason:
                found.append(_from_tfdv(profile.split, name, reason, columns.get(name), types))
    whole = account.dataset_anomaly_info.reason
    found += [_from_tfdv(profile.split, "", reason, None, types) for reason in whole]
    found += _outside_booleans(profile, columns)
    return [_for_label(anomaly) if anomaly.column == label else anomaly for anomaly in found], account


def _retyped(profile: Profile, columns: Mapping[str, Any], types: Mapping[str, str]) -> Iterator[Anomaly]:
    for name, feature in by_column(profile.statistics).items():
        declared = columns.get(name)
        if declared is None or profile.missing(name) == profile.rows:
            continue
        wanted, got = schema_pb2.FeatureType.Name(declared.type), _FORMS[feature.type]
        if wanted != got:
            yield Anomaly(
                split=profile.split,
                column=name,
                kind="UNEXPECTED_DATA_TYPE",
                severity="BLOCK",
                what=f"column {name} has another type: expected {wanted}, got {got} "
                f"({types.get(name, 'unknown')}), such as {_example(feature)}",
            )


def _example(feature: Any) -> str:
    if feature.HasField("string_stats"):
        return next((repr(top.value) for top in feature.string_stats.top_values), "values too many to show")
    return f"{feature.num_stats.min:.6g}"


def _from_tfdv(split: str, name: str, reason: Any, declared: Any, types: Mapping[str, str]) -> Anomaly:
    kind = anomalies_pb2.AnomalyInfo.Type.Name(reason.type)
    text = reason.description.strip() or reason.short_description or kind.lower().replace("_", " ")
    what = f"column {name}: {text}" if name else f"split {split}: {text}"
    if kind == "SCHEMA_NEW_COLUMN":
        what = f"column {name} is new: {types.get(name, 'unknown')}, not in the schema"
    if kind == _SPARSE and (shares := re.findall(r"= ([0-9.]+)", text)):
        least, actual = (float(share.rstrip(".")) for share in shares)
        what = f"column {name}: {actual:.2%} of rows have a value, at least {least:.2%} must"
    return Anomaly(split, name, kind, _severity(kind, declared), what)


def _severity(kind: str, declared: Any) -> Severity:
    if kind in _BLOCK:
        return "BLOCK"
    if kind == _NEW_VALUES:
        tolerated = declared is not None and declared.HasField("distribution_constraints")
        return "HOLD" if tolerated else "WARN"
    return "WARN" if kind in _WARN else "HOLD"


def _for_label(anomaly: Anomaly) -> Anomaly:
    return replace(anomaly, severity="BLOCK", what=f"{anomaly.what}; it is the label")


def _outside_booleans(profile: Profile, columns: Mapping[str, Any]) -> Iterator[Anomaly]:
    """Find numbers other than 0 and 1 under a boolean domain, which TFDV does not check."""
    for name, feature in columns.items():
        boolean = feature.type == schema_pb2.INT and feature.HasField("bool_domain")
        if boolean and (others := sorted(profile.values(name).keys() - {"0", "1"})):
            what = f"column {name}: a boolean domain, but the values {', '.join(others[:5])} are there"
            yield Anomaly(profile.split, name, "BOOL_TYPE_BIG_INT", "HOLD", what)

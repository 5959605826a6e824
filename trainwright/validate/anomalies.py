"""Where the data is not what the schema says, and how much that matters.

TFDV finds. What it overlooks is found here: a column that is gone although the schema has it (TFDV is silent
if the schema asks for no presence), and a number outside a boolean domain.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainwright.validate.findings import Finding
from trainwright.validate.profile import Profile
from trainwright.validate.schema import TRAINING, environment, expected, optional
from trainwright.validate.statistics import by_column
from trainwright.validate.tfdv import anomalies_pb2, schema_pb2, statistics_pb2, tfdv

_SPARSE = "FEATURE_TYPE_LOW_FRACTION_PRESENT"
_NEW_VALUES = "ENUM_TYPE_UNEXPECTED_STRING_VALUES"
_FORMS = {
    statistics_pb2.FeatureNameStatistics.INT: "INT",
    statistics_pb2.FeatureNameStatistics.FLOAT: "FLOAT",
    statistics_pb2.FeatureNameStatistics.STRING: "BYTES",
    statistics_pb2.FeatureNameStatistics.BYTES: "BYTES",
    statistics_pb2.FeatureNameStatistics.STRUCT: "STRUCT",
}


def missing_columns(schema: Any, types: Mapping[str, str]) -> list[Finding]:
    """Find the columns that the schema has and the snapshot has not.

    Args:
        schema: The reviewed schema.
        types: The snapshot's columns, with their Arrow types.
    """
    return [
        Finding(
            column=name,
            kind="SCHEMA_MISSING_COLUMN",
            of_schema=True,
            what=f"column {name} is missing: the schema expects "
            f"{schema_pb2.FeatureType.Name(feature.type)}, the snapshot has no such column",
        )
        for name, feature in expected(schema).items()
        if name not in types and not optional(feature)
    ]


def missing_rows(splits: Mapping[str, int], names: Sequence[str], required: Sequence[str]) -> list[Finding]:
    """Find the splits without rows.

    A split that was never made is no finding of its own unless it is required: what was to be compared with
    it is not judged.

    Args:
        splits: Rows by split.
        names: Splits that are looked at.
        required: Those among them that must be there.
    """
    empty = [(name, f"split {name} has no rows") for name in dict.fromkeys(names) if splits.get(name) == 0]
    known = ", ".join(f"{name} ({rows:,} rows)" for name, rows in splits.items())
    empty += [
        (name, f"there is no split {name}; the snapshot has {known or 'none'}")
        for name in required
        if name not in splits
    ]
    return [Finding(split=name, kind="NO_DATA_IN_SPAN", what=what) for name, what in empty]


def nested_columns(schema: Any, foreign: Mapping[str, str]) -> list[Finding]:
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
            found.append(Finding(column=name, kind="SCHEMA_NEW_COLUMN", what=what, of_schema=True))
        elif declared[name] != schema_pb2.STRUCT:
            wanted = schema_pb2.FeatureType.Name(declared[name])
            what = f"column {name} has another type: expected {wanted}, got {kind}"
            found.append(Finding(column=name, kind="UNEXPECTED_DATA_TYPE", what=what, of_schema=True))
    return found


def check(
    profile: Profile, schema: Any, types: Mapping[str, str], where: str = TRAINING
) -> tuple[list[Finding], Any]:
    """Check one split against the schema.

    Args:
        profile: The split.
        schema: The reviewed schema.
        types: The snapshot's columns that TFDV can read, with their Arrow types.
        where: The environment: :data:`TRAINING` or :data:`SERVING`. Columns that are not known when a model
            predicts may be there all the same: both kinds of rows share one snapshot.

    Returns:
        What is wrong, and TFDV's own account (``Anomalies``).
    """
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


def _retyped(profile: Profile, columns: Mapping[str, Any], types: Mapping[str, str]) -> Iterator[Finding]:
    for name, feature in by_column(profile.statistics).items():
        declared = columns.get(name)
        if declared is None or profile.missing(name) == profile.rows:
            continue
        wanted, got = schema_pb2.FeatureType.Name(declared.type), _FORMS[feature.type]
        if wanted != got:
            yield Finding(
                split=profile.split,
                column=name,
                kind="UNEXPECTED_DATA_TYPE",
                of_schema=True,
                what=f"column {name} has another type: expected {wanted}, got {got} "
                f"({types.get(name, 'unknown')}), such as {_example(feature)}",
            )


def _example(feature: Any) -> str:
    if feature.HasField("string_stats"):
        return next((repr(top.value) for top in feature.string_stats.top_values), "values too many to show")
    return f"{feature.num_stats.min:.6g}"


def _from_tfdv(split: str, name: str, reason: Any, declared: Any, types: Mapping[str, str]) -> Finding:
    kind = anomalies_pb2.AnomalyInfo.Type.Name(reason.type)
    text = reason.description.strip() or reason.short_description or kind.lower().replace("_", " ")
    what = f"column {name}: {text}" if name else f"split {split}: {text}"
    if kind == "SCHEMA_NEW_COLUMN":
        what = f"column {name} is new: {types.get(name, 'unknown')}, not in the schema"
    if kind == _SPARSE and (shares := re.findall(r"= ([0-9.]+)", text)):
        least, actual = (float(share.rstrip(".")) for share in shares)
        what = f"column {name}: {actual:.2%} of rows have a value, at least {least:.2%} must"
    # Values outside a domain are told, unless the schema says how many of them are borne: these are too many.
    strict = kind == _NEW_VALUES and declared is not None and declared.HasField("distribution_constraints")
    return Finding(
        split=split, column=name, kind=kind, severity="HOLD" if strict else "", what=what, of_schema=True
    )


def _outside_booleans(profile: Profile, columns: Mapping[str, Any]) -> Iterator[Finding]:
    """Find numbers other than 0 and 1 under a boolean domain, which TFDV does not check."""
    for name, feature in columns.items():
        boolean = feature.type == schema_pb2.INT and feature.HasField("bool_domain")
        if boolean and (others := sorted(profile.values(name).keys() - {"0", "1"})):
            what = f"column {name}: a boolean domain, but the values {', '.join(others[:5])} are there"
            yield Finding(
                split=profile.split, column=name, kind="BOOL_TYPE_BIG_INT", what=what, of_schema=True
            )

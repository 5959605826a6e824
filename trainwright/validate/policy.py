"""The limits that the columns of a schema are compared with, and the faults of the section ``validation``."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from trainwright.artifacts import SnapshotTarget
from trainwright.drift.findings import JENSEN_SHANNON, L_INFINITY, OURS, Limit, learned_from
from trainwright.experiment import SeverityRule, Suppression, Validation
from trainwright.validate.schema import expected, kind, reject_faults
from trainwright.validate.tfdv import anomalies_pb2


def plan(
    schema: Any,
    validation: Validation,
    roles: Mapping[str, str],
    target: SnapshotTarget = SnapshotTarget(),  # noqa: B008
) -> tuple[Limit, ...]:
    """Return a limit for every column of the schema, unless it is ignored or is the key or the time.

    Raises:
        InputError: The section names an unknown column, or a measure that does not fit one; all faults are
            named.
    """
    columns = expected(schema)
    faults = [*_split_faults(validation, roles, target), *_column_faults(columns, validation)]
    reject_faults([*faults, *_policy_faults(validation, columns)], "parameter validation")
    left_out = {*validation.ignore, roles.get("key"), roles.get("time")} - validation.drift.keys()
    limits = []
    for name, feature in columns.items():
        holds = kind(feature)
        if name in left_out:
            continue
        if own := validation.drift.get(name):
            limits.append(Limit(name, holds, own.comparator, own.threshold))
        elif holds == "numbers":
            limits.append(Limit(name, holds, JENSEN_SHANNON, validation.numeric_threshold))
        else:
            limits.append(Limit(name, holds, L_INFINITY, validation.categorical_threshold))
    return tuple(limits)


def _split_faults(validation: Validation, roles: Mapping[str, str], target: SnapshotTarget) -> Iterator[str]:
    if validation.current == validation.previous:
        yield f"current and previous are both {validation.current!r}: a split never moves from itself"
    if validation.serving == learned_from(validation):
        yield f"serving is {validation.serving!r}, which the model learns from: it never moves from itself"
    if validation.quarantine and "key" not in roles:
        yield "quarantine: the rows have no key (data.key), so nobody could leave them out"
    if validation.min_label_share and "label" not in roles:
        yield "min_label_share: the rows have no label (data.label)"
    elif validation.min_label_share and target.kind == "regression":
        yield "min_label_share: the label is a number, whose values have no shares; remove it"


def _column_faults(columns: Mapping[str, Any], validation: Validation) -> Iterator[str]:
    def unknown(name: str) -> str:
        close = difflib.get_close_matches(name, columns, n=3)
        advice = f"did you mean {', '.join(close)}?" if close else f"known are {', '.join(columns)}"
        return f"no column {name!r} in the schema; {advice}"

    for name, limit in validation.drift.items():
        if name not in columns:
            yield f"drift.{name}: {unknown(name)}"
        elif name in validation.ignore:
            yield f"drift.{name}: also in ignore"
        elif kind(columns[name]) == "numbers" and limit.comparator == L_INFINITY:
            yield (
                f"drift.{name}: infinity_norm counts single values, and for numbers TFDV reports 0 for ever; "
                "use jensen_shannon_divergence for numeric columns, or declare it a category in the schema "
                "(int_domain { is_categorical: true })"
            )
    yield from (f"ignore: {unknown(name)}" for name in validation.ignore if name not in columns)


def _policy_faults(validation: Validation, columns: Mapping[str, Any]) -> Iterator[str]:
    """Name the rules and suppressions that can never fit anything."""
    kinds = OURS | set(anomalies_pb2.AnomalyInfo.Type.keys())
    entries: dict[str, Sequence[SeverityRule | Suppression]] = {
        "severity": validation.severity,
        "suppressions": validation.suppressions,
    }
    for section, own in entries.items():
        for place, entry in enumerate(own):
            if not any(fnmatchcase(kind, entry.kind) for kind in kinds):
                yield f"{section}.{place}.kind: no kind of finding is called {entry.kind!r}"
            known = entry.column is None or entry.column in {*columns, *validation.joined}
            if not known and entry.kind != "SCHEMA_NEW_COLUMN":
                yield f"{section}.{place}.column: no column {entry.column!r} in the schema"


def split_names(validation: Validation) -> list[str]:
    """Return the splits that are compared, the reference of the drift first."""
    names = (validation.previous, validation.current, learned_from(validation), validation.serving)
    return [name for name in dict.fromkeys(names) if name]

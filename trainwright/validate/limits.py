"""Which columns are compared, by what measure, and how far each may move."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainwright.errors import InputError
from trainwright.experiment import Validation
from trainwright.validate.policy import policy_faults
from trainwright.validate.schema import SERVING, Kind, expected, kind

JENSEN_SHANNON, L_INFINITY = "jensen_shannon_divergence", "infinity_norm"
"""The comparators, as TFDV and the experiment file call them."""

MEASURES = {JENSEN_SHANNON: "Jensen-Shannon", L_INFINITY: "L-infinity"}
"""The comparators, as people call them."""


@dataclass(frozen=True)
class Limit:
    """How far one column may move.

    Attributes:
        column: Its name.
        kind: What the column holds.
        comparator: :data:`JENSEN_SHANNON` or :data:`L_INFINITY`.
        threshold: Largest accepted distance, a fraction in [0, 1].
    """

    column: str
    kind: Kind
    comparator: str
    threshold: float


def plan(schema: Any, validation: Validation, roles: Mapping[str, str]) -> tuple[Limit, ...]:
    """Give every column of the schema a limit, unless it is ignored or is the key or the time.

    Args:
        schema: The reviewed schema.
        validation: Which columns are ignored, and which have limits of their own.
        roles: Column names by role.

    Raises:
        InputError: The section names an unknown column, or asks for a measure that cannot see; all faults
            are named.
    """
    columns = expected(schema)
    if faults := [*_faults(columns, validation, roles), *policy_faults(validation, list(columns))]:
        count = "1 thing is" if len(faults) == 1 else f"{len(faults)} things are"
        raise InputError(
            f"{count} wrong\n" + "\n".join(f"  {fault}" for fault in faults), where="parameter validation"
        )
    left_out = {*validation.ignore, roles.get("key"), roles.get("time")} - validation.drift.keys()
    return tuple(
        _limit(name, feature, validation) for name, feature in columns.items() if name not in left_out
    )


def served(limits: Sequence[Limit], schema: Any) -> tuple[Limit, ...]:
    """Return the limits of the columns that are known when a model predicts."""
    known = expected(schema, SERVING)
    return tuple(limit for limit in limits if limit.column in known)


def _limit(name: str, feature: Any, validation: Validation) -> Limit:
    holds = kind(feature)
    if own := validation.drift.get(name):
        return Limit(name, holds, own.comparator, own.threshold)
    if holds == "numbers":
        return Limit(name, holds, JENSEN_SHANNON, validation.numeric_threshold)
    return Limit(name, holds, L_INFINITY, validation.categorical_threshold)


def _faults(columns: Mapping[str, Any], validation: Validation, roles: Mapping[str, str]) -> Iterator[str]:
    if validation.current == validation.previous:
        yield f"current and previous are both {validation.current!r}: a split never moves from itself"
    if validation.serving == learned_from(validation):
        yield f"serving is {validation.serving!r}, which the model learns from: it never moves from itself"
    if validation.quarantine and "key" not in roles:
        yield "quarantine: the rows have no key (data.key), so nobody could leave them out"
    if validation.min_label_share and "label" not in roles:
        yield "min_label_share: the rows have no label (data.label)"
    yield from _drift_faults(columns, validation)
    for name in validation.ignore:
        if name not in columns:
            yield f"ignore: {_unknown(name, list(columns))}"


def _drift_faults(columns: Mapping[str, Any], validation: Validation) -> Iterator[str]:
    for name in validation.drift:
        if name not in columns:
            yield f"drift.{name}: {_unknown(name, list(columns))}"
        elif name in validation.ignore:
            yield f"drift.{name}: also in ignore"
        elif kind(columns[name]) == "numbers" and validation.drift[name].comparator == L_INFINITY:
            yield (
                f"drift.{name}: infinity_norm counts single values, and for numbers TFDV reports 0 for ever; "
                "use jensen_shannon_divergence for numeric columns, or declare it a category in the schema "
                "(int_domain { is_categorical: true })"
            )


def learned_from(validation: Validation) -> str:
    """Return the split that the model learns from."""
    return validation.trained_on or validation.previous


def _unknown(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    advice = f"did you mean {', '.join(close)}?" if close else f"known are {', '.join(known)}"
    return f"no column {name!r} in the schema; {advice}"

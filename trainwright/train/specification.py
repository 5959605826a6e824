"""What the processes of a training job are told, and what they read. Standard library only.

The launcher checks here what can be checked before anything is started: it has neither torch nor pyarrow.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from trainwright.artifacts import Snapshot
from trainwright.documents import Document, canonical
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import LanguageModel, Network

_KINDS: tuple[tuple[str, Literal["number", "category", "time"]], ...] = (
    (r"u?int(8|16|32|64)|halffloat|float|double|decimal\w*\(.*\)", "number"),
    (r"(large_)?string(_view)?|bool|dictionary<values=(large_)?string.*>", "category"),
    (r"timestamp\[.*\]|date(32|64)\[.*\]", "time"),
)
_LABELS = r"bool|u?int(8|16|32|64)|halffloat|float|double|decimal\w*\(.*\)"
_SCORE = "score"
"""``trainwright.serving.outputs.SCORE``, whose room needs numpy, which the launcher has not."""

_TOKENS = r"(large_)?list<\w+: u?int(8|16|32|64)( not null)?>"


@dataclass(frozen=True, kw_only=True)
class Specification(Document):
    """What every process of a training job is told.

    Attributes:
        attempt: Name of the attempt, which its completion marker repeats: a number that rises.
        home: Folder that all attempts at this training share.
        training_set: Folder of the training-set snapshot.
        data_version: Digest that its manifest must have.
        network: The experiment's section of that name.
        training: The experiment's section of that name.
        processes: Number of processes in the whole job.
        gpus: GPUs a node; 0 trains on the CPU.
        launched_by: The launcher and its environment, for the record.
        destination: Where the curves go while they grow, as ``uri``, ``run`` and so on; empty: nowhere yet.
        failed_report: Where in a store the page of a training that failed goes; empty: into no store.
    """

    FILE: ClassVar[str] = "spec.json"
    attempt: str
    home: str
    training_set: str
    data_version: str
    network: dict[str, Any]
    training: dict[str, Any]
    processes: int
    gpus: int = 0
    launched_by: dict[str, str] = field(default_factory=dict)
    destination: dict[str, str] = field(default_factory=dict)
    failed_report: str = ""

    @property
    def pinned(self) -> dict[str, Any]:
        """What decides the training's result."""
        return pinned(self.data_version, self.network, self.training)


MAY_CHANGE = frozenset(
    {
        "predict",
        "micro_batch",
        "compile",
        "recompute",
        "parallel",
        "feeding",
        "checkpoints",
        "guards",
        "tracking",
    }
)
"""Settings of a training that may differ when it is gone on with: they do not decide its result, but for
rounding, or they only say what is done when it goes wrong."""


def pinned(data_version: str, network: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides a training's result: only one that was told the same is gone on with.

    The number of processes is not part of it; a checkpoint is read by any number.
    """
    kept = {key: value for key, value in training.items() if key not in MAY_CHANGE}
    return {"data_version": data_version, "network": dict(network), "training": kept}


def differences(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> list[str]:
    """Name every entry of nested plain data that differs, with both values."""
    found: list[str] = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{path}{key}.")
        elif canonical(old) != canonical(new):
            found.append(f"{path}{key} was {canonical(old):.60} and is {canonical(new):.60}")
    return found


def input_kinds(snapshot: Snapshot) -> dict[str, Literal["number", "category", "time"]]:
    """Return what each input column is: every column but the key, the time and the label.

    Numbers are numbers; strings and booleans are categories; timestamps and dates are times. A column of
    type ``null`` holds nothing and counts as a number that is always missing.

    Raises:
        InputError: A column has a type that the network cannot read, or there is no input column.
    """
    columns = [column for column in snapshot.columns if column.name not in snapshot.roles.values()]
    kinds: dict[str, Literal["number", "category", "time"]] = {}
    refused = []
    for column in columns:
        matches = [kind for pattern, kind in _KINDS if re.fullmatch(pattern, column.type)]
        if matches or column.type == "null":
            kinds[column.name] = matches[0] if matches else "number"
        else:
            refused.append(f"{column.name} ({column.type})")
    if refused:
        raise InputError(
            f"the network cannot read these columns: {', '.join(refused)}",
            where="training set",
            hint="Leave them out of features.request or of the feature service, or turn them into numbers.",
        )
    if not kinds:
        raise InputError(
            f"no input columns: there are only {', '.join(column.name for column in snapshot.columns)}",
            where="training set",
            hint="Name columns in features.request, or features in the feature service.",
        )
    return kinds


def check_snapshot(snapshot: Snapshot, splits: Sequence[str], network: Network | None = None) -> None:
    """Check that a training set can be learned from, as far as its manifest tells.

    Args:
        snapshot: Manifest of the training set.
        splits: Every split that is learned from or scored; the first is learned from.
        network: What is to learn from it.

    Raises:
        InputError: There is no label column, or it is of a wrong type; a split or every input is missing; a
            split that is learned from is to be scored.
        DataRefused: A split is there and holds no rows.
    """
    types = {column.name: column.type for column in snapshot.columns}
    if isinstance(network, LanguageModel):
        _check_tokens(types, network)
        _check_splits(snapshot.splits, splits)
        return
    label = snapshot.roles.get("label", "")
    if label not in types:
        close = ", ".join(difflib.get_close_matches(label, types, n=3)) or ", ".join(types)
        raise InputError(f"no label column {label!r}; there are {close}", where="training set")
    if not re.fullmatch(_LABELS, types[label]):
        raise InputError(
            f"label {label!r} is of type {types[label]}; a label is a number or a bool",
            where="training set",
        )
    if taken := [name for name in types if re.fullmatch(rf"{_SCORE}(_\d+)?", name)]:
        raise InputError(
            f"the training set has a column {taken[0]!r}, which is the name that the predictions' scores get",
            where="training set",
            hint="Rename it where it is made.",
        )
    _check_splits(snapshot.splits, splits)
    input_kinds(snapshot)


def _check_tokens(types: Mapping[str, str], network: LanguageModel) -> None:
    name = network.tokens
    if name not in types:
        close = ", ".join(difflib.get_close_matches(name, types, n=3)) or ", ".join(types)
        raise InputError(f"no column {name!r} of tokens; there are {close}", where="network.tokens")
    if not re.fullmatch(_TOKENS, types[name]):
        raise InputError(
            f"column {name!r} is of type {types[name]}; tokens are a list of whole numbers a row",
            where="network.tokens",
        )
    if network.separator is not None and network.separator >= network.vocabulary:
        raise InputError(
            f"separator {network.separator} is outside the vocabulary of {network.vocabulary:,}",
            where="network.separator",
        )


def _check_splits(counts: Mapping[str, int], splits: Sequence[str]) -> None:
    if splits[0] in splits[1:]:
        raise InputError(
            f"split {splits[0]!r} is learned from, so its scores would judge nothing",
            where="training.predict",
            hint="Score a split of its own.",
        )
    known = ", ".join(f"{name} ({rows:,} rows)" for name, rows in counts.items())
    if missing := [name for name in splits if name not in counts]:
        raise InputError(
            f"no split {', '.join(map(repr, missing))}; this training set has {known}", where="training set"
        )
    if empty := [name for name in splits if not counts[name]]:
        raise DataRefused(f"no rows in split {', '.join(map(repr, empty))}", where="training set")

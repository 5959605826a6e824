"""Checks of a request before anything starts, without torch and without pyarrow."""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright.artifacts import Snapshot
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import LanguageModel, Network, Training, Trees
from trainwright.launch.redaction import holds_secret
from trainwright.storage.uris import remote
from trainwright.train.config import Degrees, TrainConfig, degrees_of, input_kinds, multiples_near

_LABELS = r"bool|u?int(8|16|32|64)|halffloat|float|double|decimal\w*\(.*\)"
_TOKENS = r"(large_)?list<\w+: u?int(8|16|32|64)( not null)?>"
_SCORE = "score"
"""``trainwright.serving.outputs.SCORE``, whose package needs numpy; the launcher's image has none."""

_NOT_PARALLEL = ("mlp", "ft_transformer", "trees")
"""Kinds without pipeline stages and tensor parallelism."""


def check_request(config: TrainConfig, training_set: Path) -> None:
    """Check everything that can be checked without reading rows.

    Raises:
        InputError: The settings do not suit the model, the data or the number of processes.
        DataRefused: A split is empty.
    """
    network, training = config.model, config.settings
    check_network(network, training, config.processes, config.gpus)
    store = remote(training.checkpoints.store) if training.checkpoints.store else None
    if store and store.scheme == "https":
        raise InputError(
            f"checkpoints cannot be written to {store.scheme}",
            where="training.checkpoints.store",
            hint="Name a folder, or a bucket: gs:// or s3://.",
        )
    snapshot = Snapshot.open(training_set, config.data_version)
    early = training.guards.early_stopping
    splits = [training.split, *training.predict, *([early.split] if early else [])]
    check_snapshot(snapshot, splits, network)


def check_secrets(sections: Mapping[str, object]) -> None:
    """Reject parameters that hold a credential: they are stored, and shown on the page of the run.

    Args:
        sections: Each section by name: a JSON object, or the text of one.

    Raises:
        InputError: One does; the message names its place and not its value.
    """

    def find(value: Any, place: str) -> Iterator[str]:
        if isinstance(value, Mapping):
            for key, entry in value.items():
                yield from find(entry, f"{place}.{key}")
        elif isinstance(value, list):
            for number, entry in enumerate(value):
                yield from find(entry, f"{place}.{number}")
        elif isinstance(value, str) and holds_secret(value):
            yield place

    def parse(section: object) -> Any:
        try:
            return json.loads(section) if isinstance(section, str) else section
        except ValueError:
            return section

    if found := [place for name, text in sections.items() for place in find(parse(text), name)]:
        raise InputError(
            f"this looks like a credential, which would be stored and shown with the run: {', '.join(found)}",
            where="parameters of train",
            hint="Remove it, and revoke it where it was issued: a step has its own identity; list other "
            "secrets in resources.placement.env_from_secrets.",
        )


def check_network(network: Network, training: Training, processes: int, gpus: int) -> None:
    """Check that a kind of model supports the settings, on so many processes.

    Args:
        network: The model.
        training: The settings.
        processes: Number of processes in the whole job.
        gpus: GPUs per node.

    Raises:
        InputError: It does not; lists everything that is not supported.
    """
    if isinstance(network, Trees):
        if wrong := list(_unsupported_by_trees(training, gpus)):
            raise InputError("; ".join(wrong), where="network.kind trees")
        return
    if isinstance(network, LanguageModel):
        objective = training.objective
        if names := [*(["kind"] if objective.kind != "auto" else []), *objective.of_classes]:
            raise InputError(
                f"{', '.join(f'training.objective.{name}' for name in names)}: for a label; network.kind lm "
                "learns the next token",
                where="network.kind lm",
                hint="Leave it out.",
            )
    check_parallelism(network, training, processes)


def _unsupported_by_trees(training: Training, gpus: int) -> Iterator[str]:
    objective, checkpoints = training.objective, training.checkpoints
    if gpus:
        yield f"resources.gpus {gpus}: trees are trained on the CPU; set 0"
    if objective.focal:
        yield (
            f"training.objective.focal {objective.focal:g}: trees are trained with the cross-entropy alone; "
            "class_weights: balanced weighs the classes alike"
        )
    if objective.sampling != "none":
        yield (
            f"training.objective.sampling {objective.sampling}: every round sees all rows; class_weights: "
            "balanced weighs the classes alike"
        )
    parallel = training.parallel
    if max(parallel.shard, parallel.tensor, parallel.pipeline) > 1:
        yield "training.parallel: trees are trained by one process per machine, each on its share of the rows"
    if checkpoints.store:
        yield f"training.checkpoints.store {checkpoints.store!r}: trees are saved in the job directory alone"
    if training.precision != "float32" or training.compile or training.recompute:
        yield "training.precision, compile and recompute are for networks"


def check_parallelism(network: Network, training: Training, processes: int) -> Degrees:
    """Check that a training supports its degrees of parallelism, and return them.

    Raises:
        InputError: It does not; names everything that does not fit with both numbers.
    """
    found = degrees_of(training.parallel, processes)
    wrong = [*_batch_conflicts(training, found), *_network_conflicts(network, found)]
    if training.compile and found.tensor > 1:
        what = f"compile and tensor {found.tensor}: torch.compile fails on split matrices; use one of them"
        wrong.append(("training.compile", what))
    if wrong:
        raise InputError("\n".join(what for _, what in wrong), where=", ".join(dict(wrong)))
    return found


def _batch_conflicts(training: Training, found: Degrees) -> Iterator[tuple[str, str]]:
    size, parts, parallel = training.batch_size, found.parts, training.parallel
    if size % parts:
        yield (
            "training.batch_size",
            f"batch_size {size} cannot be shared evenly by {parts} processes. "
            f"Use {multiples_near(size, parts)}.",
        )
    streams = training.feeding.streams
    if streams and streams % parts:
        yield (
            "training.feeding.streams",
            f"{streams} streams cannot be shared evenly by {parts} data-parallel processes. Use "
            f"{multiples_near(streams, parts)}.",
        )
    if found.pipeline == 1:
        return
    if training.micro_batch:
        yield (
            "training.micro_batch",
            f"micro_batch {training.micro_batch} and pipeline {found.pipeline} both split a share; use "
            "parallel.micro_batches alone",
        )
    if parallel.in_flight < found.pipeline and parallel.schedule == "1f1b":
        yield (
            "training.parallel.micro_batches",
            f"{parallel.in_flight} micro-batches do not fill the {found.pipeline} stages of 1f1b",
        )
    if parallel.in_flight > size // parts:
        yield (
            "training.parallel.micro_batches",
            f"a share of {size // parts} samples (batch_size {size} over {parts}) has fewer than "
            f"{parallel.in_flight} micro-batches",
        )


def _network_conflicts(network: Network, found: Degrees) -> Iterator[tuple[str, str]]:
    for name, degree in (("tensor", found.tensor), ("pipeline", found.pipeline)):
        if degree > 1 and network.kind in _NOT_PARALLEL:
            yield (
                f"training.parallel.{name}",
                f"network.kind {network.kind!r} does not support {name} {degree}",
            )
    if not isinstance(network, LanguageModel):
        return
    split = {"heads": network.heads, "groups": network.groups, "hidden": network.units}
    for name, size in split.items():
        if size and size % found.tensor:
            yield f"network.{name}", f"{name} {size} cannot be divided evenly by tensor {found.tensor}"
    if network.layers < found.pipeline:
        yield "network.layers", f"{network.layers} layers are too few for pipeline {found.pipeline} stages"
    if network.tied and found.pipeline > 1:
        yield (
            "network.tied",
            f"a tied embedding is at both ends of pipeline {found.pipeline}; set tied to false",
        )


def check_snapshot(snapshot: Snapshot, splits: Sequence[str], network: Network | None = None) -> None:
    """Check that a training set suits a training, as far as its manifest tells.

    Args:
        snapshot: Manifest of the training set.
        splits: The training split first, then all splits to score or watch.
        network: The model.

    Raises:
        InputError: The label column is missing or of a wrong type; a split or every input is missing; the
            training split is to be scored.
        DataRefused: A split has no rows.
    """
    types = {column.name: column.type for column in snapshot.columns}
    if isinstance(network, LanguageModel):
        _check_tokens(types, network)
        _check_splits(snapshot.splits, splits)
        return
    label = snapshot.roles.get("label", "")
    if label not in types:
        raise InputError(
            f"no label column {label!r}; there are {_similar(label, types)}", where="training set"
        )
    if not re.fullmatch(_LABELS, types[label]):
        raise InputError(
            f"label {label!r} is of type {types[label]}; a label is a number or a bool",
            where="training set",
        )
    if taken := [name for name in types if re.fullmatch(rf"{_SCORE}(_\d+)?", name)]:
        raise InputError(
            f"the training set has a column {taken[0]!r}, the name of the predictions' scores",
            where="training set",
            hint="Rename it at its source.",
        )
    _check_splits(snapshot.splits, splits)
    input_kinds(snapshot)


def _similar(name: str, names: Mapping[str, str]) -> str:
    return ", ".join(difflib.get_close_matches(name, names, n=3)) or ", ".join(names)


def _check_tokens(types: Mapping[str, str], network: LanguageModel) -> None:
    name = network.tokens
    if name not in types:
        raise InputError(
            f"no column {name!r} of tokens; there are {_similar(name, types)}", where="network.tokens"
        )
    if not re.fullmatch(_TOKENS, types[name]):
        raise InputError(
            f"column {name!r} is of type {types[name]}; tokens are a list of whole numbers per row",
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
            f"split {splits[0]!r} is trained on, so its scores would judge nothing",
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

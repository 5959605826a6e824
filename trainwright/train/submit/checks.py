"""Checks of a request before anything starts, without torch and without pyarrow."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence

from trainwright.artifacts import Snapshot
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Auto, LanguageModel, Network, ResolvedTraining, Resources, Trees
from trainwright.experiment.training import Objective
from trainwright.storage.uris import remote
from trainwright.train.config import Degrees, TrainConfig, degrees_of, input_kinds, multiples_near

_LABELS = r"bool|u?int(8|16|32|64)|halffloat|float|double|decimal\w*\(.*\)"
_TOKENS = r"(large_)?list<\w+: u?int(8|16|32|64)( not null)?>"
_TEXT = r"(large_)?string"
_SCORE = r"score(_\d+)?"
"""Columns of scores, as in ``trainwright.serving.outputs``: that package needs numpy, this image has none."""

_NOT_PARALLEL = ("mlp", "ft_transformer", "trees", "auto")
"""Kinds without pipeline stages and tensor parallelism."""


def check_request(config: TrainConfig, snapshot: Snapshot) -> None:
    """Check all that needs no rows; raise InputError, or DataRefused for an empty split."""
    network, training = config.model, config.settings
    check_network(network, training, config.processes, config.gpus)
    store = remote(training.checkpoints.store) if training.checkpoints.store else None
    if store and store.scheme == "https":
        raise InputError(
            f"checkpoints cannot be written to {store.scheme}",
            where="training.checkpoints.store",
            hint="Name a folder, or a bucket: gs:// or s3://.",
        )
    early = training.guards.early_stopping
    splits = [training.split, *training.predict, *([early.split] if early and early.split else [])]
    if early and early.share and "key" not in snapshot.roles:
        raise InputError(
            "rows are held out by a hash of their key, and the training set has none",
            where="training.guards.early_stopping.share",
            hint="Run ingest again, which numbers rows without data.key, or watch a split.",
        )
    check_target(snapshot, network, training.objective)
    check_snapshot(snapshot, splits, network)


def check_target(snapshot: Snapshot, network: Network, objective: Objective) -> None:
    """Check that the network and the objective suit the target of the training set; raise InputError."""
    kind, label = snapshot.target.kind, snapshot.roles.get("label", "")
    if isinstance(network, LanguageModel):
        return
    if kind == "text":
        raise InputError(
            f"the training set has no label, and network.kind {network.kind} predicts one",
            where="data.label",
            hint="Name the column to predict in data.label, or learn text with network.kind lm.",
        )
    if wrong := objective.undefined_for(kind):
        raise InputError(
            f"{'; '.join(wrong)}, and label {label!r} is {kind}",
            where="training.objective",
            hint="Leave it out, or correct data.label_kind.",
        )


def check_network(network: Network, training: ResolvedTraining, processes: int, gpus: int) -> None:
    """Check that a kind of model supports the settings; raise InputError with all that it does not."""
    if isinstance(network, Trees | Auto):
        wrong = list(_unsupported_by_trees(training, gpus))
        if isinstance(network, Auto) and training.guards.early_stopping is None:
            wrong.append("training.guards.early_stopping is off, and its held-out rows choose the network")
        if wrong:
            raise InputError("; ".join(wrong), where=f"network.kind {network.kind}")
        if isinstance(network, Trees):
            return
    if isinstance(network, LanguageModel) and (wrong := training.objective.undefined_for("language_model")):
        raise InputError("; ".join(wrong), where="training.objective", hint="Leave it out.")
    check_parallelism(network, training, processes)


def _unsupported_by_trees(training: ResolvedTraining, gpus: int) -> Iterator[str]:
    objective, parallel, checkpoints = training.objective, training.parallel, training.checkpoints
    instead = "class_weights: balanced weighs the classes alike"
    if gpus:
        yield f"resources.gpus {gpus}: trees are trained on the CPU; set 0"
    if objective.focal:
        focal = f"training.objective.focal {objective.focal:g}"
        yield f"{focal}: trees are trained with the cross-entropy alone; {instead}"
    if objective.sampling != "none":
        yield f"training.objective.sampling {objective.sampling}: every round sees all rows; {instead}"
    if max(parallel.shard, parallel.tensor, parallel.pipeline) > 1:
        yield "training.parallel: trees are trained by one process per machine, each on its share of the rows"
    if checkpoints.store:
        yield f"training.checkpoints.store {checkpoints.store!r}: trees are saved in the job directory alone"
    if training.precision != "float32" or training.compile or training.recompute:
        yield "training.precision, compile and recompute are for networks"


def check_parallelism(network: Network, training: ResolvedTraining, processes: int) -> None:
    """Check the degrees of parallelism; raise InputError with all that does not fit, and both numbers."""
    found = degrees_of(training.parallel, processes)
    wrong = [*_batch_conflicts(training, found), *_network_conflicts(network, found)]
    if training.compile and found.tensor > 1:
        what = f"compile and tensor {found.tensor}: torch.compile fails on split matrices; use one of them"
        wrong.append(("training.compile", what))
    if wrong:
        raise InputError("\n".join(what for _, what in wrong), where=", ".join(dict(wrong)))


def check_elastic(training: ResolvedTraining, resources: Resources) -> None:
    """Check that an elastic job can train at every number of nodes; raise InputError if not."""
    least, most = resources.placement.min_nodes or resources.nodes, resources.nodes
    if least == most:
        return
    parallel, wrong = training.parallel, []
    rest = parallel.pipeline * parallel.shard * parallel.tensor
    if parallel.replicate is not None:
        wrong.append(f"replicate {parallel.replicate} is fixed; leave it out, so that it follows the nodes")
    if bad := [nodes for nodes in range(least, most + 1) if nodes * resources.processes % rest]:
        wrong.append(
            f"pipeline x shard x tensor = {rest} does not divide {bad[0] * resources.processes} processes, "
            f"on {bad[0]} nodes; use a divisor of resources.processes {resources.processes}"
        )
    if wrong:
        where = f"training.parallel, with resources.placement.min_nodes {least}"
        raise InputError("\n".join(wrong), where=where)


def _batch_conflicts(training: ResolvedTraining, found: Degrees) -> Iterator[tuple[str, str]]:
    size, parts, parallel = training.batch_size, found.parts, training.parallel
    if size < parts:
        what = f"batch_size {size} has no sample for each of {parts} processes. Use {parts} or more."
        yield "training.batch_size", what
    elif size % parts and found.pipeline > 1:
        near = multiples_near(size, parts)
        what = f"batch_size {size} cannot be shared evenly by {parts} processes. Use {near}."
        yield "training.batch_size", what
    if found.pipeline == 1:
        return
    if training.micro_batch:
        yield (
            "training.micro_batch",
            f"micro_batch {training.micro_batch} and pipeline {found.pipeline} both split a share; use "
            "parallel.micro_batches alone",
        )
    count, where = parallel.in_flight, "training.parallel.micro_batches"
    if count < found.pipeline and parallel.schedule == "1f1b":
        yield where, f"{count} micro-batches do not fill the {found.pipeline} stages of 1f1b"
    if count > size // parts:
        share = f"a share of {size // parts} samples (batch_size {size} over {parts})"
        yield where, f"{share} has fewer than {count} micro-batches"


def _network_conflicts(network: Network, found: Degrees) -> Iterator[tuple[str, str]]:
    for name, degree in (("tensor", found.tensor), ("pipeline", found.pipeline)):
        if degree > 1 and network.kind in _NOT_PARALLEL:
            what = f"network.kind {network.kind!r} does not support {name} {degree}"
            yield f"training.parallel.{name}", what
    if not isinstance(network, LanguageModel):
        return
    for name, size in (("heads", network.heads), ("groups", network.groups), ("hidden", network.units)):
        if size and size % found.tensor:
            yield f"network.{name}", f"{name} {size} cannot be divided evenly by tensor {found.tensor}"
    if network.layers < found.pipeline:
        yield "network.layers", f"{network.layers} layers are too few for pipeline {found.pipeline} stages"
    if network.tied and found.pipeline > 1:
        what = f"a tied embedding is at both ends of pipeline {found.pipeline}; set tied to false"
        yield "network.tied", what


def check_snapshot(snapshot: Snapshot, splits: Sequence[str], network: Network) -> None:
    """Check that a training set suits a training, as far as its manifest tells.

    ``splits`` are the training split first, then all splits to score or watch.

    Raises:
        InputError: The label column is missing or of a wrong type; a split or every input is missing; the
            training split is the only one that is scored.
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
        what = f"label {label!r} is of type {types[label]}; a label is a number or a bool"
        raise InputError(what, where="training set")
    if taken := [name for name in types if re.fullmatch(_SCORE, name)]:
        raise InputError(
            f"the training set has a column {taken[0]!r}, the name of the predictions' scores",
            where="training set",
            hint="Rename it at its source; a column that is no feature may stay, under features.exclude.",
        )
    _check_splits(snapshot.splits, splits)
    input_kinds(snapshot)


def _similar(name: str, names: Mapping[str, str]) -> str:
    return ", ".join(difflib.get_close_matches(name, names, n=3)) or ", ".join(names)


def _check_tokens(types: Mapping[str, str], network: LanguageModel) -> None:
    name, where = network.column, f"network.{'text' if network.text else 'tokens'}"
    if name not in types:
        what = f"no column {name!r} of {'text' if network.text else 'tokens'}"
        raise InputError(f"{what}; there are {_similar(name, types)}", where=where)
    if network.text and not re.fullmatch(_TEXT, types[name]):
        raise InputError(
            f"column {name!r} is of type {types[name]}; text is a string per row",
            where=where,
            hint="Name a column of strings, or a column of token ids in network.tokens.",
        )
    if not network.text and not re.fullmatch(_TOKENS, types[name]):
        hint = "Name a column of strings in network.text." if re.fullmatch(_TEXT, types[name]) else ""
        raise InputError(
            f"column {name!r} is of type {types[name]}; tokens are a list of whole numbers per row",
            where=where,
            hint=hint,
        )
    if network.separator is not None and network.separator >= network.token_ids:
        raise InputError(
            f"separator {network.separator} is outside the vocabulary of {network.token_ids:,}",
            where="network.separator",
        )


def _check_splits(counts: Mapping[str, int], splits: Sequence[str]) -> None:
    if splits[1:] and set(splits) == {splits[0]}:
        raise InputError(
            f"split {splits[0]!r} is trained on, and no other is scored, so nothing can be judged",
            where="training.predict",
            hint="Score a split of its own; the training split beside it is for evaluation.overfitting.",
        )
    known = ", ".join(f"{name} ({rows:,} rows)" for name, rows in counts.items())
    if missing := [name for name in splits if name not in counts]:
        raise InputError(
            f"no split {', '.join(map(repr, missing))}; this training set has {known}", where="training set"
        )
    if empty := [name for name in splits if not counts[name]]:
        raise DataRefused(f"no rows in split {', '.join(map(repr, empty))}", where="training set")

"""What is asked for of a model that does not do it: told by the launcher, before anything starts."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trainwright.errors import InputError
from trainwright.experiment import LanguageModel, Network, Training, Trees
from trainwright.launch.redaction import holds_secret
from trainwright.storage.uris import remote
from trainwright.train.degrees import check_division


def check_kind(network: Network, training: Training, processes: int, gpus: int) -> None:
    """Check that a kind of model does what is asked of it, on as many processes.

    Args:
        network: The model.
        training: How it is fitted.
        processes: Number of processes in the whole job.
        gpus: GPUs a node.

    Raises:
        InputError: It does not; everything that it does not do is named.
    """
    if isinstance(network, LanguageModel):
        _check_tokens(training)
    if not isinstance(network, Trees):
        check_division(network, training, processes)
        return
    if wrong := list(_of_trees(training, gpus)):
        raise InputError("; ".join(wrong), where="network.kind trees")


def check_secrets(sections: Mapping[str, object]) -> None:
    """Reject parameters that hold a credential: they are stored, and shown on the page of the run.

    Args:
        sections: Each section by name: a JSON object, or the text of one.

    Raises:
        InputError: There is one; its place is named, and it is not repeated.
    """
    found = [place for name, text in sections.items() for place in _secrets(_read(text), name)]
    if found:
        raise InputError(
            f"this looks like a credential, which would be stored and shown with the run: {', '.join(found)}",
            where="parameters of train",
            hint="Leave it out, and have it replaced where it came from: a step has an identity of its own; "
            "what else it needs is named in resources.placement.env_from_secrets.",
        )


def _read(section: object) -> Any:
    try:
        return json.loads(section) if isinstance(section, str) else section
    except ValueError:
        return section


def _secrets(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _secrets(entry, f"{place}.{key}")
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from _secrets(entry, f"{place}.{number}")
    elif isinstance(value, str) and holds_secret(value):
        yield place


def check_store(store: str | None) -> None:
    """Check that the address of a checkpoint store is one, before hours are spent on what goes there.

    Raises:
        InputError: Its scheme is unknown or only read, or it has no bucket.
        PermissionRefused: It is blocked.
    """
    there = remote(store) if store else None
    if there and there.scheme == "https":
        raise InputError(
            f"checkpoints cannot be written to {there.scheme}",
            where="training.checkpoints.store",
            hint="Name a folder, or a bucket: gs:// or s3://.",
        )


def _check_tokens(training: Training) -> None:
    objective = training.objective
    asked = [*(["kind"] if objective.kind != "auto" else []), *objective.of_classes]
    if asked:
        raise InputError(
            f"{', '.join(f'training.objective.{name}' for name in asked)}: for a label, and network.kind lm "
            "learns the next token",
            where="network.kind lm",
            hint="Leave it out.",
        )


def _of_trees(training: Training, gpus: int) -> Iterator[str]:
    objective, checkpoints = training.objective, training.checkpoints
    if gpus:
        yield f"resources.gpus {gpus}: trees are grown on the CPU; set 0"
    if objective.focal:
        yield (
            f"training.objective.focal {objective.focal:g}: trees are grown for the cross-entropy alone; "
            "class_weights: balanced weighs the classes alike"
        )
    if objective.sampling != "none":
        yield (
            f"training.objective.sampling {objective.sampling}: every round sees all rows; class_weights: "
            "balanced weighs the classes alike"
        )
    parallel = training.parallel
    if max(parallel.shard, parallel.tensor, parallel.pipeline) > 1:
        yield "training.parallel: trees are grown by one process a machine, each on its share of the rows"
    if checkpoints.store:
        yield f"training.checkpoints.store {checkpoints.store!r}: trees are saved in the job's folder alone"
    if training.precision != "float32" or training.compile or training.recompute:
        yield "training.precision, compile and recompute are for networks"

"""Small models, trained with every parallelism of two or four processes.

:func:`main` trains with all that take as many processes as there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from tests.train.problems import resolved
from trainwright.experiment import read_network
from trainwright.experiment.training import Checkpointing
from trainwright.train.architectures import Inputs, Target, make
from trainwright.train.checkpoint import Checkpointer
from trainwright.train.checkpoint.state import TrainState
from trainwright.train.feeding.loader import Batch, SampleOrder
from trainwright.train.parallel import full_weights, make_deterministic
from trainwright.train.process_group import Ranks, process_group
from trainwright.train.step import Stepper
from trainwright.transforms import Category, Number, Transforms

NETWORK = {
    "vocabulary": 61,
    "context": 12,
    "width": 32,
    "layers": 2,
    "heads": 4,
    "groups": 2,
    "hidden": 48,
    "tied": False,
}
TRAINING = {"batch_size": 8, "learning_rate": 0.01, "weight_decay": 0.1, "clip": 0.8, "seed": 3}
SAMPLES, STEPS = 18, 3
"""Batches of 8, 8 and 2: of the last one, some of four processes have no share."""

EPSILON = 1e-3
"""The epsilon of AdamW.

At the default of 1e-8, a step is the sign of a gradient, however small. The rounding of float32, 1e-8 here,
then moves a weight whose gradient is as small by as much as any other weight: by 5e-4 between two instruction
sets in one process. At 1e-3, a step changes by at most ``learning_rate / EPSILON`` times what the gradient
does, so weights can be compared as closely as gradients.
"""


@dataclass(frozen=True)
class Way:
    """One way to divide a training.

    Attributes:
        processes: How many it takes.
        parallel: Degrees.
        training: What else is asked for, which the single process is asked for too.
        network: Other sizes, or another kind of model.
        apart: What is asked for beside, and changes nothing for a single process.
    """

    processes: int
    parallel: Mapping[str, Any]
    training: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    apart: Mapping[str, Any] = field(default_factory=dict)


MLP = {"kind": "mlp", "hidden": (16, 8), "embedding": 3, "dropout": 0.0}
TOKENIZER = {"kind": "ft_transformer", "width": 8, "heads": 2, "layers": 2, "dropout": 0.0}
TIED = {"tied": True}
DEEP = {"layers": 4}
BF16, FP16, COMPILED = {"precision": "bf16"}, {"precision": "fp16"}, {"compile": True}

WAYS: dict[str, Way] = {
    "ddp2": Way(2, {}),
    "ddp2-micro-batches": Way(2, {}, apart={"micro_batch": 3}),
    "ddp2-recompute": Way(2, {}, apart={"recompute": True}),
    "ddp2-tied": Way(2, {}, network=TIED),
    "ddp2-bf16": Way(2, {}, BF16),
    "ddp2-fp16": Way(2, {}, FP16),
    "ddp2-compiled": Way(2, {}, apart=COMPILED),
    "ddp2-mlp": Way(2, {}, network=MLP),
    "ddp2-ft-transformer": Way(2, {}, network=TOKENIZER),
    "fsdp2-mlp": Way(2, {"shard": 2}, network=MLP),
    "fsdp2-ft-transformer": Way(2, {"shard": 2}, network=TOKENIZER),
    "fsdp2": Way(2, {"shard": 2}),
    "fsdp2-micro-batches": Way(2, {"shard": 2}, apart={"micro_batch": 3}),
    "fsdp2-recompute": Way(2, {"shard": 2}, apart={"recompute": True}),
    "fsdp2-tied": Way(2, {"shard": 2}, network=TIED),
    "fsdp2-bf16": Way(2, {"shard": 2}, BF16),
    "fsdp2-fp16": Way(2, {"shard": 2}, FP16),
    "fsdp2-compiled": Way(2, {"shard": 2}, apart=COMPILED),
    "tp2": Way(2, {"tensor": 2}),
    "tp2-micro-batches-recompute": Way(2, {"tensor": 2}, apart={"micro_batch": 3, "recompute": True}),
    "tp2-tied": Way(2, {"tensor": 2}, network=TIED),
    "tp2-bf16": Way(2, {"tensor": 2}, BF16),
    "tp2-fp16": Way(2, {"tensor": 2}, FP16),
    "pp2-gpipe": Way(2, {"pipeline": 2, "schedule": "gpipe", "micro_batches": 3}),
    "pp2-1f1b": Way(2, {"pipeline": 2}),
    "pp2-recompute": Way(2, {"pipeline": 2}, apart={"recompute": True}),
    "pp2-bf16": Way(2, {"pipeline": 2}, BF16),
    "pp2-fp16": Way(2, {"pipeline": 2}, FP16),
    "ddp4": Way(4, {}),
    "fsdp4": Way(4, {"shard": 4}),
    "hsdp2x2": Way(4, {"replicate": 2, "shard": 2}),
    "hsdp2x2-micro-batches": Way(4, {"replicate": 2, "shard": 2}, apart={"micro_batch": 1}),
    "ddp2xtp2": Way(4, {"tensor": 2}),
    "fsdp2xtp2": Way(4, {"shard": 2, "tensor": 2}),
    "fsdp2xtp2-bf16": Way(4, {"shard": 2, "tensor": 2}, BF16),
    "ddp2xpp2-gpipe": Way(4, {"pipeline": 2, "schedule": "gpipe"}),
    "ddp2xpp2-1f1b": Way(4, {"pipeline": 2, "micro_batches": 2}),
    "fsdp2xpp2": Way(4, {"shard": 2, "pipeline": 2}),
    "fsdp2xpp2-bf16": Way(4, {"shard": 2, "pipeline": 2}, BF16),
    "tp4": Way(4, {"tensor": 4}, network={"groups": 4}),
    "tp4-tied": Way(4, {"tensor": 4}, network={"groups": 4, "tied": True}),
    "ddp2xtp2-recompute": Way(4, {"tensor": 2}, apart={"micro_batch": 1, "recompute": True}),
    "tp2xpp2": Way(4, {"tensor": 2, "pipeline": 2}),
    "pp4": Way(4, {"pipeline": 4}, network=DEEP),
}


MOVED = 4
MOVES: list[dict[str, Any]] = [
    {"shard": 2, "tensor": 2},
    {"tensor": 2, "pipeline": 2},
    {"replicate": 2, "shard": 2},
    {"pipeline": 2},
    {},
]
"""Divisions over four processes that one training goes through."""


@dataclass(frozen=True)
class Result:
    """What a training gave.

    Attributes:
        losses: Loss of each step.
        norms: Norm of each step's gradient.
        weights: The whole weights, on process 0.
        skipped: Steps that were left out because a gradient overflowed.
    """

    losses: list[float]
    norms: list[float]
    weights: dict[str, Tensor]
    skipped: int


def problem(network: Mapping[str, Any]) -> tuple[Inputs, tuple[Tensor, ...], Tensor]:
    """Draw samples for a kind of model: what is told of them, the inputs and the target of each."""
    generator = torch.Generator().manual_seed(5)
    if "kind" not in network:
        shape = (SAMPLES, NETWORK["context"] + 1)
        tokens = torch.randint(0, NETWORK["vocabulary"], shape, generator=generator)
        return Inputs(Target("tokens")), (tokens[:, :-1],), tokens[:, 1:]
    transforms = Transforms(
        numbers=tuple(Number(name=name, mean=0, scale=1, indicator=False) for name in ("a", "b")),
        times=(),
        categories=(Category(name="c", values=("x", "y", "z")),),
    )
    numeric = torch.randn(SAMPLES, 2, generator=generator)
    codes = torch.randint(0, transforms.vocabulary, (SAMPLES, 1), generator=generator)
    return Inputs(Target("binary", (0.5, 0.5)), transforms), (numeric, codes), (numeric[:, 0] > 0).float()


def train(
    group: Ranks,
    network: Mapping[str, Any],
    steps: range = range(STEPS),
    home: Path | None = None,
    **asked: Any,
) -> Result:
    """Train a model for a few steps; with a home, from its newest checkpoint on, and leave one more there."""
    training = resolved(**{**TRAINING, **asked})
    architecture = make(read_network({"kind": "lm", **({} if "kind" in network else NETWORK), **network}))
    told, inputs, target = problem(network)
    torch.manual_seed(training.seed)
    stepper = Stepper(architecture.build(told), architecture, training, group)
    for settings in stepper.optimizer.param_groups:
        settings["eps"] = EPSILON
    order = SampleOrder(SAMPLES, training.batch_size, 8, training.seed)
    state = TrainState(stepper.module, stepper.optimizer)
    keeper = Checkpointer(Checkpointing(every_steps=1), home, "0001", {}, group) if home else None
    if keeper:
        keeper.resume(state)
    losses, norms, skipped = [], [], 0
    for step in steps:
        index = torch.from_numpy(order.share(step, stepper.layout.part, stepper.layout.parts))
        # Weights that differ: a mean of means would give other sums.
        weight = 0.5 + (index % 3).float() / 2
        batch = Batch(tuple(entry[index] for entry in inputs), target[index], weight, index)
        found = stepper.gradients(batch, order.size(step % order.batches), stop=False)
        stepper.apply(found, training.learning_rate)
        losses.append(found.loss)
        norms.append(found.norm)
        skipped += found.overflowed
        state.step = step + 1
        if keeper:
            keeper.after_step(state, found.loss, last=step == steps[-1])
    return Result(losses, norms, full_weights(stepper.module, stepper.layout), skipped)


def move(group: Ranks, home: Path) -> Result:
    """Take each step in another division than the one before, from checkpoint to checkpoint."""
    if group.leads:
        home.mkdir()
    distributed.barrier()
    parts = [
        train(group, {}, range(step, step + 1), home, parallel=parallel)
        for step, parallel in enumerate(MOVES)
    ]
    losses, norms = ([value for part in parts for value in getattr(part, key)] for key in ("losses", "norms"))
    return Result(losses, norms, parts[-1].weights, 0)


def main(folder: Path) -> None:
    """Train in all the ways that take as many processes as there are; leave each result in ``<name>.pt``."""
    torch.set_num_threads(1)
    make_deterministic()
    with process_group(0) as group:
        for name, way in WAYS.items():
            if way.processes == group.size:
                asked = {**way.training, **way.apart, "parallel": way.parallel}
                result = train(group, way.network, **asked)
                if group.leads:
                    torch.save(vars(result), folder / f"{name}.pt")
        if group.size == MOVED:
            result = move(group, folder / "home")
            if group.leads:
                torch.save(vars(result), folder / "moved.pt")

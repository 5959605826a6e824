"""Fits a network, of rows or of tokens: in every process its part, and the whole of it in the first."""

import sys
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainwright.experiment.checkpoints import Checkpointing
from trainwright.launch.agent.heartbeat import Heartbeat
from trainwright.train.architectures import Architecture, Inputs
from trainwright.train.architectures.imported import build, origin
from trainwright.train.checkpoint import Checkpoints
from trainwright.train.evaluation import Evaluation
from trainwright.train.evidence import witness_in
from trainwright.train.given import Given
from trainwright.train.group import Group, wait_for_all
from trainwright.train.heap import freed_memory_kept
from trainwright.train.loader import Loader
from trainwright.train.loop import Fitted, Loop
from trainwright.train.memory import fitting_memory, memory_watched
from trainwright.train.order import Order, order_of
from trainwright.train.parallel import full_weights
from trainwright.train.samples import Samples
from trainwright.train.step import Stepper
from trainwright.train.straggling import Straggling

_ORDERED = ("samples", "batch_size", "streams", "seed", "block", "window")


def fit_network(
    given: Given,
    architecture: Architecture,
    inputs: Inputs,
    samples: Samples,
    watched: Samples | None,
    labels: Callable[[], NDArray[np.generic]],
) -> tuple[nn.Module, Fitted]:
    """Fit a network; all processes call this together.

    Args:
        given: The training.
        architecture: The kind of network.
        inputs: What its samples look like.
        samples: The split that is learned from.
        watched: The split that ends the training early, if one is.
        labels: Gives the class of each sample, where classes are to come equally often.

    Returns:
        The module with its whole weights, on the first process; and how it went.

    Raises:
        Diverged: It went wrong, and no more is forgiven.
        Preempted: A process was told to stop; the state is saved.
    """
    group = given.group
    wait_for_all(group)
    training = fitting_memory(given.training, given.folder, group)
    torch.manual_seed(training.seed)
    stepper = Stepper(build(architecture, inputs, group.device), architecture, training, group)
    layout = stepper.layout
    order = order_of(len(samples), training, layout.parts, labels)
    pin, prefetch = group.device.type == "cuda", training.feeding.prefetch
    with (
        freed_memory_kept() if group.device.type == "cpu" else nullcontext(),
        memory_watched(training, given.training, group),
        Loader(samples, order, layout.part, layout.parts, prefetch=prefetch, pin=pin) as feeder,
        Heartbeat(given.folder, group.rank, training.guards.stall_s) as pulse,
    ):
        keeper = _keeper(given, order)
        given.curves.committed = lambda: keeper.figures.committed
        loop = Loop(
            stepper,
            feeder,
            training,
            group,
            keeper,
            [given.curves, Straggling(stepper.module, training, group)],
            given.stop.asked,
            _evaluation(given, stepper, architecture, watched) if watched else None,
            witness_in(given.folder, group.rank),
            pulse,
        )
        if group.leads:
            sys.stderr.write(without_checkpoints(training.checkpoints, loop.total))
        fitted = loop.run()
    cost = keeper.figures
    given.curves.note(fitted.steps, checkpoint_stall_s=cost.stall_s, resume_s=cost.resume_s)
    return _whole(full_weights(stepper.module, layout), architecture, inputs, group), fitted


def without_checkpoints(settings: Checkpointing, total: int) -> str:
    """Say that no checkpoint is due before the end; empty if one is. How many steps there are shows late."""
    if settings.every_steps is None or settings.every_steps <= total:
        return ""
    return (
        f"training.checkpoints.every_steps {settings.every_steps:,} is above the {total:,} steps of this "
        "training: nothing is saved before its end\n"
    )


def _evaluation(given: Given, stepper: Stepper, architecture: Architecture, watched: Samples) -> Evaluation:
    return Evaluation(stepper, architecture, watched, given.training, given.group, given.stop.asked)


def _keeper(given: Given, order: Order) -> Checkpoints:
    """Keep checkpoints that say what decides the result: data, network, settings, code, order."""
    told = {
        **given.specification.pinned,
        **origin(given.network),
        "order": {name: getattr(order, name) for name in _ORDERED},
    }
    attempt = given.specification.attempt
    return Checkpoints(given.training.checkpoints, given.home, attempt, told, given.group)


def _whole(weights: dict[str, Tensor], architecture: Architecture, inputs: Inputs, group: Group) -> nn.Module:
    """Put gathered weights into a module that is not divided; elsewhere than on process 0 there are none."""
    module = architecture.build(inputs)
    if group.leads:
        module.load_state_dict(weights)
    return module

"""What a training minimises: the kind of its target, the weights of its classes, the form of its loss."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from trainwright.errors import DataRefused, InputError
from trainwright.experiment.objective import Objective
from trainwright.train.architectures import Architecture, Target
from trainwright.train.labels import Labels

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From the module's output and the target to the loss of each sample, shape (samples,)."""

_SHOWN = 5
_WHERE = "training.objective"


def target_of(labels: Labels, name: str, objective: Objective) -> Target:
    """Say what is to be predicted.

    Args:
        labels: What is known of the labels of the training split, with their kind settled.
        name: Name of the column.
        objective: What is asked for.

    Raises:
        DataRefused: A class below the largest one has no row: nothing could be learned of it.
        InputError: What is asked for is for classes, and the label is a number.
    """
    if labels.kind == "regression":
        _require_plain(objective, name)
        return Target("regression", labels.rates)
    rates = labels.rates
    if empty := [number for number, rate in enumerate(rates) if not rate]:
        shown = ", ".join(map(str, empty[:_SHOWN])) + (", ..." if len(empty) > _SHOWN else "")
        raise DataRefused(
            f"label {name!r} has classes up to {len(rates) - 1}, and no row of {len(empty)} of them: {shown}",
            where="training split",
            hint="Number the classes 0, 1, 2, ... without a gap; or, if the label is an amount, set "
            "training.objective.kind: regression.",
        )
    if objective.threshold != "half" and labels.kind != "binary":
        raise InputError(
            f"threshold {objective.threshold} is for two classes; label {name!r} has {len(rates)}",
            where=f"{_WHERE}.threshold",
        )
    return Target("binary" if labels.kind == "binary" else "multiclass", rates)


def _require_plain(objective: Objective, name: str) -> None:
    if wrong := objective.of_classes:
        raise InputError(
            f"{', '.join(wrong)}: for classes, but label {name!r} holds numbers that are regressed",
            where=_WHERE,
            hint="Leave them out, or set training.objective.kind.",
        )


def class_weights(target: Target, objective: Objective) -> tuple[float, ...] | None:
    """Return the weight of a row by its class, with mean 1 over the training rows; absent if all weigh 1.

    Balanced, every class weighs as much as any other: ``rows / (classes * rows of the class)``.
    King and Zeng, Political Analysis 2001.
    """
    if objective.class_weights == "none":
        return None
    return tuple(1 / (len(target.rates) * rate) for rate in target.rates)


def loss_of(architecture: Architecture, objective: Objective) -> Loss:
    """Return what is minimised: the architecture's own loss of each row, or the focal loss made from it.

    The focal loss is ``(1 - p)^gamma`` times the cross-entropy, where ``p`` is the probability given to the
    true class. The cross-entropy ``-log p`` itself tells it, so this works for every architecture of classes.
    Lin et al., ICCV 2017, without their weight alpha, for which there are class weights.
    """
    if not objective.focal:
        return architecture.loss

    def focal(output: Tensor, target: Tensor) -> Tensor:
        loss = architecture.loss(output, target)
        # Not 0, where the slope of a power below 1 is not finite.
        missed = (-torch.expm1(-loss)).clamp_min(torch.finfo(loss.dtype).tiny)
        return missed.pow(objective.focal) * loss

    return focal


def base_loss(target: Target, objective: Objective) -> float:
    """Return the mean loss of saying what is known without any input: the weighed base rate, or the mean.

    For regression it is 1: losses are in units of the variance.
    """
    if target.kind == "regression":
        return 1.0
    rates = np.array(target.rates) * np.array(class_weights(target, objective) or 1.0)
    if objective.sampling == "balanced":  # every class is seen equally often
        rates = np.full(len(rates), 1 / len(rates))
    return float(-(rates * (1 - rates) ** objective.focal * np.log(rates)).sum())

"""A share of a batch, cut into micro-batches: as many on every process, whatever its share."""

import dataclasses
import math

import torch
from torch import Tensor

from trainwright.experiment import Training
from trainwright.train.samples import Batch


def cut(batch: Batch, size: int, parts: int, training: Training) -> list[Batch]:
    """Cut a process's share of a global batch.

    Stages pass each other tensors of one shape, and compiled code is compiled for one; there, micro-batches
    are filled up with samples of weight 0, which change nothing. Otherwise only an empty one gets such a
    sample, because not every module can be run on nothing.

    Args:
        batch: This process's share, at most a sample more or less than the others'.
        size: Samples of the global batch.
        parts: Number of shares.
        training: Size and number of micro-batches.
    """
    whole = training.batch_size // parts
    if training.parallel.pipeline > 1:
        count = training.parallel.in_flight
        most = math.ceil(whole / count)
    else:
        most = min(training.micro_batch or whole, whole)
        count = math.ceil(math.ceil(size / parts) / most)
    least = most if training.compile or training.parallel.pipeline > 1 else 1
    return [_filled(batch.part(index * most, (index + 1) * most), least) for index in range(count)]


def _filled(batch: Batch, least: int) -> Batch:
    """Add samples of weight 0 until there are enough."""
    missing = least - len(batch)
    if missing <= 0:
        return batch
    return dataclasses.replace(
        batch,
        inputs=tuple(_longer(entry, missing) for entry in batch.inputs),
        target=_longer(batch.target, missing),
        weight=_longer(batch.weight, missing),
        ids=_longer(batch.ids, missing),
    )


def _longer(values: Tensor, missing: int) -> Tensor:
    return torch.cat([values, values.new_zeros(missing, *values.shape[1:])])

"""Which samples a step went wrong on, written down by every process for those that it had."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from trainwright.train.samples import Batch

FOLDER = "batches"

Witness = Callable[[int, Batch], None]
"""Is shown this process's share of the batch of a step that went wrong."""


def nobody(step: int, batch: Batch) -> None:
    """Take no note."""


def witness_in(folder: Path, rank: int) -> Witness:
    """Return what writes the samples of a batch into an attempt's folder, as ``batches/step-N-rank-N.json``.

    The file names every sample of this process's share by its number in the split, and beside them those
    whose inputs, target or weight are not finite.

    Args:
        folder: The attempt's folder.
        rank: Number of this process.
    """

    def write(step: int, batch: Batch) -> None:
        body = {"step": step, "rank": rank, "ids": batch.ids.tolist(), "not_finite": _suspects(batch)}
        path = folder / FOLDER / f"step-{step}-rank-{rank}.json"
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(body) + "\n")
        except OSError as error:  # a full disk must not hide what went wrong
            sys.stderr.write(f"rank {rank}: {path} could not be written: {error}\n")

    return write


def _suspects(batch: Batch) -> list[int]:
    """Return the numbers of the samples that hold a value which is not finite."""
    wrong = torch.zeros(len(batch), dtype=torch.bool)
    for entry in (*batch.inputs, batch.target, batch.weight):
        if entry.is_floating_point() and len(batch):
            finite = torch.isfinite(entry).reshape(len(batch), -1).all(dim=1)
            wrong |= ~finite.cpu()
    return [int(number) for number in batch.ids[wrong]]

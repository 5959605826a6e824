"""Names a process that computes slower than the others: all of them wait for it at every step."""

import sys
import time
from statistics import median
from typing import Any

import torch
from torch import distributed, nn

from trainwright.experiment import Training
from trainwright.train.group import Group
from trainwright.train.loop import Step

_EVERY = 10
_FIRST = 2
"""Steps after a start that do not count: in them, each process meets what it has to load or to compile."""

_LEAST_S = 0.005
"""A process that takes less than this longer is not slow: a machine does other things too."""

_IN_A_ROW = 3
"""Comparisons in a row that name a process. The first one writes curves and checkpoints beside its steps,
which shows in single comparisons where a step takes a millisecond."""


class Straggling:
    """Compares how long the processes take for what each does by itself, every ten steps.

    That is getting the batch and, unless the module is compiled (a compiler would take the clock for a part
    of it), the forward pass. On a GPU a forward pass only queues work, so what is seen there is the host's
    part. The comparison is one small exchange every ten steps.

    Args:
        module: This process's part of the module.
        training: Whether it is compiled, and how slow a process is named.
        group: The processes.
    """

    def __init__(self, module: nn.Module, training: Training, group: Group) -> None:
        self._group, self._slow = group, training.guards.slow
        self._begun = self._passed = 0.0
        self._seen = self._counted = 0
        self._row: dict[int, int] = {}
        if self._compares and not training.compile:
            module.register_forward_pre_hook(self._begins)
            module.register_forward_hook(self._ends)

    def saw(self, step: Step) -> None:
        """Take note of a step; every process does at the same one."""
        if not self._compares:
            return
        self._passed += step.waited_s
        self._seen += 1
        self._counted += 1
        if self._seen == _FIRST:
            self._passed, self._counted = 0.0, 0
        if step.number % _EVERY == 0 and self._seen > _FIRST:
            self._compare(step.number)

    @property
    def _compares(self) -> bool:
        return self._slow is not None and self._group.size > 1

    def _begins(self, *_: Any) -> None:
        self._begun = time.perf_counter()

    def _ends(self, *_: Any) -> None:
        self._passed += time.perf_counter() - self._begun

    def _compare(self, number: int) -> None:
        mine = torch.tensor([self._passed / self._counted], dtype=torch.float64, device=self._group.device)
        parts = [torch.empty_like(mine) for _ in range(self._group.size)]
        distributed.all_gather(parts, mine)
        self._passed, self._counted = 0.0, 0
        if not self._group.leads:
            return
        seconds = [float(part) for part in parts]
        slow = stragglers(seconds, self._slow or 0)
        self._row = {rank: self._row.get(rank, 0) + 1 for rank in slow}
        for rank in sorted(rank for rank, count in self._row.items() if count == _IN_A_ROW):
            others = median(seconds[:rank] + seconds[rank + 1 :])
            sys.stderr.write(
                f"step {number:,}: rank {rank} is slow: {seconds[rank]:.3g} s a step by itself, the others "
                f"{others:.3g} s; all wait for it\n"
            )


def stragglers(seconds: list[float], slow: float) -> set[int]:
    """Return the processes that take more than ``slow`` times the median of all others.

    Args:
        seconds: Time that each process takes by itself, by rank; at least two.
        slow: Above 1.
    """
    found = set()
    for rank, own in enumerate(seconds):
        others = median(seconds[:rank] + seconds[rank + 1 :])
        if own > slow * others and own - others > _LEAST_S:
            found.add(rank)
    return found

"""What the processes of a training tell each other about checkpoints: a decision is made once, for all."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from torch import distributed
from torch.distributed import ProcessGroup

from trainwright.errors import InternalError, TrainwrightError
from trainwright.train.group import PATIENCE, Group, allow, patient_group

_T = TypeVar("_T")


class Circle:
    """All processes, over a gloo group that nothing else uses meanwhile.

    It waits for a call as long as that takes: a checkpoint may have to be brought from a store first. The
    end of a process is seen at once, as the connections are there.

    Args:
        group: The processes; all of them call this together.
        over: A gloo group of all of them that is free as long as this is used; one of its own if absent.
    """

    def __init__(self, group: Group, over: ProcessGroup | None = None) -> None:
        self.rank, self.size = group.rank, group.size
        self.group, self._limit = over or patient_group(), timedelta(seconds=group.limit_s)

    def first(self, call: Callable[[], _T]) -> _T:
        """Make a call on the first process; return, or raise, what came of it on all of them."""
        shared: list[Any] = [_tried(call) if self.rank == 0 else None]
        distributed.broadcast_object_list(shared, group=self.group)
        return cast(_T, _unpacked(shared[0]))

    def all(self, call: Callable[[], _T]) -> list[_T]:
        """Make a call on every process; return what came of it on each, or raise the first error, on all."""
        shared: list[Any] = [None] * self.size
        distributed.all_gather_object(shared, _tried(call), group=self.group)
        return [_unpacked(entry) for entry in shared]

    def greatest(self, numbers: Sequence[int]) -> list[int]:
        """Return the greatest number at each place, over all processes; none waits longer than in a step."""
        shared = torch.tensor([int(number) for number in numbers])
        allow(self._limit, self.group)
        distributed.all_reduce(shared, distributed.ReduceOp.MAX, group=self.group)
        allow(PATIENCE, self.group)
        return [int(number) for number in shared]


def _tried(call: Callable[[], _T]) -> tuple[Any, ...]:
    """Make a call, and describe what came of it; an error of ours cannot be pickled as it is."""
    try:
        return (None, call())
    except TrainwrightError as error:
        return (type(error), error.what, error.where, error.hint)
    except Exception as error:  # the others wait for this process
        return (InternalError, f"{type(error).__name__}: {error}", "", "")


def _unpacked(entry: tuple[Any, ...]) -> Any:
    kind, *said = entry
    if kind is None:
        return said[0]
    what, where, hint = said
    raise kind(what, where=where, hint=hint)

"""All that a training is between two steps: what a checkpoint holds."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer


@dataclass
class State:
    """A training between two steps.

    The order of samples and every random number are functions of the seed and of the step, so the step is
    all that is to be known of them.

    Attributes:
        module: The module, as it is trained; its parameters may be sharded. A ``ModuleList`` holds the stages
            of a pipeline that this process has, each with the names of the whole model.
        optimizer: Its optimizer.
        step: Steps taken.
        facts: What else must survive, as plain JSON data by owner (losses so far, a guard's window).
    """

    module: nn.Module
    optimizer: Optimizer
    step: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def modules(self) -> list[nn.Module]:
        """The modules whose tensors have the names of the whole model."""
        return list(self.module) if isinstance(self.module, nn.ModuleList) else [self.module]


class Keeper(Protocol):
    """Saves a training's state and finds it again. All processes call each method together."""

    def resume(self, state: State) -> None:
        """Bring the newest verified state into ``state``; leave it as it is where there is none.

        Raises:
            InputError: What is there belongs to another model.
        """
        ...

    def saw(self, state: State, loss: float, *, last: bool) -> None:
        """Save the state if it is time to; wait until it is committed if this is the ``last`` call."""
        ...

    def roll_back(self, state: State) -> None:
        """Bring the newest verified state back, after the one at hand went wrong.

        Raises:
            Diverged: There is none.
        """
        ...

    def best(self, state: State) -> bool:
        """Bring back the state that was best on the watched split; tell whether there is one."""
        ...


class NoKeeper:
    """Keeps nothing."""

    def resume(self, state: State) -> None:
        """Leave the state as it is."""

    def saw(self, state: State, loss: float, *, last: bool) -> None:
        """Do nothing."""

    def roll_back(self, state: State) -> None:
        """Refuse: there is nothing to go back to."""
        from trainwright.errors import Diverged

        raise Diverged(f"nothing was saved before step {state.step:,}", where="training.checkpoints")

    def best(self, state: State) -> bool:  # noqa: ARG002
        """Leave the state as it is."""
        return False

"""What a model has to offer to be trained, and what it is told of the data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.distributed.tensor.parallel import ParallelStyle

from trainwright.transforms import Transforms


@dataclass(frozen=True)
class Target:
    """What is to be predicted.

    Attributes:
        kind: ``binary`` and ``multiclass`` have classes 0 .. n-1; ``regression`` a number; ``tokens`` the
            next token at every place.
        rates: Share of the training samples of each class, shape (classes,); for ``regression`` the mean and
            the standard deviation; empty for ``tokens``.
    """

    kind: Literal["binary", "multiclass", "regression", "tokens"]
    rates: tuple[float, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """What the samples look like.

    Attributes:
        target: What is to be predicted.
        transforms: The fitted transforms of the columns; absent for tokens.
    """

    target: Target
    transforms: Transforms | None = None


class Architecture(Protocol):
    """A kind of model: what is trained and what is exported.

    The weights that ``build`` makes are drawn from torch's global generator, which is seeded before. All
    methods are called on every process and must do the same on each.
    """

    def build(self, inputs: Inputs) -> nn.Module:
        """Make the untrained module.

        Its ``forward`` takes the tensors of a batch's ``inputs``: for rows ``numeric`` (samples, features),
        float32, and ``categories`` (samples, columns), int64 or int32; for tokens ``tokens`` (samples,
        context), int64. Its output has the samples first.
        """
        ...

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each sample, shape (samples,), float32; lower is better.

        Args:
            output: What the module's ``forward`` gave.
            target: The batch's target: (samples,) float32 for binary and regression, int64 for multiclass;
                (samples, context) int64 for tokens.
        """
        ...

    def predict(self, output: Tensor) -> Tensor:
        """Turn the output into scores, float64; ``torch.export`` must be able to export it.

        Returns:
            Shape (samples,): the probability of label 1, or the predicted number; (samples, classes):
            probabilities; for tokens (samples, context, vocabulary): log-probabilities of the next token.
        """
        ...


@runtime_checkable
class InBlocks(Protocol):
    """Offered by an architecture whose module is a chain of large parts.

    Each block is then sharded, recomputed and compiled by itself; without it, the module is one block.
    """

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """Return the blocks in the order in which they are used; ``module`` is what ``build`` made."""
        ...


@runtime_checkable
class InColumns(Protocol):
    """Offered by an architecture whose matrices can be divided (``parallel.tensor`` above 1)."""

    def tensor_plan(self, module: nn.Module) -> Mapping[str, ParallelStyle]:
        """Say how the submodules are divided, by name, as ``parallelize_module`` takes it.

        ``module`` is what ``build`` or ``stage`` made. What is not named is the same on all processes that
        divide a module, and every output must be whole on each of them.
        """
        ...


@runtime_checkable
class InStages(Protocol):
    """Offered by an architecture that can be cut into stages (``parallel.pipeline`` above 1)."""

    def stage(self, module: nn.Module, index: int, count: int) -> nn.Module:
        """Return one of ``count`` stages of a module; its parameters keep their names and values.

        No parameter is in two stages. The first takes a batch's ``inputs``; each other takes the one tensor
        that the stage before gives; the last gives what ``module`` gives. ``blocks`` and ``tensor_plan``
        take a stage as they take a module.
        """
        ...

    def gives(self, samples: int, *, last: bool) -> Tensor:
        """Return what a stage, or the last, gives for some samples: shape and type, on device ``meta``."""
        ...

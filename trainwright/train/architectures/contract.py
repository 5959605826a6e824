"""The interface of architectures, the description of their data, and the loss and scores of tabular ones."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ParallelStyle
from torch.nn import functional

from trainwright.errors import InternalError
from trainwright.transforms import Transforms

_LAST_LAYER_SCALE = 0.1
"""Factor of the last layer's first weights: the untrained model predicts little but the base rate."""


@dataclass(frozen=True)
class Target:
    """The target of a training.

    Attributes:
        kind: ``binary`` and ``multiclass`` have classes 0 .. n-1; ``regression`` a number; ``tokens`` the
            next token at every position.
        rates: Share of the training samples of each class, shape (classes,); for ``regression`` the mean and
            the standard deviation; empty for ``tokens``.
    """

    kind: Literal["binary", "multiclass", "regression", "tokens"]
    rates: tuple[float, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """The description of the samples: their target, and the fitted transforms of the columns of rows."""

    target: Target
    transforms: Transforms | None = None


class Architecture(Protocol):
    """A kind of model: the module to train and to export.

    ``build`` draws weights from torch's global generator, which is seeded before. All methods are called on
    every process and must do the same on each.
    """

    def build(self, inputs: Inputs) -> nn.Module:
        """Create the untrained module.

        Its ``forward`` takes the tensors of a batch's ``inputs``: for rows ``numeric`` (samples, features),
        float32, and ``categories`` (samples, columns), int64 or int32; for tokens ``tokens`` (samples,
        context), int64. Its output has the samples first.
        """
        ...

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each sample, shape (samples,), float32; lower is better.

        Args:
            output: Output of the module's ``forward``.
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
    """An architecture whose module is a chain of large blocks.

    Each block is sharded, recomputed and compiled by itself; otherwise the module is one block.
    """

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """Return the blocks of a module of ``build``, in the order of use."""
        ...


@runtime_checkable
class InColumns(Protocol):
    """An architecture with tensor parallelism (``parallel.tensor`` above 1)."""

    def tensor_plan(self, module: nn.Module) -> Mapping[str, ParallelStyle]:
        """Return the parallel style of submodules by name, for ``parallelize_module``.

        ``module`` is from ``build`` or ``stage``. Other submodules are equal on all processes that share a
        module, and every output must be whole on each of them.
        """
        ...


@runtime_checkable
class InStages(Protocol):
    """An architecture with pipeline parallelism (``parallel.pipeline`` above 1)."""

    def stage(self, module: nn.Module, index: int, count: int) -> nn.Module:
        """Return one of ``count`` stages of a module; its parameters keep their names and values.

        No parameter is in two stages. The first stage takes a batch's ``inputs``; each other takes the one
        tensor that the stage before returns; the last returns what ``module`` returns. ``blocks`` and
        ``tensor_plan`` take a stage as they take a module.
        """
        ...

    def gives(self, samples: int, *, last: bool) -> Tensor:
        """Return the output of a stage, or the last, for some samples: shape and type, on device ``meta``."""
        ...


class TabularArchitecture:
    """The last layer, the loss and the scores of an architecture of rows; its ``build`` sets the target.

    Regression trains on ``(label - mean) / deviation``; only :meth:`predict` reverts that.
    """

    _target: Target

    def _prepare(self, inputs: Inputs) -> Transforms:
        """Set the target, and return the transforms of the columns."""
        if inputs.transforms is None:
            raise InternalError("a network of rows got no transforms")
        self._target = inputs.target
        return inputs.transforms

    @property
    def width(self) -> int:
        """Outputs per row: 1, or one per class if there are more than two."""
        return len(self._target.rates) if self._target.kind == "multiclass" else 1

    def initialize(self, last: nn.Linear) -> None:
        """Initialize the last layer to predict the base rate, or the mean, and little else."""
        rates = self._target.rates
        with torch.no_grad():
            last.weight.mul_(_LAST_LAYER_SCALE)
            match self._target.kind:
                case "binary":
                    last.bias.fill_(math.log(rates[1] / rates[0]))
                case "multiclass":
                    last.bias.copy_(torch.tensor([math.log(rate) for rate in rates]))
                case _:
                    last.bias.zero_()

    def shape(self, output: Tensor) -> Tensor:
        """Turn (rows, ``width``) into (rows,) if there is one output per row."""
        return output if self._target.kind == "multiclass" else output.squeeze(1)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each row: cross-entropy in nats, or the squared error in units of the variance.

        Args:
            output: Output of :meth:`shape`: logits, or standardised predictions.
            target: Shape (rows,): 0.0 or 1.0, the number of the class as int64, or the label itself.
        """
        output = output.float()
        match self._target.kind:
            case "binary":
                return functional.binary_cross_entropy_with_logits(output, target, reduction="none")
            case "multiclass":
                return functional.cross_entropy(output, target, reduction="none")
            case _:
                mean, deviation = self._target.rates
                return (output - (target - mean) / deviation).square()

    def predict(self, output: Tensor) -> Tensor:
        """Return the probability of label 1, those of all classes, or the predicted number; float64."""
        match self._target.kind:
            case "binary":
                return torch.sigmoid(output.double())
            case "multiclass":
                return torch.softmax(output.double(), dim=1)
            case _:
                mean, deviation = self._target.rates
                return output.double() * deviation + mean

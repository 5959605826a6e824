"""What a model has to offer to be trained, and what it is told of the data."""

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor, nn

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

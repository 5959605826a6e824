"""From what the last layer gives to a loss and a score, by the kind of target."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainwright.errors import InternalError
from trainwright.train.architectures.contract import Target

_TIMID = 0.1
"""The last layer begins with weights this much smaller: the untrained model says little but the base rate."""


class Head:
    """What the output of a model of rows means.

    A label to regress is learned in units of its standard deviation, from its mean: the module gives
    ``(label - mean) / deviation``, and only :meth:`predict` turns that back.

    Args:
        target: What is to be predicted.

    Raises:
        InternalError: It is not the label of a row.
    """

    def __init__(self, target: Target) -> None:
        if target.kind == "tokens":
            raise InternalError("a model of rows was asked for tokens")
        self._target = target

    @property
    def width(self) -> int:
        """Outputs a row: 1, or one for each class if there are more than two."""
        return len(self._target.rates) if self._target.kind == "multiclass" else 1

    def begin(self, last: nn.Linear) -> None:
        """Let the last layer say the base rate, or the mean, and hardly anything of its inputs."""
        rates = self._target.rates
        with torch.no_grad():
            last.weight.mul_(_TIMID)
            match self._target.kind:
                case "binary":
                    last.bias.fill_(math.log(rates[1] / rates[0]))
                case "multiclass":
                    last.bias.copy_(torch.tensor([math.log(rate) for rate in rates]))
                case _:
                    last.bias.zero_()

    def shape(self, output: Tensor) -> Tensor:
        """Turn (rows, ``width``) into (rows,) where there is one output a row."""
        return output if self._target.kind == "multiclass" else output.squeeze(1)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each row: cross-entropy in nats, or the squared error in units of the variance.

        Args:
            output: As :meth:`shape` gives it: logits, or standardised predictions.
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

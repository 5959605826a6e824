"""The tabular network: embeddings for categories, then fully connected layers."""

import itertools
import math

import torch
from torch import Tensor, nn

from trainwright.errors import InternalError
from trainwright.experiment import Mlp
from trainwright.train.architectures.contract import Inputs
from trainwright.transforms import Transforms


class TabularNetwork(nn.Module):
    """A multilayer perceptron over numbers and embedded categories.

    All category columns share one table, with one vocabulary after another: a single look-up a row.

    Args:
        network: Sizes of the layers.
        transforms: What the rows look like.
        base_rate: Share of rows of label 1, in (0, 1): what the untrained network says.
    """

    def __init__(self, network: Mlp, transforms: Transforms, base_rate: float) -> None:
        super().__init__()
        columns = len(transforms.categories)
        largest = max((category.size for category in transforms.categories), default=0)
        width = min(network.embedding, (largest + 1) // 2)
        self.embedding = nn.Embedding(transforms.vocabulary, width) if columns else None
        sizes = [transforms.width + columns * width, *network.hidden]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(network.dropout)]
        head = nn.Linear(sizes[-1], 1)
        self.layers = nn.Sequential(*layers, head)
        self._start(head, transforms, base_rate)

    def _start(self, head: nn.Linear, transforms: Transforms, base_rate: float) -> None:
        """Begin at the base rate, and with nothing known of missing and unknown values.

        A code that no training row has is never learned: at 0 it says nothing, at random it would lie.
        """
        with torch.no_grad():
            head.weight.mul_(0.1)
            head.bias.fill_(math.log(base_rate / (1 - base_rate)))
            if self.embedding is not None:
                self.embedding.weight.mul_(0.1)
                start = 0
                for category in transforms.categories:
                    self.embedding.weight[start : start + 2] = 0
                    start += category.size

    def forward(self, numeric: Tensor, categories: Tensor) -> Tensor:
        """Return the logit of label 1.

        Args:
            numeric: Shape (rows, features), float32.
            categories: Shape (rows, columns), int32 or int64.

        Returns:
            Shape (rows,), float32.
        """
        rows = numeric
        if self.embedding is not None:
            rows = torch.cat([numeric, self.embedding(categories).flatten(1)], dim=1)
        logit: Tensor = self.layers(rows).squeeze(1)
        return logit


class TabularMlp:
    """Trains and scores a :class:`TabularNetwork`.

    Args:
        network: Sizes of the layers.
    """

    def __init__(self, network: Mlp) -> None:
        self._network = network

    def build(self, inputs: Inputs) -> TabularNetwork:
        """Make the untrained network."""
        if inputs.transforms is None:
            raise InternalError("a network of rows was given no transforms")
        return TabularNetwork(self._network, inputs.transforms, inputs.target.rates[1])

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the binary cross-entropy of each row."""
        return nn.functional.binary_cross_entropy_with_logits(output, target, reduction="none")

    def predict(self, output: Tensor) -> Tensor:
        """Return the probability of label 1 of each row."""
        return torch.sigmoid(output.double())

"""A linear model and a small network side by side (Cheng et al., DLRS 2016), for a label of 0 and 1."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainwright.train.architectures import Inputs


class WideAndDeepNetwork(nn.Module):
    """A weight for every number and every category, and a network over both.

    Args:
        numbers: Numeric features of a row.
        columns: Category columns of a row.
        vocabulary: Categories of all columns together: their codes lie one after another.
        width: Width of a category's embedding.
        hidden: Units of the network's layer.
    """

    def __init__(self, numbers: int, columns: int, vocabulary: int, width: int, hidden: int) -> None:
        super().__init__()
        self.wide = nn.Linear(numbers, 1)
        self.wide_categories = nn.Embedding(vocabulary, 1)
        self.embedding = nn.Embedding(vocabulary, width)
        self.deep = nn.Sequential(
            nn.Linear(numbers + columns * width, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
        nn.init.zeros_(self.wide_categories.weight)

    def forward(self, numeric: Tensor, categories: Tensor) -> Tensor:
        """Return the logit of label 1, shape (rows,)."""
        wide = self.wide(numeric) + self.wide_categories(categories).sum(dim=1)
        deep = self.deep(torch.cat([numeric, self.embedding(categories).flatten(1)], dim=1))
        logit: Tensor = (wide + deep).squeeze(1)
        return logit


class WideAndDeep:
    """What trainwright asks of a model: three methods. ``network.options`` become the arguments.

    Args:
        width: Width of a category's embedding.
        hidden: Units of the network's layer.
    """

    def __init__(self, width: int = 8, hidden: int = 64) -> None:
        self._width, self._hidden = width, hidden

    def build(self, inputs: Inputs) -> WideAndDeepNetwork:
        """Make the untrained network, which begins by saying the share of label 1."""
        target, transforms = inputs.target, inputs.transforms
        if target.kind != "binary" or transforms is None:
            raise ValueError(f"this model is for a label of 0 and 1, not for {target.kind}")
        columns, vocabulary = len(transforms.categories), max(transforms.vocabulary, 1)
        network = WideAndDeepNetwork(transforms.width, columns, vocabulary, self._width, self._hidden)
        nn.init.constant_(network.wide.bias, math.log(target.rates[1] / target.rates[0]))
        return network

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy of each row."""
        return functional.binary_cross_entropy_with_logits(output.float(), target, reduction="none")

    def predict(self, output: Tensor) -> Tensor:
        """Return the probability of label 1 of each row."""
        return torch.sigmoid(output.double())

"""The multilayer perceptron: embeddings for categories, then fully connected layers.

The exported program of a model names this module and its classes: renaming them changes model digests.
"""

import itertools

import torch
from torch import Tensor, nn

from trainwright.experiment import Mlp
from trainwright.train.architectures.contract import Inputs, TabularArchitecture
from trainwright.transforms import Transforms


class TabularNetwork(nn.Module):
    """A multilayer perceptron over numbers and embedded categories.

    All category columns share one embedding table: a single look-up per row.
    """

    def __init__(self, network: Mlp, transforms: Transforms, head: TabularArchitecture) -> None:
        super().__init__()
        columns = len(transforms.categories)
        largest = max((category.size for category in transforms.categories), default=0)
        width = min(network.embedding, (largest + 1) // 2)
        self.embedding = nn.Embedding(transforms.vocabulary, width) if columns else None
        sizes = [transforms.width + columns * width, *network.hidden]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(network.dropout)]
        last = nn.Linear(sizes[-1], head.width)
        self.layers = nn.Sequential(*layers, last)
        self._shape = head.shape
        head.initialize(last)
        if self.embedding is not None:
            with torch.no_grad():
                self.embedding.weight.mul_(0.1)
            zero_unknown(self.embedding, transforms)

    def forward(self, numeric: Tensor, categories: Tensor) -> Tensor:
        """Return the logits, or the standardised predictions: (rows,), or (rows, classes) if more than two.

        ``numeric`` is (rows, features), float32; ``categories`` (rows, columns), int32 or int64.
        """
        rows = numeric
        if self.embedding is not None:
            rows = torch.cat([numeric, self.embedding(categories).flatten(1)], dim=1)
        return self._shape(self.layers(rows))


def zero_unknown(embedding: nn.Embedding, transforms: Transforms) -> None:
    """Set the embeddings of missing and unknown values to 0.

    A code without training rows is never learned: 0 is neutral, random weights would be noise.
    """
    with torch.no_grad():
        start = 0
        for category in transforms.categories:
            embedding.weight[start : start + 2] = 0
            start += category.size


class TabularMlp(TabularArchitecture):
    """Trains and scores a :class:`TabularNetwork`."""

    def __init__(self, network: Mlp) -> None:
        self._network = network

    def build(self, inputs: Inputs) -> TabularNetwork:
        """Create the untrained network."""
        return TabularNetwork(self._network, self._prepare(inputs), self)

"""The tabular network: embeddings for categories, then fully connected layers."""

import itertools

import torch
from torch import Tensor, nn

from trainwright.errors import InternalError
from trainwright.experiment import Mlp
from trainwright.train.architectures.contract import Inputs
from trainwright.train.architectures.heads import Head
from trainwright.transforms import Transforms


class TabularNetwork(nn.Module):
    """A multilayer perceptron over numbers and embedded categories.

    All category columns share one table, with one vocabulary after another: a single look-up a row.

    Args:
        network: Sizes of the layers.
        transforms: What the rows look like.
        head: What the output means.
    """

    def __init__(self, network: Mlp, transforms: Transforms, head: Head) -> None:
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
        head.begin(last)
        if self.embedding is not None:
            with torch.no_grad():
                self.embedding.weight.mul_(0.1)
            forget_unknown(self.embedding, transforms)

    def forward(self, numeric: Tensor, categories: Tensor) -> Tensor:
        """Return the logits, or the standardised predictions.

        Args:
            numeric: Shape (rows, features), float32.
            categories: Shape (rows, columns), int32 or int64.

        Returns:
            Shape (rows,), or (rows, classes) for more than two; float32.
        """
        rows = numeric
        if self.embedding is not None:
            rows = torch.cat([numeric, self.embedding(categories).flatten(1)], dim=1)
        return self._shape(self.layers(rows))


def forget_unknown(embedding: nn.Embedding, transforms: Transforms) -> None:
    """Begin with nothing known of missing and of unknown values.

    A code that no training row has is never learned: at 0 it says nothing, at random it would lie.
    """
    with torch.no_grad():
        start = 0
        for category in transforms.categories:
            embedding.weight[start : start + 2] = 0
            start += category.size


class TabularMlp:
    """Trains and scores a :class:`TabularNetwork`.

    Args:
        network: Sizes of the layers.
    """

    def __init__(self, network: Mlp) -> None:
        self._network = network
        self._head: Head | None = None

    def build(self, inputs: Inputs) -> TabularNetwork:
        """Make the untrained network."""
        if inputs.transforms is None:
            raise InternalError("a network of rows was given no transforms")
        self._head = Head(inputs.target)
        return TabularNetwork(self._network, inputs.transforms, self._head)

    @property
    def head(self) -> Head:
        """What the output means; known once the network is built."""
        if self._head is None:
            raise InternalError("the network is not built yet")
        return self._head

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each row."""
        return self.head.loss(output, target)

    def predict(self, output: Tensor) -> Tensor:
        """Return the scores of each row."""
        return self.head.predict(output)

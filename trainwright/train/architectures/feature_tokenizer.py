"""A transformer over the columns of a row: the FT-Transformer of Gorishniy et al., NeurIPS 2021.

Every feature becomes a token; one more, CLS, aggregates the row. Blocks are pre-norm, without the first norm
of the first block, with ReGLU; the last block computes only CLS, as nothing else of it is read.

The exported program of a model names this module and its classes: renaming them changes model digests.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainwright.experiment import FeatureTokenizer
from trainwright.train.architectures.contract import Inputs, TabularArchitecture
from trainwright.train.architectures.mlp import zero_unknown
from trainwright.transforms import Transforms


class Tokenizer(nn.Module):
    """Turns a row into tokens: CLS, one for each numeric feature, one for each category column.

    A number's token is ``bias + value * direction``, a category's is ``bias + its embedding``; CLS is a bias.
    """

    decays = False  # as in the paper: a direction is a number's embedding, the rest are biases

    def __init__(self, transforms: Transforms, width: int) -> None:
        super().__init__()
        columns = len(transforms.categories)
        self.tokens = 1 + transforms.width + columns
        self.direction = nn.Parameter(torch.empty(transforms.width, width))
        self.bias = nn.Parameter(torch.empty(self.tokens, width))
        self.embedding = nn.Embedding(transforms.vocabulary, width) if columns else None
        for weight in (self.direction, self.bias, *([self.embedding.weight] if self.embedding else [])):
            nn.init.uniform_(weight, -1 / math.sqrt(width), 1 / math.sqrt(width))
        if self.embedding is not None:
            zero_unknown(self.embedding, transforms)

    def forward(self, numeric: Tensor, categories: Tensor) -> Tensor:
        """Return the tokens, shape (rows, ``tokens``, width)."""
        parts = [numeric.new_zeros(numeric.shape[0], 1, self.bias.shape[1])]
        parts.append(numeric.unsqueeze(2) * self.direction)
        if self.embedding is not None:
            parts.append(self.embedding(categories))
        return torch.cat(parts, dim=1) + self.bias


class Block(nn.Module):
    """Attention and a ReGLU network, each with a residual connection.

    The attention of the first block has no norm before it; the last block computes only CLS.
    """

    def __init__(self, network: FeatureTokenizer, *, first: bool, last: bool) -> None:
        super().__init__()
        width, hidden = network.width, network.units
        self._heads, self._last = network.heads, last
        self._dropout = network.dropout
        self.before_attention = nn.Identity() if first else nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.mixed = nn.Linear(width, width)
        self.before_network = nn.LayerNorm(width)
        self.gated = nn.Linear(width, 2 * hidden)
        self.dropout = nn.Dropout(network.dropout)
        self.back = nn.Linear(hidden, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the tokens, shape (rows, tokens, width); of the last block (rows, 1, width)."""
        kept = tokens[:, :1] if self._last else tokens
        tokens = kept + self._attended(self.before_attention(tokens))
        value, gate = self.gated(self.before_network(tokens)).chunk(2, dim=-1)
        narrowed: Tensor = self.back(self.dropout(value * functional.relu(gate)))
        return tokens + narrowed

    def _attended(self, tokens: Tensor) -> Tensor:
        query = self.query(tokens[:, :1] if self._last else tokens)
        key, value = self.key_value(tokens).chunk(2, dim=-1)
        query, key, value = (
            part.unflatten(2, (self._heads, -1)).transpose(1, 2) for part in (query, key, value)
        )
        dropout = self._dropout if self.training else 0.0
        found = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        mixed: Tensor = self.mixed(found.transpose(1, 2).flatten(2))
        return mixed


class TokenNetwork(nn.Module):
    """A tokenizer, blocks, and a last layer that reads CLS."""

    def __init__(self, network: FeatureTokenizer, transforms: Transforms, head: TabularArchitecture) -> None:
        super().__init__()
        self.tokenizer = Tokenizer(transforms, network.width)
        count = network.layers
        self.blocks = nn.ModuleList(
            Block(network, first=index == 0, last=index == count - 1) for index in range(count)
        )
        self.norm = nn.LayerNorm(network.width)
        self.last = nn.Linear(network.width, head.width)
        self._shape = head.shape
        head.initialize(self.last)

    def forward(self, numeric: Tensor, categories: Tensor) -> Tensor:
        """Return the logits, or the standardised predictions: (rows,), or (rows, classes) if more than two.

        ``numeric`` is (rows, features), float32; ``categories`` (rows, columns), int32 or int64.
        """
        tokens = self.tokenizer(numeric, categories)
        for block in self.blocks:
            tokens = block(tokens)
        return self._shape(self.last(functional.relu(self.norm(tokens[:, 0]))))


class TabularTransformer(TabularArchitecture):
    """Trains and scores a :class:`TokenNetwork`."""

    def __init__(self, network: FeatureTokenizer) -> None:
        self._network = network

    def build(self, inputs: Inputs) -> TokenNetwork:
        """Create the untrained network."""
        return TokenNetwork(self._network, self._prepare(inputs), self)

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """Return the transformer blocks: each is sharded, recomputed and compiled by itself."""
        return list(cast("TokenNetwork", module).blocks)

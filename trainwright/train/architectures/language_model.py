"""A decoder-only transformer: rotary positions, RMSNorm, SwiGLU, causal attention with grouped heads.

The design of Llama (Touvron et al., 2023): rotary positions (Su et al., 2021), RMSNorm before each part
(Zhang and Sennrich, NeurIPS 2019), SwiGLU (Shazeer, 2020), heads that share keys and values (Ainslie et al.,
EMNLP 2023). The weights start as in GPT-2 (Radford et al., 2019): normal with deviation 0.02, divided by the
root of the number of additions in layers that add to the residual stream.

The exported program of a model names this module and its classes: renaming them changes model digests.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from trainwright.errors import InternalError
from trainwright.experiment import LanguageModel
from trainwright.train.architectures.contract import Inputs

_DEVIATION = 0.02
_EPSILON = 1e-5


class Norm(nn.RMSNorm):
    """RMSNorm in float32, whatever the precision of its input."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the input, scaled to a mean square of 1 and by the weights."""
        scaled = nn.functional.rms_norm(hidden.float(), self.normalized_shape, self.weight.float(), self.eps)
        return scaled.type_as(hidden)


class Attention(nn.Module):
    """Causal attention; several heads may share their keys and values.

    The projections may hold only some of the heads (tensor parallel): shapes follow from their outputs.
    """

    def __init__(self, network: LanguageModel) -> None:
        super().__init__()
        self._depth = network.width // network.heads
        shared = network.shared_heads * self._depth
        self._grouped = network.shared_heads != network.heads
        self.query = nn.Linear(network.width, network.width, bias=False)
        self.key = nn.Linear(network.width, shared, bias=False)
        self.value = nn.Linear(network.width, shared, bias=False)
        self.output = nn.Linear(network.width, network.width, bias=False)

    def forward(self, hidden: Tensor, turns: Tensor) -> Tensor:
        """Mix each position with those before it; ``hidden`` and the result are (samples, places, width)."""
        query, key, value = (
            layer(hidden).unflatten(2, (-1, self._depth)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(
            turned(query, turns), turned(key, turns), value, is_causal=True, enable_gqa=self._grouped
        )
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output


class FeedForward(nn.Module):
    """SwiGLU: a layer whose units are gated by another."""

    def __init__(self, network: LanguageModel) -> None:
        super().__init__()
        self.gate = nn.Linear(network.width, network.units, bias=False)
        self.up = nn.Linear(network.width, network.units, bias=False)
        self.down = nn.Linear(network.units, network.width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform each position by itself."""
        output: Tensor = self.down(nn.functional.silu(self.gate(hidden)) * self.up(hidden))
        return output


class Block(nn.Module):
    """Attention and a feed-forward network, each with a residual connection."""

    def __init__(self, network: LanguageModel) -> None:
        super().__init__()
        self.attention_norm = Norm(network.width, eps=_EPSILON)
        self.attention = Attention(network)
        self.feed_forward_norm = Norm(network.width, eps=_EPSILON)
        self.feed_forward = FeedForward(network)

    def forward(self, hidden: Tensor, turns: Tensor) -> Tensor:
        """Return (samples, places, width)."""
        hidden = hidden + self.attention(self.attention_norm(hidden), turns)
        changed: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return changed


class LanguageNetwork(nn.Module):
    """The transformer, or one pipeline stage of it.

    Parameters have the same names in a stage as in the whole, so stages make up one checkpoint.
    """

    turns: Tensor

    def __init__(self, network: LanguageModel, layers: range | None = None) -> None:
        super().__init__()
        layers = range(network.layers) if layers is None else layers
        first, last = layers.start == 0, layers.stop == network.layers
        self.embedding = nn.Embedding(network.token_ids, network.width) if first else None
        self.blocks = nn.ModuleDict({str(number): Block(network) for number in layers})
        self.norm = Norm(network.width, eps=_EPSILON) if last else None
        own = last and not network.tied
        self.head = nn.Linear(network.width, network.token_ids, bias=False) if own else None
        turns = turns_of(network.context, network.width // network.heads, network.rope_base)
        self.register_buffer("turns", turns, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token at every position, shape (samples, places, vocabulary).

        ``tokens`` has shape (samples, places), at most ``context`` places. A stage gives the next one its
        hidden states instead, shape (samples, places, width).
        """
        hidden = tokens if self.embedding is None else _lowered(self.embedding(tokens))
        turns = self.turns[: hidden.shape[1]]
        for block in self.blocks.values():
            hidden = block(hidden, turns)
        if self.norm is None:
            return hidden
        hidden = self.norm(hidden)
        if self.head is not None:
            logits: Tensor = self.head(hidden)
            return logits
        if self.embedding is None:
            raise InternalError("a stage has neither a head nor the embedding that it shares")
        return nn.functional.linear(hidden, self.embedding.weight)


def _lowered(hidden: Tensor) -> Tensor:
    """Cast the residual stream to the precision of autocast, as FSDP does by casting the weights."""
    device = hidden.device.type
    return hidden.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else hidden


def turns_of(places: int, depth: int, base: float) -> Tensor:
    """Return the rotary cosines and sines of every position, shape (places, 2, depth / 2), float32."""
    rates = base ** -(torch.arange(0, depth, 2, dtype=torch.float64) / depth)
    angles = torch.outer(torch.arange(places, dtype=torch.float64), rates)
    return torch.stack([angles.cos(), angles.sin()], dim=1).float()


def turned(heads: Tensor, turns: Tensor) -> Tensor:
    """Rotate the two halves of each head by its position; (samples, heads, places, depth)."""
    cos, sin = turns.unbind(1)
    left, right = heads.float().chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1).type_as(heads)


class DecoderLanguageModel:
    """Trains and scores a :class:`LanguageNetwork`."""

    def __init__(self, network: LanguageModel) -> None:
        self._network = network

    def build(self, inputs: Inputs) -> LanguageNetwork:  # noqa: ARG002 - the section is all it needs
        """Create the untrained network."""
        # On "meta" first: the weights that the layers would draw by themselves are not used.
        with torch.device("meta"):
            module = LanguageNetwork(self._network)
        module.to_empty(device="cpu")
        network = self._network
        module.turns.copy_(turns_of(network.context, network.width // network.heads, network.rope_base))
        for name, weight in module.named_parameters():
            if "norm" in name:
                nn.init.ones_(weight)
            else:
                added = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
                nn.init.normal_(weight, std=_DEVIATION / ((2 * network.layers) ** 0.5 if added else 1))
        return module

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross-entropy of each sequence's tokens, in nats."""
        entropy = nn.functional.cross_entropy(
            output.flatten(0, 1).float(), target.flatten().long(), reduction="none"
        )
        return entropy.view(target.shape).mean(1)

    def predict(self, output: Tensor) -> Tensor:
        """Return the log-probabilities of the next token, (samples, places, vocabulary)."""
        return torch.log_softmax(output.double(), dim=-1)

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """Return the transformer's blocks: each is sharded, recomputed and compiled by itself."""
        return list(_own(module).blocks.values())

    def tensor_plan(self, module: nn.Module) -> Mapping[str, ParallelStyle]:
        """Split heads and units (Shoeybi et al., 2019), the output head, and an untied embedding."""
        network = _own(module)
        plan: dict[str, ParallelStyle] = {}
        for number in network.blocks:
            for name in ("attention.query", "attention.key", "attention.value"):
                plan[f"blocks.{number}.{name}"] = ColwiseParallel()
            for name in ("feed_forward.gate", "feed_forward.up"):
                plan[f"blocks.{number}.{name}"] = ColwiseParallel()
            for name in ("attention.output", "feed_forward.down"):
                plan[f"blocks.{number}.{name}"] = RowwiseParallel()
        if network.embedding is not None and not self._network.tied:
            plan["embedding"] = RowwiseParallel(input_layouts=Replicate())
        if network.head is not None:
            plan["head"] = ColwiseParallel(output_layouts=Replicate())
        return plan

    def stage(self, module: nn.Module, index: int, count: int) -> nn.Module:
        """Return a network with some of the blocks of a whole one, which shares its weights."""
        each = [len(part) for part in torch.arange(self._network.layers).tensor_split(count)]
        first = sum(each[:index])
        with torch.device("meta"):
            part = LanguageNetwork(self._network, range(first, first + each[index]))
        part.turns = _own(module).turns
        part.load_state_dict(
            {name: module.state_dict()[name] for name in part.state_dict()}, assign=True, strict=True
        )
        return part

    def gives(self, samples: int, *, last: bool) -> Tensor:
        """Return the output of a stage on ``meta``: hidden states, or the logits of the last stage."""
        width = self._network.token_ids if last else self._network.width
        return torch.empty(samples, self._network.context, width, device="meta")


def _own(module: nn.Module) -> LanguageNetwork:
    if not isinstance(module, LanguageNetwork):
        raise InternalError(f"not a language network: {type(module).__name__}")
    return module

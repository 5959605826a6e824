"""Networks of rows: their size, what they begin with, and that they learn a problem whose answer is known."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from trainwright.errors import InputError
from trainwright.experiment import FeatureTokenizer, Mlp, Network, read_network
from trainwright.train.architectures import Architecture, InBlocks, Inputs, Target, make
from trainwright.train.architectures.contract import TabularArchitecture
from trainwright.train.architectures.feature_tokenizer import Block, TokenNetwork
from trainwright.transforms import Category, Number, Transforms

BINARY = Target("binary", (0.8, 0.2))
MANY = Target("multiclass", (0.5, 0.3, 0.2))
AMOUNT = Target("regression", (1000.0, 50.0))
TARGETS = [BINARY, MANY, AMOUNT]
TOKENIZER = FeatureTokenizer(width=8, heads=2, layers=2, dropout=0.0)
NETWORKS: list[Network] = [Mlp(hidden=(16,), dropout=0.0, embedding=4), TOKENIZER]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def head(target: Target) -> TabularArchitecture:
    """The loss and the scores of a target."""
    architecture = TabularArchitecture()
    architecture._target = target
    return architecture


def columns(numbers: int, sizes: tuple[int, ...]) -> Transforms:
    """Transforms of some numbers, and of category columns with some learned values each."""
    return Transforms(
        numbers=tuple(Number(name=f"n{at}", mean=0, scale=1, indicator=False) for at in range(numbers)),
        times=(),
        categories=tuple(
            Category(name=f"c{at}", values=tuple(f"v{value}" for value in range(size)))
            for at, size in enumerate(sizes)
        ),
    )


def built(network: Network, target: Target, transforms: Transforms) -> tuple[Architecture, nn.Module]:
    torch.manual_seed(0)
    architecture = make(network)
    return architecture, architecture.build(Inputs(target, transforms))


def rows(count: int, transforms: Transforms, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    numeric = torch.randn(count, transforms.width, generator=draw)
    codes, start = [], 0
    for category in transforms.categories:
        codes.append(torch.randint(2, category.size, (count,), generator=draw) + start)
        start += category.size
    return numeric, torch.stack(codes, 1) if codes else torch.zeros(count, 0, dtype=torch.int64)


def test_the_feature_tokenizer_has_the_parameters_that_the_paper_counts() -> None:
    transforms, width, hidden = columns(3, (4, 5)), 8, 11
    _, module = built(TOKENIZER, BINARY, transforms)
    tokens = 1 + 3 + 2
    tokenizer = 3 * width + transforms.vocabulary * width + tokens * width
    attention = 4 * (width * width + width)
    network = (width * 2 * hidden + 2 * hidden) + (hidden * width + width)
    norm, last = 2 * width, width + 1
    # The first block's attention has no norm before it.
    expected = tokenizer + 2 * (attention + network) + 3 * norm + norm + last
    assert transforms.vocabulary == 4 + 2 + 5 + 2
    assert sum(weight.numel() for weight in module.parameters()) == expected


def test_a_block_is_the_attention_of_torch_followed_by_a_gated_network() -> None:
    torch.manual_seed(1)
    block = Block(TOKENIZER, first=False, last=False).eval()
    tokens = torch.randn(5, 4, 8)
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([block.query.weight, block.key_value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([block.query.bias, block.key_value.bias]))
        theirs.out_proj.weight.copy_(block.mixed.weight)
        theirs.out_proj.bias.copy_(block.mixed.bias)
        normed = functional.layer_norm(tokens, (8,), block.before_attention.weight)
        after = tokens + theirs(normed, normed, normed, need_weights=False)[0]
        both = block.gated(functional.layer_norm(after, (8,)))
        expected = after + block.back(both[..., :11] * both[..., 11:].clamp_min(0))
        torch.testing.assert_close(block(tokens), expected, rtol=1e-5, atol=1e-5)


def test_the_last_block_gives_the_first_token_as_if_it_had_computed_all() -> None:
    torch.manual_seed(2)
    whole, short = (Block(TOKENIZER, first=False, last=last).eval() for last in (False, True))
    short.load_state_dict(whole.state_dict())
    tokens = torch.randn(3, 6, 8)
    torch.testing.assert_close(short(tokens), whole(tokens)[:, :1])


def test_the_order_of_the_numeric_columns_does_not_matter_when_their_weights_move_along() -> None:
    transforms = columns(4, (3,))
    _, module = built(TOKENIZER, BINARY, transforms)
    assert isinstance(module, TokenNetwork)
    numeric, categories = rows(7, transforms)
    before, order = module.eval()(numeric, categories), [2, 0, 3, 1]
    with torch.no_grad():
        module.tokenizer.direction.copy_(module.tokenizer.direction[order].clone())
        module.tokenizer.bias[1:5] = module.tokenizer.bias[1:5][order].clone()
    torch.testing.assert_close(module(numeric[:, order], categories), before)
    assert not torch.allclose(module(numeric, categories), before)


def test_blocks_are_the_transformer_blocks() -> None:
    architecture, module = built(TOKENIZER, BINARY, columns(2, ()))
    assert isinstance(architecture, InBlocks)
    assert [type(block) for block in architecture.blocks(module)] == [Block, Block]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.kind)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.kind)
def test_untrained_network_predicts_about_the_base_rate(network: Network, target: Target) -> None:
    transforms = columns(3, (4,))
    architecture, module = built(network, target, transforms)
    scores = architecture.predict(module.eval()(*rows(200, transforms)))
    assert scores.dtype == torch.float64
    expected = {"binary": 0.2, "multiclass": torch.tensor([0.5, 0.3, 0.2]).double(), "regression": 1000.0}
    spread = 50.0 if target.kind == "regression" else 1.0
    found = scores.mean(dim=0)
    torch.testing.assert_close(
        found, torch.as_tensor(expected[target.kind]).double(), rtol=0, atol=0.1 * spread
    )
    if target.kind == "multiclass":
        torch.testing.assert_close(scores.sum(dim=1), torch.ones(200).double())


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.kind)
def test_unknown_and_missing_values_start_neutral(network: Network) -> None:
    transforms = columns(1, (4, 3))
    _, module = built(network, BINARY, transforms)
    embedding = module.tokenizer.embedding if isinstance(module, TokenNetwork) else module.embedding
    for code in (0, 1, 6, 7):
        assert not embedding.weight[code].any()
    assert embedding.weight[2].any()


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.kind)
def test_forward_accepts_no_rows_and_int32_codes(network: Network) -> None:
    transforms = columns(2, (3,))
    _, module = built(network, MANY, transforms)
    numeric, categories = rows(4, transforms)
    assert module(numeric[:0], categories[:0]).shape == (0, 3)
    torch.testing.assert_close(
        module.eval()(numeric, categories.int()), module.eval()(numeric, categories), rtol=0, atol=0
    )


def test_losses_are_those_of_the_definitions() -> None:
    draw = np.random.default_rng(0)
    logit, label = draw.normal(size=20), draw.integers(0, 2, 20)
    p = 1 / (1 + np.exp(-logit))
    found = head(BINARY).loss(torch.tensor(logit).float(), torch.tensor(label).float())
    np.testing.assert_allclose(found, -np.log(np.where(label == 1, p, 1 - p)), rtol=1e-5)
    logits, number = draw.normal(size=(20, 3)), draw.integers(0, 3, 20)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    found = head(MANY).loss(torch.tensor(logits).float(), torch.tensor(number))
    np.testing.assert_allclose(found, -np.log(shares[np.arange(20), number]), rtol=1e-5)
    amount = 1000 + 50 * draw.normal(size=20)
    output = torch.tensor(draw.normal(size=20)).float()
    found = head(AMOUNT).loss(output, torch.tensor(amount).float())
    predicted = head(AMOUNT).predict(output).numpy()
    np.testing.assert_allclose(found, ((predicted - amount) / 50) ** 2, rtol=1e-3, atol=1e-6)


def problem(kind: str, count: int, seed: int) -> tuple[Tensor, Tensor, NDArray[Any]]:
    """Draw labels from odds that are known: a number and a category, and another number that says nothing."""
    draw = np.random.default_rng(seed)
    numeric, code = draw.normal(size=(count, 2)), draw.integers(0, 3, count)
    odds = 2 * numeric[:, 0] + np.array([-2.0, 0.0, 2.0])[code]
    label: NDArray[Any]
    if kind == "regression":
        label = 1000 + 20 * odds + draw.normal(size=count)
    elif kind == "binary":
        label = (draw.random(count) < 1 / (1 + np.exp(-odds))).astype(int)
    else:
        label = np.digitize(odds, [-1, 1])
    return torch.tensor(numeric).float(), torch.tensor(code + 2)[:, None], label


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.kind)
@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
def test_network_learns_the_known_odds(network: Network, kind: str) -> None:
    """Each step sees new rows: 600 rows seen 80 times are learned by heart, and the end is then chance."""
    steps, batch, rate = 150, 200, 0.02
    numeric, categories, label = problem(kind, steps * batch, 0)
    rates = np.bincount(label) / len(label) if kind != "regression" else (label.mean(), label.std())
    target = Target(kind, tuple(map(float, rates)))  # type: ignore[arg-type]
    architecture, module = built(network, target, columns(2, (3,)))
    truth = torch.tensor(label, dtype=torch.int64 if kind == "multiclass" else torch.float32)
    optimizer = torch.optim.AdamW(module.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, steps)
    for rows_of in torch.arange(len(truth)).split(batch):
        optimizer.zero_grad()
        output = module(numeric[rows_of], categories[rows_of])
        architecture.loss(output, truth[rows_of]).mean().backward()
        optimizer.step()
        schedule.step()
    numeric, categories, label = problem(kind, 10_000, 1)
    scores = architecture.predict(module.eval()(numeric, categories)).detach().numpy()
    if kind == "regression":
        assert np.mean((scores - label) ** 2) < 0.005 * label.var(), "of which 0.0004 is noise"
    elif kind == "binary":
        loss = -np.mean(np.log(np.where(label == 1, scores, 1 - scores)))
        odds = 2 * numeric[:, 0].numpy() + np.array([-2.0, 0.0, 2.0])[categories[:, 0].numpy() - 2]
        best = np.mean(np.log1p(np.exp(-np.where(label == 1, odds, -odds))))
        assert loss < best + 0.01 < math.log(2) - 0.1
    else:
        assert np.mean(scores.argmax(axis=1) == label) > 0.98


def test_width_not_divisible_by_heads_is_rejected_with_a_valid_one() -> None:
    with pytest.raises(InputError, match="width 190 is not a multiple of heads 8; 184 is"):
        read_network({"kind": "ft_transformer", "width": 190, "heads": 8})

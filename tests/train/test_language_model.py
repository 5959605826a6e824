"""The language model: what it sees, where it begins, what its parts are, and that it can be exported."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from trainwright.errors import InputError
from trainwright.experiment import LanguageModel, read_network
from trainwright.train.architectures import Inputs, Target
from trainwright.train.architectures.language_model import (
    DecoderLanguageModel,
    LanguageNetwork,
    Norm,
    turned,
    turns_of,
)

NETWORK = LanguageModel(
    vocabulary=50, context=12, width=32, heads=4, groups=2, layers=4, hidden=48, tied=False
)


def built(network: LanguageModel = NETWORK) -> tuple[DecoderLanguageModel, LanguageNetwork]:
    torch.manual_seed(0)
    architecture = DecoderLanguageModel(network)
    return architecture, architecture.build(Inputs(Target("tokens")))


def sequences(count: int = 3) -> Tensor:
    return torch.randint(0, 50, (count, 12), generator=torch.Generator().manual_seed(1))


def test_attention_is_causal() -> None:
    _, module = built()
    tokens = sequences()
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 50
    first, second = module(tokens), module(changed)
    assert torch.equal(first[:, :7], second[:, :7])
    assert (first[:, 7:] - second[:, 7:]).abs().amax(dim=(0, 2)).min() > 0


def test_rotary_products_depend_on_distance_alone() -> None:
    turns = turns_of(40, 8, 10_000.0)
    query, key = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(2))

    def product(at: int, other: int) -> float:
        return float((turned(query, turns[at : at + 1]) * turned(key, turns[other : other + 1])).sum())

    assert product(5, 2) == pytest.approx(product(35, 32), abs=1e-5)
    assert product(5, 2) != pytest.approx(product(5, 3), abs=1e-3)


def test_shared_keys_are_those_of_a_model_that_repeats_them() -> None:
    _, grouped = built()
    _, full = built(NETWORK.model_copy(update={"groups": None}))
    state = grouped.state_dict()
    for name in [name for name in state if ".key." in name or ".value." in name]:
        state[name] = state[name].unflatten(0, (2, 8)).repeat_interleave(2, dim=0).flatten(0, 1)
    full.load_state_dict(state)
    tokens = sequences()
    torch.testing.assert_close(grouped(tokens), full(tokens), rtol=1e-4, atol=1e-6)


def test_the_norm_is_the_root_of_the_mean_square() -> None:
    norm, values = Norm(16, eps=1e-5), torch.randn(5, 16)
    expected = values.numpy() / np.sqrt((values.numpy() ** 2).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(norm(values).detach().numpy(), expected, rtol=1e-5)
    assert norm(values.bfloat16()).dtype == torch.bfloat16


def test_untrained_language_model_is_uniform() -> None:
    architecture, module = built()
    losses = architecture.loss(module(sequences(64)), sequences(64).flip(1))
    assert float(losses.detach().mean()) == pytest.approx(math.log(50), abs=0.05)


def test_what_is_added_to_the_residual_stream_starts_smaller() -> None:
    _, module = built(NETWORK.model_copy(update={"width": 256, "hidden": 512}))
    block = module.blocks["0"]
    assert float(block.attention.query.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    for added in (block.attention.output.weight, block.feed_forward.down.weight):
        assert float(added.detach().std()) == pytest.approx(0.02 / math.sqrt(8), rel=0.05)


def test_the_loss_of_a_sequence_is_the_mean_over_its_tokens() -> None:
    architecture, module = built()
    tokens, target = sequences(), sequences(4)[1:]
    logits = module(tokens)
    scores = architecture.predict(logits)
    picked = np.take_along_axis(scores.detach().numpy(), target.numpy()[..., None], axis=2)[..., 0]
    np.testing.assert_allclose(architecture.loss(logits, target).detach().numpy(), -picked.mean(1), rtol=1e-5)
    np.testing.assert_allclose(np.exp(scores.detach().numpy()).sum(2), 1, rtol=1e-9)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_stages_in_sequence_equal_the_whole_model(count: int) -> None:
    architecture, module = built()
    stages = [architecture.stage(module, index, count) for index in range(count)]
    names = [name for stage in stages for name, _ in stage.named_parameters()]
    assert sorted(names) == sorted(name for name, _ in module.named_parameters())
    passed = sequences()
    for index, stage in enumerate(stages):
        passed = stage(passed)
        told = architecture.gives(3, last=index == count - 1)
        assert (passed.shape, passed.dtype) == (told.shape, told.dtype)
    torch.testing.assert_close(passed, module(sequences()))


def test_language_model_learns_a_rule() -> None:
    architecture, module = built()
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    tokens = (torch.arange(13) + torch.arange(32)[:, None] * 3) % 50
    for _ in range(60):
        optimizer.zero_grad()
        loss = architecture.loss(module(tokens[:, :-1]), tokens[:, 1:]).mean()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.5


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"width": 36}, "width 36 is not a multiple of twice heads 8"),
        ({"groups": 3}, "heads 8 is not a multiple of groups 3"),
    ],
)
def test_indivisible_heads_are_rejected_with_both_numbers(changed: dict[str, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_network({"kind": "lm", "vocabulary": 50, "width": 64, "heads": 8, **changed})

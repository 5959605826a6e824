"""One step in one process: low precision, overflow, clipping, decay, and micro-batches."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.train.parallel_trainings import NETWORK, TOKENIZER, TRAINING, problem
from tests.train.problems import resolved
from trainwright.errors import InputError
from trainwright.experiment import FeatureTokenizer, LanguageModel, Mlp
from trainwright.train.architectures import make
from trainwright.train.architectures.imported import build
from trainwright.train.config import Degrees
from trainwright.train.feeding.loader import Batch
from trainwright.train.parallel import MeshLayout, parallelize
from trainwright.train.process_group import Ranks
from trainwright.train.step import LossScale, Stepper, make_optimizer, micro_batches


def ready(group: Ranks, network: dict[str, Any] | None = None, **asked: Any) -> tuple[Stepper, Batch]:
    training = resolved(**{**TRAINING, **asked})
    architecture = make(LanguageModel(**{**NETWORK, **(network or {})}))
    told, inputs, target = problem({})
    torch.manual_seed(0)
    stepper = Stepper(architecture.build(told), architecture, training, group)
    return stepper, Batch(tuple(entry[:8] for entry in inputs), target[:8], torch.ones(8), torch.arange(8))


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def test_a_gradient_that_overflows_float16_halves_the_scale_until_it_fits(alone: Ranks) -> None:
    stepper, batch = ready(alone, precision="fp16", clip=None)
    batch.weight.fill_(3e4)
    before, skipped = weights(stepper.module), 0
    while (found := stepper.gradients(batch, 8, stop=False)).overflowed:
        assert found.finite
        scale = stepper.scale.value
        stepper.apply(found, 0.01)
        assert stepper.scale.value == scale / 2
        skipped += 1
    after = weights(stepper.module)
    assert skipped > 0
    assert all(torch.equal(before[name], after[name]) for name in before)
    exact, batch = ready(alone, clip=None)
    batch.weight.fill_(3e4)
    assert found.norm == pytest.approx(exact.gradients(batch, 8, stop=False).norm, rel=0.01)
    stepper.apply(found, 0.01)
    assert not torch.equal(before["head.weight"], weights(stepper.module)["head.weight"])


def test_a_loss_that_is_not_finite_is_no_overflow(alone: Ranks) -> None:
    stepper, batch = ready(alone, precision="fp16")
    batch.weight[3] = math.nan
    found = stepper.gradients(batch, 8, stop=False)
    assert not found.overflowed
    assert not found.finite


def test_the_scale_survives_in_the_facts_of_the_state_and_grows_after_2000_steps() -> None:
    facts: dict[str, Any] = {}
    first = LossScale(active=True)
    first.resume(facts)
    first.update(overflowed=True)
    assert facts == {"scale": {"scale": 2.0**15, "steps": 0}}
    again = LossScale(active=True)
    again.resume(facts)
    for _ in range(2000):
        again.update(overflowed=False)
    assert again.value == 2.0**16
    unused: dict[str, Any] = {}
    LossScale(active=False).resume(unused)
    assert unused == {}


def test_the_norm_is_that_of_the_whole_gradient_and_clipping_shortens_it(alone: Ranks) -> None:
    stepper, batch = ready(alone, clip=0.25)
    found = stepper.gradients(batch, 8, stop=True)
    gradient = torch.cat([entry.grad.flatten() for entry in stepper.module.parameters()])
    assert found.norm == pytest.approx(float(gradient.norm()))
    assert found.norm > 0.25
    assert found.stop_requested
    stepper.apply(found, 0.01)
    clipped = torch.cat([entry.grad.flatten() for entry in stepper.module.parameters()])
    torch.testing.assert_close(clipped, gradient * (0.25 / found.norm))


def test_matrices_decay_and_norms_and_embeddings_do_not(alone: Ranks) -> None:
    stepper, _ = ready(alone, weight_decay=0.5)
    decays = {
        id(entry): settings["weight_decay"]
        for settings in stepper.optimizer.param_groups
        for entry in settings["params"]
    }
    found = {name: decays[id(entry)] for name, entry in stepper.module.named_parameters()}
    assert found["blocks.0.attention.query.weight"] == found["head.weight"] == 0.5
    assert found["embedding.weight"] == found["norm.weight"] == found["blocks.1.attention_norm.weight"] == 0


def test_neither_biases_nor_embeddings_of_columns_decay(alone: Ranks) -> None:
    network, told = FeatureTokenizer(width=8, heads=2, layers=1), problem(TOKENIZER)[0]
    optimizer = make_optimizer(module := make(network).build(told), resolved(weight_decay=0.5))
    decays = {
        id(entry): settings["weight_decay"]
        for settings in optimizer.param_groups
        for entry in settings["params"]
    }
    found = {name: decays[id(entry)] for name, entry in module.named_parameters()}
    assert found.pop("tokenizer.bias") == found.pop("tokenizer.direction") == 0
    assert all(
        decay == (0.5 if module.get_parameter(name).ndim > 1 else 0)
        for name, decay in found.items()
        if "embedding" not in name
    )
    assert found["tokenizer.embedding.weight"] == 0


def test_a_model_of_tokens_goes_to_the_device_when_it_is_cut_and_not_whole_before() -> None:
    """Else a model that is sharded because it fits into no device would have to fit into one first."""
    told, asked = problem({})[0], resolved(**TRAINING)
    architecture, device = make(LanguageModel(**NETWORK)), torch.device("meta")
    module = build(architecture, told, device)
    assert {entry.device.type for entry in module.parameters()} == {"cpu"}
    layout = MeshLayout(Degrees(1, 1, 1, 1), Ranks(0, 1, 0, 1, device), None)
    cut_module, _ = parallelize(module, architecture, asked, layout)
    everything = (*cut_module.parameters(), *cut_module.buffers())
    assert {entry.device.type for entry in everything} == {"meta"}


@pytest.mark.parametrize("asked", [{"micro_batch": 3}, {"micro_batch": 1}, {"recompute": True}])
def test_what_saves_memory_changes_no_gradient(alone: Ranks, asked: dict[str, Any]) -> None:
    plain, batch = ready(alone)
    other, _ = ready(alone, **asked)
    first, second = (stepper.gradients(batch, 8, stop=False) for stepper in (plain, other))
    assert first.loss == pytest.approx(second.loss, rel=1e-6)
    for one, two in zip(plain.module.parameters(), other.module.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("degrees", "said"),
    [
        (Degrees(1, 1, 1, 2), "TabularMlp does not support tensor 2: it has no tensor_plan"),
        (Degrees(3, 1, 1, 1), "TabularMlp does not support pipeline 3: it has no stage, gives"),
    ],
)
def test_an_architecture_that_offers_no_parts_is_refused_by_name(
    degrees: Degrees, said: str, alone: Ranks
) -> None:
    architecture = make(Mlp())
    with pytest.raises(InputError, match=said):
        parallelize(nn.Linear(2, 2), architecture, resolved(), MeshLayout(degrees, alone, None))


@pytest.mark.parametrize("share", [0, 1, 4, 5])
def test_every_process_has_as_many_micro_batches_whatever_its_share(share: int) -> None:
    training = resolved(batch_size=20, micro_batch=2)
    batch = Batch((torch.ones(share, 3),), torch.ones(share), torch.ones(share), torch.arange(share))
    parts = micro_batches(batch, 18, 4, training)
    assert len(parts) == 3
    assert all(len(part) > 0 for part in parts)
    assert sum(float(part.weight.sum()) for part in parts) == share


def test_stages_and_compiled_code_see_batches_of_one_size() -> None:
    batch = Batch((torch.ones(3, 3),), torch.ones(3), torch.ones(3), torch.arange(3))
    staged = resolved(batch_size=20, parallel={"pipeline": 2, "micro_batches": 4})
    compiled = resolved(batch_size=20, micro_batch=4, compile=True)
    assert [len(part) for part in micro_batches(batch, 6, 2, staged)] == [3, 3, 3, 3]
    assert [len(part) for part in micro_batches(batch, 6, 2, compiled)] == [4]

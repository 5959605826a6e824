"""The training loop: order, rates, sums over processes, and what stops it."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.train.problems import Outcome, Silent, ready_alone, train_alone
from trainwright.artifacts import Model
from trainwright.errors import Diverged
from trainwright.experiment import Training
from trainwright.train.loop import learning_rate
from trainwright.train.process_group import Ranks


def sha256(network: nn.Module) -> str:
    total = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        total.update(name.encode() + value.numpy().tobytes())
    return total.hexdigest()


def test_one_process_and_two_learn_the_same(
    trained: Outcome, manifest: Model, training_set: Path, tmp_path: Path, alone: Ranks
) -> None:
    network, fitted = train_alone(training_set, tmp_path, alone, Silent())
    two = load_file(trained.model / "weights.safetensors")
    assert fitted.losses[-1] == pytest.approx(manifest.metrics["train_loss"], rel=1e-5)
    assert fitted.losses[0] == pytest.approx(manifest.metrics["first_epoch_loss"], rel=1e-5)
    assert two.keys() == network.state_dict().keys()
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, two[name], rtol=1e-3, atol=1e-4)


def test_the_same_seed_gives_the_same_weights_with_dropout_too(
    training_set: Path, tmp_path: Path, alone: Ranks
) -> None:
    options = {"network": {"dropout": 0.3}, "training": {"epochs": 1}}
    first, _ = train_alone(training_set, tmp_path, alone, Silent(), **options)
    torch.rand(7)  # what else was random does not matter
    second, _ = train_alone(training_set, tmp_path, alone, Silent(), **options)
    options["training"] = {"epochs": 1, "seed": 4}
    other, _ = train_alone(training_set, tmp_path, alone, Silent(), **options)
    assert sha256(first) == sha256(second) != sha256(other)


def test_the_loss_of_the_first_step_is_that_of_the_base_rate(
    training_set: Path, tmp_path: Path, alone: Ranks, manifest: Model
) -> None:
    seen = Silent()
    train_alone(training_set, tmp_path, alone, seen, training={"epochs": 1})
    assert seen.losses[0] == pytest.approx(manifest.metrics["base_rate_loss"], abs=0.02)
    assert seen.losses[-1] < seen.losses[0] - 0.05


def test_a_step_that_is_not_finite_changes_no_weight(
    training_set: Path, tmp_path: Path, alone: Ranks
) -> None:
    loop = ready_alone(training_set, tmp_path, alone, Silent(), training={"learning_rate": 1e30})
    with pytest.raises(Diverged, match="not finite at step 2, epoch 1"):
        loop.run()
    weights = loop.stepper.module.state_dict().values()
    assert all(bool(torch.isfinite(value).all()) for value in weights)


@pytest.mark.parametrize("total", [1, 2, 20, 1000])
def test_the_learning_rate_rises_then_falls_and_is_never_0(total: int) -> None:
    rates = [learning_rate(step, total, Training(learning_rate=0.1)) for step in range(total)]
    top = int(np.argmax(rates))
    assert max(rates) <= 0.1
    assert rates[top] > 0.09 or total == 2
    assert min(rates) > 0
    assert np.all(np.diff(rates[: top + 1]) > 0)
    assert np.all(np.diff(rates[top:]) < 0)
    assert top <= max(1, total // 10)

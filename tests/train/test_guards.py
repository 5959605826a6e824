"""Guards, early stopping and the learning rate."""

import copy
import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.train.problems import Outcome, Silent, ready_alone, resolved, train_alone
from trainwright.artifacts import Model
from trainwright.errors import Diverged
from trainwright.experiment.training import Guards, ResolvedEarlyStopping
from trainwright.train.guards import DivergenceGuard, EarlyStop, GuardDecision, NotFinite, skipped_batches
from trainwright.train.loop import learning_rate
from trainwright.train.process_group import Ranks
from trainwright.train.step import Gradients


def judge(
    guard: DivergenceGuard,
    facts: dict[str, Any],
    step: int,
    loss: float,
    norm: float = 1.0,
    *,
    overflowed: bool = False,
) -> GuardDecision:
    gradients = Gradients(loss, norm, stop_requested=False, overflowed=overflowed)
    return guard.judge(facts, gradients, step=step, batch=step - 1, epoch=1, rate=0.1)


def judged(
    losses: Iterable[float], norms: Iterable[float] | None = None, **settings: Any
) -> Iterator[GuardDecision]:
    guard, facts = DivergenceGuard(Guards(**settings)), {}
    for step, (loss, norm) in enumerate(zip(losses, norms or iter(lambda: 1.0, 2.0), strict=False), 1):
        yield judge(guard, facts, step, loss, norm)


def falling(steps: int, noise: float = 0.05, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    random = np.random.default_rng(seed)
    fall: np.ndarray[Any, np.dtype[np.float64]] = 0.4 + 0.3 * np.exp(-np.arange(steps) / 300)
    return fall + noise * random.normal(size=steps)


@pytest.mark.parametrize("noise", [0.0, 0.001, 0.05, 0.3])
def test_a_loss_that_falls_through_noise_is_healthy(noise: float) -> None:
    for seed in range(5):
        verdicts = list(judged(falling(3000, noise, seed)))
        assert {verdict.action for verdict in verdicts} == {"apply"}


def test_single_wild_batches_are_no_divergence() -> None:
    losses = falling(2000)
    losses[500::100] = 50.0
    assert all(verdict.action == "apply" for verdict in judged(losses))


def test_a_heavy_tail_is_no_divergence() -> None:
    random = np.random.default_rng(3)
    losses = 0.5 + 0.05 * random.standard_t(2.5, size=20_000)
    assert all(verdict.action == "apply" for verdict in judged(losses))


@pytest.mark.covers("F7")
def test_a_loss_that_goes_back_to_chance_has_diverged_within_two_blocks_of_steps() -> None:
    losses = falling(1000, 0.02)
    losses[700:] = math.log(2) + 0.02 * np.random.default_rng(1).normal(size=300)
    told = []
    with pytest.raises(Diverged, match=r"diverged by step \d+, epoch 1: 0\.(69|70)") as caught:
        told.extend(judged(losses))
    assert 700 <= len(told) <= 720
    assert "robust deviations above the median 0.4" in caught.value.what
    assert "(limit 12)" in caught.value.what
    assert (caught.value.code, caught.value.where) == (30, "training.guards.spike")


def test_the_deviations_are_those_of_numpy_over_trimmed_means_of_blocks() -> None:
    losses, block = [*falling(210, 0.02), *[2.0] * 10], 10
    with pytest.raises(Diverged) as caught:
        list(judged(losses))
    means = [np.sort(losses[at : at + block])[2:8].mean() for at in range(0, 210, block)][-20:]
    usual = np.median(means)
    score = (2.0 - usual) / (1.4826 * np.median(np.abs(means - usual)))
    assert f"{score:,.1f} robust deviations" in caught.value.what


def test_a_loss_that_does_not_vary_at_all_may_rise_a_little() -> None:
    assert list(judged([*[1.0] * 400, *[1.1] * 400]))
    with pytest.raises(Diverged):
        list(judged([*[1.0] * 400, *[1.2] * 10]))
    assert list(judged([*[1.0] * 10, *[1e-9] * 400, *[1e-6] * 400])), (
        "next to nothing, of what it was at first"
    )


def test_no_limit_is_no_limit() -> None:
    assert list(judged([*falling(1000), *[1e9] * 1000], spike=None))


@pytest.mark.parametrize("bad", [(math.nan, 1.0), (0.5, math.inf), (math.inf, math.nan)])
def test_what_is_not_finite_stops_at_once(bad: tuple[float, float]) -> None:
    with pytest.raises(NotFinite, match=r"is not finite at step 3, epoch 1, learning rate 0\.1") as caught:
        list(judged([0.5, 0.5, bad[0]], [1.0, 1.0, bad[1]]))
    assert caught.value.code == 30
    assert caught.value.kind == "NAN_LOSS"


@pytest.mark.parametrize("action", ["skip", "roll_back"])
def test_only_so_many_batches_are_forgiven(action: str) -> None:
    guard, facts = DivergenceGuard(Guards(not_finite=action, forgiven=2)), {}
    for step in (4, 9):
        verdict = judge(guard, facts, step, math.nan)
        assert verdict.action == action
        assert f"step {step}" in verdict.warning
    assert skipped_batches(facts) == {3, 8}
    with pytest.raises(NotFinite, match="after 2 other batches were skipped"):
        judge(guard, facts, 12, math.nan)


def test_a_gradient_beyond_float16_is_neither_a_nan_nor_a_spike() -> None:
    guard, facts = DivergenceGuard(Guards()), {}
    for step in range(1, 100):
        verdict = judge(guard, facts, step, 0.5, 0.0, overflowed=True)
        assert verdict == GuardDecision("apply")


def test_a_gradient_far_above_the_usual_is_told() -> None:
    norms = [*[2.0] * 50, 100.0, 2.0]
    verdicts = list(judged([0.5] * 52, norms))
    assert [bool(verdict.warning) for verdict in verdicts] == [*[False] * 50, True, False]
    assert "step 51: the norm of the gradient is 100, 50 times its recent median 2" in verdicts[50].warning


@pytest.mark.parametrize("cut", [1, 104, 105, 199, 205])
def test_a_training_that_is_resumed_in_the_middle_of_a_window_judges_alike(cut: int) -> None:
    losses, norms = falling(400), 1 + falling(400, 0.5, 7)
    losses[300:] += 2
    guard, facts = DivergenceGuard(Guards(window=100)), {}
    outcomes: list[list[str]] = []
    for interrupted in (False, True):
        guard, facts, told = DivergenceGuard(Guards(window=100)), {}, []
        for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), 1):
            if interrupted and step == cut:
                guard, facts = DivergenceGuard(Guards(window=100)), json.loads(json.dumps(facts))
            try:
                told.append(str(judge(guard, facts, step, float(loss), float(norm))))
            except Diverged as error:
                told.append(error.what)
                break
        outcomes.append(told)
    assert outcomes[0] == outcomes[1]
    assert "diverged" in outcomes[0][-1]


def looked(losses: Iterable[float], **settings: Any) -> tuple[int, dict[str, Any]]:
    """Return how many looks there were before the end, and what was noted."""
    stop, facts = EarlyStop(ResolvedEarlyStopping(split="watch", **settings), 10), {}
    count = 0
    for count, loss in enumerate(losses, 1):
        if stop.judge(facts, 10 * count, loss):
            break
    return count, facts["watched"]


def test_training_ends_when_the_watched_split_does_not_get_better_for_as_long_as_was_allowed() -> None:
    count, noted = looked([0.9, 0.7, 0.8, 0.7, 0.71, 0.6, 0.5], patience=3)
    assert count == 5
    assert (noted["best_step"], noted["best_loss"], noted["best"]) == (20, 0.7, False)


def test_a_gain_that_is_too_small_is_none_but_the_least_loss_is_the_best() -> None:
    count, noted = looked([0.9, 0.89, 0.88, 0.87, 0.5], patience=2, min_gain=0.05)
    assert count == 3
    assert (noted["best_step"], noted["best_loss"]) == (30, 0.88)
    count, _ = looked([0.9, 0.87, 0.84, 0.81, 0.78], patience=2, min_gain=0.05)
    assert count == 5, "small gains add up"


def test_looks_come_once_an_epoch_or_as_often_as_asked_and_at_the_end() -> None:
    by_epoch = EarlyStop(ResolvedEarlyStopping(split="watch", patience=3), 10)
    assert [step for step in range(1, 26) if by_epoch.due(step, 25)] == [10, 20, 25]
    often = EarlyStop(ResolvedEarlyStopping(split="watch", every_steps=7, patience=3), 10)
    assert [step for step in range(1, 26) if often.due(step, 25)] == [7, 14, 21, 25]


def test_a_watched_loss_that_is_not_finite_ends_it_and_is_not_noted() -> None:
    stop, facts = EarlyStop(ResolvedEarlyStopping(split="watch", patience=3), 10), {}
    stop.judge(facts, 10, 0.5)
    before = copy.deepcopy(facts)
    with pytest.raises(NotFinite, match="watched split is not finite after step 20"):
        stop.judge(facts, 20, math.nan)
    assert facts == before


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
    rates = [learning_rate(step, total, resolved(learning_rate=0.1)) for step in range(total)]
    top = int(np.argmax(rates))
    assert max(rates) <= 0.1
    assert rates[top] > 0.09 or total == 2
    assert min(rates) > 0
    assert np.all(np.diff(rates[: top + 1]) > 0)
    assert np.all(np.diff(rates[top:]) < 0)
    assert top <= max(1, total // 10)

"""The order of samples: whole, the same for any number of processes, a function of seed and step."""

import hashlib
import math
import tracemalloc
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.train.problems import resolved
from trainwright.errors import InputError
from trainwright.experiment.training import Objective
from trainwright.train.feeding.loader import BalancedOrder, SampleOrder, order_of

calm = settings(max_examples=40)
ORDERS = st.builds(
    SampleOrder,
    samples=st.integers(1, 700),
    batch_size=st.integers(1, 200),
    streams=st.sampled_from([1, 2, 8, 12, 64]),
    seed=st.integers(0, 2**40),
    block=st.integers(1, 100),
    window=st.integers(1, 150),
)


def batch(order: SampleOrder, step: int, parts: int = 1) -> NDArray[np.int64]:
    return np.concatenate([order.share(step, part, parts) for part in range(parts)])


def epoch(order: SampleOrder, number: int) -> list[NDArray[np.int64]]:
    return [batch(order, number * order.batches + step) for step in range(order.batches)]


@calm
@given(ORDERS)
def test_an_epoch_has_every_sample_once_in_batches_of_one_size_but_the_last(order: SampleOrder) -> None:
    for number in (0, 1, 5):
        batches = epoch(order, number)
        assert sorted(np.concatenate(batches).tolist()) == list(range(order.samples))
        sizes = [len(each) for each in batches]
        assert sizes == [order.size(each) for each in range(order.batches)]
        assert set(sizes[:-1]) <= {order.batch_size}
        assert 0 < sizes[-1] <= order.batch_size


@calm
@given(ORDERS, st.integers(0, 10_000), st.integers(1, 300))
def test_a_batch_does_not_depend_on_the_number_of_processes(
    order: SampleOrder, step: int, parts: int
) -> None:
    assert batch(replace(order), step, parts).tolist() == batch(order, step).tolist()
    sizes = [len(order.share(step, part, parts)) for part in range(parts)]
    assert max(sizes) - min(sizes) <= 1


@calm
@given(ORDERS, st.integers(0, 500))
def test_a_step_does_not_depend_on_the_steps_before_it(order: SampleOrder, step: int) -> None:
    fresh = batch(replace(order), step)
    for before in (step + 3, 0, step - 1, step // 2):
        batch(order, max(before, 0))
    assert batch(order, step).tolist() == fresh.tolist()


@calm
@given(ORDERS, st.sets(st.integers(0, 40), max_size=6))
def test_skipped_batches_are_replaced_by_the_next(order: SampleOrder, skip: set[int]) -> None:
    skipping = replace(order, skip=frozenset(skip))
    left = (number for number in range(10_000) if number not in skip)
    for step, number in enumerate(islice(left, 30)):
        assert skipping.position(step) == number
        assert batch(skipping, step).tolist() == batch(order, number).tolist()
        assert len(batch(skipping, step)) == skipping.size_at(step)


def test_epochs_and_seeds_differ() -> None:
    order = SampleOrder(5000, 500, 8, 0, block=16, window=100)
    orders = [epoch(order, 0), epoch(order, 1), epoch(replace(order, seed=1), 0)]
    first, second, other = (np.concatenate(each) for each in orders)
    for one, two in ((first, second), (first, other), (second, other)):
        assert np.mean(one == two) < 0.01
        assert abs(np.corrcoef(one, two)[0, 1]) < 0.06
    assert abs(np.corrcoef(first, np.arange(5000))[0, 1]) < 0.06


def test_a_batch_is_drawn_from_all_over_the_split() -> None:
    order = SampleOrder(1_000_000, 8192, 8, 3)
    ids = batch(order, 7)
    assert np.histogram(ids, bins=20, range=(0, 1_000_000))[0].min() > 200
    assert len(np.unique(ids // order.block)) > 200


def test_every_process_has_an_equal_share_of_a_whole_batch() -> None:
    order = SampleOrder(100_000, 1024, 8, 0)
    assert [len(order.share(5, part, 4)) for part in range(4)] == [256] * 4


GOLDEN = "0c781d3edf9656f50e06d2e353ab41b0670343394b3e0329604411efb5c78f63"


def test_the_order_is_the_one_of_every_release() -> None:
    """If this fails, a training that is resumed with this library sees other samples than before."""
    total = hashlib.sha256()
    orders = [SampleOrder(6001, 500, 8, 3), SampleOrder(100_000, 1000, 16, 1, 512, 2048)]
    orders += [SampleOrder(10, 3, 8, 7), SampleOrder(1_000_003, 8192, 8, 0)]
    for order in orders:
        steps = (*range(min(2 * order.batches, 130)), order.batches, 2 * order.batches - 1)
        for step in steps:
            total.update(order.share(step, 0, 1).astype("<i8").tobytes())
    assert total.hexdigest() == GOLDEN


def test_order_holds_one_window_per_stream() -> None:
    order = SampleOrder(4_000_000, 8192, 8, 0, window=16_384)
    tracemalloc.start()
    for step in range(0, 2 * order.batches, 5):
        order.share(step, 0, 1)
    held, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 8 * 16_384 * 8 * 1.2 + 100_000
    assert most < 2 * held + 1_000_000


CLASSES = st.lists(st.integers(1, 50), min_size=2, max_size=6)


@calm
@given(CLASSES, st.integers(1, 90), st.integers(0, 99), st.sampled_from([2, 3, 4]))
def test_a_balanced_batch_has_every_class_as_often_in_every_share(
    counts: list[int], size: int, step: int, parts: int
) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    order = BalancedOrder.of(labels, size, 1)
    for part in range(parts):
        drawn = np.bincount(labels[order.share(step, part, parts)], minlength=len(counts))
        assert drawn.max() - drawn.min() <= 1
    assert batch(order, step, parts).tolist() == batch(order, step).tolist()
    assert len(batch(order, step)) == order.size_at(step)


@calm
@given(st.integers(0, 2**40))
def test_a_balanced_order_draws_every_sample_of_a_class_alike(seed: int) -> None:
    labels = np.array([0] * 90 + [1] * 10)
    order = BalancedOrder.of(labels, 100, seed)
    drawn = np.bincount(np.concatenate([batch(order, step) for step in range(400)]), minlength=100)
    assert drawn[:90].sum() == drawn[90:].sum() == 20_000
    for part, expected in ((drawn[:90], 20_000 / 90), (drawn[90:], 2000)):
        chi, free = float(((part - expected) ** 2 / expected).sum()), len(part) - 1
        # Laurent and Massart 2000, lemma 1: outside with a chance of at most 2 in exp(20), or 4e-9.
        assert -2 * math.sqrt(20 * free) < chi - free < 2 * math.sqrt(20 * free) + 40


def test_balanced_order_skips_batches() -> None:
    order = BalancedOrder.of(np.arange(100) % 3, 20, 0)
    skipping = replace(order, skip=frozenset({1}))
    assert batch(skipping, 1).tolist() == batch(order, 2).tolist()


def test_a_class_without_samples_cannot_be_drawn() -> None:
    with pytest.raises(InputError, match="there is none of 1, 2"):
        BalancedOrder.of(np.array([0, 3, 3, 0]), 2, 0)


def test_order_is_balanced_only_if_configured() -> None:
    labels = np.array([0.0, 1.0, 0.0], np.float32)
    plain = order_of(100, resolved(batch_size=10), lambda: labels)
    assert plain == SampleOrder(100, 10, 8, 0)
    sampling = Objective(sampling="balanced")
    balanced = order_of(3, resolved(batch_size=2, objective=sampling), lambda: labels)
    assert isinstance(balanced, BalancedOrder)
    assert balanced.counts.tolist() == [2, 1]

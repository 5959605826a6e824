"""The tests of a comparison against every arrangement written out, and against what scipy finds."""

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

from trainwright.errors import InternalError
from trainwright.significance.permutation import paired_test, pairs_required, unpaired_test

NUMBERS = [0.31, -0.12, 0.55, 0.27, 0.08, -0.02, 0.4]


def flipped(differences: list[float], mean: float) -> float:
    """The two-sided p-value of a true mean difference, by writing every choice of signs out."""
    moved = [value - mean for value in differences]
    sums = [math.fsum(s * v for s, v in zip(signs, moved, strict=True)) for signs in signs_of(len(moved))]
    tails = [sum(side * (total - math.fsum(moved)) <= 1e-12 for total in sums) for side in (1, -1)]
    return min(1.0, 2 * min(tails) / len(sums))


def signs_of(count: int) -> list[tuple[int, ...]]:
    return list(itertools.product((1, -1), repeat=count))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7])
def test_the_sign_flip_test_counts_every_choice_of_signs(count: int) -> None:
    found = paired_test(NUMBERS[:count])
    assert found.p == pytest.approx(flipped(NUMBERS[:count], 0))
    assert found.least_p == 2.0 ** (1 - count)


def test_scipy_finds_the_same_p() -> None:
    theirs = stats.permutation_test((NUMBERS,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert paired_test(NUMBERS).p == pytest.approx(theirs.pvalue)
    halves = (NUMBERS[:3], NUMBERS[3:])
    independent = stats.permutation_test(
        halves, lambda a, b: np.mean(a) - np.mean(b), n_resamples=np.inf, permutation_type="independent"
    )
    assert unpaired_test(*halves).p == pytest.approx(independent.pvalue)


@pytest.mark.parametrize("count", [6, 7])
def test_the_interval_holds_exactly_what_the_test_does_not_refuse(count: int) -> None:
    found, step = paired_test(NUMBERS[:count]), 1e-6
    for inside, outside in ((found.low + step, found.low - step), (found.high - step, found.high + step)):
        assert flipped(NUMBERS[:count], inside) > 0.05 >= flipped(NUMBERS[:count], outside)
    assert found.confidence >= 0.95


def test_five_pairs_reach_a_sixteenth_and_no_more_however_far_apart() -> None:
    found = paired_test([1e6, 2e6, 3e6, 4e6, 5e6])
    assert (found.p, found.least_p, found.confidence) == (0.0625, 0.0625, 0.9375)
    assert (found.low, found.high) == (1e6, 5e6)
    assert [pairs_required(0.05), pairs_required(0.05, tests=2), pairs_required(0.01)] == [6, 7, 8]


def test_one_pair_says_nothing() -> None:
    found = paired_test([3.0])
    assert (found.p, found.least_p, found.confidence) == (1.0, 1.0, 0.0)


def test_no_difference_at_all_is_no_difference() -> None:
    found = paired_test([0.0] * 8)
    assert (found.p, found.value, found.low, found.high) == (1.0, 0, 0, 0)


def test_a_difference_that_never_varies_has_the_smallest_possible_p() -> None:
    assert paired_test([0.5] * 6).p == 2**-5


def test_the_exact_unpaired_interval_holds_what_its_test_does_not_refuse() -> None:
    first, second = [3.1, 2.2, 4.0, 3.3], [1.0, 1.5, 0.2, 1.1, 2.5]
    found = unpaired_test(first, second)
    assert found.least_p == 2 / math.comb(9, 4)
    for inside, outside in ((found.low + 1e-6, found.low - 1e-6), (found.high - 1e-6, found.high + 1e-6)):
        held = [unpaired_test([value - mean for value in first], second).p for mean in (inside, outside)]
        assert held[0] > 0.05 >= held[1]


def test_many_pairs_agree_with_the_normal_theory_that_holds_there() -> None:
    values = np.random.default_rng(5).normal(0.3, 1, 60)
    found = paired_test(values.tolist())
    z = values.mean() / np.sqrt((values**2).mean() / 60)  # signs flip around 0, so the second moment counts
    assert found.p == pytest.approx(2 * NormalDist().cdf(-abs(z)), rel=0.15)
    assert found.low == pytest.approx(values.mean() - 1.96 * values.std(ddof=1) / 60**0.5, abs=0.02)


def test_many_unpaired_runs_agree_with_student() -> None:
    draw = np.random.default_rng(6)
    first, second = draw.normal(0.5, 1, 30), draw.normal(0, 1, 40)
    student = stats.ttest_ind(first, second)
    found = unpaired_test(first.tolist(), second.tolist())
    assert found.p == pytest.approx(student.pvalue, rel=0.2)
    low, high = student.confidence_interval()
    assert (found.low, found.high) == (pytest.approx(low, abs=0.03), pytest.approx(high, abs=0.03))


def test_the_same_numbers_give_the_same_answer() -> None:
    values = np.random.default_rng(1).normal(0, 1, 40).tolist()
    assert paired_test(values) == paired_test(values)
    assert unpaired_test(values[:20], values[20:]) == unpaired_test(values[:20], values[20:])


def test_an_empty_side_is_our_bug() -> None:
    with pytest.raises(InternalError):
        paired_test([])
    with pytest.raises(InternalError):
        unpaired_test([], [1.0])

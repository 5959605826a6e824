"""Pairs, placements, draws and sizes against published examples, scipy, brute force and simulation."""

import numpy as np
import pytest
from scipy.stats import binom, norm

from tests.significance.references import delong, delong_difference, newcombe, placements, rest_of
from trainwright.significance import (
    Estimate,
    Resampler,
    Rest,
    apart,
    beyond,
    gap_to_whole,
    intervals,
    mcnemar,
    paired_difference,
    ratio_to_whole,
    rows_needed,
    smallest_ratio,
    wilson,
)
from trainwright.significance.resampling import shuffled


def test_a_paired_difference_is_the_example_of_newcombe_1998() -> None:
    found = paired_difference(36, 12, 2, 0)
    assert found.value == pytest.approx(0.2)
    assert (found.low, found.high) == (pytest.approx(0.0569, abs=5e-5), pytest.approx(0.3404, abs=5e-5))


def test_a_paired_difference_turns_round_with_its_models() -> None:
    one, two = paired_difference(50, 9, 4, 20), paired_difference(50, 4, 9, 20)
    assert (one.value, one.low, one.high) == pytest.approx((-two.value, -two.high, -two.low))


@pytest.mark.parametrize(("first", "second"), [(1, 9), (12, 2), (40, 41), (0, 6), (700, 800)])
def test_mcnemar_takes_half_of_the_chance_of_what_was_seen(first: int, second: int) -> None:
    fewer, trials = min(first, second), first + second
    expected = 2 * (binom.cdf(fewer, trials, 0.5) - binom.pmf(fewer, trials, 0.5) / 2)
    assert mcnemar(first, second) == pytest.approx(min(1, expected), rel=1e-9)
    assert mcnemar(5, 5) == 1


def draw(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    label = (random.random(rows) < 0.3).astype(np.int64)
    one = np.round(label + random.normal(0, 1, rows), 1)
    return label, one, np.round(0.5 * one + random.normal(0, 1, rows), 1)


def test_placements_of_single_rows_are_delong() -> None:
    label, one, two = draw(2000, 0)
    found = placements(label, [one, two])
    exact, gain = delong(label, one), delong_difference(label, one, two)
    assert found.area[0] == pytest.approx(exact.value, abs=1e-12)
    assert found.estimate(0).low == pytest.approx(exact.low, abs=2e-5)
    assert found.difference().high == pytest.approx(gain.high, abs=5e-5)


def test_a_weight_of_two_is_the_area_of_a_row_that_stands_twice() -> None:
    label, one, _ = draw(300, 1)
    weight = np.random.default_rng(2).integers(0, 4, 300)
    found = placements(label, [one], weight=weight.astype(np.float64))
    assert found.area[0] == pytest.approx(delong(np.repeat(label, weight), np.repeat(one, weight)).value)


def test_rows_that_stand_five_times_tell_no_more_when_they_are_clusters() -> None:
    label, one, _ = draw(400, 3)
    apart = placements(label, [one]).estimate(0)
    clusters = np.repeat(np.arange(400), 5)
    together = placements(np.repeat(label, 5), [np.repeat(one, 5)], clusters=clusters).estimate(0)
    fooled = delong(np.repeat(label, 5), np.repeat(one, 5))
    assert together.high - together.low == pytest.approx(apart.high - apart.low, rel=1e-6)
    assert fooled.high - fooled.low < 0.5 * (together.high - together.low)


def test_draws_of_sums_are_draws_of_rows() -> None:
    random = np.random.default_rng(0)
    values, place = random.normal(3, 2, 500), random.integers(0, 3, 500)
    sampler = Resampler((500,), resamples=4000, seed=1)
    drawn = sampler.draw(sampler.add_up(np.arange(500), place, 3, [np.ones(500), values]))
    assert drawn[..., 0].sum(axis=1) == pytest.approx(np.full(4000, 500.0))
    means = drawn[..., 1] / drawn[..., 0]
    for part in range(3):
        inside = values[place == part]
        assert means[:, part].std() == pytest.approx(inside.std() / np.sqrt(len(inside)), rel=0.06)


def test_blocks_of_many_rows_have_the_spread_of_the_rows() -> None:
    values = np.random.default_rng(0).exponential(2, 100_000)
    sampler = Resampler((100_000,), resamples=2000, seed=1)
    assert sampler.units == 4096
    unit = sampler.unit_of(np.arange(100_000))
    assert set(np.bincount(unit).tolist()) == {24, 25}
    drawn = sampler.draw(sampler.add_up(unit, np.zeros_like(unit), 1, [values]))[:, 0, 0] / 100_000
    assert drawn.std() == pytest.approx(values.std() / np.sqrt(100_000), rel=0.06)


@pytest.mark.parametrize("size", [4097, 10_000, 65_536])
def test_rows_are_put_in_a_random_order_in_which_each_has_its_own_place(size: int) -> None:
    found = shuffled(np.arange(size), size, seed=3)
    assert np.array_equal(np.sort(found), np.arange(size))
    assert found[100:120].tolist() == shuffled(np.arange(100, 120), size, seed=3).tolist()
    neighbours = np.abs(np.diff(found)) / size
    assert neighbours.mean() == pytest.approx(1 / 3, abs=0.02)
    assert abs(np.corrcoef(np.arange(size), found)[0, 1]) < 0.05


def test_strata_keep_their_rows_and_clusters_stay_whole() -> None:
    label = np.array([0] * 90 + [1] * 10)
    sampler = Resampler((90, 10), resamples=300, seed=0)
    unit = np.concatenate([sampler.unit_of(np.arange(90)), sampler.unit_of(np.arange(10), 1)])
    drawn = sampler.draw(sampler.add_up(unit, np.zeros(100, np.int64), 1, [label.astype(np.float64)]))
    assert set(drawn.ravel().tolist()) == {10.0}
    clusters = np.repeat(np.arange(25), 4)
    sampler = Resampler((25,), resamples=300, seed=0)
    drawn = sampler.draw(sampler.add_up(clusters, clusters, 25, [np.ones(100)]))[..., 0]
    assert set((drawn % 4).ravel().tolist()) == {0.0}


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    values = np.random.default_rng(0).random(200)
    place = np.zeros(200, np.int64)
    found = [
        (sampler := Resampler((200,), 200, seed)).draw(sampler.add_up(np.arange(200), place, 1, [values]))
        for seed in (3, 3, 4)
    ]
    assert found[0].tobytes() == found[1].tobytes() != found[2].tobytes()


def test_bca_covers_the_mean_of_a_skewed_sample_more_often_than_percentiles() -> None:
    random, covered = np.random.default_rng(0), np.zeros(2)
    for seed in range(300):
        values = random.lognormal(0, 1, 25)
        sampler = Resampler((25,), resamples=600, seed=seed)
        sums = sampler.add_up(np.arange(25), np.zeros(25, np.int64), 1, [values])
        total = sums.sum(axis=0)[:, 0]
        for index, left in enumerate((None, (total - sums[..., 0]) / 24)):
            low, high = intervals(total / 25, sampler.draw(sums)[..., 0] / 25, left)
            covered[index] += low[0] <= np.exp(0.5) <= high[0]
    assert covered[1] > covered[0]
    assert covered[1] / 300 > 0.82


def test_the_gap_to_the_whole_is_the_largest_distance_and_its_interval_holds() -> None:
    hits, trials = [30, 50, 80], [100, 100, 100]
    assert gap_to_whole(hits, trials, rest_of(hits, trials)).value == pytest.approx(0.8 - 160 / 300)
    random = np.random.default_rng(0)
    truth, rows = np.array([0.3, 0.4, 0.35]), np.array([200, 400, 300])
    gap = np.abs(truth - (truth * rows).sum() / rows.sum()).max()
    held = []
    for _ in range(300):
        hits = random.binomial(rows, truth).tolist()
        found = gap_to_whole(hits, rows.tolist(), rest_of(hits, rows.tolist()))
        held.append(found.low <= gap <= found.high)
    assert np.mean(held) >= 0.95


def test_the_smallest_ratio_lies_in_its_interval_as_often_as_it_says() -> None:
    random, truth, rows = np.random.default_rng(1), np.array([0.2, 0.3]), np.array([300, 250])
    held = []
    for _ in range(400):
        found = smallest_ratio(random.binomial(rows, truth).tolist(), rows.tolist())
        assert found is not None
        held.append(found.low <= 2 / 3 <= found.high)
    assert 0.92 <= np.mean(held) <= 0.99
    assert smallest_ratio([0, 0], [10, 10]) is None


def test_a_group_that_is_half_as_likely_as_the_whole_has_that_ratio() -> None:
    found = ratio_to_whole([10, 30], [100, 100], rest_of([10, 30], [100, 100]))
    assert found is not None
    assert found.value == pytest.approx(0.5)
    assert found.low < 0.5 < found.high < 1


def test_the_chance_beyond_a_limit_is_one_half_of_a_twentieth_at_the_end_of_the_interval() -> None:
    found = Estimate(0.7, 0.66, 0.74)
    assert beyond(found, 0.66) == pytest.approx(0.025)
    assert beyond(found, 0.7) == 0.5
    assert beyond(Estimate(1, 1, 1), 0.5) == 0


def test_as_many_rows_as_are_asked_for_decide_in_four_of_five_samples() -> None:
    truth, limit, rows, random = 0.7, 0.66, 200, np.random.default_rng(0)
    half = norm.ppf(0.975) * np.sqrt(truth * (1 - truth) / rows)
    needed = rows_needed(Estimate(truth, truth - half, truth + half), limit, rows)
    share = random.binomial(needed, truth, 20_000) / needed
    low = share - norm.ppf(0.975) * np.sqrt(share * (1 - share) / needed)
    assert np.mean(low > limit) == pytest.approx(0.8, abs=0.02)
    assert rows_needed(Estimate(0.7, 0.6, 0.8), 0.7, 100) == 0


def test_among_twenty_tests_as_many_rows_as_are_asked_for_tell_at_their_shared_level() -> None:
    truth, limit, rows, random = 0.7, 0.66, 200, np.random.default_rng(0)
    half = norm.ppf(0.975) * np.sqrt(truth * (1 - truth) / rows)
    needed = rows_needed(Estimate(truth, truth - half, truth + half), limit, rows, tests=20)
    share = random.binomial(needed, truth, 20_000) / needed
    low = share - norm.ppf(1 - 0.025 / 20) * np.sqrt(share * (1 - share) / needed)
    assert np.mean(low > limit) == pytest.approx(0.8, abs=0.02)


def test_what_both_know_alone_is_put_together_as_of_independent_shares() -> None:
    one, two = wilson(30, 30), wilson(85, 100)
    found = apart(Estimate(0.15, 0.14, 0.16), one, two)
    independent = newcombe((30, 85), (30, 100))
    assert (found.low, found.high) == pytest.approx((independent.low, independent.high))
    wide = Estimate(0.15, -0.5, 0.5)
    assert apart(wide, one, two) == wide, "it never makes an interval narrower"


def test_a_perfect_ranking_beats_another_by_no_more_than_it_is_known_to_be_perfect() -> None:
    label = np.repeat([0, 1], [970, 30])
    random = np.random.default_rng(0)
    perfect, other = label + random.random(1000) / 2, label + random.normal(0, 0.25, 1000)
    for found in (
        delong_difference(label, perfect, other),
        placements(label, [perfect, other], weight=np.full(1000, 2.0)).difference(),
    ):
        assert found.value > 0
        assert found.low <= found.value - (1 - wilson(30, 30).low)
    same = placements(label, [perfect, perfect], weight=np.full(1000, 2.0)).difference()
    assert (same.low, same.high) == (0, 0) == (delong_difference(label, perfect, perfect).low, 0)


def test_the_rest_of_a_group_may_be_more_than_the_other_groups() -> None:
    hits, trials = [60, 30], [100, 100]
    more = Rest(np.array([30 + 10.0, 60 + 10]), np.full(2, 1100.0), np.full(2, 100 / 1200))
    found, share = gap_to_whole(hits, trials, more), ratio_to_whole(hits, trials, more)
    assert found.value == pytest.approx(0.6 - 100 / 1200)
    assert found.low < found.value < found.high
    assert share is not None
    assert share.value == pytest.approx((100 / 1200) / 0.6)
    assert share.low < share.value < share.high

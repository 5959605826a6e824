"""Bounds on a mean that may be looked at after every value."""

import itertools
import math

import numpy as np
import pytest

from trainwright.significance import mean_bounds

NOTHING = np.array([], np.float64)


def capital(values: list[float], mean: float, bet: float) -> float:
    """The most that one bettor ever had, by the definition."""
    money = most = 1.0
    for value in values:
        money *= 1 + min(bet, 0.75 / mean) * (value - mean)
        most = max(most, money)
    return most


def test_bound_of_thirty_equal_values_is_where_the_best_bettor_had_six_times_twenty() -> None:
    found = mean_bounds(np.full(30, 0.6), 0.05, 0.05)
    low = (found.low + 1) / 2
    at_bound = [capital([0.8] * 30, low, 1.5 / 4**index) for index in range(6)]
    assert max(at_bound) == pytest.approx(6 / 0.05, rel=1e-5)
    assert found.value == pytest.approx(0.6)
    assert found.low < found.value < found.high


def test_no_values_bound_nothing() -> None:
    assert (mean_bounds(NOTHING, 0.05, 0.05).low, mean_bounds(NOTHING, 0.05, 0.05).high) == (-1, 1)


def test_lower_bound_that_was_once_won_is_not_lost_by_later_values() -> None:
    """So a canary that failed stays failed when late outcomes arrive."""
    good_later = np.concatenate([np.full(50, 0.9), np.full(400, -0.5)])
    found = mean_bounds(good_later, 0.05, 0.05)
    assert good_later.mean() < 0 < mean_bounds(good_later[:50], 0.05, 0.05).low == found.low


def test_bounds_of_negated_values_are_the_negated_bounds() -> None:
    values = np.random.default_rng(3).uniform(-1, 0.5, 400)
    one, other = mean_bounds(values, 0.05, 0.01), mean_bounds(-values, 0.01, 0.05)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-7)


def test_more_values_never_move_the_lower_bound_down() -> None:
    values = np.random.default_rng(4).choice([-1.0, 0.0, 1.0], 600, p=[0.05, 0.85, 0.1])
    ends = [mean_bounds(values[:count], 0.05, 0.05) for count in range(50, 601, 50)]
    assert all(one.low <= two.low and one.high >= two.high for one, two in itertools.pairwise(ends))


@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_mean_is_ever_outside_in_at_most_the_stated_share_of_sequences(spread: float) -> None:
    """Bounds never widen, so the last one says whether any before it was wrong."""
    draw, count = np.random.default_rng(5), 500
    values = draw.choice([-1.0, 0.0, 1.0], (count, 400), p=[spread, 1 - 2 * spread, spread])
    found = [mean_bounds(row, 0.1, 0.1) for row in values]
    allowed = 0.1 * count + 3 * math.sqrt(0.1 * 0.9 * count)
    assert sum(one.low > 0 for one in found) <= allowed
    assert sum(one.high < 0 for one in found) <= allowed

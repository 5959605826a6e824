"""The floors below which a distance is noise, against tables, against simulation and against enumeration."""

import itertools
import math

import numpy as np
import pytest

from trainwright.drift.null_distribution import (
    NoChance,
    of_bins,
    of_divergence,
    of_largest_share,
    of_share,
    of_unseen,
)

DRAWS = 400


def divergence(current: np.ndarray, previous: np.ndarray) -> float:
    p, q = current / current.sum(), previous / previous.sum()
    m = (p + q) / 2
    left, right = (np.sum(x[x > 0] * np.log2(x[x > 0] / m[x > 0])) for x in (p, q))
    return float(left + right) / 2


def zipf(values: int) -> np.ndarray:
    weights = 1 / np.arange(1, values + 1)
    return weights / weights.sum()


def test_the_floor_of_a_divergence_with_many_rows_is_the_quantile_of_chi_squared() -> None:
    """chi-squared with 9 degrees of freedom is below 21.666 in 99 of 100 cases, by any table."""
    even = [10_000] * 10
    floor = of_divergence(even, even).floor(0.01)
    assert floor == pytest.approx(21.666 * (2 / 100_000) / (8 * math.log(2)), rel=0.001)


SHAPES = {
    "even 500/500": (np.full(10, 0.1), 500, 500),
    "bins 1,000/100,000": (np.full(22, 1 / 22), 1_000, 100_000),
    "long tail 500/500": (zipf(1_000), 500, 500),
    "long tail 4,000/500": (zipf(1_000), 4_000, 500),
    "nearly all distinct": (np.full(20_000, 1 / 20_000), 300, 300),
    "rare 300/300": (np.array([0.96, 0.01, 0.01, 0.01, 0.01]), 300, 300),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_that_has_not_moved_is_beyond_its_floor_more_often_than_asked(shape: str) -> None:
    """At 5 %, over 400 draws: at most 5 % and three standard errors."""
    share, n, m = SHAPES[shape]
    draw = np.random.default_rng(7)
    alarms = np.zeros(3)
    for _ in range(DRAWS):
        now, before = draw.multinomial(n, share), draw.multinomial(m, share)
        alarms += [
            of_divergence(now, before).tail(divergence(now, before)) <= 0.05,
            of_largest_share(now, before).tail(np.abs(now / n - before / m).max()) <= 0.05,
            of_unseen(now, before).tail(now[before == 0].sum() / n) <= 0.05,
        ]
    assert alarms.max() / DRAWS <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / DRAWS)


@pytest.mark.parametrize(("n", "m"), [(2_000, 2_000), (3_000, 300), (300, 3_000)])
def test_bins_that_the_reference_bounds_are_beyond_their_floor_no_more_often_than_asked(
    n: int, m: int
) -> None:
    """Rows dealt out at random would alarm half as often again, or twice: their picture has other bins."""
    draw, alarms = np.random.default_rng(6), np.zeros(2)
    for _ in range(DRAWS):
        now, before = draw.normal(size=n), np.sort(draw.normal(size=m))
        places = np.ceil(np.arange(1, 21) / 20 * m).astype(int) - 1
        cuts = np.concatenate([[np.nextafter(before[0], -np.inf)], before[places]])
        current, previous = (np.bincount(np.searchsorted(cuts, x), minlength=22) for x in (now, before))
        distance = divergence(current, previous)
        chances = (of_bins(n, previous), of_divergence(current, previous))
        alarms += [chance.tail(distance) <= 0.05 for chance in chances]
    assert alarms[0] / DRAWS <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / DRAWS)
    assert alarms[0] <= alarms[1]


def test_chi_squared_alone_would_cry_wolf_on_many_rare_values() -> None:
    """Why the floor is not the textbook's: on a column of nearly distinct values it always alarms."""
    draw = np.random.default_rng(0)
    now, before = (draw.multinomial(300, np.full(20_000, 1 / 20_000)) for _ in range(2))
    values = int(np.sum(now + before > 0))
    textbook = (values + 4 * math.sqrt(2 * values)) * (2 / 300) / (8 * math.log(2))
    assert textbook < divergence(now, before) < of_divergence(now, before).floor(0.01)


def enumerated(hits: int, n: int, m: int, value: float) -> float:
    """Probability that a share differs by this much or more, over every way to deal the rows out."""
    ways = {rows: math.comb(n, rows) * math.comb(m, hits - rows) for rows in range(hits + 1)}
    far = sum(w for rows, w in ways.items() if abs(rows / n - (hits - rows) / m) >= value - 1e-12)
    return far / sum(ways.values())


@pytest.mark.parametrize(("hits", "n", "m"), [(3, 10, 12), (1, 50, 60), (9, 20, 80)])
def test_the_chance_of_one_share_is_fishers_exact_test(hits: int, n: int, m: int) -> None:
    chance = of_share((hits, 0), (n, m))
    for rows in range(hits + 1):
        value = abs(rows / n - (hits - rows) / m)
        assert chance.tail(value) == pytest.approx(min(1.0, enumerated(hits, n, m, value)))


def test_the_chance_of_one_share_with_many_rows_is_the_two_proportion_z_test() -> None:
    error = math.sqrt(0.1 * 0.9 * (1 / 1_000_000 + 1 / 4_000_000))
    floor = of_share((100_000, 400_000), (1_000_000, 4_000_000)).floor(0.05)
    assert floor == pytest.approx(1.959964 * error, rel=1e-4)


def test_of_two_values_one_moves_as_far_as_the_other_and_counts_once() -> None:
    both, one = of_largest_share([30, 20], [40, 60]), of_share((30, 40), (50, 100))
    assert both.tail(0.2) == one.tail(0.2)


def test_a_floor_is_where_the_tail_falls_below_its_level() -> None:
    draw = np.random.default_rng(2)
    now, before = draw.multinomial(700, zipf(60)), draw.multinomial(900, zipf(60))
    for make, level in itertools.product((of_divergence, of_largest_share, of_unseen), (0.05, 1e-3, 1e-6)):
        chance = make(now, before)
        floor = chance.floor(level)
        assert chance.tail(floor * 1.0001 + 1e-9) <= level * 1.001
        assert chance.tail(floor * 0.9) > level


def test_no_rows_and_a_single_value_have_no_noise() -> None:
    for chance in (of_divergence([7], [9]), of_largest_share([], []), of_share((0, 0), (5, 9))):
        assert isinstance(chance, NoChance)
        assert chance.floor(0.01) == 0
        assert (chance.tail(0.0), chance.tail(0.1)) == (1.0, 0.0)


def test_a_value_too_common_to_be_overlooked_is_never_new_by_chance() -> None:
    assert of_unseen([500, 5], [5_000, 50]).floor(1e-6) < 0.02
    assert of_unseen([5_000], [5_000]).floor(1e-6) == 0

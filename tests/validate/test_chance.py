"""The floors below which a distance is noise, against tables and against simulation."""

import math

import numpy as np
import pytest

from trainwright.validate.chance import chi_squared, divergence_floor, largest_share_floor, share_floor

DRAWS = 2_000


def divergence(current: np.ndarray, previous: np.ndarray) -> float:
    p, q = current / current.sum(), previous / previous.sum()
    m = (p + q) / 2
    left, right = (np.sum(x[x > 0] * np.log2(x[x > 0] / m[x > 0])) for x in (p, q))
    return float(left + right) / 2


@pytest.mark.parametrize(
    ("probability", "freedom", "tabulated"),
    [(0.95, 1, 3.841), (0.99, 2, 9.210), (0.95, 5, 11.070), (0.99, 10, 23.209), (0.999, 20, 45.315)],
)
def test_chi_squared_is_that_of_the_tables(probability: float, freedom: int, tabulated: float) -> None:
    assert chi_squared(probability, freedom) == pytest.approx(tabulated, rel=0.006)


def test_the_floor_of_a_divergence_is_its_quantile_when_nothing_moved() -> None:
    draw = np.random.default_rng(0)
    samples = draw.multinomial(500, [0.1] * 10, size=(2, DRAWS))
    distances = [divergence(a, b) for a, b in zip(*samples, strict=True)]
    floor = divergence_floor([50] * 10, [50] * 10, 0.01)
    assert floor == pytest.approx(0.0156, abs=2e-4)  # as the semantics of this step state it
    assert np.mean(np.array(distances) > floor) <= 0.015


def test_the_floor_of_the_largest_share_is_not_passed_more_often_than_asked() -> None:
    draw = np.random.default_rng(1)
    share = [0.4, 0.3, 0.2, 0.05, 0.05]
    samples = [draw.multinomial(n, share, size=DRAWS) / n for n in (500, 4_000)]
    distances = np.abs(samples[0] - samples[1]).max(axis=1)
    floor = largest_share_floor(np.multiply(share, 500), np.multiply(share, 4_000), 0.01)
    assert np.mean(distances > floor) <= 0.01
    assert floor < 2 * np.quantile(distances, 0.99)


def test_the_floor_of_a_share_is_two_standard_errors_and_a_bit_at_five_percent() -> None:
    error = math.sqrt(0.1 * 0.9 * (1 / 1_000 + 1 / 4_000))
    assert share_floor((100, 400), (1_000, 4_000), 0.05) == pytest.approx(1.959964 * error)


def test_no_rows_and_a_single_value_have_no_noise() -> None:
    assert divergence_floor([7], [9], 0.01) == largest_share_floor([], [], 0.01) == 0
    assert divergence_floor([0, 0], [1, 1], 0.01) == largest_share_floor([0, 0], [1, 1], 0.01) == 0

"""The truths that gates are tried on: at the limit, where a claim would be wrong, and beyond it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.evaluate.simulated import Draw, labels, scores, together
from tests.significance.references import bootstrap, delong, delong_difference, placements
from trainwright.significance import (
    Estimate,
    Resampler,
    intervals,
    mcnemar,
    paired_difference,
    wilson,
)
from trainwright.significance.permutation import paired_test, unpaired_test

LEVEL, ONE_SIDED = 0.05, 0.025
MANY, SOME = 4_000, 1_000


@dataclass(frozen=True)
class Case:
    """One truth, and what a gate must not say then, or should.

    Attributes:
        gate: Which gate.
        truth: What is simulated.
        counted: The answer that is counted.
        most: The configured chance of that answer, where it is wrong; None where it is right: power.
        trial: Simulates once, and says whether the answer came.
        draws: How often, in the whole study.
    """

    gate: str
    truth: str
    counted: str
    most: float | None
    trial: Callable[[Draw], bool]
    draws: int = MANY


def misses(estimate: Estimate, truth: float) -> bool:
    """Whether an interval does not hold the truth."""
    return not estimate.low <= truth <= estimate.high


def statistics() -> Iterator[Case]:
    """The intervals and tests that gates are made of, each alone."""
    yield from _areas()
    yield from _pairs()
    yield from _resampling()
    yield from _flips()


def _areas() -> Iterator[Case]:
    def one(draw: Draw) -> bool:
        label = labels(draw, 400, 0.3)
        return misses(delong(label, scores(draw, label, (0.75,))[0]), 0.75)

    yield Case("DeLong, one area", "400 rows, area 0.75", "interval without the truth", LEVEL, one)

    def two(second: float) -> Callable[[Draw], bool]:
        def trial(draw: Draw) -> bool:
            label = labels(draw, 400, 0.3)
            return misses(delong_difference(label, *scores(draw, label, (0.75, second))), 0.0)

        return trial

    yield Case("DeLong, two areas", "400 rows, both 0.75", "interval without 0", LEVEL, two(0.75))
    yield Case("DeLong, two areas", "400 rows, 0.75 and 0.80", "interval without 0", None, two(0.80))

    def clustered(draw: Draw) -> bool:
        customer = np.repeat(np.arange(60), 8)
        label = labels(draw, 60, 0.4)[customer]
        shared = np.sqrt(0.5) * draw.normal(0, 1, 60)[customer]
        score = 0.9539 * label + shared + np.sqrt(0.5) * draw.normal(0, 1, 480)
        return misses(placements(label, [score], clusters=customer).estimate(0), 0.75)

    name = "DeLong over clusters (Obuchowski)"
    yield Case(name, "60 customers of 8 rows, area 0.75", "interval without the truth", LEVEL, clustered)


def _pairs() -> Iterator[Case]:
    def mcnemar_trial(second: float) -> Callable[[Draw], bool]:
        def trial(draw: Draw) -> bool:
            first, other = together(draw, 400, (0.80, second), 0.74)
            return mcnemar(int((first > other).sum()), int((other > first).sum())) <= LEVEL

        return trial

    yield Case("McNemar, mid-p", "400 rows, both right 0.80", "p ≤ 0.05", LEVEL, mcnemar_trial(0.80))
    yield Case("McNemar, mid-p", "400 rows, right 0.80 and 0.86", "p ≤ 0.05", None, mcnemar_trial(0.86))

    def difference(draw: Draw) -> bool:
        first, second = together(draw, 150, (0.80, 0.85), 0.75)
        counts = [int(((first == a) & (second == b)).sum()) for a, b in ((1, 1), (1, 0), (0, 1), (0, 0))]
        return misses(paired_difference(*counts), -0.05)

    truth = "150 rows, right 0.80 and 0.85"
    yield Case("Newcombe, paired shares", truth, "interval without the truth", LEVEL, difference)

    def share(draw: Draw) -> bool:
        return misses(wilson(int(draw.binomial(60, 0.1)), 60), 0.1)

    yield Case("Wilson", "60 rows, share 0.1", "interval without the truth", LEVEL, share)


def _resampling() -> Iterator[Case]:
    held = "interval without the truth"

    def percentile(draw: Draw) -> bool:
        values = draw.gamma(2, 1, 200)
        return misses(bootstrap(np.mean, [values], resamples=400, seed=int(draw.integers(1 << 30))), 2.0)

    yield Case("bootstrap, percentiles", "mean of 200 gamma(2)", held, LEVEL, percentile, SOME)

    def corrected(draw: Draw) -> bool:
        values = draw.gamma(1, 1, 60)
        return misses(_mean(values, Resampler((60,), resamples=1_000, seed=int(draw.integers(1 << 30)))), 1.0)

    yield Case("bootstrap, BCa", "mean of 60 exponentials", held, LEVEL, corrected, SOME)

    def stratified(draw: Draw) -> bool:
        stratum = np.repeat([0, 1], [150, 50])
        values = draw.gamma(2, 1, 200) + 5 * stratum
        sampler = Resampler((150, 50), resamples=1_000, seed=int(draw.integers(1 << 30)))
        unit = np.concatenate([sampler.unit_of(np.arange(150)), sampler.unit_of(np.arange(50), 1)])
        return misses(_mean(values, sampler, unit), 3.25)

    yield Case("bootstrap, stratified, BCa", "mean of 150 + 50 rows 5 apart", held, LEVEL, stratified, SOME)

    def clustered(draw: Draw) -> bool:
        customer = np.repeat(np.arange(80), 6)
        values = 2 + draw.normal(0, 1, 80)[customer] + draw.normal(0, 1, 480)
        sampler = Resampler((80,), resamples=1_000, seed=int(draw.integers(1 << 30)))
        return misses(_mean(values, sampler, customer), 2.0)

    truth = "mean of 80 customers of 6 rows"
    yield Case("bootstrap, clusters, BCa", truth, held, LEVEL, clustered, SOME)

    def blocks(draw: Draw) -> bool:
        values = draw.gamma(1, 1, 20_000)
        sampler = Resampler((20_000,), resamples=400, seed=int(draw.integers(1 << 30)))
        return misses(_mean(values, sampler), 1.0)

    yield Case("bootstrap, blocks", "mean of 20,000 exponentials", held, LEVEL, blocks, SOME // 2)


def _mean(values: Any, sampler: Resampler, unit: Any = None) -> Estimate:
    """The mean, by the very calls that evaluate makes for a figure of sums."""
    ones, place = np.ones(len(values)), np.zeros(len(values), np.int64)
    unit = sampler.unit_of(np.arange(len(values))) if unit is None else unit
    sums = sampler.add_up(unit, place, 1, [values, ones])[:, 0]
    total, drawn = sums.sum(axis=0), sampler.draw(sums)
    left = total - sums
    value = np.array([total[0] / total[1]])
    away = None if sampler.units > 4_000 else (left[:, 0] / left[:, 1])[:, None]
    low, high = intervals(value, (drawn[:, 0] / drawn[:, 1])[:, None], away)
    return Estimate(float(value[0]), float(low[0]), float(high[0]))


def _flips() -> Iterator[Case]:
    def flipped(pairs: int, gain: float) -> Callable[[Draw], bool]:
        return lambda draw: paired_test((gain + draw.standard_t(3, pairs)).tolist()).p <= LEVEL

    for pairs in (5, 6, 10):
        most = LEVEL if pairs > 5 else 0.0  # of 5 pairs no p is that small
        yield Case("sign-flip test", f"{pairs} seeds, no difference", "p ≤ 0.05", most, flipped(pairs, 0))
    yield Case("sign-flip test", "10 seeds, 1 deviation apart", "p ≤ 0.05", None, flipped(10, 3**0.5))

    def apart(gain: float) -> Callable[[Draw], bool]:
        return lambda draw: (
            unpaired_test((gain + draw.normal(0, 1, 5)).tolist(), draw.normal(0, 1, 6).tolist()).p <= LEVEL
        )

    yield Case("permutation test, unpaired", "5 and 6 seeds, no difference", "p ≤ 0.05", LEVEL, apart(0))
    yield Case("permutation test, unpaired", "5 and 6 seeds, 2 deviations", "p ≤ 0.05", None, apart(2))

"""How often the drift decision is wrong, measured: false alarms on clean splits, and shifts that it finds.

``.environments/tfdv/bin/python -m tests.validate.study`` takes some minutes and writes the tables of
``study.md``; ``test_study.py`` runs a small form.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tests.validate.counted import Column, Rows, compared, limits_of, moved, schema_of
from trainwright.drift.null_distribution import Divergence, of_bins, of_share
from trainwright.significance import Estimate, gamma_tail, wilson

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = ROOT / "examples" / "flights" / "data" / "flights.parquet"
PAGE = Path(__file__).with_name("study.md")
RATES = (0.01, 0.05)
SPLITS, DRAWS = 1_000, 500

Draw = np.random.Generator
NUMBERS = ("distance", "sched_dep_time", "hour", "minute_of_day", "dep_delay", "arr_delay", "air_time")
CATEGORIES = ("carrier", "origin", "dest", "flight", "tailnum", "day_of_week", "late")


def flights() -> Rows:
    """The flights of the example as columns of numbers and codes."""
    table = pq.read_table(FLIGHTS, columns=[*NUMBERS, *CATEGORIES])
    found = {name: Column(table[name].cast(pa.float64()).to_numpy()) for name in NUMBERS}
    for name in CATEGORIES:
        encoded = table[name].cast(pa.string()).combine_chunks().dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy()
        found[name] = Column(codes.astype(np.int64), encoded.dictionary.to_pylist())
    return found


def random_table(draw: Draw, rows: int) -> Rows:
    """Twenty columns of every kind that has made trouble: long tails, few values, many values, holes."""

    def holed(values: NDArray[np.float64], share: float) -> Column:
        return Column(np.where(draw.random(rows) < share, np.nan, values))

    def words(values: int, steep: float, share: float = 0.0) -> Column:
        weights = np.arange(1, values + 1) ** -steep
        codes = draw.choice(values, rows, p=weights / weights.sum())
        return Column(np.where(draw.random(rows) < share, -1, codes), [f"w{n}" for n in range(values)])

    return {
        **{f"normal{n}": Column(draw.normal(0, 1, rows)) for n in range(3)},
        **{
            f"holes{n}": holed(draw.exponential(30, rows), share) for n, share in enumerate((0.01, 0.3, 0.95))
        },
        "heavy": Column(draw.standard_cauchy(rows)),
        "zeros": Column(np.where(draw.random(rows) < 0.8, 0.0, draw.exponential(1, rows))),
        "few": Column(draw.poisson(2, rows).astype(float)),
        "hours": Column(draw.integers(0, 24, rows).astype(float)),
        "label": words(2, 2.5),
        "rare label": words(2, 7.0),
        "plans": words(4, 0.5, 0.02),
        "towns": words(100, 1.0),
        "shops": words(1_000, 1.0, 0.2),
        "names": words(3_000, 0.5),
        "ids": words(9_000, 0.0),
        "skewed": words(300, 2.0),
        "holed words": words(20, 1.0, 0.9),
        "even": words(50, 0.0),
    }


@dataclass(frozen=True)
class Alarms:
    """Clean splits of one kind, and how many of them raised any alarm at each rate."""

    name: str
    rows: str
    comparisons: int
    splits: int
    alarms: dict[float, int]

    def share(self, rate: float) -> Estimate:
        return wilson(self.alarms[rate], self.splits)


def false_alarms(
    name: str,
    pool: Callable[[Draw], Rows],
    n: int,
    m: int,
    splits: int,
    seed: int,
    rates: Sequence[float] = RATES,
) -> Alarms:
    """Cut rows at random in two, many times; every alarm is false. Limits are 0, so chance alone decides."""
    draw, alarms, comparisons = np.random.default_rng(seed), dict.fromkeys(rates, 0), 0
    for _ in range(splits):
        rows = pool(draw)
        order = draw.permutation(len(next(iter(rows.values())).values))[: n + m]
        current, previous = (
            {key: column.take(part) for key, column in rows.items()} for part in (order[:n], order[n:])
        )
        measured = compared(current, previous, limits_of(rows), schema_of(rows))
        comparisons = len(measured)
        for rate in rates:
            alarms[rate] += bool(moved(measured, rate))
    return Alarms(name, f"{n:,} against {m:,}", comparisons, splits, alarms)


def all_false_alarms(splits: int) -> Iterator[Alarms]:
    """Clean splits of the flights and of random tables, with many and with few rows."""
    rows = flights()
    for seed, (n, m) in enumerate(((4_000, 20_000), (500, 2_000))):
        yield false_alarms("flights", lambda _: rows, n, m, splits, seed)
    for seed, (n, m) in enumerate(((2_000, 2_000), (300, 3_000), (3_000, 300))):
        size = n + m
        yield false_alarms(
            "random tables", lambda draw, size=size: random_table(draw, size), n, m, splits, 10 + seed
        )


@dataclass(frozen=True)
class Power:
    """A shift of known size, how often it is found, and how often theory says that it should be."""

    name: str
    draws: int
    found: int
    expected: Callable[[], float]

    @property
    def theory(self) -> float:
        """Calculated only where it is used: of a share, it is a floor for every pair of counts."""
        return self.expected()

    @property
    def share(self) -> Estimate:
        return wilson(self.found, self.draws)


N, M, RATE, CLEAN = 2_000, 8_000, 0.05, 5
"""Rows of both samples; the accepted rate of false alarms; clean columns beside the one that moves."""


def noncentral(freedom: float, centre: float, least: float) -> float:
    """Probability that a noncentral chi-squared variable exceeds ``least``: a Poisson mixture."""
    half, total, weight = centre / 2, 0.0, math.exp(-centre / 2)
    for step in range(int(half + 12 * math.sqrt(half + 1) + 20)):
        total += weight * gamma_tail(freedom / 2 + step, least / 2)
        weight *= half / (step + 1)
    return total


def bits(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    """Jensen-Shannon divergence."""
    middle = (p + q) / 2
    parts = (np.sum(x[x > 0] * np.log2(x[x > 0] / middle[x > 0])) for x in (p, q))
    return float(sum(parts)) / 2


def normal_cdf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x])


def level(tests: int) -> float:
    """What Holm's procedure holds the one column that moved to: the first step."""
    return RATE / tests


def share_power(before: float, after: float, tests: int) -> float:
    """Theory: a share of ``before`` becomes ``after``; every pair of counts, at the gate's floor."""
    (x, px), (y, py) = (likely(rows, share) for rows, share in ((N, after), (M, before)))
    pooled = {int(k) for k in range(int(x[0] + y[0]), int(x[-1] + y[-1]) + 1)}
    floors = np.array([of_share((k, 0), (N, M)).floor(level(tests)) for k in sorted(pooled)])
    far = np.abs(x[:, None] / N - y[None, :] / M)
    beyond = far > floors[(x[:, None] + y[None, :] - x[0] - y[0]).astype(int)]
    return float(px @ beyond @ py)


def likely(rows: int, share: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The counts that a binomial variable can well have, and their probabilities."""
    deviation = math.sqrt(rows * share * (1 - share))
    counts = np.arange(int(rows * share - 7 * deviation), int(rows * share + 7 * deviation) + 1).astype(float)
    ways = [math.lgamma(rows + 1) - math.lgamma(k + 1) - math.lgamma(rows - k + 1) for k in counts]
    logs = np.array(ways) + counts * math.log(share) + (rows - counts) * math.log1p(-share)
    return counts, np.exp(logs)


def shift_power(shift: float, tests: int) -> float:
    """Theory: a standard normal moves by ``shift``; the divergence is noncentral chi-squared."""
    inner = normal_quantiles(np.arange(1, 20) / 20)
    p, q = (np.diff(normal_cdf(inner - at), prepend=0, append=1) for at in (shift, 0.0))
    still = of_bins(N, [0, *[M / 20] * 20, 0])
    assert isinstance(still, Divergence)
    half = still.variance / still.mean / 2  # what nothing moved gives, written as chi-squared of one scale
    return noncentral(2 * still.mean**2 / still.variance, bits(p, q) / half, still.floor(level(tests)) / half)


def normal_quantiles(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    from statistics import NormalDist

    return np.array([NormalDist().inv_cdf(float(share)) for share in shares])


def label(draw: Draw, share: float, rows: int) -> Column:
    return Column((draw.random(rows) < share).astype(np.int64), ("0", "1"))


def holes(draw: Draw, share: float, rows: int) -> Column:
    return Column(np.where(draw.random(rows) < share, np.nan, draw.normal(0, 1, rows)))


def power(
    name: str, make: Callable[[Draw, bool], Column], theory: Callable[[int], float], draws: int
) -> Power:
    """Move one column among clean ones, many times, and count how often that column is found."""
    draw, found, tests = np.random.default_rng(len(name)), 0, 1
    for _ in range(draws):
        current, previous = (
            {"moved": make(draw, now)} | {f"c{k}": Column(draw.normal(0, 1, rows)) for k in range(CLEAN)}
            for now, rows in ((True, N), (False, M))
        )
        measured = compared(current, previous, limits_of(current), schema_of(current))
        tests = sum(1 for entry in measured if entry.chance.floor(0.5) > 0)
        found += any(entry.column == "moved" for entry in moved(measured, RATE))
    return Power(name, draws, found, lambda: theory(tests))


def all_power(draws: int) -> Iterator[Power]:
    """Shifts from hardly to plainly visible, in a share, a number and the missing values."""
    for after in (0.23, 0.24, 0.26):
        yield power(
            f"label rate 0.20 to {after:.2f}",
            lambda draw, now, after=after: label(draw, after if now else 0.2, N if now else M),
            lambda tests, after=after: share_power(0.2, after, tests),
            draws,
        )
    for shift in (0.08, 0.12, 0.16):
        yield power(
            f"a normal column moves by {shift:.2f} deviations",
            lambda draw, now, shift=shift: Column(draw.normal(shift if now else 0, 1, N if now else M)),
            lambda tests, shift=shift: shift_power(shift, tests),
            draws,
        )
    for after in (0.065, 0.075, 0.09):
        yield power(
            f"missing 0.05 to {after:.3f}",
            lambda draw, now, after=after: holes(draw, after if now else 0.05, N if now else M),
            lambda tests, after=after: share_power(0.05, after, tests),
            draws,
        )


def alarm_table() -> Iterator[str]:
    """Write how often clean splits raise any alarm."""
    yield "| clean splits of | rows | comparisons | splits | any alarm at 1 % | any alarm at 5 % |"
    yield "|---|---|---:|---:|---:|---:|"
    for row in all_false_alarms(SPLITS):
        shares = " | ".join(f"{row.share(rate).value:.1%} {spread(row.share(rate))}" for rate in RATES)
        yield f"| {row.name} | {row.rows} | {row.comparisons} | {row.splits:,} | {shares} |"


def power_table() -> Iterator[str]:
    """Write how often shifts of known size are found."""
    yield f"| shift, {DRAWS} draws each | found | 95 % interval | theory |"
    yield "|---|---:|---:|---:|"
    for entry in all_power(DRAWS):
        yield f"| {entry.name} | {entry.share.value:.1%} | {spread(entry.share)} | {entry.theory:.1%} |"


def spread(estimate: Estimate) -> str:
    return f"({estimate.low:.1%} to {estimate.high:.1%})"


TABLES = {"alarms": alarm_table, "power": power_table}


def main(names: Sequence[str]) -> None:
    """Run the tables that are named, or all, and write each into the page between its marks."""
    for name in names or TABLES:
        lines = []
        for line in TABLES[name]():
            print(line, flush=True)  # noqa: T201
            lines.append(line)
        start, end = f"<!-- {name}: written by tests/validate/study.py -->\n", f"<!-- end of {name} -->\n"
        before, _, rest = PAGE.read_text().partition(start)
        after = rest.partition(end)[2]
        PAGE.write_text(before + start + "\n" + "\n".join(lines) + "\n\n" + end + after)


if __name__ == "__main__":
    main(sys.argv[1:])

"""How often a canary fails or passes wrongly, and how soon it is decided: by simulation.

``.environments/tabular/bin/python -m tests.canary.study`` takes minutes and writes ``study.md``;
``test_study.py`` runs a small form. Every canary is judged again after each batch of requests, until it is
decided. Beside it, the test that most canaries use: a z-test at 5 % of the same differences, repeated.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist, median

import numpy as np
import pyarrow as pa

from trainwright.canary.canary import LEVEL, judge_guard
from trainwright.canary.log import Comparison, RequestLog
from trainwright.experiment import Canary, Serving
from trainwright.verdicts import worst

PAGE = Path(__file__).with_name("study.md")
QUANTILE = NormalDist().inv_cdf(1 - LEVEL)
Draw = np.random.Generator


@dataclass(frozen=True)
class Case:
    """Canaries of one kind: ``columns`` draws the log's columns of both versions' answers."""

    name: str
    guards: dict[str, float]
    requests: int
    share: float
    columns: Callable[[Draw, np.ndarray], dict[str, np.ndarray]]
    draws: int = 1000
    looks: int = 20

    def log(self, draw: Draw) -> RequestLog:
        """Draw the log of one canary; a share of 0 is a shadow."""
        serving = Serving(log="log", shadow=not self.share)
        rows = self.requests if self.share else 2 * self.requests
        new = draw.uniform(0, 1, rows) < self.share if self.share else np.arange(rows) % 2 == 1
        columns = {"request": np.arange(rows) // 2} | self.columns(draw, new)
        return RequestLog(serving, "", pa.table(columns), new)


@dataclass(frozen=True)
class Judged:
    """Decision of one canary, the part of its requests that it took, and if the z-test ever failed it."""

    decision: str
    part: float
    z_failed: bool


def judge(case: Case, draw: Draw) -> Judged:
    """Judge one canary after every batch.

    Bounds never widen: one that is undecided at the end was undecided after every batch.
    """
    log, policy = case.log(draw), Canary(share=0.1, guards=case.guards)
    found = {guard: log.compare(guard) for guard in case.guards}
    looks = [look / case.looks for look in range(1, case.looks + 1)]

    def decide(part: float) -> str:
        return worst(judge_guard(guard, policy, first(one, part)).outcome() for guard, one in found.items())

    decision, part = decide(1.0), 1.0
    if decision != "INCONCLUSIVE":
        decision, part = next((said, look) for look in looks if (said := decide(look)) != "INCONCLUSIVE")
    z_failed = any(
        z_fails(first(one, look), case.guards[guard]) for look in looks for guard, one in found.items()
    )
    return Judged(decision, part, z_failed)


def first(found: Comparison, part: float) -> Comparison:
    return replace(found, differences=found.differences[: int(part * len(found.differences))])


def z_fails(found: Comparison, limit: float) -> bool:
    values = found.differences * found.span
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return bool(error > 0 and (values.mean() - limit) / error > QUANTILE)


def errors(old: float, new: float) -> Callable[[Draw, np.ndarray], dict[str, np.ndarray]]:
    """Draw failed requests at these rates."""
    return lambda draw, is_new: {"error": draw.uniform(0, 1, len(is_new)) < np.where(is_new, new, old)}


def wrong(old: float, new: float, agree: float = 0.0) -> Callable[[Draw, np.ndarray], dict[str, np.ndarray]]:
    """Draw wrong predictions at these rates; rows of a pair agree with this probability beyond chance."""

    def drawn(draw: Draw, is_new: np.ndarray) -> dict[str, np.ndarray]:
        own = draw.uniform(0, 1, len(is_new))
        shared = np.repeat(draw.uniform(0, 1, len(is_new) // 2 + 1), 2)[: len(is_new)]
        same = np.repeat(draw.uniform(0, 1, len(is_new) // 2 + 1) < agree, 2)[: len(is_new)]
        level = np.where(same, shared, own)
        missed = level < np.where(is_new, new, old)
        return {"prediction": missed.astype(int), "outcome": np.zeros(len(is_new), int)}

    return drawn


def scores(noise: float) -> Callable[[Draw, np.ndarray], dict[str, np.ndarray]]:
    """Draw a chance and its outcome; the candidate's score is that chance with noise of this spread."""

    def drawn(draw: Draw, is_new: np.ndarray) -> dict[str, np.ndarray]:
        pairs = len(is_new) // 2 + 1
        chance = np.repeat(draw.uniform(0.25, 0.75, pairs), 2)[: len(is_new)]
        outcome = (np.repeat(draw.uniform(0, 1, pairs), 2)[: len(is_new)] < chance).astype(float)
        sign = draw.choice([-1.0, 1.0], len(is_new))
        return {"score": np.where(is_new, chance + noise * sign, chance), "outcome": outcome}

    return drawn


def all_at_once(draw: Draw, is_new: np.ndarray) -> dict[str, np.ndarray]:
    return errors(0.02, 0.04)(draw, is_new) | wrong(0.2, 0.24)(draw, is_new)


AT_LIMIT = (
    Case("shadow, wrong answers 20 % and 22 %", {"zero_one_loss": 0.02}, 5000, 0, wrong(0.2, 0.22, 0.8)),
    Case("shadow, Brier score, noise of 0.1", {"brier": 0.01}, 5000, 0, scores(0.1)),
    Case("10 % of traffic, errors 1 % and 2 %", {"error_rate": 0.01}, 30_000, 0.1, errors(0.01, 0.02)),
    Case(
        "50 % of traffic, wrong answers 20 % and 25 %", {"zero_one_loss": 0.05}, 6000, 0.5, wrong(0.2, 0.25)
    ),
    Case(
        "20 % of traffic, errors and wrong answers both at their limits",
        {"error_rate": 0.02, "zero_one_loss": 0.04},
        15_000,
        0.2,
        all_at_once,
    ),
)
"""A candidate exactly as much worse as its guards allow: each failure is false, and so is each pass."""

AWAY = (
    Case("shadow, equally good", {"zero_one_loss": 0.02}, 8000, 0, wrong(0.2, 0.2, 0.8), 200),
    Case("shadow, 4 points worse", {"zero_one_loss": 0.02}, 8000, 0, wrong(0.2, 0.24, 0.8), 200),
    Case("shadow, Brier score, equally good", {"brier": 0.01}, 8000, 0, scores(0.0), 200),
    Case("shadow, Brier score, 0.03 worse", {"brier": 0.01}, 8000, 0, scores(0.173), 200),
    Case("10 % of traffic, errors 1 % and 1 %", {"error_rate": 0.01}, 60_000, 0.1, errors(0.01, 0.01), 200),
    Case("10 % of traffic, errors 1 % and 4 %", {"error_rate": 0.01}, 60_000, 0.1, errors(0.01, 0.04), 200),
    Case("50 % of traffic, equally good", {"zero_one_loss": 0.05}, 12_000, 0.5, wrong(0.2, 0.2), 200),
    Case("50 % of traffic, 10 points worse", {"zero_one_loss": 0.05}, 12_000, 0.5, wrong(0.2, 0.3), 200),
)
"""A candidate away from the limit, which should be decided, and how soon."""


def run(case: Case, seed: int = 8) -> list[Judged]:
    """Judge all canaries of a case; the same seed gives the same."""
    draw = np.random.default_rng([seed, *map(ord, case.name)])
    return [judge(case, draw) for _ in range(case.draws)]


def row(case: Case) -> str:
    """Return the line of the table."""
    made = run(case)
    parts = {name: sum(one.decision == name for one in made) / len(made) for name in ("FAIL", "PASS")}
    took = [one.part for one in made if one.decision != "INCONCLUSIVE"]
    half = f"{case.requests * median(took):,.0f}" if len(took) > len(made) / 2 else "-"
    z = sum(one.z_failed for one in made) / len(made)
    guards = ", ".join(f"{name} {limit:g}" for name, limit in case.guards.items())
    cells = (case.name, guards, f"{case.requests:,}", f"{len(made):,}")
    return f"| {' | '.join(cells)} | {parts['FAIL']:.1%} | {parts['PASS']:.1%} | {half} | {z:.1%} |\n"


HEAD = (
    "| canary | limits | requests | canaries | FAIL | PASS | median requests | z-test ever FAIL |\n"
    "|---|---|---:|---:|---:|---:|---:|---:|\n"
)


def page(at_limit: Sequence[Case] = AT_LIMIT, away: Sequence[Case] = AWAY) -> str:
    """Return the page; it takes minutes."""
    return (
        "# Simulated canaries\n\n"
        "Written by `python -m tests.canary.study`. Each canary is judged after each of "
        f"{at_limit[0].looks} batches until it is decided. Stated level: {LEVEL:.0%}, for FAIL as for PASS. "
        "Median requests: until it is decided.\n\n"
        f"## Exactly at the limit: every FAIL and every PASS is false\n\n{HEAD}"
        f"{''.join(map(row, at_limit))}\n## Away from the limit\n\n{HEAD}{''.join(map(row, away))}"
    )


if __name__ == "__main__":
    PAGE.write_text(page())

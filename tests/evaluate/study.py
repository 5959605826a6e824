"""How often every gate is wrong, and how often it sees what is there: by simulation, with its own error.

``.environments/tabular/bin/python -m tests.evaluate.study`` takes some minutes and writes the tables of
``study.md``; ``test_study.py`` runs a small form.
"""

import math
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.evaluate.cases import Case, statistics
from tests.evaluate.gates import gates
from trainwright.significance import Estimate, wilson

PAGE = Path(__file__).with_name("study.md")
START, END = "<!-- {}: written by tests/evaluate/study.py -->\n", "<!-- end of {} -->\n"
TABLES = {"gates": gates, "statistics of evaluation": statistics}
SEED, TAIL = 8, 1e-3


@dataclass(frozen=True)
class Found:
    """How often an answer came."""

    case: Case
    draws: int
    hits: int

    @property
    def share(self) -> Estimate:
        return wilson(self.hits, self.draws)

    @property
    def holds(self) -> bool:
        """Whether so many wrong answers can well be chance at the configured level; always of power."""
        return self.case.most is None or self.hits <= most_hits(self.draws, self.case.most)


def most_hits(draws: int, chance: float, tail: float = TAIL) -> int:
    """The most answers that come of so many draws, but for a chance of ``tail``: the binomial's quantile."""
    if chance <= 0:
        return 0
    total = 0.0
    for hits in range(draws + 1):
        ways = math.lgamma(draws + 1) - math.lgamma(hits + 1) - math.lgamma(draws - hits + 1)
        total += math.exp(ways + hits * math.log(chance) + (draws - hits) * math.log1p(-chance))
        if total >= 1 - tail:
            return hits
    return draws


def tried(case: Case, draws: int, seed: int = SEED) -> Found:
    """Simulate a case so often; the same seed gives the same answers."""
    draw = np.random.default_rng([seed, *map(ord, case.gate + case.truth)])
    return Found(case, draws, sum(bool(case.trial(draw)) for _ in range(draws)))


def _tried(place: tuple[str, int]) -> Found:
    name, index = place
    case = list(TABLES[name]())[index]
    found = tried(case, case.draws)
    silent = Case(case.gate, case.truth, case.counted, case.most, bool, case.draws)
    return Found(silent, found.draws, found.hits)


def table(found: Iterable[Found]) -> Iterator[str]:
    """Write results as Markdown, a line as soon as it is known."""
    yield "| gate | truth | counted | came in | Monte Carlo 95 % | configured |"
    yield "|---|---|---|---:|---:|---:|"
    for entry in found:
        share, case = entry.share, entry.case
        configured = (
            "power" if case.most is None else f"≤ {case.most:.1%}" + ("" if entry.holds else " **missed**")
        )
        spread = f"{share.low:.1%} to {share.high:.1%}"
        cells = (
            case.gate,
            case.truth,
            case.counted,
            f"{share.value:.1%} of {entry.draws:,}",
            spread,
            configured,
        )
        yield f"| {' | '.join(cells)} |"


def main(names: list[str]) -> None:
    """Run the tables that are named, or all, and write each into the page between its marks."""
    with ProcessPoolExecutor(2) as pool:
        for name in names or TABLES:
            places = [(name, index) for index in range(len(list(TABLES[name]())))]
            lines = []
            for line in table(pool.map(_tried, places)):
                print(line, flush=True)  # noqa: T201
                lines.append(line)
            write(name, lines)


def write(name: str, lines: list[str]) -> None:
    """Put a table into the page between its marks, where it has them."""
    start, end, text = START.format(name), END.format(name), PAGE.read_text()
    if start in text:
        before, _, rest = text.partition(start)
        after = rest.partition(end)[2]
        PAGE.write_text(before + start + "\n" + "\n".join(lines) + "\n\n" + end + after)


if __name__ == "__main__":
    main(sys.argv[1:])

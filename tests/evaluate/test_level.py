"""How often a gate on a share is wrong at its limit: calculated, not drawn."""

import numpy as np
import pytest
from scipy import stats

from tests.evaluate.gates import asked, choosing, ruled
from trainwright.significance import normal_quantile, wilson
from trainwright.significance.proportions import wilson_ends

LIMIT, SECTION = 0.7, asked(rules=[{"metric": "recall", "at_least": 0.7}])


def said_of(hits: int, positives: int) -> str:
    found = wilson(hits, positives)
    return "PASS" if found.low > LIMIT else "FAIL" if found.high <= LIMIT else "INCONCLUSIVE"


def level(answer: str, positives: int, limit: float = LIMIT) -> float:
    """The chance of an answer where the true share is exactly the limit: a sum over the binomial."""
    counts = np.arange(positives + 1.0)
    low, high = wilson_ends(counts, np.float64(positives), normal_quantile(0.95))
    came = low > limit if answer == "PASS" else high <= limit
    return float(stats.binom.pmf(counts, positives, limit)[came].sum())


def test_a_gate_on_recall_says_what_the_count_of_the_positives_says() -> None:
    """So its level is that of the count, which is calculated below: the simulation adds only chance."""
    make, draw = choosing(LIMIT), np.random.default_rng(20)
    for _ in range(12):
        one, _ = both = make(draw)
        positive = one.label == 1
        hits = int((one.scores[positive, 0] >= 0.5).sum())
        assert ruled(both, SECTION)[0].decision == said_of(hits, int(positive.sum()))


def test_the_simulated_world_has_exactly_the_recall_of_the_limit() -> None:
    make, draw = choosing(LIMIT), np.random.default_rng(21)
    found = [make(draw)[0] for _ in range(1_000)]
    hits = sum(int((rows.scores[rows.label == 1, 0] >= 0.5).sum()) for rows in found)
    positives = sum(int(rows.label.sum()) for rows in found)
    assert stats.binomtest(hits, positives, LIMIT).pvalue > 1e-3


@pytest.mark.parametrize(("answer", "page"), [("PASS", 0.024), ("FAIL", 0.026)])
def test_the_level_of_the_gate_on_recall_is_the_one_on_the_page(answer: str, page: float) -> None:
    """1,000 rows, each a positive with 0.4, but for two that are and two that are not."""
    positives = np.arange(330, 475)
    weight = stats.binom.pmf(positives - 2, 996, 0.4)
    mean = np.dot(weight, [level(answer, int(count)) for count in positives]) / weight.sum()
    assert round(float(mean), 3) == page


@pytest.mark.parametrize(
    ("limit", "passed", "failed"), [(0.7, 0.028, 0.031), (0.9, 0.027, 0.036), (0.99, 0.025, 0.061)]
)
def test_near_its_end_a_share_is_refused_more_often_and_passed_less(
    limit: float, passed: float, failed: float
) -> None:
    """What the page says of 250 to 1,000 positives."""
    for answer, most in (("PASS", passed), ("FAIL", failed)):
        worst = max(level(answer, count, limit) for count in range(250, 1_001))
        assert most - 0.001 < worst <= most

"""A small form of the study behind ``docs/statistics.md``: no gate is wrong more often than it may be."""

import numpy as np
import pytest
from scipy import stats

from tests.evaluate.cases import Case, statistics
from tests.evaluate.gates import gates
from tests.evaluate.study import PAGE, TABLES, Found, most_hits, table, tried

QUICK = 100
"""Draws of a test alone."""

FEW = {"20 slices": 3, "5 slices": 6, "equal opportunity": 6, "worsening": 5, "superiority, RMSE": 60,
       "non-inferiority, loss": 60}  # fmt: skip
"""Draws of a whole gate, where it is not 12: fewer of the costly ones."""

GATES, STATISTICS = list(gates()), list(statistics())
COSTLY = ("bootstrap, blocks", "bootstrap, percentiles")


def draws_of(case: Case) -> int:
    return next((count for name, count in FEW.items() if case.gate.startswith(name)), 12)


def ids(case: Case) -> str:
    return f"{case.gate}, {case.truth}, {case.counted}"


@pytest.mark.parametrize("case", [case for case in GATES if case.most is not None], ids=ids)
def test_a_gate_is_wrong_no_more_often_than_configured(case: Case) -> None:
    found = tried(case, draws_of(case))
    assert found.holds, f"{found.hits} of {found.draws}, at most {case.most}"


@pytest.mark.parametrize("case", STATISTICS, ids=ids)
def test_a_test_keeps_its_level_and_has_the_power_of_the_table(case: Case) -> None:
    found = tried(case, 10 if case.gate in COSTLY else QUICK)
    assert found.holds, f"{found.hits} of {found.draws}, at most {case.most}"
    if case.most is None:
        assert found.share.high > 0.65


@pytest.mark.parametrize(
    "case",
    [case for case in GATES if case.most is None and ("RMSE" in case.gate or "loss" in case.gate)],
    ids=ids,
)
def test_what_is_there_is_seen(case: Case) -> None:
    assert tried(case, 40).share.low > 0.3


def test_every_kind_of_rule_is_in_the_study_at_its_limit_and_beyond() -> None:
    names = ("absolute", "non-inferiority", "superiority", "slices", "equal opportunity", "worsening",
             "overfitting")  # fmt: skip
    for name in names:
        of_name = [case for case in GATES if name in case.gate]
        assert {case.most is None for case in of_name} == {True, False}, name


def test_the_bound_is_the_quantile_of_the_binomial() -> None:
    for draws, chance in ((40, 0.025), (1_000, 0.05), (10, 0.5)):
        assert most_hits(draws, chance) == stats.binom.ppf(1 - 1e-3, draws, chance)
    assert most_hits(50, 0.0) == 0


def test_a_gate_that_is_wrong_twice_as_often_as_it_may_is_found_out() -> None:
    """Were the study blind, this would pass: a coin of twice the level, at the draws of the whole study."""
    case = Case("coin", "twice the level", "heads", 0.025, lambda draw: bool(draw.random() < 0.05))
    assert not tried(case, 1_600).holds


def test_the_same_seed_gives_the_same_count() -> None:
    case = next(case for case in STATISTICS if case.gate == "Wilson")
    assert tried(case, 50) == tried(case, 50)
    assert np.isclose(tried(case, 50).share.value, tried(case, 50).hits / 50)


def test_a_level_that_was_missed_is_marked_in_the_table() -> None:
    case = Case("coin", "fair", "heads", 0.05, bool)
    kept, missed = (list(table([Found(case, 1_000, hits)]))[-1] for hits in (50, 100))
    assert "**missed**" not in kept
    assert kept.startswith("| coin | fair | heads | 5.0% of 1,000 | 3.8% to 6.5% | ≤ 5.0%")
    assert "**missed**" in missed


def test_the_page_has_a_row_for_every_case_and_none_missed_its_level() -> None:
    text = PAGE.read_text()
    for name, cases in TABLES.items():
        part = text.partition(f"<!-- {name}: written by tests/evaluate/study.py -->")[2]
        part = part.partition(f"<!-- end of {name} -->")[0]
        rows = [line.split(" | ")[:3] for line in part.splitlines() if line.startswith("| ")][1:]
        assert [[cell.removeprefix("| ") for cell in row] for row in rows] == [
            [case.gate, case.truth, case.counted] for case in cases()
        ]
        assert "**missed**" not in part

"""What average figures hide, and what chance makes look good: neither passes a gate."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.evaluate.conftest import Step
from trainwright.errors import InputError
from trainwright.evaluate.evaluate import BaselinePredictions

Write = Callable[..., Step]
Produce = Callable[..., BaselinePredictions]


def rows_of_cells(cells: dict[tuple[str, str], tuple[int, int]], rows: int) -> dict[str, list[Any]]:
    """Rows by race and sex: how many of ``rows`` that are 1, and of as many that are 0, are selected."""
    made: dict[str, list[Any]] = {"id": [], "race": [], "sex": [], "late": [], "score": []}
    for (race, sex), counts in cells.items():
        for label, selected in zip((1, 0), counts, strict=True):
            made["race"] += [race] * rows
            made["sex"] += [sex] * rows
            made["late"] += [label] * rows
            made["score"] += [0.8] * selected + [0.2] * (rows - selected)
    made["id"] = list(range(len(made["late"])))
    return made


CROSSED = {("A", "M"): (320, 160), ("A", "F"): (240, 80), ("B", "M"): (240, 80), ("B", "F"): (320, 160)}
"""Of 400 each: both races, and both sexes, are treated alike on average; the crossings are not."""


def test_a_model_that_is_fair_on_average_and_unfair_at_a_crossing_is_caught(written: Write) -> None:
    limits = {"equal_opportunity": 0.1, "equalized_odds": 0.1, "selection_rate_ratio": 0.8}
    step = written(rows_of_cells(CROSSED, 400))
    fairness: dict[str, Any] = {"by": ["race", "sex"], "intersections": False, "limits": limits}
    assert step.judge(fairness=fairness).decision == "PASS"
    judged = step.judge(fairness=fairness | {"intersections": True, "broken": "fail"})
    assert judged.decision == "FAIL"
    assert judged.headline.startswith("FAIL: selection rate ratio by race and sex 0.667 < 0.800: A, F 0.400")
    assert judged.details["fairness/race/equal_opportunity"] == 0
    assert judged.details["fairness/race*sex/equal_opportunity"] == pytest.approx(0.2)
    assert judged.details["fairness/race*sex/selection_rate_ratio"] == pytest.approx(320 / 480)
    broken = {rule.name for rule in step.verdict.rules if not rule.passed}
    assert broken == {f"{name} by race and sex" for name in ("equal opportunity", "equalized odds",
                                                              "selection rate ratio")}  # fmt: skip


def test_what_was_unfair_before_may_be_so_and_not_grow(written: Write, production: Produce) -> None:
    alike = dict.fromkeys(CROSSED, (300, 100))
    step, fairness = written(rows_of_cells(CROSSED, 400)), {"by": ["race", "sex"]}
    asked = {"fairness": fairness | {"worsening": {"equal_opportunity": 0.05}}}
    assert step.judge(production(rows_of_cells(CROSSED, 400)), **asked).decision == "PASS"
    judged = step.judge(production(rows_of_cells(alike, 400)), **asked)
    assert judged.decision == "HOLD"
    headline = "worsening of equal opportunity by race and sex 0.200 ["
    assert headline in judged.headline
    assert "] > 0.050: A, F 0.600, A, M 0.800" in judged.headline


def test_every_group_must_reach_its_minimum(written: Write) -> None:
    step, fairness = written(rows_of_cells(CROSSED, 400)), {"by": ["race", "sex"]}
    assert step.judge(fairness=fairness | {"group_minimum": {"recall": 0.5}}).decision == "PASS"
    judged = step.judge(fairness=fairness | {"group_minimum": {"recall": 0.75}})
    assert judged.decision == "HOLD"
    assert "recall of race and sex A, F 0.600" in judged.headline


def lucky(rows: int, seed: int) -> dict[str, Any]:
    """Scores of two models that are equally good; by luck of the seed the first seems better."""
    draw = np.random.default_rng(seed)
    truth = draw.normal(0, 1, rows)
    label = (truth + draw.normal(0, 1, rows) > 0.8).astype(np.int64)
    one, two = (1 / (1 + np.exp(-(truth + draw.normal(0, 1, rows)))) for _ in range(2))
    return {"id": list(range(rows)), "late": label, "score": one, "other": two}


def test_a_model_that_is_better_by_luck_on_300_rows_is_inconclusive(
    written: Write, production: Produce
) -> None:
    made = (lucky(300, seed) for seed in range(100))
    rows = next(
        found
        for found in made
        if 0.03 < _area(found["late"], found["score"]) - _area(found["late"], found["other"]) < 0.04
    )
    step = written(rows)
    baseline = production({**rows, "score": rows["other"]})
    judged = step.judge(baseline, rules=[{"metric": "auc", "min_gain": 0.0}])
    assert judged.metrics["gain/auc"] > 0.03
    assert judged.decision == "INCONCLUSIVE"
    left = step.verdict.not_judged[0]
    assert left.name == "AUC gain"
    assert left.needed > 300
    assert f"about {left.needed:,} rows like these 300 would tell" in left.reason


def _area(label: np.ndarray, score: np.ndarray) -> float:
    return float((score[label == 1][:, None] > score[label == 0][None, :]).mean())


def test_among_many_slices_one_that_is_low_by_chance_is_not_claimed_to_be_broken(written: Write) -> None:
    draw, rows = np.random.default_rng(4), 40 * 250
    label = draw.integers(0, 2, rows)
    found = draw.random(rows) < np.where(label == 1, 0.7, 0.2)
    columns = {
        "id": list(range(rows)), "late": label, "place": [f"p{index:02d}" for index in range(40)] * 250,
        "score": np.where(found, 0.8, 0.2) + draw.uniform(0, 0.1, rows),
    }  # fmt: skip
    step = written(columns)
    rule = {"metric": "recall", "at_least": 0.7, "scope": "slice", "undecided": "warn"}
    asked = {"slices": ["place"], "constant_prediction": "warn"}
    assert step.judge(**asked, rules=[rule]).decision == "PASS"
    rules = step.verdict.rules
    assert len(rules) == 40
    assert sum(rule.interval[1] <= 0.7 for rule in rules) > 0  # each alone would be called broken
    assert step.judge(**asked, rules=[rule | {"undecided": "hold"}]).decision == "INCONCLUSIVE"
    columns["score"] = np.where((np.array(columns["place"]) == "p07") & (label == 1), 0.3, columns["score"])
    judged = written(columns).judge(**asked, rules=[rule])
    assert judged.decision == "FAIL"
    assert judged.headline.startswith("FAIL: recall of place p07 0.000")


@pytest.mark.covers("F58")
@pytest.mark.parametrize(("policy", "decision"), [("warn", "PASS"), ("hold", "HOLD"), ("block", "FAIL")])
def test_slices_that_are_too_small_are_listed_with_their_rows_and_decide_as_asked(
    policy: str, decision: str, written: Write
) -> None:
    rows = rows_of_cells({("A", "M"): (160, 20), ("B", "M"): (150, 30)}, 200)
    rows["race"][:50] = ["C"] * 50
    step = written(rows)
    assert step.judge(slices=["race"], small_slices=policy).decision == decision
    assert [(entry.name, entry.reason) for entry in step.verdict.not_judged] == [
        ("race = C", "50 of at least 200 rows")
    ]


def test_a_model_that_is_far_better_on_the_rows_it_knows_is_held(written: Write) -> None:
    draw = np.random.default_rng(0)
    label = draw.integers(0, 2, 2000)
    known = {
        "id": np.arange(2000),
        "late": label,
        "score": np.clip(label * 0.6 + draw.random(2000) * 0.5, 0, 1),
    }
    new = known | {"score": np.clip(label * 0.1 + draw.random(2000) * 0.9, 0, 1)}
    step = written(new, splits={"train": [pa.table(known)]})
    judged = step.judge(overfitting={"at_most": 0.1}, constant_prediction="warn")
    assert judged.decision == "HOLD"
    assert judged.headline.startswith("HOLD: AUC overfitting 0.3")
    for limit, decision in (({"at_most": 0.5}, "PASS"), ({"at_most": 0.5, "split": "early"}, "INCONCLUSIVE")):
        assert step.judge(overfitting=limit, constant_prediction="warn").decision == decision


def test_a_column_that_gives_the_label_away_is_told(written: Write) -> None:
    rows = rows_of_cells(CROSSED, 400)
    given_away = [value * 10 + index % 7 for index, value in enumerate(rows["late"])]
    step = written(rows | {"minutes": given_away, "word": ["yes" if x else "no" for x in rows["late"]]})
    step.judge()
    page = (step.folder / "report.html").read_text()
    for name in ("minutes", "word"):
        assert f"column &#39;{name}&#39; alone tells late" in page
    assert "column &#39;race&#39;" not in page


def test_the_threshold_is_the_one_that_the_model_carries(written: Write) -> None:
    rows = rows_of_cells(CROSSED, 400)
    step = written(rows, quality={"threshold": 0.15})
    assert step.judge(threshold="model").metrics["recall"] == 1
    assert step.judge().metrics["recall"] == 0.7
    with pytest.raises(InputError, match="threshold is model, and the model carries none"):
        written(rows).judge(threshold="model")


def test_production_without_a_threshold_is_measured_at_the_default_and_the_page_says_so(
    written: Write, production: Callable[..., BaselinePredictions]
) -> None:
    rows = rows_of_cells(CROSSED, 400)
    found = written(rows, quality={"threshold": 0.15}).judge(production(rows), threshold="model")
    assert found.overall["recall"].candidate.value == 1
    assert found.overall["recall"].baseline.value == 0.7
    assert found.warnings == (
        "the model in production carries no threshold, so it is measured at 0.5, as it is served; the "
        "candidate at its own, 0.15",
    )


def test_negative_weights_are_refused_with_the_first_row(written: Write) -> None:
    rows = rows_of_cells(CROSSED, 400)
    weight = [1.0] * len(rows["id"])
    weight[5] = -2.0
    with pytest.raises(InputError, match=r"1 of 3,200 weights in 'weight' are negative; the smallest is -2"):
        written(rows | {"weight": weight}).judge()


def test_rows_that_belong_together_count_once(written: Write) -> None:
    """Each row five times: nothing more is known, and the interval says so where the cluster is named."""
    draw = np.random.default_rng(1)
    label = draw.integers(0, 2, 300)
    score = np.clip(0.3 * label + draw.random(300) * 0.7, 0, 1)
    step = written(
        {
            "id": list(range(1500)),
            "late": np.repeat(label, 5),
            "score": np.repeat(score, 5),
            "customer": np.repeat(np.arange(300), 5),
        }
    )
    judged = step.judge(), step.judge(cluster="customer")
    alone, together = (one.metrics | one.details for one in judged)
    assert alone["auc"] == pytest.approx(together["auc"], abs=1e-12)
    for name in ("auc", "accuracy", "recall", "log_loss"):
        wide, narrow = (found[f"{name}_high"] - found[f"{name}_low"] for found in (together, alone))
        assert wide / narrow == pytest.approx(np.sqrt(5), rel=0.12), name


def test_a_group_that_is_too_small_to_be_compared_is_listed(written: Write) -> None:
    rows = rows_of_cells(CROSSED, 400)
    rows["race"][:60] = ["C"] * 60
    step = written(rows)
    step.judge(fairness={"by": ["race"], "limits": {"equal_opportunity": 0.2}})
    assert [(entry.name, entry.reason) for entry in step.verdict.not_judged] == [
        ("race = C", "60 of at least 200 rows")
    ]

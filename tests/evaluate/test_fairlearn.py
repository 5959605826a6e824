"""Measures of fairness are those of Fairlearn: with weights, crossings and groups that are empty."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from trainwright.artifacts import Snapshot
from trainwright.evaluate.evaluation_data import COUNTS, Sums, features, ratio
from trainwright.evaluate.findings import Findings
from trainwright.evaluate.group_fairness import MEASURES
from trainwright.evaluate.measurement import measure
from trainwright.evaluate.predictions import PredictionPair, Predictions
from trainwright.evaluate.rows import Rows
from trainwright.experiment import Evaluation
from trainwright.significance import Resampler

HERE = Path(__file__).resolve().parent
PEER = HERE.parents[1] / ".environments" / "emulators" / "bin" / "python"
ROWS = 2400


@pytest.fixture(scope="module")
def table() -> dict[str, np.ndarray]:
    """Rows of unequal groups, of which one crossing does not occur at all."""
    draw = np.random.default_rng(5)
    sex, race = draw.choice(["F", "M"], ROWS, p=[0.3, 0.7]), draw.choice(["a", "b", "c"], ROWS)
    race[(sex == "F") & (race == "c")] = "a"
    score = np.clip(draw.beta(2, 3, ROWS) + 0.1 * (sex == "M") - 0.05 * (race == "b"), 0, 1)
    label = (draw.random(ROWS) < score).astype(np.int64)
    weight = draw.gamma(2, 1, ROWS)
    weight[:50] = 0
    return {
        "label": label, "chosen": (score >= 0.5).astype(np.int64), "score": score, "weight": weight,
        "group_a": sex, "group_b": race,
    }  # fmt: skip


@pytest.fixture(scope="module")
def peer(table: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    if not PEER.exists():
        pytest.skip("no environment with Fairlearn: make .environments/emulators/.made")
    place = tmp_path_factory.mktemp("fairlearn") / "table.npz"
    np.savez(place, **table)
    command = [str(PEER), "-W", "ignore", str(HERE / "fairlearn_peer.py"), str(place)]
    command += ["--also", "--boot", "40", "3", "0.25", "0.75"]  # one process, for it imports for seconds
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def found(table: dict[str, np.ndarray], *, weighted: bool, against: str) -> Findings:
    columns = {name: pa.chunked_array([pa.array(table[name])]) for name in ("group_a", "group_b")}
    predictions = Predictions(
        kind="binary",
        label=table["label"],
        scores=table["score"][:, None],
        weight=table["weight"] if weighted else None,
        bounds=None,
        key=None,
        columns=columns,
        label_name="label",
        unlabelled=0,
        threshold=None,
        snapshot=Snapshot(files=(), columns=()),
    )
    fairness = {"by": ["group_a", "group_b"], "against": against, "limits": {"equalized_odds": 0.9}}
    asked = {"fairness": fairness, "min_rows": 1, "min_positives": 1, "min_negatives": 1, "resamples": 200}
    return measure(Rows.of(PredictionPair(predictions)), Evaluation.check(asked, "test"))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("against", "way"), [("groups", "between_groups"), ("overall", "to_overall")])
def test_every_measure_is_fairlearns(
    table: dict[str, np.ndarray], peer: dict[str, dict], weighted: bool, against: str, way: str
) -> None:
    disparities = found(table, weighted=weighted, against=against).disparities
    assert len(disparities) == 3 * len(MEASURES)
    for entry in disparities:
        expected = peer[f"{'+'.join(entry.columns)}/{weighted}"][way][entry.measure]
        assert entry.value is not None
        assert entry.value.value == pytest.approx(expected, abs=1e-12), entry
        assert entry.value.low <= entry.value.value <= entry.value.high


def test_the_group_minimum_is_fairlearns(table: dict[str, np.ndarray], peer: dict[str, dict]) -> None:
    (groups,) = (
        cut.slices
        for cut in found(table, weighted=False, against="groups").groups
        if cut.columns == ("group_a", "group_b")
    )
    assert [group.name for group in groups] == ["F, a", "F, b", "M, a", "M, b", "M, c"]
    recalls = [group.figures["recall"].candidate for group in groups]
    least = min(recall.value for recall in recalls if recall)
    assert least == pytest.approx(peer["group_a+group_b/False"]["minimum"]["recall"])


def test_draws_by_sums_are_fairlearns_draws_of_rows(
    table: dict[str, np.ndarray], peer: dict[str, dict]
) -> None:
    """Ends of intervals differ by what 40 and 2,000 draws leave open, and no more."""
    drawn_there, (names, place) = peer["boot"], np.unique(table["group_a"], return_inverse=True)
    columns = features("binary", table["label"], table["score"][:, None], None, 0.5)
    sampler = Resampler((ROWS,), resamples=2000, seed=1)
    unit = sampler.unit_of(np.arange(ROWS))
    sums = Sums(tuple(columns), sampler.draw(sampler.add_up(unit, place.ravel(), 2, list(columns.values()))))
    squares = []
    for name, counts in COUNTS.items():
        drawn = ratio(*counts(sums))
        error = drawn.std(axis=0) * np.sqrt(0.25 * 0.75 * (1 / 2000 + 1 / 40)) / 0.3178
        for end, level in (("low", 0.25), ("high", 0.75)):
            theirs = np.array([drawn_there[end][name][group] for group in names])
            squares += (((np.quantile(drawn, level, axis=0) - theirs) / error) ** 2).tolist()
    assert len(squares) == 20
    assert 0.4 < np.mean(squares) < 2

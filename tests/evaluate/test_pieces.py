"""An evaluation of pieces is that of all rows at once, and of very many rows it is off by what it says."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.evaluate.simulated import predictions
from trainwright.engine import pieces as merging
from trainwright.errors import DependencyError, InputError
from trainwright.evaluate import evaluation_data, rows
from trainwright.evaluate.evaluate import BaselinePredictions, evaluate_predictions
from trainwright.evaluate.findings import Findings
from trainwright.evaluate.measurement import measure
from trainwright.evaluate.predictions import PredictionPair, take
from trainwright.evaluate.rows import KeySample, Partial, Rows, require_unique
from trainwright.experiment import DataEngine, Evaluation
from trainwright.significance import Estimate
from trainwright.tables import write_snapshot

ROWS = 2_000
DRAW = np.random.default_rng(3)
CHANCE = DRAW.beta(2, 5, ROWS)
LABEL = (DRAW.random(ROWS) < CHANCE).astype(np.int64)
COLUMNS = {
    "id": np.arange(ROWS),
    "late": np.where((np.arange(ROWS) % 50 == 7) | (np.arange(ROWS) < 100), -1, LABEL),
    "airport": DRAW.choice(["EWR", "JFK", "LGA"], ROWS),
    "hour": DRAW.normal(12, 4, ROWS),
    "customer": DRAW.integers(0, 200, ROWS),
    "importance": DRAW.integers(0, 4, ROWS) * 1.0,
}
ROLES = {"key": "id", "label": "late", "score": "score"}
SECTION = {
    "slices": ["airport", "hour"],
    "crosses": [["airport", "hour"]],
    "fairness": {"by": ["airport"], "limits": {"equalized_odds": 0.5}},
    "rules": [{"metric": "auc", "margin": 0.01}],
    "resamples": 200,
}


def evaluated(folder: Path, rows_per_file: int, roles: dict[str, str], **asked: Any) -> dict[str, Any]:
    """Evaluate two models; some files lack labels in some rows, the first of 100 rows in all."""
    digests = []
    for name, noise in (("predictions", 0.1), ("baseline", 0.13)):
        score = np.clip(CHANCE + np.random.default_rng(4).normal(0, noise, ROWS), 0, 1)
        label = pa.array(COLUMNS["late"], mask=COLUMNS["late"] < 0)
        table = pa.table(COLUMNS | {"late": label, "score": score})
        splits = {"evaluate": [table]}
        parents = {"model": name}
        written = write_snapshot(
            folder / name, splits, parents=parents, roles=ROLES | roles, rows_per_file=rows_per_file
        )
        digests.append(written.digest)
    found = evaluate_predictions(
        folder / "predictions",
        digests[0],
        Evaluation.check(SECTION | asked, "test"),
        verdict=folder / "verdict",
        report=folder / "report.html",
        summary=folder / "summary.md",
        baseline=BaselinePredictions(folder / "baseline", digests[1], "1"),
    )
    measured = json.loads((folder / "verdict" / "measured.json").read_text())
    numbers = {entry["name"]: [entry["value"], *entry.get("interval", [])] for entry in measured["measures"]}
    assert found.curves is not None
    return {
        "numbers": numbers,
        "digest": measured["rows_digest"],
        "decision": found.decision,
        "confusion": found.confusion,
        "sample": found.sample,
        "slices": [
            (entry.name, entry.rows, entry.counts, entry.reason) for cut in found.cuts for entry in cut.slices
        ],
    }


@pytest.mark.parametrize(
    ("roles", "asked"),
    [({}, {}), ({"weight": "importance"}, {"cluster": "customer"})],
    ids=["plain", "weights and clusters"],
)
def test_pieces_give_the_metrics_of_all_rows_at_once(
    tmp_path: Path, roles: dict[str, str], asked: dict[str, Any]
) -> None:
    whole = evaluated(tmp_path / "whole", ROWS, roles, **asked)
    pieces = evaluated(tmp_path / "pieces", 100, roles, **asked)
    numbers = whole.pop("numbers"), pieces.pop("numbers")
    assert whole == pieces
    assert numbers[0].keys() == numbers[1].keys()
    for name, ends in numbers[0].items():
        assert numbers[1][name] == pytest.approx(ends, rel=1e-12, abs=1e-12), name


def judged(label: np.ndarray, scores: list[np.ndarray], pieces: int) -> Findings:
    parts = np.array_split(np.arange(len(label)), pieces)
    models = [predictions(label, score) for score in scores]
    pairs = [PredictionPair(*(take(model, part) for model in models)) for part in parts]
    source = Rows(pairs, Rows.of(pairs[0]).read, len(label), engine=DataEngine(workers=2))
    section = {"resamples": 200, "rules": [{"metric": "auc", "margin": 0.01}]}
    return measure(source, Evaluation.check(section, "test"))


def value(entry: Estimate | None) -> float:
    assert entry is not None
    return entry.value


def test_scores_that_share_steps_are_off_by_at_most_what_the_page_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = np.random.default_rng(0)
    label = (draw.random(40_000) < 0.02).astype(np.int64)
    scores = [1 / (1 + np.exp(-(label * 2 + draw.normal(0, spread, 40_000)))) for spread in (1.0, 1.2)]
    exact = judged(label, scores, 1)
    monkeypatch.setattr(evaluation_data, "EXACT", 1_000)
    monkeypatch.setattr(evaluation_data, "STEPS", 512)
    monkeypatch.setattr(merging, "FAN_IN", 4)
    stepped = judged(label, scores, 12)
    assert "off by" not in exact.overall["auc"].method
    for name in ("auc", "average_precision"):
        bound = float(stepped.overall[name].method.partition("at most ")[2].partition(",")[0])
        assert 0 < bound < {"auc": 2 / 512, "average_precision": 0.1}[name]
        for one, two in zip(
            (exact.overall[name].candidate, exact.overall[name].baseline),
            (stepped.overall[name].candidate, stepped.overall[name].baseline),
            strict=True,
        ):
            assert abs(value(one) - value(two)) <= bound
    gains = [found.overall["auc"].gain for found in (exact, stepped)]
    assert gains[0] is not None
    assert gains[1] is not None
    assert gains[1].high - gains[1].low == pytest.approx(gains[0].high - gains[0].low, rel=0.05)


def test_a_repeated_key_is_found_among_more_keys_than_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "KEYS", 1_000)
    label = np.tile([0, 1], 5_000)
    every = KeySample.of(predictions(label, label * 0.5))
    sample = KeySample.merged([every])
    assert 400 < len(sample.fingerprints) <= 1_000
    require_unique(sample, 10_000, "id", "test")
    twice = KeySample.merged([every, every])
    with pytest.raises(InputError, match=r"rows, a sample of 20,000, have \d+ keys in 'id'"):
        require_unique(twice, 20_000, "id", "test")


def test_sample_of_keys_is_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "KEYS", 1_000)
    found = [KeySample(np.random.default_rng(n).integers(0, 2**64, 700, np.uint64)) for n in range(20)]
    apart, together = rows.merge({"keys": one} for one in found)["keys"], KeySample.merged(found)
    assert apart.shift == together.shift == 4
    assert apart.fingerprints.tolist() == together.fingerprints.tolist()


def kill_at_second(_: PredictionPair, number: int, __: object) -> Partial:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


def test_killed_worker_is_an_error_that_names_the_split_and_its_pieces() -> None:
    pairs = [PredictionPair(predictions(LABEL, CHANCE))] * 3
    source = Rows(pairs, Rows.of(pairs[0]).read, 3 * ROWS, "predictions", DataEngine(workers=2))
    with pytest.raises(DependencyError, match="killed by SIGKILL") as caught:
        source.add_up(kill_at_second, None)
    assert caught.value.where == "predictions, pieces from 1 on"

"""The gate on the training set: what the joined features are compared with, and what follows."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from tests.featurestore.repository import ViewSpec, at, make_repository
from tests.join.conftest import features_of, write_sales
from tests.join.sales import sale
from trainwright.artifacts import Record
from trainwright.drift.baseline import Baseline, FeatureStatistics
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Features, Validation
from trainwright.join.gate import GateContext
from trainwright.join.join import make_training_set
from trainwright.storage import take_listing
from trainwright.verdicts import AT_MOST, Rule, Verdict

ROWS = {"train": 600, "evaluate": 300}
SKIP = {"on_missing_baseline": "skip"}
LOG: dict[str, Any] = SKIP | {"serving_log": {"source": "unused"}}
LOGGED = {"features": {"request": ["pieces"]}}
JSD = "jensen_shannon_divergence"
Make = Callable[..., "Judged"]


@dataclass
class Judged:
    """What a join wrote."""

    folder: Path
    verdict: Verdict
    record: Record
    summary: str


def view(shift: float = 0.0, *, grades: str = "ab", missing: float = 0.0) -> ViewSpec:
    """One row a product: a price around ``shift``, and a grade."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(sum(ROWS.values())):
        price, absent = rng.normal() + shift, rng.random() < missing
        grade = grades[int(rng.integers(len(grades)))]
        row = {"product": number, "price": None if absent else price, "grade": grade}
        rows.append(row | {"event": at(0), "created": at(0)})
    return ViewSpec("prices", {"product": pa.int64()}, {"price": pa.float64(), "grade": pa.string()}, rows)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Join a view to sales, and judge the training set."""
    numbers = iter(range(100))

    def run(
        spec: ViewSpec, validation: dict[str, Any] = SKIP, features: dict[str, Any] | None = None, **gate: Any
    ) -> Judged:
        folder = tmp_path / str(next(numbers))
        places, start = {}, 0
        for split, rows in ROWS.items():
            places[split] = [sale(f"s{number}", 1, product=number) for number in range(start, start + rows)]
            start += rows
        sales = write_sales(folder / "sales", places)
        section = features_of(make_repository(folder / "repo", [spec]), **(features or {}))
        version = take_listing(section.source).content_digest
        checked = Validation.check(validation, "test")
        context = GateContext(verdict=folder / "verdict", validation=checked, **gate)
        out = folder / "set", folder / "summary.md"
        make_training_set(folder / "sales", sales.digest, section, version, *out, gate=context)
        found = Verdict.read(folder / "verdict")
        assert found.decision == found.recomputed()
        return Judged(folder, found, Record.read(folder / "set"), out[1].read_text())

    return run


def broken(verdict: Verdict) -> set[str]:
    return {rule.name for rule in verdict.rules if not rule.passed}


def accepted(made: Judged, place: Path, *, features: bool = True) -> dict[str, str]:
    """Publish the statistics of a training set as a baseline."""
    place.mkdir()
    own = (made.folder / "verdict" / FeatureStatistics.FILE).read_bytes()
    (place / "own.json").write_bytes(own)
    named = {"features": "own.json", "features_sha256": hashlib.sha256(own).hexdigest()} if features else {}
    document = Baseline(
        data_version="0" * 64, split="train", rows=600, schema="", statistics="x.pb", statistics_sha256="",
        cuts={}, counts={}, values={}, made_by={}, accepted={"reason": "test"} | named,
    )  # fmt: skip
    document.write(place)
    uri = str(place / Baseline.FILE)
    return {"baseline": uri, "baseline_version": take_listing(uri).content_digest}


@pytest.fixture
def baseline(make: Make, tmp_path: Path) -> dict[str, str]:
    """The accepted baseline of a training set."""
    return accepted(make(view()), tmp_path / "accepted")


def test_features_that_do_not_move_pass(make: Make, baseline: dict[str, str]) -> None:
    made = make(view(), {}, **baseline)
    assert made.verdict.decision == made.record.decision == "PASS"
    expected = {"drift/price", "drift/grade", "missing/price", "new/grade"}
    assert {rule.name for rule in made.verdict.rules} >= {f"features/baseline/{name}" for name in expected}
    assert "## Features: PASS" in made.summary
    assert made.verdict.judged["features/training_set"] == made.record.outputs["training_set"]
    assert made.verdict.judged["features/baseline"] == baseline["baseline_version"]


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        (view(shift=2), "features/baseline/drift/price"),
        (view(missing=0.4), "features/baseline/missing/price"),
        (view(grades="abcc"), "features/baseline/new/grade"),
    ],
    ids=["moved", "missing", "new values"],
)
def test_a_feature_that_moved_holds_and_is_named(
    make: Make, baseline: dict[str, str], spec: ViewSpec, rule: str
) -> None:
    made = make(spec, {}, **baseline)
    assert made.verdict.decision == made.record.decision == "HOLD"
    assert rule in broken(made.verdict)
    assert "HOLD: " in made.record.headline


def test_the_distance_is_that_of_a_direct_computation(make: Make, baseline: dict[str, str]) -> None:
    made = make(view(shift=1), {}, **baseline)
    [rule] = [rule for rule in made.verdict.rules if rule.name == "features/baseline/drift/price"]
    before, now = (np.array([row["price"] for row in view(shift).rows[:600]]) for shift in (0, 1))
    before = np.sort(before)
    bounds = before[[int(np.ceil(600 * part / 20)) - 1 for part in range(1, 21)]]
    places = (np.searchsorted(bounds, values) for values in (before, now))
    p, q = (np.bincount(place, minlength=21) / len(place) for place in places)
    below = np.mean(now < before[0])  # a bin of its own below the smallest value
    p, q = np.append(p, 0), np.append(q, below)
    q[0] -= below
    middle = (p + q) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = sum(np.nansum(np.where(x > 0, x * np.log2(x / middle), 0)) for x in (p, q)) / 2
    assert rule.value == pytest.approx(expected, abs=2e-3)  # a quantile may be the next row


def test_on_data_hold_stop_ends_the_step_with_the_reason(make: Make, baseline: dict[str, str]) -> None:
    with pytest.raises(DataRefused, match="price"):
        make(view(shift=2), {"on_data_hold": "stop"}, **baseline)


def test_a_feature_of_another_type_than_in_the_baseline_is_refused(
    make: Make, baseline: dict[str, str]
) -> None:
    rows = [row | {"price": f"{row['price']:.0f}"} for row in view().rows]
    texts = replace(view(), features={"price": pa.string(), "grade": pa.string()}, rows=rows)
    with pytest.raises(DataRefused, match="price is string in the training set, and it is double in"):
        make(texts, {}, **baseline)


@pytest.mark.parametrize(("how", "decision"), [("hold", "HOLD"), ("bootstrap", "PASS"), ("skip", "PASS")])
def test_without_a_baseline_on_missing_baseline_decides(make: Make, how: str, decision: str) -> None:
    assert make(view(), {"on_missing_baseline": how}).verdict.decision == decision


def test_a_baseline_from_before_features_were_measured_holds(make: Make, tmp_path: Path) -> None:
    made = make(view(), {}, **accepted(make(view()), tmp_path / "accepted", features=False))
    assert made.verdict.decision == "HOLD"
    assert "the accepted baseline has no joined features" in made.summary


def test_a_baseline_whose_statistics_were_changed_is_refused(
    make: Make, baseline: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "accepted" / "own.json"
    path.write_text(path.read_text().replace("price", "prise"))
    with pytest.raises(InputError, match="the statistics of the baseline are"):
        make(view(), {}, **baseline)


def test_limits_of_single_features_replace_those_of_the_section(make: Make, baseline: dict[str, str]) -> None:
    wide = {"price": {"comparator": JSD, "threshold": 0.99}}
    assert make(view(shift=2), {}, {"drift": wide}, **baseline).verdict.decision == "PASS"
    made = make(view(shift=2), {}, {"ignore": ["price"]}, **baseline)
    assert made.verdict.decision == "PASS"
    assert not any(rule.name.endswith("/price") for rule in made.verdict.rules)


def test_a_limit_without_a_baseline_holds_even_if_baselines_are_skipped(make: Make) -> None:
    made = make(view(), SKIP, {"drift": {"price": {"comparator": JSD, "threshold": 0.5}}})
    assert made.verdict.decision == "HOLD"
    assert "no accepted baseline with joined features" in made.summary


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"ignore": ["prise"]}, "features.ignore: no joined feature 'prise'; did you mean price"),
        ({"drift": {"cost": {"comparator": JSD, "threshold": 0.1}}}, "no joined feature 'cost'"),
        ({"drift": {"price": {"comparator": "infinity_norm", "threshold": 0.1}}}, f"use {JSD}"),
    ],
)
def test_a_limit_that_cannot_apply_is_an_error(make: Make, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make(view(), features=keys)


DATA = Verdict(
    decision="PASS", rules=(Rule(name="schema", value=0, limit=0, test=AT_MOST),), judged={"data": "1" * 64}
)


def test_the_verdict_carries_on_that_of_the_data(
    make: Make, baseline: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    DATA.write(tmp_path / "data")
    (tmp_path / "data" / "anomalies.json").write_text("{}")
    made = make(view(shift=2), {}, data_verdict=tmp_path / "data", **baseline)
    assert made.verdict.decision == "HOLD"
    assert made.verdict.rules[0] == DATA.rules[0]
    assert made.verdict.judged["data"] == "1" * 64
    assert (made.folder / "verdict" / "anomalies.json").is_file()
    assert Record.read(made.folder / "verdict").outputs["verdict"] == made.verdict.digest


def test_without_features_and_log_the_verdict_is_that_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    DATA.write(tmp_path / "data")
    sales = write_sales(tmp_path / "sales", {"train": [sale(f"s{n}", 1) for n in range(40)]})
    gate = GateContext(verdict=tmp_path / "verdict", data_verdict=tmp_path / "data")
    out = tmp_path / "set", tmp_path / "s.md"
    make_training_set(tmp_path / "sales", sales.digest, Features(), "", *out, gate=gate)
    assert Verdict.read(tmp_path / "verdict").digest == DATA.digest
    assert not Record.read(tmp_path / "set").decision


def served(path: Path, shift: float = 0.0, **changes: Any) -> dict[str, str]:
    """Write a log with the features of the sales of train, and name it as ``resolve`` does."""
    rows = view().rows[: ROWS["train"]]
    columns: dict[str, Any] = {
        "price": pa.array([row["price"] + shift for row in rows]),
        "grade": pa.array([row["grade"] for row in rows]),
        "pieces": pa.array([1] * len(rows)),
    }
    table = pa.table({name: column for name, column in (columns | changes).items() if column is not None})
    (pa_csv.write_csv if path.suffix == ".csv" else pq.write_table)(table, path)
    return {"serving": str(path), "serving_version": take_listing(str(path)).content_digest}


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_serving_log_like_the_training_set_passes(make: Make, tmp_path: Path, ending: str) -> None:
    made = make(view(), LOG, **LOGGED, **served(tmp_path / f"log.{ending}"))
    assert made.verdict.decision == "PASS"
    expected = {f"features/serving/drift/{name}" for name in ("price", "grade", "pieces")}
    assert expected <= {rule.name for rule in made.verdict.rules}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"shift": 2}, "features/serving/drift/price"),
        ({"grade": None}, "features/serving/missing/grade"),
    ],
    ids=["skewed", "not logged"],
)
def test_served_rows_unlike_the_training_set_hold(
    make: Make, tmp_path: Path, changes: dict[str, Any], rule: str
) -> None:
    made = make(view(), LOG, **LOGGED, **served(tmp_path / "log.parquet", **changes))
    assert made.verdict.decision == "HOLD"
    assert rule in broken(made.verdict)


def test_a_served_column_of_another_type_is_refused(make: Make, tmp_path: Path) -> None:
    log = served(tmp_path / "log.parquet", price=pa.array(["dear"] * ROWS["train"]))
    with pytest.raises(DataRefused, match="it is string in the serving log"):
        make(view(), LOG, **LOGGED, **log)


def test_columns_of_the_log_may_have_other_names(make: Make, tmp_path: Path) -> None:
    log = served(tmp_path / "log.parquet")
    pq.write_table(pq.read_table(log["serving"]).rename_columns(["p", "grade", "pieces"]), log["serving"])
    log["serving_version"] = take_listing(log["serving"]).content_digest
    section = SKIP | {"serving_log": {"source": "unused", "columns": {"price": "p"}}}
    assert make(view(), section, **LOGGED, **log).verdict.decision == "PASS"
    section = SKIP | {"serving_log": {"source": "unused", "columns": {"price": "q"}}}
    with pytest.raises(InputError, match="names no feature, or no column of the log"):
        make(view(), section, **LOGGED, **log)


def test_a_log_that_changed_after_resolve_is_refused(make: Make, tmp_path: Path) -> None:
    log = served(tmp_path / "log.parquet")
    served(tmp_path / "log.parquet", shift=1)
    with pytest.raises(InputError, match="changed after `resolve`"):
        make(view(), LOG, **LOGGED, **log)


def test_a_log_is_compared_without_a_feature_store(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [sale(f"s{n}", 1, pieces=int(n % 7)) for n in range(600)]
    sales = write_sales(tmp_path / "sales", {"train": rows[:400], "evaluate": rows[400:]})
    path = tmp_path / "log.parquet"
    log = {"pieces": rng.integers(0, 40, 400), "shop": ["north"] * 400, "product": [1] * 400}
    pq.write_table(pa.table(log), path)
    gate = GateContext(
        verdict=tmp_path / "verdict",
        validation=Validation.check(LOG, "test"),
        serving=str(path),
        serving_version=take_listing(str(path)).content_digest,
    )
    out = tmp_path / "set", tmp_path / "s.md"
    section = Features.check({"request": ["pieces", "shop", "product"]}, "test")
    make_training_set(tmp_path / "sales", sales.digest, section, "", *out, gate=gate)
    found = Verdict.read(tmp_path / "verdict")
    assert found.decision == "HOLD"
    assert broken(found) == {"features/serving/drift/pieces"}

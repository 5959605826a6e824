"""Every trap of TFDV that the step stands before, sprung on purpose through the whole gate.

The traps of single measures are in ``test_drift.py`` and ``test_gate.py``; where TFDV itself is shown to fall
into one, a failure here means that it was mended, and a piece of this step can go.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from trainwright.errors import InputError
from trainwright.tables import write_snapshot
from trainwright.validate.columns import by_column
from trainwright.validate.profile import Profile, Profiler
from trainwright.validate.statistics import describe
from trainwright.validate.tfdv import schema_pb2, tfdv

Table = Callable[..., pa.Table]
Judge = Callable[..., Any]


@pytest.fixture
def clean(rows: Table) -> dict[str, pa.Table]:
    return {"train": rows(4_000, 1), "evaluate": rows(1_000, 2)}


@pytest.mark.covers("B39")
def test_an_infinity_norm_on_numbers_never_reaches_the_rows(judge: Judge, clean: dict[str, pa.Table]) -> None:
    """TFDV reports 0 for ever (data-validation#147)."""
    with pytest.raises(InputError, match=r"hour: .*use jensen_shannon_divergence"):
        judge(clean, drift={"hour": {"comparator": "infinity_norm", "threshold": 0.1}})


def test_every_comparison_that_was_asked_for_ends_as_a_number_or_as_not_judged(
    judge: Judge, clean: dict[str, pa.Table], rows: Table
) -> None:
    """TFX had to add anomalies for comparisons that TFDV skipped in silence."""
    odd = rows(
        1_000, 2, hour=pa.array([None] * 1_000, pa.int64()), plan=pa.array([None] * 1_000, pa.string())
    )
    judged = judge(clean | {"evaluate": odd})
    numbers = {rule.name for rule in judged.verdict.rules}
    unjudged = {entry.name for entry in judged.verdict.not_judged}
    asked = {
        f"{group}/{name}" for group in ("drift", "missing") for name in ("hour", "delay", "plan", "late")
    }
    assert asked | {"new/plan", "new/late"} <= numbers | unjudged
    assert unjudged == {"drift/hour", "drift/plan", "new/plan"}
    kinds = [entry["column"] for entry in judged.account["found"] if entry["kind"] == "COMPARISON_NOT_DONE"]
    assert sorted(kinds) == ["hour", "plan", "plan"]


def test_tfdv_counts_the_same_share_of_nan_as_drift_and_the_gate_does_not(judge: Judge, rows: Table) -> None:
    """NaN mass is added as mismatching buckets on both sides where nothing is cut anew."""
    holes = np.where(np.arange(4_000) % 3 == 0, np.nan, np.arange(4_000) % 50)
    table = pa.table({"delay": holes})
    statistics = describe(table.to_batches(), schema_pb2.Schema())
    schema = tfdv.infer_schema(statistics)
    schema.feature[0].drift_comparator.jensen_shannon_divergence.threshold = 0.1
    account = tfdv.validate_statistics(statistics, schema, previous_statistics=statistics)
    assert account.drift_skew_info[0].drift_measurements[0].value > 0.3
    splits = {
        "train": rows(4_000, 1, delay=pa.array(holes)),
        "evaluate": rows(4_000, 2, delay=pa.array(holes)),
    }
    judged = judge(splits)
    values = {rule.name: rule.value for rule in judged.verdict.rules}
    assert (values["drift/delay"], values["missing/delay"]) == (0, 0)


def test_nan_that_takes_the_place_of_numbers_is_seen_although_no_distance_counts_it(
    judge: Judge, clean: dict[str, pa.Table], rows: Table
) -> None:
    table = rows(1_000, 2)
    holes = np.where(np.arange(1_000) % 5 == 0, np.nan, table["delay"].to_numpy())
    judged = judge(clean | {"evaluate": rows(1_000, 2, delay=pa.array(holes))})
    assert judged.headline == "HOLD: 1 of 4 columns moved: delay missing 0.200 > 0.050"


def test_a_limit_below_the_noise_does_not_fire_on_clean_days(judge: Judge, rows: Table) -> None:
    """At 0.01 and some hundred rows a side, TFDV fires on one clean day in a hundred, for every column."""
    for day in range(5):
        splits = {"train": rows(300, 10 + day), "evaluate": rows(300, 20 + day)}
        section = {"numeric_threshold": 0.001, "categorical_threshold": 0.001, "missing_threshold": 0.0}
        judged = judge(splits, new_values_threshold=0, **section)
        assert judged.verdict.decision == "PASS", judged.headline
        assert "drift/hour" not in [rule.name for rule in judged.verdict.rules]
        (entry,) = [entry for entry in judged.verdict.not_judged if entry.name == "drift/hour"]
        assert (entry.reason, entry.decision) == ("too few rows to tell: 300 against 300", "")
        assert entry.needed > 6_000


def test_many_columns_do_not_add_up_to_daily_alarms(judge: Judge, rows: Table, schema_text: str) -> None:
    """Forty columns more, at a limit of 0: the floor of each one rises."""
    draw = np.random.default_rng(3)

    def wide(table: pa.Table) -> pa.Table:
        for n in range(40):
            table = table.append_column(f"x{n}", pa.array(draw.normal(0, 1, table.num_rows)))
        return table

    more = "".join(f'feature {{ name: "x{n}" type: FLOAT }}\n' for n in range(40))
    splits = {"train": rows(2_000, 1), "evaluate": rows(1_000, 2)}
    floors = []
    for schema, tables in (
        (schema_text, splits),
        (schema_text + more, {name: wide(table) for name, table in splits.items()}),
    ):
        judged = judge(tables, schema, numeric_threshold=0, categorical_threshold=0)
        assert judged.verdict.decision == "PASS", judged.headline
        floors.append(next(rule.limit for rule in judged.verdict.rules if rule.name == "drift/hour"))
    assert floors[1] > 1.15 * floors[0]


def test_a_missing_baseline_is_no_rubber_stamp(judge: Judge, clean: dict[str, pa.Table]) -> None:
    judged = judge(clean, on_missing_baseline="hold")
    assert judged.headline.startswith("HOLD: there is no accepted baseline")


def test_an_anomaly_of_the_whole_dataset_is_not_overlooked(
    judge: Judge, clean: dict[str, pa.Table], schema_text: str
) -> None:
    """TFDV keeps such anomalies apart, and its own display left them out (data-validation#127)."""
    judged = judge(clean, schema_text + "dataset_constraints { min_examples_count: 1001 }")
    assert judged.verdict.decision == "FAIL"
    assert "DATASET_LOW_NUM_EXAMPLES" in [entry["kind"] for entry in judged.account["found"]]


def test_a_category_never_seen_before_is_seen_even_where_the_schema_has_no_domain(
    judge: Judge, clean: dict[str, pa.Table], rows: Table, schema_text: str
) -> None:
    """Without a domain TFDV has nothing to compare a value with."""
    plan = pa.array(["family"] * 70 + rows(1_000, 2)["plan"].to_pylist()[70:])
    judged = judge(
        clean | {"evaluate": rows(1_000, 2, plan=plan)},
        schema_text.replace('domain: "plan" ', ""),
        categorical_threshold=0.5,
    )
    assert judged.headline == "HOLD: 1 of 4 columns moved: plan new values 0.070 > 0.050"


def test_the_page_fetches_nothing(judge: Judge, clean: dict[str, pa.Table]) -> None:
    """TFDV's own page loads its scripts from a network."""
    page = judge(clean).page
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


NONE = schema_pb2.Schema()
ROOT = Path(__file__).parents[2]


def counted(statistics: object) -> int:
    return int(statistics.datasets[0].num_examples)


def every_row(tmp_path: Path, rows: int) -> int:
    tables = {"train": [pa.table({"x": np.arange(float(rows))})]}
    manifest = write_snapshot(tmp_path, tables, parents={}, roles={}, rows_per_file=1_000)
    named = schema_pb2.Schema(feature=[schema_pb2.Feature(name="x")])
    return counted(Profiler(tmp_path, manifest, named).statistics("train"))


def test_a_sample_rate_is_ignored_for_a_dataframe_and_there_is_none_here(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(5_000.0)})
    sampled = tfdv.generate_statistics_from_dataframe(frame, tfdv.StatsOptions(sample_rate=0.1))
    assert counted(sampled) == 5_000  # the trap: a tenth was asked for
    assert every_row(tmp_path, 5_000) == 5_000


def test_tfdv_drops_nan_where_it_cuts_histograms_anew_and_here_they_are_counted_as_missing() -> None:
    draw = np.random.default_rng(0)
    before = draw.normal(0, 1, 2_000)
    after = np.where(draw.random(2_000) < 0.5, np.nan, draw.normal(0, 1.001, 2_000))
    previous, current = (describe(pa.table({"x": x}).to_batches(), NONE) for x in (before, after))
    schema = tfdv.infer_schema(previous)
    schema.feature[0].drift_comparator.jensen_shannon_divergence.threshold = 0.1
    account = tfdv.validate_statistics(current, schema, previous_statistics=previous)
    distance = account.drift_skew_info[0].drift_measurements[0].value
    assert distance < 0.1  # the trap: half of the values are gone, and nothing moved
    profiles = [Profile("x", 2_000, statistics, {}) for statistics in (previous, current)]
    assert [profile.missing("x") for profile in profiles] == [0, int(np.isnan(after).sum())]
    assert by_column(current)["x"].num_stats.common_stats.num_missing == 0  # what TFDV itself calls missing


def test_tfdv_keeps_the_commonest_thousand_values_and_here_ten_thousand_are_whole() -> None:
    words = [f"w{n}" for n in range(9_000)] * 2
    plain = tfdv.generate_statistics_from_dataframe(pd.DataFrame({"w": words}))
    kept = by_column(plain)["w"].string_stats.rank_histogram.buckets
    assert len(kept) <= 1_024  # the trap: the other values are in no histogram
    table = pa.table({"w": words})
    ours = by_column(describe(table.to_batches(max_chunksize=5_000), NONE))["w"]
    assert {(bucket.label, bucket.sample_count) for bucket in ours.string_stats.rank_histogram.buckets} == {
        (f"w{n}", 2) for n in range(9_000)
    }


def test_nothing_is_said_while_tfdv_is_loaded_and_the_process_is_fit_to_be_forked() -> None:
    """By itself, TFDV prints lines that bury the error that follows."""
    code = (
        "import gc, logging, os, sys; error = sys.stderr; import trainwright.validate.statistics;"
        "assert sys.stderr is error; assert gc.isenabled(); assert not logging.root.handlers;"
        "assert not {'TF_CPP_MIN_LOG_LEVEL', 'TF_USE_LEGACY_KERAS'} & set(os.environ);"
        "assert 'keras' not in sys.modules;"
        "assert len(os.listdir('/proc/self/task')) <= os.cpu_count() + 1"  # numpy's, and one of Arrow
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")

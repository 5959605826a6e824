"""The traps of TFDV's statistics: each is sprung here in TFDV, and not in what this step takes."""

import subprocess
import sys
from pathlib import Path

import apache_beam as beam
import numpy as np
import pandas as pd
import pyarrow as pa

from trainwright.tables import write_snapshot
from trainwright.validate.columns import by_column
from trainwright.validate.profile import Profile, Profiler
from trainwright.validate.statistics import describe
from trainwright.validate.tfdv import schema_pb2, tfdv

NONE = schema_pb2.Schema()
ROOT = Path(__file__).parents[2]


def counted(statistics: object) -> int:
    return int(statistics.datasets[0].num_examples)


def every_row(tmp_path: Path, rows: int) -> int:
    tables = {"train": [pa.table({"x": np.arange(float(rows))})]}
    manifest = write_snapshot(tmp_path, tables, parents={}, roles={}, rows_per_file=1_000)
    return counted(Profiler(tmp_path, manifest, NONE).statistics("train"))


def test_a_sample_rate_is_ignored_for_a_dataframe_and_there_is_none_here(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(5_000.0)})
    sampled = tfdv.generate_statistics_from_dataframe(frame, tfdv.StatsOptions(sample_rate=0.1))
    assert counted(sampled) == 5_000  # the trap: a tenth was asked for
    assert every_row(tmp_path, 5_000) == 5_000


def test_beam_samples_whole_batches_and_here_every_row_of_every_batch_counts(tmp_path: Path) -> None:
    batches = pa.table({"x": pa.array([[float(n)] for n in range(5_000)])}).to_batches(max_chunksize=500)
    found: list[int] = []
    with beam.Pipeline() as pipeline:
        rows = pipeline | beam.Create(batches)
        statistics = rows | tfdv.GenerateStatistics(tfdv.StatsOptions(sample_rate=0.5))
        _ = (
            statistics
            | beam.Map(counted)
            | beam.combiners.ToList()
            | beam.io.WriteToText(str(tmp_path / "n"))
        )
    found = [int(path.read_text().strip("[]\n")) for path in tmp_path.glob("n-*")]
    assert found[0] % 500 == 0  # the trap: half of the rows would hardly ever be whole batches
    assert every_row(tmp_path / "ours", 5_000) == 5_000


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


def said(code: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout, done.stderr


def test_tfdv_talks_while_it_is_loaded_and_here_nothing_is_said_and_the_process_is_fit_to_be_forked() -> None:
    assert said("import tensorflow_data_validation")[1]  # the trap: lines that bury the error that follows
    code = (
        "import gc, logging, os, sys; error = sys.stderr; import trainwright.validate.statistics;"
        "assert sys.stderr is error; assert gc.isenabled(); assert not logging.root.handlers;"
        "assert not {'TF_CPP_MIN_LOG_LEVEL', 'TF_USE_LEGACY_KERAS'} & set(os.environ);"
        "assert 'keras' not in sys.modules;"
        "assert len(os.listdir('/proc/self/task')) <= os.cpu_count() + 1"  # numpy's, and one of Arrow
    )
    assert said(code) == ("", "")

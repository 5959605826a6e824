"""Training sets whose files stay in a store: read by URI, in ranges, and never copied whole."""

import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from tests.storage.faults import Answer
from tests.storage.stores import Bucket
from tests.train import clean
from tests.train.forked import ForkedLauncher, _program
from tests.train.problems import Outcome, run, source
from tests.train.test_loader import order, same, taken
from trainwright import storage
from trainwright.artifacts import Column, Snapshot, SnapshotFile
from trainwright.errors import InputError, Preempted
from trainwright.experiment import LanguageModel, Mlp
from trainwright.experiment.training import Feeding
from trainwright.launch.job import Job, Result
from trainwright.tables import FileWriter
from trainwright.tracking.history import HISTORY_FILE, TrainingHistory
from trainwright.train.checkpoint import committed
from trainwright.train.feeding.loader import Loader
from trainwright.train.feeding.rows import RowSource, encode, fit
from trainwright.train.feeding.tokens import TokenSource, count_tokens, encode_tokens
from trainwright.train.process_group import Ranks


def in_store(training_set: Path, bucket: Bucket) -> RowSource:
    """The same split, with its files in a bucket."""
    here = source(training_set)
    files = []
    for entry in here.snapshot.files:
        sent = storage.publish(training_set / entry.uri, f"{bucket.uri}/{entry.uri}")
        files.append(replace(entry, uri=sent.uri, version=sent.version))
    bucket.proxy.clear()
    snapshot = replace(here.snapshot, files=tuple(files))
    return RowSource(training_set / "elsewhere", snapshot, here.split, here.kinds)


def whole(path: str) -> bool:
    """Tell whether a request is for an object's bytes, not for what is known of it."""
    return "alt=media" in path or ("/o/" not in path and ".parquet" in path)


def test_split_in_a_store_gives_the_batches_of_a_local_one(
    bucket: Bucket, training_set: Path, tmp_path: Path, alone: Ranks
) -> None:
    here, there = source(training_set), in_store(training_set, bucket)
    transforms, labels = fit(here, Mlp(), alone)
    bucket.proxy.plan(Answer(503), method="GET", times=2)
    assert fit(there, Mlp(), alone) == (transforms, labels)
    contents = [headers for method, path, headers in bucket.proxy.seen if method == "GET" and whole(path)]
    assert len(contents) >= 3
    assert all("range" in {name.lower() for name in headers} for headers in contents)
    local = encode(here, transforms, labels, tmp_path / "local", alone)
    tight = Feeding(cache_gib=1.5 * local.shards.size / len(labels) / 2**30, cache=str(tmp_path / "fast"))
    remote = encode(there, transforms, labels, tmp_path / "home", alone, tight)
    assert all(same(one, two) for one, two in zip(taken(local, 14), taken(remote, 14, parts=2), strict=True))
    assert [path.suffix for path in (tmp_path / "fast").iterdir()] == [".shard"]
    assert not (tmp_path / "home").exists()
    assert not bucket.proxy.unused()


def test_the_same_bytes_elsewhere_are_not_encoded_again(
    bucket: Bucket, training_set: Path, tmp_path: Path, alone: Ranks
) -> None:
    here, there = source(training_set), in_store(training_set, bucket)
    transforms, labels = fit(here, Mlp(), alone)
    local = encode(here, transforms, labels, tmp_path, alone)
    remote = encode(there, transforms, labels, tmp_path, alone)
    assert same(taken(local, 1)[0], taken(remote, 1)[0])
    assert not bucket.proxy.seen


class StoppedOnce(ForkedLauncher):
    """Stops the job after its first checkpoint, and resumes it."""

    def run(self, job: Job) -> Result:
        home = job.folder.parent.parent
        places = clean.places(*((rank, job.processes) for rank in range(job.processes)))
        started = [clean.start(_program, job.arguments, **job.environment, **place) for place in places]
        while not committed(home / "checkpoints"):
            time.sleep(0.005)
        os.kill(started[1].pid, signal.SIGTERM)
        assert max(map(abs, clean.all_ended(started, within_s=job.timeout_s))) == Preempted.code
        self.stopped_after = committed(home / "checkpoints")[0].step
        return super().run(job)


def test_training_by_reference_beyond_the_cache_resumes_to_the_weights_of_a_rewritten_set(
    gs: Bucket, training_set: Path, trained: Outcome, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Some columns are in the store, some beside the manifest, and the cache does not hold all shards."""
    whole, files = Snapshot.read(training_set), []
    for number, entry in enumerate(whole.files):
        rows, added = pq.read_table(training_set / entry.uri), ["wind", "carrier"]
        with FileWriter(tmp_path / "set" / f"{number}.parquet") as writer:
            writer.append(rows.select(added))
            wrote = writer.finish()
        pq.write_table(rows.drop_columns(added), tmp_path / "own.parquet")
        sent = storage.publish(tmp_path / "own.parquet", f"{gs.uri}/{entry.uri}")
        companion = replace(entry, uri=wrote.path.name, size=wrote.size, checksum=wrote.checksum)
        in_place = replace(
            entry, **{name: getattr(sent, name) for name in ("uri", "size", "checksum", "version")}
        )
        files.append(replace(in_place, companion=companion))
    replace(whole, files=tuple(files)).write(tmp_path / "set")
    feeding = {"cache": str(tmp_path / "cache"), "cache_gib": 130_000 / 2**30}
    launcher = StoppedOnce()
    training = {"feeding": feeding, "checkpoints": {"every_steps": 7}}
    made = run(tmp_path / "set", tmp_path / "made", launcher, training=training)
    assert 0 < launcher.stopped_after < 78
    weights, expected = (load_file(each.model / "weights.safetensors") for each in (made, trained))
    assert all(torch.equal(weights[name], expected[name]) for name in weights)
    assert made.submitted.predictions_version == trained.submitted.predictions_version
    shards = len([entry for entry in files if entry.split == "train"])
    assert len(list((tmp_path / "cache").glob("*.shard"))) < shards
    points = TrainingHistory.read(made.model / HISTORY_FILE).points
    rates = next(point.values for point in points if "input_needed_per_s" in point.values)
    assert rates["input_needed_per_s"] > 0
    assert rates["input_encoded_times"] > 2
    given = f"{rates['input_given_per_s']:,.0f}"
    assert f"the input gives {given}; they waited" in (said := capfd.readouterr().err)
    assert "The source is the bottleneck: set training.feeding.cache_gib to 0.000" in said
    summary = (made.folder / "summary.md").read_text()
    assert re.search(rf"Samples/s that the input gives +\| +{given}", summary), summary


def taken_from(loader: Loader, count: int) -> None:
    for _ in range(count):
        loader.next()


def test_replaced_object_fails_the_step_that_needs_it(
    gs: Bucket, training_set: Path, tmp_path: Path, alone: Ranks
) -> None:
    there = in_store(training_set, gs)
    transforms, labels = fit(there, Mlp(), alone)
    name = there.snapshot.files[1].uri.removeprefix(f"{gs.uri}/")
    gs.put(name, b"other bytes")
    tight = Feeding(cache_gib=60_000 / 2**30)
    rows = encode(there, transforms, labels, tmp_path, alone, tight)
    with (
        Loader(rows, order(rows), 0, 1) as loader,
        pytest.raises(InputError, match="cached input changed") as caught,
    ):
        taken_from(loader, 13)
    assert caught.value.where == there.snapshot.files[1].uri


def test_tokens_in_a_store_are_counted_from_footers_and_read_once(
    gs: Bucket, tmp_path: Path, alone: Ranks
) -> None:
    """The file is larger than what a reader holds, and its other column is never fetched."""
    random, rows = np.random.default_rng(0), 30_000
    table = pa.table(
        {
            "tokens": pa.array(
                list(random.integers(0, 50_000, (rows, 32)).astype(np.int32)), pa.list_(pa.int32())
            ),
            "raw": pa.array([random.bytes(200) for _ in range(rows)]),
        }
    )
    path = tmp_path / "tokens.parquet"
    pq.write_table(table, path, row_group_size=5000, compression="none", use_dictionary=False)
    sent = storage.publish(path, f"{gs.uri}/tokens.parquet")
    columns = tuple(Column(name=field.name, type=str(field.type)) for field in table.schema)
    file = SnapshotFile(
        uri=sent.uri, size=sent.size, checksum=sent.checksum, rows=rows, split="train", version=sent.version
    )
    network = LanguageModel(vocabulary=50_000, context=64, width=16, heads=2)
    asked = TokenSource(tmp_path, Snapshot(files=(file,), columns=columns), "train", network)
    gs.proxy.clear()
    counts = count_tokens(asked, alone)
    assert counts[0].tokens == rows * 32
    assert len(gs.proxy.seen) <= 4
    gs.proxy.clear()
    sequences = encode_tokens(asked, counts, tmp_path / "cache", alone, Feeding())
    assert len(sequences) == (rows * 32 - 1) // 64
    flat = np.concatenate(table["tokens"].to_numpy())
    assert sequences.take(np.array([7])).inputs[0].tolist() == [flat[7 * 64 : 8 * 64].tolist()]

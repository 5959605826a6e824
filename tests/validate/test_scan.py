"""Scans of a split: the same on one process, on several and on Beam."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from trainwright.errors import InputError
from trainwright.experiment import Runner
from trainwright.tables import pieces, write_snapshot
from trainwright.tables.workers import Pool
from trainwright.validate.scan import FAN_IN, ScanRequest, levels, scan, take
from trainwright.validate.statistics import counted_as
from trainwright.validate.tfdv import schema_pb2


@pytest.fixture
def snapshot(tmp_path: Path) -> tuple[Path, object]:
    draw = np.random.default_rng(0)
    table = pa.table(
        {
            "x": draw.normal(0, 1, 40_000),
            "n": draw.integers(0, 9, 40_000),
            "w": draw.choice(["a", "b", "ü"], 40_000),
            "empty": pa.array([None] * 40_000, pa.float64()),
        }
    )
    made = write_snapshot(tmp_path, {"train": [table]}, parents={}, roles={}, rows_per_file=500)
    return tmp_path, made


def wanted(snapshot: object) -> ScanRequest:
    schema = counted_as(schema_pb2.Schema()).SerializeToString()
    cuts = {"x": np.linspace(-3, 3, 7), "n": np.array([0.5, 3.5])}
    return ScanRequest(schema, tuple(column.name for column in snapshot.columns), cuts)


def test_the_same_bytes_on_one_process_on_several_and_on_beam(snapshot: tuple[Path, object]) -> None:
    folder, manifest = snapshot
    assert levels(len(pieces(folder, manifest, ["train"]))) == 2  # so that groups of groups are merged, too
    assert len(manifest.files) > FAN_IN
    runners = [Runner(workers=1), Runner(workers=2), Runner(workers=7), Runner(engine="beam")]
    found = [scan(folder, manifest, "train", wanted(manifest), runner) for runner in runners]
    alike = {statistics.SerializeToString(deterministic=True) for statistics, _ in found}
    assert len(alike) == 1
    assert all(counts["x"].tolist() == found[0][1]["x"].tolist() for _, counts in found)
    assert found[0][1]["x"].sum() == 40_000
    assert found[0][0].datasets[0].num_examples == 40_000


def test_beam_takes_its_own_options(snapshot: tuple[Path, object], tmp_path: Path) -> None:
    folder, manifest = snapshot
    runner = Runner(engine="beam", options=("--runner=DirectRunner", "--direct_num_workers=1"))
    counted = ScanRequest(b"", (), {"n": np.array([0.5])})
    statistics, counts = scan(folder, manifest, "train", counted, runner, shared=str(tmp_path / "shared"))
    assert counts["n"].sum() == 40_000
    assert not statistics.datasets[0].features
    assert list((tmp_path / "shared").iterdir()) == []  # the result was read and taken away


def test_a_fork_after_arrow_has_used_its_threads_comes_to_an_end(snapshot: tuple[Path, object]) -> None:
    folder, manifest = snapshot
    for entry in manifest.files[:8]:  # the pool of threads is at work before the fork
        table = pq.read_table(folder / entry.uri, use_threads=True)
        pc.sum(table["x"])
    statistics, _ = scan(folder, manifest, "train", wanted(manifest), Runner(workers=2))
    assert statistics.datasets[0].num_examples == 40_000


def test_a_file_that_was_changed_is_refused_by_the_worker_that_reads_it(
    snapshot: tuple[Path, object],
) -> None:
    folder, manifest = snapshot
    place = folder / manifest.files[50].uri
    content = bytearray(place.read_bytes())
    content[len(content) // 2] ^= 1
    place.write_bytes(content)
    with pytest.raises(InputError, match="cached input changed") as caught:
        scan(folder, manifest, "train", wanted(manifest), Runner(workers=2))
    assert manifest.files[50].uri in caught.value.what


def test_the_memory_of_a_worker_stays_flat(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    columns = {f"c{place}": draw.normal(0, 1, 100_000) for place in range(8)}
    table = pa.table(columns | {"w": draw.choice([f"v{n}" for n in range(900)], 100_000)})
    manifest = write_snapshot(tmp_path, {"train": [table] * 16}, parents={}, roles={}, rows_per_file=100_000)
    schema = counted_as(schema_pb2.Schema()).SerializeToString()
    asked = ScanRequest(schema, tuple(table.column_names), {})

    def work(piece: object) -> int:
        take(tmp_path, piece, asked)
        return resident_bytes()

    seen = list(Pool(work, 2).run(pieces(tmp_path, manifest, ["train"])))
    assert max(seen[-4:]) - max(seen[4:8]) < 24 * 2**20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

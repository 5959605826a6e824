"""Ingest on Flink with two task managers: ``make test-engines``."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import beam_clusters
from tests.ingest.taking import data, flights, put, take
from trainwright.experiment import DataEngine


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beam_clusters.BeamCluster]:
    with beam_clusters.flink(tmp_path_factory.mktemp("flink")) as started:
        yield started


@pytest.mark.parametrize("victim", ["worker", "task manager"])
def test_kill_in_the_middle_gives_the_snapshot_of_one_process(
    tmp_path: Path, flink: beam_clusters.BeamCluster, victim: str
) -> None:
    source = put(tmp_path / "in.parquet", flights(3000), row_group_size=50)

    def on(engine: DataEngine, name: str) -> object:
        config = {"splits": {"all": {"fraction": 1}}, "shard_rows": 50, "store": str(tmp_path / name)}
        return data(**config, engine=engine.model_dump(exclude_none=True))

    alone = take(source, tmp_path / "alone", on(DataEngine(workers=1), "one"))
    kill = flink.kill_worker if victim == "worker" else flink.kill_task_manager
    with beam_clusters.killing(kill, tmp_path / "store"):
        made = take(source, tmp_path / "made", on(flink.engine(tmp_path / "results"), "store"))
    assert made.digest == alone.digest
    assert [entry.checksum for entry in made.files] == [entry.checksum for entry in alone.files]
    assert list((tmp_path / "results").iterdir()) == []

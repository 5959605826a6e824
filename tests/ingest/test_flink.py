"""Ingest on Flink with two task managers."""

from pathlib import Path

import pytest

from tests.engines.beam_clusters import BeamCluster, killing
from tests.ingest.taking import data, flights, put, take
from trainwright.errors import DependencyError
from trainwright.experiment import DataEngine


def on(engine: DataEngine, store: Path) -> object:
    config = {"splits": {"all": {"fraction": 1}}, "shard_rows": 50, "store": str(store)}
    return data(**config, engine=engine.model_dump(exclude_none=True))


@pytest.mark.parametrize("victim", ["worker", "task manager"])
def test_kill_in_the_middle_gives_the_snapshot_of_one_process(
    tmp_path: Path, flink: BeamCluster, victim: str
) -> None:
    source = put(tmp_path / "in.parquet", flights(3000), row_group_size=50)
    alone = take(source, tmp_path / "alone", on(DataEngine(workers=1), tmp_path / "one"))
    kill = flink.kill_worker if victim == "worker" else flink.kill_task_manager
    with killing(kill, tmp_path / "store"):
        made = take(source, tmp_path / "made", on(flink.engine(tmp_path / "results"), tmp_path / "store"))
    assert made.digest == alone.digest
    assert [entry.checksum for entry in made.files] == [entry.checksum for entry in alone.files]
    left = [path.name for path in (tmp_path / "results").iterdir()]
    assert [name for name in left if not name.startswith(".")] == []  # a killed writer leaves its part


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a thread of Beam's
def test_lost_job_manager_is_a_typed_error_and_the_next_run_gives_the_same_snapshot(
    tmp_path: Path, flink: BeamCluster
) -> None:
    source = put(tmp_path / "in.parquet", flights(1500), row_group_size=50)
    engine = on(flink.engine(tmp_path / "results"), tmp_path / "store")
    with (
        killing(flink.kill_job_manager, tmp_path / "store"),
        pytest.raises(DependencyError, match="FlinkRunner did not finish the work") as caught,
    ):
        take(source, tmp_path / "made", engine)
    assert caught.value.code == 21
    assert not (tmp_path / "made" / "snapshot" / "manifest.json").exists()
    made = take(source, tmp_path / "made", engine)
    alone = take(source, tmp_path / "alone", on(DataEngine(workers=1), tmp_path / "one"))
    assert made.digest == alone.digest

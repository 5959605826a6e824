"""Ingest and the engine module on engines that are really started."""

import os
from pathlib import Path

import pytest

from tests.engines import beam_clusters, pieces_work
from tests.ingest.taking import data, flights, put, take, whole
from trainwright.engine import map_pieces
from trainwright.errors import DependencyError, InputError
from trainwright.experiment import DataEngine

SPLITS = {"train": {"fraction": 0.7}, "evaluate": {"fraction": 0.3}}
TFDV = beam_clusters.ROOT / ".environments" / "tfdv" / "bin" / "python"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Sixty shards of 50 rows, from two files."""
    table = flights(3000)
    put(tmp_path / "in" / "a.parquet", table.slice(0, 1000), row_group_size=50)
    put(tmp_path / "in" / "b.parquet", table.slice(1000), row_group_size=50)
    return tmp_path / "in"


def section(store: Path, engine: DataEngine) -> object:
    options = {"splits": SPLITS, "shard_rows": 50, "store": str(store)}
    return data(**options, engine=engine.model_dump(exclude_none=True))


def test_several_worker_processes_of_beam_share_the_pieces() -> None:
    engine = DataEngine(name="DirectRunner", options=beam_clusters.SEVERAL)
    done = list(map_pieces(pieces_work.pid, range(40), engine, "ingest"))
    assert [item for item, _ in done] == list(range(40))
    assert len({pid for _, pid in done} - {os.getpid()}) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a thread of Beam's
def test_service_killed_in_the_middle_is_a_typed_error_and_the_next_run_makes_the_snapshot_of_one_process(
    tmp_path: Path, source: Path
) -> None:
    with beam_clusters.beam(tmp_path) as cluster:
        config = section(tmp_path / "store", cluster.engine(tmp_path / "results"))
        with (
            beam_clusters.killing(cluster.service.kill, tmp_path / "store"),
            pytest.raises(DependencyError) as caught,
        ):
            take(source, tmp_path / "made", config)
    assert caught.value.code == 21
    assert "PortableRunner did not finish the work" in caught.value.what
    assert not (tmp_path / "made" / "snapshot" / "manifest.json").exists()
    with beam_clusters.beam(tmp_path) as cluster:
        config = section(tmp_path / "store", cluster.engine(tmp_path / "results"))
        made = take(source, tmp_path / "made", config)
    alone = take(source, tmp_path / "alone", section(tmp_path / "one", DataEngine(workers=1)))
    assert made.digest == alone.digest
    assert [entry.checksum for entry in made.files] == [entry.checksum for entry in alone.files]
    assert made.quality == alone.quality
    assert not any(path.name.endswith(".result") for path in (tmp_path / "results").iterdir())
    assert whole(tmp_path / "made" / "snapshot").rows == 3000


def test_absent_job_service_is_a_typed_error(tmp_path: Path, source: Path) -> None:
    options = ("--job_endpoint=127.0.0.1:9", "--job_server_timeout=1", "--environment_type=LOOPBACK")
    engine = DataEngine(name="PortableRunner", options=options, store=str(tmp_path / "results"))
    with pytest.raises(DependencyError, match="PortableRunner did not finish the work") as caught:
        take(source, tmp_path / "out", section(tmp_path / "store", engine))
    assert caught.value.code == 21
    assert not list((tmp_path / "out" / "snapshot").glob("manifest*"))


def test_worker_of_another_image_is_rejected_with_both_versions(tmp_path: Path) -> None:
    with beam_clusters.beam(tmp_path, str(TFDV)) as cluster, pytest.raises(InputError) as caught:
        list(map_pieces(pieces_work.pid, range(3), cluster.engine(tmp_path / "results"), "ingest"))
    assert "Beam python3.11_sdk:2.72.0 (python3.11_sdk:2.77.0)" in caught.value.what
    assert caught.value.hint == "Run the workers from the image of this step."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--paralelism=2",), r"unknown options \['paralelism'\]"),
        (("--direct_num_workers=many",), "invalid int value: 'many'"),
        (("--environment_type=EXTERNAL",), "is required for environment type EXTERNAL"),
    ],
)
def test_option_that_beam_does_not_know_is_rejected_before_the_job(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    engine = DataEngine(name="PortableRunner", options=options, store=str(tmp_path / "results"))
    with pytest.raises(InputError, match=message) as caught:
        list(map_pieces(pieces_work.pid, range(3), engine, "ingest"))
    assert caught.value.where == "engine.options"
    assert not list((tmp_path / "results").iterdir())


def test_result_that_another_process_wrote_is_rejected(tmp_path: Path) -> None:
    engine = DataEngine(name="DirectRunner", store=str(tmp_path))
    with pytest.raises(InputError, match="another process wrote this file"):
        list(map_pieces(pieces_work.forge, [str(tmp_path)], engine, "ingest"))

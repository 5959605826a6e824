"""Spark and Ray, really started: Feast's engines write what our window says, and our check is not fooled."""

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.materialize import servers

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".environments" / "engines" / "bin" / "python"
PATIENCE_S = 1200
"""A fraction of it will do; on a machine with more to do, an engine takes minutes to start."""

UNHURRIED = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_worker_register_timeout_seconds": "300",  # of 60: a worker imports Feast first
    "RAY_gcs_server_request_timeout_seconds": "300",
    "RAY_gcs_rpc_server_connect_timeout_s": "120",
    "RAY_health_check_initial_delay_ms": "120000",
    "RAY_health_check_timeout_ms": "120000",  # of 10,000: a machine that is busy is not dead
    "RAY_memory_monitor_refresh_ms": "0",  # it would end our work for the memory of others
    "RAY_local_fs_capacity_threshold": "0.999",
}
"""Ray's own limits are those of a machine that has nothing else to do."""


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with servers.redis(tmp_path_factory.mktemp("redis")) as port:
        yield port


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory, redis_port: int) -> Any:
    """Run an engine once, and keep what it gave."""

    @cache
    def of(engine: str) -> Any:
        if not PYTHON.exists():
            pytest.skip("no environment with the engines: make .environments/engines/.made")
        if engine == "spark":
            servers.installed("default-jre-headless", lambda: shutil.which("java") is not None)
        folder = tmp_path_factory.mktemp(engine)
        done = subprocess.run(
            [str(PYTHON), "-m", "tests.engines.shop", engine, str(folder), str(redis_port)],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"} | UNHURRIED,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        said = done.stdout.strip().splitlines()
        return json.loads(said[-1]) if not done.returncode and said else done.stderr[-4000:]

    def found(engine: str) -> Any:
        answer = of(engine)
        assert isinstance(answer, dict), answer
        return answer

    return found


@pytest.mark.parametrize("engine", ["spark", "ray"])
def test_an_engine_writes_the_window_up_to_and_without_its_end(engine: str, given: Any) -> None:
    found = given(engine)["windows"]
    assert found["read"][0] == [[10, "n10"], [23, "n23"]]
    assert found["read"][1] == [[15, "n15"], [23, "n23"], [34, "n34"]]
    assert found["ways"] == [f"sqlite, by Feast's {engine}.engine"] * 2
    assert found["checked"] == [2, 2]


@pytest.mark.parametrize("engine", ["spark", "ray"])
def test_a_backfill_by_an_engine_leaves_newer_rows_where_they_are(engine: str, given: Any) -> None:
    """Feast's SQLite store lets old rows replace them: so the engine is given all up to the watermark."""
    found = given(engine)["windows"]
    assert found["read"][2] == found["read"][1]


def test_ray_says_that_it_wrote_what_it_could_not_and_the_check_finds_it(given: Any) -> None:
    refused = given("ray")["refused"]
    assert refused["error"] == "DependencyError"
    assert "2 of 2 compared keys of view 'stock' are not in the online store" in refused["what"]


def test_spark_says_that_it_could_not_write(given: Any) -> None:
    refused = given("spark")["refused"]
    assert refused["error"] == "DependencyError"
    assert "Feast's engine 'spark.engine' failed on view 'stock'" in refused["what"]
    assert "NOREPLICAS" in refused["what"]


def test_spark_joins_what_was_known_at_each_rows_time(given: Any) -> None:
    """Feast takes the keys 1 and 23, as one text, for 12 and 3; and leaves ours to find out."""
    from tests.engines.shop import EXPECTED

    found = given("spark")["joined"]
    assert found["sales"] == list(range(len(EXPECTED)))
    assert found["pieces"] == EXPECTED
    figures = found["quality"]
    assert figures["checked_by_feast.stock"] == len(EXPECTED)
    assert (figures["leaks.stock"], figures["differing_from_feast.stock"]) == (0, 0)
    assert figures["expired_share.stock"] == pytest.approx(1 / 7, abs=1e-6)
    assert figures["held_back_share.stock"] == pytest.approx(1 / 7, abs=1e-6)
    assert "Feast's spark store joined them." in found["summary"]

"""Clusters of Spark and Ray, really started: the same results as on one machine, also when a node is lost."""

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.engines.shop import EXPECTED
from tests.materialize import servers

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".environments" / "engines" / "bin" / "python"
PATIENCE_S = 1800
"""A fraction of it will do; on a machine with more to do, an engine takes minutes to start."""

BOTH = pytest.mark.parametrize("engine", ["spark", "ray"])


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
            pytest.skip("no environment with the engines: make test-engines")
        if engine == "spark":
            servers.installed("default-jre-headless", lambda: shutil.which("java") is not None)
        folder = tmp_path_factory.mktemp(engine)
        done = subprocess.run(
            [str(PYTHON), "-m", "tests.engines.shop", engine, str(folder), str(redis_port)],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"},
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


@BOTH
def test_materialize_with_a_node_killed_writes_what_one_machine_writes(engine: str, given: Any) -> None:
    """The third run is a backfill; Feast's SQLite store lets its old rows replace newer ones."""
    found, local = given(engine)["windows"], given(engine)["local_windows"]
    assert found["killed"]
    assert found["online"] == local["online"]
    assert found["read"] == local["read"] == [[15, "n15"], [22, "n22"], [33, "n33"]]
    assert found["marks"] == local["marks"]
    assert found["ways"] == [f"sqlite, by Feast's {engine}.engine"] * 2


def test_join_with_a_worker_killed_gives_the_training_set_of_one_machine(given: Any) -> None:
    """Feast takes the keys 1 and 23, as one text, for 12 and 3; and leaves ours to find out."""
    found = given("spark")["joined"]
    assert found["killed"]
    assert found["version"] == given("spark")["local_join"]["version"]
    assert found["pieces"] == given("spark")["local_join"]["pieces"] == EXPECTED
    assert found["sales"] == list(range(len(EXPECTED)))
    figures = found["quality"]
    assert figures["checked_by_feast.stock"] == len(EXPECTED)
    assert (figures["leaks.stock"], figures["differing_from_feast.stock"]) == (0, 0)
    assert figures["expired_share.stock"] == pytest.approx(1 / 7, abs=1e-6)
    assert figures["held_back_share.stock"] == pytest.approx(1 / 7, abs=1e-6)
    assert "Feast's spark store joined them." in found["summary"]


@BOTH
def test_store_without_writes_is_found_although_ray_reports_success(engine: str, given: Any) -> None:
    stored = given(engine)["stored"]
    assert stored["code"] == 21
    expected = {
        "spark": "NOREPLICAS",
        "ray": "2 of 2 compared keys of view 'stock' are not in the online store",
    }
    assert expected[engine] in stored["what"]


@BOTH
@pytest.mark.parametrize(
    ("failure", "code", "spark", "ray"),
    [
        ("option", 10, "Spark has no option 'sparks.sql.adaptive.enabled'", "nonsense"),
        ("rejected", 21, "no executor for 6 s", "could not join the cluster"),
        ("lost", 21, "no executor for 6 s", "ended with exit code 1"),
        ("away", 21, "no Spark master answers at spark://127.0.0.1:", "no Ray cluster answers at 127.0.0.1:"),
        ("version", 10, "runs 3.5.1, this step's pyspark is 4.", "Ray: 2.0.0"),
    ],
)
def test_cluster_that_cannot_do_the_work_is_a_typed_error_and_nothing_is_written(
    engine: str, failure: str, code: int, spark: str, ray: str, given: Any
) -> None:
    found = given(engine)[failure]
    assert found["code"] == code, found
    assert found.get("killed", True)
    assert (spark if engine == "spark" else ray) in found["what"]
    assert given(engine)["written"] == []


def test_killed_step_leaves_no_node_of_ray_behind(given: Any) -> None:
    assert given("ray")["left"] == []


def test_workers_with_another_feast_are_rejected_with_both_versions(given: Any) -> None:
    found = given("spark")["packages"]
    assert found["code"] == 10, found
    assert "Feast of Spark's workers is 0.1, of this step 0." in found["what"]

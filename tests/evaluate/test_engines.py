"""Evaluate on Beam's runner of one machine, and on Flink with two task managers: ``make test-engines``."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.engines.beam_clusters import SEVERAL, BeamCluster, killing
from tests.storage.stores import Bucket
from trainwright import storage
from trainwright.errors import DependencyError
from trainwright.evaluate.evaluate import BaselinePredictions, evaluate_predictions
from trainwright.experiment import DataEngine, Evaluation
from trainwright.tables import write_snapshot

BEAM = importlib.util.find_spec("apache_beam") is not None
needs_beam = pytest.mark.skipif(not BEAM, reason="no Beam: make test-engines, which has its environment")
ROWS = 800
SECTION = {
    "slices": ["airport", "hour"],
    "rules": [{"metric": "auc", "margin": 0.01}],
    "cluster": "customer",
    "resamples": 200,
}
OUTPUTS = ("verdict.json", "measured.json")


def write(folder: Path) -> dict[str, str]:
    """Write the predictions of two models, 8 files each, and return their digests."""
    draw = np.random.default_rng(3)
    chance = draw.beta(2, 5, ROWS)
    columns = {
        "id": np.arange(ROWS),
        "late": (draw.random(ROWS) < chance).astype(np.int64),
        "airport": draw.choice(["EWR", "JFK", "LGA"], ROWS),
        "hour": draw.normal(12, 4, ROWS),
        "customer": draw.integers(0, 200, ROWS),
        "importance": draw.random(ROWS),
    }
    roles = {"key": "id", "label": "late", "score": "score", "weight": "importance"}
    found = {}
    for name, noise in (("predictions", 0.1), ("baseline", 0.13)):
        score = np.clip(chance + draw.normal(0, noise, ROWS), 0, 1)
        table = pa.table(columns | {"score": score})
        more: dict[str, Any] = {"parents": {"model": name}, "roles": roles, "rows_per_file": 100}
        found[name] = write_snapshot(folder / name, {"evaluate": [table]}, **more).digest
    return found


def judge(folder: Path, digests: dict[str, str], engine: DataEngine, name: str, *uris: str) -> list[bytes]:
    """Evaluate on an engine, and return what it wrote, without what names the engine."""
    out, (ours, theirs) = folder / name, uris or ("", "")
    evaluate_predictions(
        folder / "predictions",
        digests["predictions"],
        Evaluation.check(SECTION | {"engine": engine.model_dump(exclude_none=True)}, "test"),
        verdict=out,
        report=out / "report.html",
        summary=out / "summary.md",
        baseline=BaselinePredictions(folder / "baseline", digests["baseline"], "1", theirs),
        uri=ours,
    )
    return [(out / output).read_bytes() for output in OUTPUTS]


@pytest.mark.skipif(BEAM, reason="for the plain image, which has no Beam")
def test_image_without_beam_is_an_error_that_names_the_variant(tmp_path: Path) -> None:
    engine = DataEngine(name="FlinkRunner", store=str(tmp_path / "results"))
    with pytest.raises(DependencyError, match="Apache Beam is not installed here") as caught:
        judge(tmp_path, write(tmp_path), engine, "flink")
    assert caught.value.code == 21
    assert "VARIANT=engines" in caught.value.hint
    assert not (tmp_path / "flink" / "verdict.json").exists()


@needs_beam
def test_worker_processes_of_beam_give_the_bytes_of_one_process(tmp_path: Path) -> None:
    digests = write(tmp_path)
    alone = judge(tmp_path, digests, DataEngine(workers=1), "alone")
    several = DataEngine(name="DirectRunner", options=SEVERAL)
    assert judge(tmp_path, digests, several, "several") == alone
    assert len(json.loads(alone[1])["measures"]) > 20


@needs_beam
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a thread of Beam's
def test_killed_worker_on_flink_changes_nothing_and_a_killed_job_server_is_a_typed_error(
    tmp_path: Path, s3: Bucket, flink: BeamCluster
) -> None:
    """Of rows in a bucket and in a mounted folder."""
    digests, uri, results = write(tmp_path), f"{s3.uri}/predictions", tmp_path / "results"
    for file in (tmp_path / "predictions").rglob("*.*"):
        storage.create(f"{uri}/{file.relative_to(tmp_path / 'predictions')}", file.read_bytes())
    alone = judge(tmp_path, digests, DataEngine(workers=1), "alone")
    places = (uri, str(tmp_path / "baseline"))
    with killing(flink.kill_worker, results):
        made = judge(tmp_path, digests, flink.engine(results), "flink", *places)
    assert made == alone
    with (
        killing(flink.service.kill, results),
        pytest.raises(DependencyError, match="FlinkRunner did not finish the work"),
    ):
        judge(tmp_path, digests, flink.engine(results), "lost", *places)
    assert not (tmp_path / "lost" / "verdict.json").exists()

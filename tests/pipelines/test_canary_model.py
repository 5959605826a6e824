"""A registered canary is compared with production by a log, and its verdict brings it into production."""

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.pipelines.world import MLFLOW, ROOT, STOCK
from trainwright.local import runner

IN_CANARY = f"""{STOCK}
from tests.registry.shelf import CANARY
from trainwright.experiment import Promotion
policy = Promotion(path=("canary", "production"), canary=CANARY, min_soak_s=0, four_eyes=False)
print(shelf.ask("canary", 2, policy).decision)
"""
PROMOTE = """
import sys
from pathlib import Path
from tests.registry.shelf import CANARY, MODEL, Shelf
from trainwright.experiment import Promotion, Registry
folder, verdict = Path(sys.argv[1]), sys.argv[2]
shelf = Shelf(folder, Registry(model=MODEL, tracking_uri=f"sqlite:///{folder}/mlflow.db"))
policy = Promotion(path=("canary", "production"), canary=CANARY, min_soak_s=0, four_eyes=False)
print(shelf.ask("production", 2, policy, canary_verdict=verdict).decision)
"""


def in_mlflow(script: str, *words: Path) -> str:
    done = subprocess.run(
        [MLFLOW, "-W", "ignore", "-c", script, *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def log(path: Path, errors: int) -> None:
    """Log answers of both versions; the canary fails so many of its 800."""
    rows = ["time,version,error"]
    for minute in range(8000):
        new = minute % 10 == 9
        failed = new and minute // 10 < errors
        time = datetime(2026, 11, 1, tzinfo=UTC) + timedelta(minutes=minute)
        rows.append(f"{time.isoformat()},{1 + new},{int(failed)}")
    path.write_text("\n".join(rows) + "\n")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("canary")
    assert in_mlflow(IN_CANARY, folder) == "PASS"
    return folder


def canary_model(registry: Path, log: Path, runs: Path) -> runner.Outcome:
    service = {"name": "flights", "namespace": "team-a", "model_format": "trainwright"}
    given = {
        "registry": {"model": "flight_late", "tracking_uri": f"sqlite:///{registry}/mlflow.db"},
        "promotion": {"canary": {"share": 0.1, "guards": {"error_rate": 0.01}}},
        "serving": {"log": str(log), "service": service},
    }
    return runner.run(ROOT / "compiled" / "pipelines" / "canary_model.yaml", given, runs_folder=runs)


def test_canary_that_errs_is_held_and_gets_no_traffic(registry: Path, tmp_path: Path) -> None:
    log(tmp_path / "served.csv", errors=40)
    ended = canary_model(registry, tmp_path / "served.csv", tmp_path / "runs")
    assert (ended.state, ended.exit_code, ended.held_by) == ("held", 12, "canary"), ended
    verdict = ended.folder / "canary" / "verdict"
    assert json.loads((verdict / "verdict.json").read_text())["decision"] == "FAIL"
    service = json.loads((verdict / "inference_service.json").read_text())
    assert service["spec"]["predictor"]["canaryTrafficPercent"] == 0


def test_verdict_of_a_good_canary_brings_it_into_production(registry: Path, tmp_path: Path) -> None:
    log(tmp_path / "served.csv", errors=0)
    ended = canary_model(registry, tmp_path / "served.csv", tmp_path / "runs")
    assert (ended.state, ended.exit_code) == ("done", 0), ended
    verdict = ended.folder / "canary" / "verdict"
    service = json.loads((verdict / "inference_service.json").read_text())
    assert service["spec"]["predictor"]["canaryTrafficPercent"] == 10
    assert service["spec"]["predictor"]["model"]["storageUri"].endswith("/artifacts/model")
    assert in_mlflow(PROMOTE, registry, verdict / "verdict.json") == "PASS"

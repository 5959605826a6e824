"""The pipeline with a search: from compiled YAML to a registered model, in the steps' own environments."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pipelines.conftest import events, tasks, trainwright
from trainwright.artifacts import Model

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "examples" / "quickstart"
TUNING: dict[str, Any] = {
    "space": {"training.learning_rate": {"float": [1e-7, 2e-7], "log": True}},
    "sampler": "random",
    "pruner": {"kind": "none"},
    "trials": 3,
    "parallel": 2,
    "cost": 1e-9,
    "confirm": {"top": 1, "seeds": 3, "level": 0.3},
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    experiment = yaml.safe_load((QUICKSTART / "experiment.yaml").read_text())
    experiment["data"]["source"] = str(QUICKSTART / "rows.csv")
    experiment["schema_file"] = str(QUICKSTART / "schema.pbtxt")
    experiment["network"] = {"kind": "mlp", "hidden": [16]}
    experiment["training"] = {"steps": 300, "learning_rate": 0.01}
    experiment["evaluation"] = {"missing_baseline": "bootstrap"}
    experiment["registry"]["tracking_uri"] = f"sqlite:///{tmp_path}/mlflow.db"
    path = tmp_path / "experiment.yaml"
    run = {"prices": {"version": "1", "currency": "EUR", "cpu_hour": 3600.0}}
    path.write_text(yaml.safe_dump(experiment | {"tuning": TUNING, "run": run}))
    return path


def test_search_that_finds_nothing_better_trains_and_registers_the_default(
    config: Path, tmp_path: Path
) -> None:
    done = trainwright("run", "tune_and_register", "--config", config, "--runs", tmp_path / "runs", "--json")
    assert done.returncode == 0, done.stderr + done.stdout[-3000:]
    seen = tasks(events(done))
    folder, report, summary = (
        Path(seen["tune"]["outputs"][name]["uri"]) for name in ("study", "report", "summary")
    )
    study = json.loads((folder / "study.json").read_text())
    confirmation = study["confirmation"]
    assert (confirmation["outcome"], confirmation["winner"]) == ("no better", None)
    default, best = confirmation["candidates"]
    assert len(default["values"]) == len(best["values"]) == len(confirmation["seeds"]) == 3
    assert best["difference"] > 0
    assert [trial["state"] for trial in study["trials"]] == ["complete", "complete"], "no third one starts"
    assert "No better than the default" in summary.read_text()
    assert report.stat().st_size
    assert list(folder.parent.glob(".study.job-*")) == []
    assert study["ended"] == "budget of 1e-09 in cost"
    assert study["tuning"]["job_hour"] == 2 * 3600.0
    costs = json.loads((Path(seen["summarize"]["outputs"]["run"]["uri"]) / "cost.json").read_text())["steps"]
    searched = next(step["cost"] for step in costs if step["step"] == "tune")
    assert searched == study["cost"] > sum(trial["cost"] for trial in study["trials"]) > 0
    model = Model.read(Path(seen["train"]["outputs"]["model"]["uri"]))
    assert model.config["training"]["learning_rate"] == 0.01
    assert seen["register"]["state"] == "done"


def test_pipeline_without_a_search_space_ends_in_configure(config: Path, tmp_path: Path) -> None:
    experiment = yaml.safe_load(config.read_text())
    del experiment["tuning"]
    config.write_text(yaml.safe_dump(experiment))
    done = trainwright("run", "tune_and_register", "--config", config, "--runs", tmp_path / "runs", "--json")
    assert done.returncode == 10, done.stdout
    assert "tuning.space: missing" in tasks(events(done))["configure"]["error"]["what"]

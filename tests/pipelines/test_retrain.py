"""A schedule with triggers on this machine: what would start, and why, from the earlier runs alone."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.conftest import ROOT, events, trainwright
from trainwright.local import run_folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The quickstart's experiment, and a schedule of it."""
    for name in ("experiment.yaml", "rows.csv", "schema.pbtxt"):
        shutil.copy(ROOT / "examples" / "quickstart" / name, tmp_path / name)
    nightly = {"pipeline": "train_and_register", "config": "experiment.yaml", "cron": "0 30 2 * * *"}
    nightly |= {"zone": "UTC", "triggers": {"max_age_days": 30}}
    document = {"schema_version": 1, "owner": "team-a", "schedules": {"nightly": nightly}}
    (tmp_path / "schedules.yaml").write_text(json.dumps(document))
    return tmp_path / "schedules.yaml"


def plan(file: Path) -> dict[str, Any]:
    words = ["--runs", file.parent / "runs", "--date", "2026-11-22", "--json"]
    done = trainwright("triggers", "plan", file, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    (event,) = events(done)
    return event


def test_plan_says_what_would_start_and_an_earlier_run_of_the_date_forbids_it(file: Path) -> None:
    first = plan(file)
    by = first["start"]
    assert by["reason"].startswith("nothing was trained on source ")
    assert by["reason"].endswith("; there is no version, at most 30 days")
    assert (by["trigger"], by["date"], len(by["source"])) == ("team-a/nightly", "2026-11-22", 64)
    # What `triggers run` leaves when it is killed before the first step ends.
    arguments = {"run": {"started_by": by}}
    folder, _ = run_folder.create(file.parent / "runs", "train_and_register", arguments)
    second = plan(file)
    assert second["start"] == {}
    assert second["headline"].startswith(f"WAIT: run {folder.name} was started for 2026-11-22; nothing was")

"""The gate on the training set in a whole run: an accepted baseline, and a log of served rows."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.pipelines.conftest import TABULAR, events, run, tasks, trainwright
from trainwright.verdicts import Verdict

Edit = Callable[[dict[str, Any]], None]

SERVE = """
import sys
from pathlib import Path
import pyarrow.compute as pc
import pyarrow.parquet as pq
from trainwright import tables
from trainwright.artifacts import Snapshot
folder = Path(sys.argv[1])
rows = tables.read_split(folder, Snapshot.read(folder), "train", None)
place = rows.column_names.index("wind_speed")
rows = rows.set_column(place, "speed", pc.multiply(rows["wind_speed"], 10))
pq.write_table(rows, sys.argv[2])
"""
"""Write the training rows as a log, with the wind in another unit under another name."""


def test_a_skewed_serving_log_holds_the_data_of_the_registered_model(
    finished: dict[str, dict[str, Any]], edited: Callable[[Edit], Path], runs: Path, job: Path
) -> None:
    training_set = Path(finished["join"]["outputs"]["training_set"]["uri"])
    folder = training_set.parents[1]
    accepted = trainwright("baseline", "accept", folder, "--to", job / "late.json", "--reason", "it serves")
    assert accepted.returncode == 0, accepted.stderr
    subprocess.run([TABULAR, "-c", SERVE, training_set, job / "served-2013-10-08.parquet"], check=True)

    def compare(experiment: dict[str, Any]) -> None:
        experiment["validation"] |= {
            "baseline": "late.json",
            "serving_log": {
                "source": "served-*.parquet",
                "format": "parquet",
                "columns": {"wind_speed": "speed"},
            },
        }
        limit = {"comparator": "jensen_shannon_divergence", "threshold": 0.2}
        experiment["features"] |= {"drift": {"wind_speed": limit}, "ignore": ["wind_gust"]}

    done = run(edited(compare), runs, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = tasks(events(done))
    verdict = Verdict.read(Path(found["join"]["outputs"]["verdict"]["uri"]))
    broken = {rule.name for rule in verdict.rules if not rule.passed}
    assert "features/serving/drift/wind_speed" in broken
    assert not any(name.startswith("features/baseline") for name in broken)  # the same rows
    [limit] = [rule for rule in verdict.rules if rule.name == "features/baseline/drift/wind_speed"]
    assert limit.limit >= 0.2
    assert not any(rule.name.endswith("/wind_gust") and "features/" in rule.name for rule in verdict.rules)
    assert found["join"]["headline"].count("HOLD")
    assert "data HOLD" in found["register"]["headline"]

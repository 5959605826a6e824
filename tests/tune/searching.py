"""A small search: ``python -m tests.tune.searching FOLDER TRAINING_SET OPTIONS``, and its reader."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.tune.trainings import NETWORK, TRAINING, request
from trainwright.errors import TrainwrightError
from trainwright.experiment import Resources, Tuning
from trainwright.tune import study as studies
from trainwright.tune.checks import SearchPlan
from trainwright.tune.controller import search
from trainwright.tune.space import SearchSpace
from trainwright.tune.tracking import TrialLines

OUTCOME = "outcome.json"
TUNING: dict[str, Any] = {
    "space": {"training.learning_rate": {"float": [1e-5, 1e-3], "log": True}},
    "sampler": "random",
    "pruner": {"kind": "asha", "reduction": 2, "rungs": 2},
    "trials": 2,
    "parallel": 1,
}


def main(folder: Path, training_set: Path, options: dict[str, Any]) -> int:
    """Search, and write the trials and why it ended."""
    network = options.get("network", NETWORK)
    training = TRAINING | options.get("training", {})
    asked = request(training_set, training=training, resources=options.get("resources", {}))
    tuning = Tuning.check(TUNING | options.get("tuning", {}), "tuning")
    space = SearchSpace.of(tuning, network, training)
    # Not checked: some searches have trials that cannot be trained.
    resources = Resources.parse(asked.resources, "resources")
    plan = SearchPlan(tuning, space, resources, asked, "local", job_hour=None)
    try:
        with studies.open_study(folder, {"study": "test"}, plan.space, shared=False) as study:
            lines = TrialLines(sys.stderr, plan.tuning.direction)
            ended = search(study, plan, folder=folder, observer=lines)
            trials = [asdict(trial) for trial in study.trials]
    except TrainwrightError as error:
        sys.stderr.write(f"{error}\n")
        return error.code
    (folder / OUTCOME).write_text(json.dumps({"ended": ended, "trials": trials}))
    return 0


def start(folder: Path, training_set: Path, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.tune.searching", str(folder), str(training_set)]
    return subprocess.Popen(
        [*command, json.dumps(options)],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(folder: Path, training_set: Path, **options: Any) -> list[dict[str, Any]]:
    """Search to the end, and return the trials."""
    process = start(folder, training_set, **options)
    _, said = process.communicate()
    assert process.returncode == 0, said
    trials: list[dict[str, Any]] = json.loads((folder / OUTCOME).read_text())["trials"]
    return trials


def decided(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what a repeated search finds again: all but times and attempts."""
    names = ("number", "params", "state", "value", "rungs", "total", "reason")
    return [{name: trial[name] for name in names} for trial in trials]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])))

"""A search whose step is stopped and killed, and trials that cannot be trained."""

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.tune.searching import decided, run, start
from trainwright.errors import InputError, Preempted

KILLS = 2
LONG = {"steps": 1200, "guards": {"early_stopping": {"share": 0.2, "every_steps": 100, "patience": 50}}}
"""A trial that is to pause at its rung has not ended before the controller pauses it."""


def processes_of(folder: Path) -> list[int]:
    """Return the processes that have a path below a folder among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def wait_until_gone(folder: Path) -> None:
    end = time.monotonic() + 120
    while left := processes_of(folder):
        assert time.monotonic() < end, left
        time.sleep(0.1)


def wait_for_trial(process: subprocess.Popen[str], folder: Path) -> None:
    while process.poll() is None and not list((folder / "trials").glob("*/job-trial")):
        time.sleep(0.05)


@pytest.fixture(scope="module")
def undisturbed(training_set: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    found = run(folder, training_set, training=LONG)
    ends = [(trial["state"], trial["attempts"], trial["steps"] == 1200) for trial in found]
    assert ends == [("complete", 2, True), ("pruned", 1, False)], "one was paused at a rung and promoted"
    trials = decided(found)
    kept = {path.name for path in (folder / "trials" / "0").iterdir()}
    assert kept == {"trial.json", "trial.log", "starts.json", "history.jsonl", "metrics.json"}
    return trials


def test_search_prunes_at_a_rung_and_completes_the_best(undisturbed: list[dict[str, object]]) -> None:
    assert [trial["number"] for trial in undisturbed] == [0, 1]
    assert {trial["state"] for trial in undisturbed} == {"complete", "pruned"}
    assert all(trial["rungs"] for trial in undisturbed)


@pytest.mark.covers("F59")
def test_search_that_was_stopped_and_killed_finds_the_same_trials_again(
    training_set: Path, tmp_path: Path, undisturbed: list[dict[str, object]]
) -> None:
    process = start(tmp_path, training_set, training=LONG)
    wait_for_trial(process, tmp_path)
    process.terminate()
    _, said = process.communicate()
    assert process.returncode == Preempted.code, said
    assert "stopped by SIGTERM" in said
    assert not processes_of(tmp_path)
    draw = random.SystemRandom()
    for _ in range(KILLS):
        process = start(tmp_path, training_set, training=LONG)
        wait_for_trial(process, tmp_path)
        time.sleep(draw.uniform(0, 8))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        wait_until_gone(tmp_path)
    assert decided(run(tmp_path, training_set, training=LONG)) == undisturbed


def test_rejected_combination_is_infeasible_and_the_others_complete(
    training_set: Path, tmp_path: Path
) -> None:
    tuning = {
        "space": {"training.objective.focal": {"choice": [0.0, 2.0]}},
        "sampler": "grid",
        "pruner": {"kind": "none"},
        "trials": 2,
        "parallel": 2,
        "metric": "held_out_auc",
    }
    trials = run(tmp_path, training_set, tuning=tuning, network={"kind": "trees", "rounds": 5})
    states = {trial["params"]["training.objective.focal"]: trial["state"] for trial in trials}
    assert states == {0.0: "complete", 2.0: "infeasible"}
    reasons = {trial["state"]: trial["reason"] for trial in trials}
    assert "focal" in reasons["infeasible"]


def test_search_whose_first_trials_are_rejected_ends_with_their_error(
    training_set: Path, tmp_path: Path
) -> None:
    tuning = {
        "space": {"network.depth": {"int": [2, 9]}},
        "pruner": {"kind": "none"},
        "trials": 5,
    }
    process = start(
        tmp_path,
        training_set,
        tuning=tuning,
        network={"kind": "trees", "rounds": 5},
        training={"objective": {"focal": 2.0}},
    )
    _, said = process.communicate()
    assert process.returncode == InputError.code, said
    assert "the first 3 trials were rejected" in said
    assert "focal" in said

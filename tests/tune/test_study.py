"""A study: proposals, rungs, promotion, and what a killed process leaves.

The "training" is a formula: the loss falls with the steps towards a value that the learning rate decides.
"""

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainwright.errors import InputError, TransientError
from trainwright.experiment import Tuning
from trainwright.experiment.training import Pruner
from trainwright.tune import asha
from trainwright.tune.report import RungValue, Trial
from trainwright.tune.space import SearchSpace
from trainwright.tune.study import JOURNAL, Study, open_study

SPACE: dict[str, Any] = {
    "training.learning_rate": {"float": [1e-4, 1e-1], "log": True},
    "training.batch_size": {"int": [16, 64]},
}
TOTAL, EVERY = 90, 10
IDENTITY = {"data_version": "d" * 64}
THIRDS = Pruner(reduction=3, rungs=3)


def space_of(**settings: Any) -> SearchSpace:
    tuning = Tuning.check({"space": SPACE, "trials": 20} | settings, "tuning")
    return SearchSpace.of(tuning, {"kind": "mlp"}, {})


def loss(params: dict[str, Any], step: int) -> float:
    """Best at a learning rate of 0.01; a tenth of what is left to learn remains after 10 times the steps."""
    return abs(math.log10(params["training.learning_rate"]) + 2) + 1 / step


def train(study: Study, trial: Trial, steps: dict[int, int]) -> None:
    """Train a trial until it pauses or ends; ``steps`` counts those that each trial took."""
    evaluations = []
    for step in range(EVERY, TOTAL + 1, EVERY):
        steps[trial.number] = max(steps.get(trial.number, 0), step)
        evaluations.append((step, loss(trial.params, step)))
        if step < TOTAL and not study.report(trial.number, TOTAL, evaluations):
            return study.pause(trial.number, {"steps": step})
    return study.complete(trial.number, loss(trial.params, TOTAL), {"steps": TOTAL})


def search(folder: Path, space: SearchSpace, most: int | None = None) -> tuple[tuple[Trial, ...], int]:
    """Run a study, or ``most`` starts of trials; return its trials and the steps of all of them."""
    steps: dict[int, int] = {}
    with open_study(folder, IDENTITY, space) as study:
        while most is None or most:
            running = study.running()
            trial = running[0] if running else study.next()
            if trial is None:
                study.finish()
                break
            train(study, trial, steps)
            most = most and most - 1
        return study.trials, sum(steps.values())


def without_time(trials: tuple[Trial, ...]) -> list[tuple[Any, ...]]:
    return [(one.params, one.state, one.value, one.rungs, one.reason) for one in trials]


@pytest.mark.covers("F59")
@pytest.mark.parametrize(
    ("sampler", "pruner"),
    [*itertools.product(["tpe", "random"], ["none", "asha", "hyperband"]), ("cmaes", "none")],
)
def test_study_that_is_killed_again_and_again_has_the_same_trials(
    tmp_path: Path, sampler: str, pruner: str
) -> None:
    space = space_of(sampler=sampler, pruner={"kind": pruner})
    undisturbed, _ = search(tmp_path / "whole", space)
    while len(found := search(tmp_path / "parts", space, most=7)[0]) < 20 or {one.state for one in found} & {
        "running",
        "paused",
    }:
        with (tmp_path / "parts" / JOURNAL).open("ab") as journal:
            journal.write(b'{"op_code": 4, "wor')  # the line that a killed process was writing
    assert without_time(found) == without_time(undisturbed)
    assert len(found) == 20


def test_halving_takes_a_third_of_the_steps_and_trains_the_best_to_its_end(tmp_path: Path) -> None:
    full, all_steps = search(tmp_path / "full", space_of(sampler="random", pruner={"kind": "none"}))
    halved, steps = search(tmp_path / "asha", space_of(sampler="random", pruner=THIRDS.model_dump()))
    assert all_steps == 20 * TOTAL
    assert steps <= all_steps / 3
    best = min(full, key=lambda one: one.value or math.inf)
    assert halved[best.number].state == "complete"
    assert halved[best.number].value == best.value
    states = [one.state for one in halved]
    assert states.count("pruned") == 18, (
        "20 at the first rung, 6 of them at the second, 2 of these at the end"
    )
    assert sorted({one.rungs[-1].step for one in halved if one.state == "pruned"}) == [10, 30]


def test_brackets_of_hyperband_begin_at_different_rungs(tmp_path: Path) -> None:
    trials, _ = search(tmp_path, space_of(pruner={"kind": "hyperband", "rungs": 3}))
    first = [one.rungs[0].rung if one.rungs else 2 for one in trials]
    assert first == [number % 3 for number in range(20)]
    assert all(trials[number].state == "complete" for number in range(2, 20, 3)), "the last has no rung"


@pytest.mark.parametrize("trials", [1, 2])
def test_study_too_small_to_halve_still_trains_one_trial_to_its_end(tmp_path: Path, trials: int) -> None:
    found, _ = search(tmp_path, space_of(trials=trials))
    assert [one.state for one in found].count("complete") == 1
    values = {one.number: loss(one.params, TOTAL) for one in found}
    assert found[min(values, key=lambda number: values[number])].state == "complete"


def test_grid_has_every_combination_once_and_no_more_trials(tmp_path: Path) -> None:
    choices = {"network.dropout": {"choice": [0.0, 0.1]}, "training.batch_size": {"int": [16, 18]}}
    extra = {"training.clip": {"choice": [1.0, 2.0], "when": {"network.dropout": [0.1]}}}
    space = space_of(space=choices | extra, sampler="grid", pruner={"kind": "none"})
    with open_study(tmp_path, IDENTITY, space) as study:
        while trial := study.next():
            study.complete(trial.number, 1.0, {})
        params = [one.params for one in study.trials]
    assert len(params) == 3 + 3 * 2, "without dropout, the clip is not searched"
    assert len({str(sorted(one.items())) for one in params}) == 9
    assert all(("training.clip" in one) == (one["network.dropout"] == 0.1) for one in params)


def test_tpe_comes_closer_than_random_search(tmp_path: Path) -> None:
    """The distance to one point in three dimensions, mean over three seeds."""
    target = {"training.warmup": 0.2, "training.weight_decay": 0.7, "network.dropout": 0.5}
    dimensions = {key: {"float": [0, 0.9]} for key in target}

    def mean_distance(sampler: str) -> float:
        found = []
        for seed in range(3):
            space = space_of(space=dimensions, sampler=sampler, seed=seed, trials=30, pruner={"kind": "none"})
            with open_study(tmp_path / f"{sampler}{seed}", IDENTITY, space) as study:
                while trial := study.next():
                    distance = sum((trial.params[key] - at) ** 2 for key, at in target.items())
                    study.complete(trial.number, distance, {})
                found.append(min(one.value for one in study.trials if one.value is not None))
        return sum(found) / len(found)

    assert mean_distance("tpe") < mean_distance("random")


def test_infeasible_trial_is_never_promoted_and_the_sampler_avoids_its_neighbourhood(tmp_path: Path) -> None:
    """A third of the range cannot be trained: after its random start, TPE proposes few of it."""
    space = space_of(trials=40, pruner={"kind": "none"})
    with open_study(tmp_path, IDENTITY, space) as study:
        while trial := study.next():
            if trial.params["training.learning_rate"] < 0.001:
                study.infeasible(trial.number, "CUDA_OOM", {})
            else:
                study.complete(trial.number, loss(trial.params, TOTAL), {})
        states = [one.state for one in study.trials]
    assert states[:20].count("infeasible") > 2 * states[20:].count("infeasible")


def test_importance_is_that_of_the_key_that_decides(tmp_path: Path) -> None:
    space = space_of(sampler="random", trials=40, pruner={"kind": "none"})
    search(tmp_path, space)
    with open_study(tmp_path, IDENTITY, space) as study:
        found = study.importances()
    assert sum(found.values()) == pytest.approx(1)
    assert found["training.learning_rate"] > 0.7


HOLDER = """
import json, sys, time
from pathlib import Path
from trainwright.experiment import Tuning
from trainwright.tune.space import SearchSpace
from trainwright.tune.study import open_study
folder, identity, space = sys.argv[1:]
tuning = Tuning.check({"space": json.loads(space)}, "tuning")
with open_study(Path(folder), json.loads(identity), SearchSpace.of(tuning, {}, {}), shared=False) as study:
    print(study.next().number, flush=True)
    time.sleep(600)
"""


@pytest.mark.covers("F59")
def test_second_process_is_rejected_until_the_first_is_killed_and_then_finds_its_trial(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path), json.dumps(IDENTITY), json.dumps(SPACE)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        try:
            assert holder.stdout.readline() == b"0\n"
            rejected_here = pytest.raises(TransientError, match="another run continues this study")
            with rejected_here, open_study(tmp_path, IDENTITY, space_of(), shared=False):
                pass
        finally:
            holder.kill()
    with open_study(tmp_path, IDENTITY, space_of(), shared=False) as study:
        assert [one.number for one in study.running()] == [0]


def test_second_pod_on_a_shared_study_is_rejected(tmp_path: Path) -> None:
    space = space_of()
    with (
        open_study(tmp_path, IDENTITY, space),
        pytest.raises(TransientError, match="another run"),
        open_study(tmp_path, IDENTITY, space, wait_s=0),
    ):
        pass


def test_tpe_prefers_low_losses_at_rungs_where_the_metric_is_maximized(tmp_path: Path) -> None:
    def proposed(metric: str) -> list[dict[str, Any]]:
        with open_study(tmp_path / metric, IDENTITY, space_of(metric=metric)) as study:
            while len(study.trials) < 20 and (one := study.next()):
                if not one.rungs and not study.report(one.number, TOTAL, [(EVERY, loss(one.params, EVERY))]):
                    study.pause(one.number, {})
            return [one.params for one in study.trials]

    assert proposed("held_out_auc") == proposed("held_out_loss")


def test_training_that_ends_early_counts_at_the_rungs_that_it_did_not_reach(tmp_path: Path) -> None:
    with open_study(tmp_path, IDENTITY, space_of(pruner=THIRDS.model_dump())) as study:
        number = study.next().number  # type: ignore[union-attr]
        study.report(number, TOTAL, [(10, 0.5), (20, 0.6)], ended=True)
        study.complete(number, 0.5, {})
        rungs = study.trials[number].rungs
    assert [(one.rung, one.step, one.value) for one in rungs] == [(0, 10, 0.5), (1, 20, 0.5)]


def test_trial_of_another_kind_of_network_has_the_defaults_of_its_kind() -> None:
    kinds = {"network.kind": {"choice": ["mlp", "trees"]}}
    rounds = {"network.rounds": {"int": [10, 50], "when": {"network.kind": ["trees"]}}}
    tuning = Tuning.check({"space": kinds | rounds}, "tuning")
    space = SearchSpace.of(tuning, {"kind": "mlp", "hidden": [8]}, {})
    assert space.sections({"network.kind": "trees", "network.rounds": 20})[0] == {
        "kind": "trees",
        "rounds": 20,
    }
    assert space.sections({"network.kind": "mlp"})[0] == {"kind": "mlp", "hidden": [8]}
    text = rejected(space=kinds | {"network.dropout": {"float": [0, 0.5]}})
    assert "network.dropout: unknown key" in text
    assert "(network.kind trees)" in text


@pytest.mark.covers("B62")
def test_study_of_other_data_under_the_same_name_is_rejected_with_the_difference(tmp_path: Path) -> None:
    space = space_of()
    search(tmp_path, space, most=1)
    with (
        pytest.raises(InputError, match=r'data_version was "dddd.* and is "eeee'),
        open_study(tmp_path, {"data_version": "e" * 64}, space),
    ):
        pass


def test_named_study_continues_with_more_trials(tmp_path: Path) -> None:
    few, _ = search(tmp_path, space_of(trials=5, pruner={"kind": "none"}))
    more, _ = search(tmp_path, space_of(trials=8, pruner={"kind": "none"}))
    assert without_time(more)[:5] == without_time(few)
    assert len(more) == 8


def rejected(**settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        space_of(**settings)
    return str(caught.value)


@pytest.mark.covers("B60")
@pytest.mark.parametrize(
    ("dimension", "message"),
    [
        ({"float": [2, 1]}, "float is from 2 to 1; write the smaller one first"),
        ({"float": [1, 1]}, "float is from 1 to 1"),
        ({"float": [0, 1], "log": True}, "log needs a range above 0; found one from 0"),
        ({"choice": ["a"], "log": True}, "log needs a range above 0; found one of choices"),
        ({"choice": [0.1, 0.2, 0.1]}, "choice has 0.1 twice"),
        ({"choice": []}, "choice: must have at least 1 item"),
        ({}, "needs one of float, int and choice; found none"),
        ({"float": [0, 1], "int": [0, 1]}, "found float, int"),
        ({"float": [0, 1], "when": {"network.x": [1]}}, "'network.x', which is not another searched key"),
    ],
)
def test_invalid_range_is_rejected(dimension: dict[str, Any], message: str) -> None:
    assert message in rejected(space={"network.dropout": dimension})


@pytest.mark.parametrize(
    ("key", "dimension", "message"),
    [
        ("dropout", {"float": [0, 0.5]}, "dropout: expected network.KEY or training.KEY"),
        ("network.droput", {"float": [0, 0.5]}, "network.droput: unknown key; did you mean dropout?"),
        ("network.dropout", {"float": [0, 1.5]}, "network.dropout: must be less than"),
        ("training.seed", {"int": [0, 9]}, "training.seed: is the same in all trials"),
        ("training.checkpoints.keep", {"int": [2, 9]}, "is the same in all trials"),
        ("training.batch_size", {"int": [0, 9]}, "training.batch_size: must be greater than or equal to 1"),
    ],
)
def test_key_or_value_that_the_sections_reject_is_named(
    key: str, dimension: dict[str, Any], message: str
) -> None:
    assert message in rejected(space={key: dimension})


def test_all_problems_of_a_space_are_reported_together() -> None:
    text = rejected(space={"network.a": {"int": [1, 2]}, "training.b": {"int": [1, 2]}, "c": {"int": [1, 2]}})
    assert all(
        name in text for name in ("network.a: unknown key", "b: unknown key", "c: expected network.KEY")
    )


@pytest.mark.covers("B60", "B61")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"space": {}}, "space: must have at least 1 item"),
        ({"sampler": "grid"}, "is continuous, and sampler grid needs choice or int"),
        (
            {"sampler": "grid", "space": {"training.batch_size": {"int": [1, 10**9]}}},
            "grid has 1,000,000,000 combinations, and tuning.trials is 20; raise it",
        ),
        ({"sampler": "cmaes"}, "cmaes learns from whole trainings only; set pruner.kind none"),
        ({"space": {"training.objective.focal": {"float": [0, 2]}}}, "focal: changes the loss itself"),
        ({"metric": "f1"}, "metric: must be 'held_out_loss'"),
        ({"confirm": {"top": 3, "seeds": 3}}, "3 seeds can give no p-value below 0.75 for 3 trials"),
        ({"sampler": "cmaes", "space": {"network.dropout": {"choice": [0.0]}}}, "cmaes searches ranges only"),
    ],
)
def test_settings_that_cannot_work_are_rejected(settings: dict[str, Any], message: str) -> None:
    assert message in rejected(**settings)


def trial(number: int, *values: float, state: Any = "paused") -> Trial:
    rungs = tuple(RungValue(rung=rung, step=10, value=value) for rung, value in enumerate(values))
    return Trial(number=number, params={}, state=state, rungs=rungs)


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        ([trial(0, 0.3), trial(1, 0.2)], None),
        ([trial(0, 0.3), trial(1, 0.2), trial(2, 0.4)], 1),
        ([trial(0, 0.3), trial(1, 0.2, state="running"), trial(2, 0.4)], None),
        ([trial(0, 0.3), trial(1, 0.2, state="infeasible"), trial(2, 0.4), trial(3, 0.5)], 0),
        ([trial(0, 0.2), trial(1, 0.2), trial(2, 0.2)], 0),
        ([trial(n, 0.1 * n, 0.2) for n in range(3)] + [trial(n, 0.05) for n in range(3, 9)], 0),
    ],
    ids=[
        "too few",
        "best third",
        "runs already",
        "infeasible is not counted",
        "tie: the first",
        "higher rung first",
    ],
)
def test_promotion_takes_the_best_third_of_the_highest_rung(
    trials: list[Trial], expected: int | None
) -> None:
    found = asha.next_promotion(THIRDS, trials)
    assert (found.number if found else None) == expected


def test_value_at_a_rung_is_the_best_up_to_the_first_evaluation_there() -> None:
    evaluations = [(5, 0.9), (12, 0.5), (20, 0.7), (31, 0.6), (60, 0.1)]
    found = asha.rung_values(THIRDS, 0, 90, evaluations)
    assert found == (RungValue(rung=0, step=12, value=0.5), RungValue(rung=1, step=31, value=0.5))
    assert asha.rung_values(THIRDS, 0, 90, evaluations[:3]) == found[:1]

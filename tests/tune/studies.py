"""Studies made by hand: of any size, with every state and kind of parameter."""

import random
from dataclasses import replace

from trainwright.experiment.training import Tuning
from trainwright.tune.report import Candidate, Confirmation, RungValue, StudyReport, Trial

STEPS = (60, 180, 540, 1620)
SEEDS = (101, 102, 103, 104, 105, 106)
SPACE = {
    "training.learning_rate": {"float": [1e-4, 0.1], "log": True},
    "network.dropout": {"float": [0, 0.5]},
    "network.hidden": {"choice": [[64], [64, 64], [256, 128]]},
    "training.batch": {"choice": [128, 256, 512]},
    "training.weight_decay": {"float": [1e-6, 1e-3], "log": True},
}
DEFAULT = {"training.learning_rate": 0.001, "network.hidden": [64, 64]}


def trial(number: int, dice: random.Random) -> Trial:
    """Return a trial of a search with rungs: infeasible, paused at a rung, or complete."""
    params = {
        "training.learning_rate": 10 ** dice.uniform(-4, -1),
        "network.dropout": dice.uniform(0, 0.5),
        "network.hidden": dice.choice([[64], [64, 64], [256, 128]]),
        "training.batch": dice.choice([128, 256, 512]),
    }
    if params["network.hidden"] == [64]:
        params["training.weight_decay"] = 10 ** dice.uniform(-6, -3)
    found = Trial(
        number=number, params=params, state="infeasible", started="2026-11-24T02:00:00Z", total=1620
    )
    if params["training.learning_rate"] > 0.06:
        return replace(
            found, steps=40, seconds=3.0, cost=0.01, attempts=1, reason="diverged: the loss is not a number"
        )
    last = min(dice.randrange(6), 3)
    loss = 0.45 + 0.03 * abs(params["training.learning_rate"] - 0.004) ** 0.5 + dice.uniform(0, 0.02)
    rungs = tuple(RungValue(rung=at, step=STEPS[at], value=loss + 0.2 * 0.5**at) for at in range(last + 1))
    values = {"rungs": rungs, "steps": STEPS[last], "seconds": STEPS[last] / 20, "cost": STEPS[last] / 9e3}
    if last == 3:
        return replace(
            found,
            state="complete",
            reason="trained to its end",
            value=rungs[-1].value,
            attempts=dice.choice([1, 2]),
            **values,
        )
    reason = f"at rung {last}: {rungs[-1].value:.4f}, not among the best third"
    return replace(found, state="pruned", reason=reason, attempts=1, **values)


def study(trials: int = 24, *, outcome: str = "better") -> StudyReport:
    """Return a study of so many trials."""
    dice = random.Random(7)  # noqa: S311
    found = tuple(trial(number, dice) for number in range(trials))
    complete = sorted((at for at in found if at.value is not None), key=lambda at: at.value)[:3]
    base = tuple(0.49 + dice.uniform(0, 0.01) for _ in SEEDS)
    candidates = [Candidate(trial=None, params=DEFAULT, values=base)]
    for at in complete:
        values = tuple(value - 0.012 + dice.uniform(-0.004, 0.004) for value in base)
        mean = sum(values) / 6 - sum(base) / 6
        candidates.append(
            Candidate(trial=at.number, params=at.params, values=values, difference=mean, low=mean - 0.004,
                      high=mean + 0.004, p_value=0.0469)
        )  # fmt: skip
    winner = complete[0].number if complete and outcome != "no better" else None
    confirmation = Confirmation(
        outcome=outcome, winner=winner, seeds=SEEDS, candidates=tuple(candidates),
        sentence=f"Trial {winner} is better than the default by 0.012 (p 0.047 over 6 seeds).",
    )  # fmt: skip
    return StudyReport(
        study="flights", data_version="76b607" * 10, metric="held_out_loss", direction="minimize",
        tuning=Tuning.model_validate({"space": SPACE}).model_dump(), trials=found,
        confirmation=confirmation, network={}, training={},
        importances={"training.learning_rate": 0.71, "network.hidden": 0.2, "network.dropout": 0.09},
        ended=f"{trials} trials", seconds=1234.0, cost=3.21,
    )  # fmt: skip

"""Asynchronous successive halving: which trials pause at a rung, and which are promoted.

Algorithm 2 of Li et al., "A System for Massively Parallel Hyperparameter Tuning" (MLSys 2020). Optuna's
pruners end a trial for good at a rung; here it keeps its checkpoint and may be promoted later. Hyperband (Li
et al., JMLR 2018) is several such brackets with different first rungs; trials are dealt to them in turn.

All functions are pure, and lower values are better.
"""

from collections.abc import Iterable, Sequence

from trainwright.experiment.training import Pruner
from trainwright.tune.report import RungValue, Trial


def fractions(pruner: Pruner) -> tuple[float, ...]:
    """Return the rungs as fractions of a whole training, the last of them 1; only that without a pruner."""
    if pruner.kind == "none":
        return (1.0,)
    return tuple(pruner.reduction**-power for power in reversed(range(pruner.rungs)))


def first_rung(pruner: Pruner, number: int) -> int:
    """Return the first rung of a trial: of Hyperband, that of its bracket."""
    return number % pruner.rungs if pruner.kind == "hyperband" else 0


def rung_values(
    pruner: Pruner,
    number: int,
    total: int,
    evaluations: Sequence[tuple[int, float]],
    *,
    ended: bool = False,
) -> tuple[RungValue, ...]:
    """Return the values of a trial at the rungs that it has reached, the last rung (its end) excluded.

    The value at a rung is the best one up to the first evaluation at or after it: it depends on no clock.

    Args:
        pruner: The section.
        number: Number of the trial.
        total: Steps of its whole training.
        evaluations: Step and value of its evaluations, by step.
        ended: Whether its training has ended: early stopping then decides the rungs that it did not reach.
    """
    found = []
    for rung, fraction in enumerate(fractions(pruner)[:-1]):
        steps = [step for step, _ in evaluations]
        reached = next(
            (step for step in steps if step >= fraction * total), max(steps, default=None) if ended else None
        )
        if rung >= first_rung(pruner, number) and reached is not None:
            best = min(value for step, value in evaluations if step <= reached)
            found.append(RungValue(rung=rung, step=reached, value=best))
    return tuple(found)


def promoted(pruner: Pruner, trials: Iterable[Trial], rung: int, bracket: int) -> list[int]:
    """Return the numbers of the trials in the best 1/``reduction`` of a rung of a bracket, best first."""
    values = sorted(
        (one.value, trial.number)
        for trial in trials
        if trial.state != "infeasible" and first_rung(pruner, trial.number) == bracket
        for one in trial.rungs
        if one.rung == rung
    )
    return [number for _, number in values[: len(values) // pruner.reduction]]


def goes_on(pruner: Pruner, trials: Sequence[Trial], trial: Trial) -> bool:
    """Tell whether a trial passes the highest rung that it has reached."""
    if not trial.rungs:
        return True
    bracket = first_rung(pruner, trial.number)
    return trial.number in promoted(pruner, trials, trial.rungs[-1].rung, bracket)


def next_promotion(pruner: Pruner, trials: Sequence[Trial]) -> Trial | None:
    """Return the paused trial to resume: the best promotable one of the highest rung."""
    paused = {trial.number: trial for trial in trials if trial.state == "paused"}
    for rung in reversed(range(len(fractions(pruner)) - 1)):
        for bracket in range(rung + 1):
            for number in promoted(pruner, trials, rung, bracket):
                if number in paused and paused[number].rungs[-1].rung == rung:
                    return paused[number]
    return None


def best_paused(trials: Sequence[Trial]) -> Trial | None:
    """Return the best paused trial of the highest rung that any has reached."""
    paused = [trial for trial in trials if trial.state == "paused"]
    return min(paused, key=lambda one: (-one.rungs[-1].rung, one.rungs[-1].value, one.number), default=None)

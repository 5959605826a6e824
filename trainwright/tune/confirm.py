"""Compare the best trials with the default configuration, on seeds that no trial had.

The search looked at many trials, so the value of its best one is too good by chance. Two things correct for
that. The candidates are trained again with new seeds, so none of the values compared here chose them: the
number of trials does not enter the test. Choosing among the candidates by these values is corrected by Holm.

All trainings with a seed have the same data and the same held-out rows: a share of the rows is drawn by the
seed. The test is the exact sign-flip test of ``compare`` on the differences to the default, seed by seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainwright.significance import holm
from trainwright.significance.permutation import RunDifference, paired_test
from trainwright.tune.report import Candidate, Confirmation, Trial


@dataclass(frozen=True)
class Retrained:
    """A configuration and its values on the seeds of the confirmation.

    Attributes:
        trial: Number of its trial; None for the default.
        params: Its searched values; empty for the default.
        values: Value by seed, in the order of the seeds; None where the training was infeasible.
    """

    trial: int | None
    params: Mapping[str, Any]
    values: Sequence[float | None]

    @property
    def feasible(self) -> list[float]:
        """The values of the trainings that were feasible."""
        return [value for value in self.values if value is not None]

    @property
    def complete(self) -> bool:
        """True if every seed has a value."""
        return len(self.feasible) == len(self.values)


def best_trials(
    trials: Sequence[Trial], direction: Literal["minimize", "maximize"], count: int
) -> list[Trial]:
    """Return the best complete trials, best first, each configuration once; of equal values the earlier."""
    sign = -1 if direction == "maximize" else 1
    complete = [(sign * trial.value, trial.number, trial) for trial in trials if trial.value is not None]
    unique: dict[str, Trial] = {}
    for *_, trial in sorted(complete, key=lambda entry: entry[:2]):
        unique.setdefault(repr(sorted(trial.params.items())), trial)
    return list(unique.values())[:count]


def seeds_of(seed: int, count: int) -> tuple[int, ...]:
    """Return the seeds of the confirmation: those after the seed that all trials have."""
    return tuple(range(seed + 1, seed + 1 + count))


def unconfirmed(best: Trial | None, why: str) -> Confirmation:
    """Return the outcome of a search without confirmation: its best trial wins, or the default."""
    if best is None:
        sentence = f"No trial is complete, so the default is the outcome: {why}."
        return Confirmation(outcome="no better", winner=None, sentence=sentence)
    sentence = (
        f"Trial {best.number} has the best value, {best.value:.5g}; not compared with the default: {why}."
    )
    return Confirmation(outcome="not confirmed", winner=best.number, sentence=sentence)


def confirm(
    default: Retrained,
    candidates: Sequence[Retrained],
    seeds: Sequence[int],
    *,
    direction: Literal["minimize", "maximize"],
    level: float,
) -> Confirmation:
    """Compare candidates with the default on equal seeds, and choose the winner.

    The winner is the candidate with the best mean among those that are better than the default at ``level``
    after Holm; without any, the default. A candidate that was infeasible with a seed cannot win.

    Args:
        default: The default configuration; each of its values is compared with that of the same seed.
        candidates: The best trials, best first.
        seeds: Seeds of the trainings.
        direction: Direction of the metric.
        level: Level of the test; intervals have the confidence 1 - level for all candidates together.
    """
    tests = [_test(default, one, level / len(candidates)) for one in candidates]
    adjusted = holm([test.p if test else 1.0 for test in tests])
    judged = [
        Candidate(trial=default.trial, params=dict(default.params), values=tuple(default.feasible)),
        *(_candidate(one, test, p) for one, test, p in zip(candidates, tests, adjusted, strict=True)),
    ]
    sign = -1 if direction == "maximize" else 1
    better = [
        one
        for one in judged[1:]
        if one.difference is not None and sign * one.difference < 0 and (one.p_value or 0.0) <= level
    ]
    winner = min(better, key=lambda one: sign * (one.difference or 0.0)) if better else None
    return Confirmation(
        outcome="better" if winner else "no better",
        winner=winner.trial if winner else None,
        seeds=tuple(seeds),
        candidates=tuple(judged),
        sentence=_sentence(winner, default, judged[1:], seeds, level),
    )


def _test(default: Retrained, one: Retrained, level: float) -> RunDifference | None:
    if not (default.complete and one.complete):
        return None
    pairs = zip(one.feasible, default.feasible, strict=True)
    return paired_test([value - standard for value, standard in pairs], level)


def _candidate(one: Retrained, test: RunDifference | None, p_value: float) -> Candidate:
    values, params = tuple(one.feasible), dict(one.params)
    if test is None:
        return Candidate(trial=one.trial, params=params, values=values)
    return Candidate(
        trial=one.trial,
        params=params,
        values=values,
        difference=test.value,
        low=test.low,
        high=test.high,
        p_value=p_value,
    )


def _sentence(
    winner: Candidate | None,
    default: Retrained,
    candidates: Sequence[Candidate],
    seeds: Sequence[int],
    level: float,
) -> str:
    """Return the outcome with its numbers."""
    if winner:
        return (
            f"Trial {winner.trial} differs from the default by {winner.difference:+.4g} "
            f"({winner.low:+.4g} to {winner.high:+.4g}) over {len(seeds)} new seeds, "
            f"p = {winner.p_value:.3g} after Holm among {len(candidates)}."
        )
    if not default.complete:
        missing = len(default.values) - len(default.feasible)
        return f"The default was infeasible with {missing} of {len(seeds)} seeds, so nothing was compared."
    tested = [one for one in candidates if one.p_value is not None]
    least = f"; the smallest p is {min(one.p_value or 0.0 for one in tested):.3g}" if tested else ""
    return (
        f"No better than the default: of {_trials(len(candidates))}, none is better at level {level:g} "
        f"after Holm, over {len(seeds)} new seeds{least}."
    )


def _trials(count: int) -> str:
    return "1 trial" if count == 1 else f"{count} trials"

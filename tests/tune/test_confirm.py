"""The comparison of the best trials with the default."""

import random

import pytest

from trainwright.tune.confirm import Retrained, best_trials, confirm, seeds_of, unconfirmed
from trainwright.tune.report import Trial

SEEDS = seeds_of(0, 7)
DEFAULT = Retrained(None, {}, [0.50, 0.52, 0.51, 0.49, 0.53, 0.50, 0.51])


def candidate(number: int, shift: float) -> Retrained:
    values = [value + shift * (1 + 0.1 * at) for at, value in enumerate(DEFAULT.feasible)]
    return Retrained(number, {"training.learning_rate": 0.01}, values)


def complete(number: int, value: float | None, rate: float) -> Trial:
    return Trial(number=number, params={"training.learning_rate": rate}, state="complete", value=value)


def test_candidate_that_is_better_with_every_seed_wins_with_the_exact_p_value() -> None:
    found = confirm(DEFAULT, [candidate(3, -0.01)], SEEDS, direction="minimize", level=0.05)
    assert (found.outcome, found.winner) == ("better", 3)
    _, winner = found.candidates
    assert winner.p_value == pytest.approx(2 / 2**7)
    assert winner.difference == pytest.approx(-0.013)
    assert winner.high is not None
    assert winner.high < 0


@pytest.mark.parametrize(("direction", "winner"), [("minimize", None), ("maximize", 3)])
def test_higher_values_win_only_where_more_is_better(direction: str, winner: int | None) -> None:
    found = confirm(DEFAULT, [candidate(3, 0.01)], SEEDS, direction=direction, level=0.05)  # type: ignore[arg-type]
    assert found.winner == winner


def test_p_values_are_corrected_for_the_number_of_candidates() -> None:
    four = [candidate(number, -0.01) for number in range(4)]
    found = confirm(DEFAULT, four, SEEDS, direction="minimize", level=0.05)
    assert [one.p_value for one in found.candidates[1:]] == [pytest.approx(4 * 2 / 2**7)] * 4
    assert (found.outcome, found.winner) == ("no better", None)
    assert found.sentence.startswith("No better than the default: of 4 trials, none is better at level 0.05")


def test_best_mean_wins_among_those_that_are_better() -> None:
    both = [candidate(1, -0.01), candidate(2, -0.02)]
    assert confirm(DEFAULT, both, SEEDS, direction="minimize", level=0.05).winner == 2


def test_candidate_that_is_infeasible_with_one_seed_cannot_win() -> None:
    values = [*candidate(3, -0.2).values[:6], None]
    found = confirm(DEFAULT, [Retrained(3, {}, values)], SEEDS, direction="minimize", level=0.05)
    assert (found.winner, found.candidates[1].p_value) == (None, None)


def test_infeasible_default_compares_nothing_and_is_kept() -> None:
    default = Retrained(None, {}, [*DEFAULT.values[:6], None])
    found = confirm(default, [candidate(3, -0.2)], SEEDS, direction="minimize", level=0.05)
    assert (found.outcome, found.winner) == ("no better", None)
    assert found.sentence == "The default was infeasible with 1 of 7 seeds, so nothing was compared."


def test_default_is_replaced_by_chance_at_most_at_the_level() -> None:
    """Two candidates that differ from the default by noise alone, 600 times."""
    dice = random.Random(1)  # noqa: S311 - noise, not a secret

    def noise(number: int | None) -> Retrained:
        return Retrained(number, {}, [dice.gauss(0.5, 0.01) for _ in SEEDS])

    runs = [
        confirm(noise(None), [noise(0), noise(1)], SEEDS, direction="minimize", level=0.05)
        for _ in range(600)
    ]
    assert sum(one.outcome == "better" for one in runs) / 600 < 0.05


def test_best_trials_are_each_configuration_once_and_only_complete_ones() -> None:
    trials = [complete(0, 0.4, 0.1), complete(1, 0.3, 0.2), complete(2, 0.3, 0.2), complete(3, None, 0.3)]
    assert [trial.number for trial in best_trials(trials, "minimize", 5)] == [1, 0]
    assert [trial.number for trial in best_trials(trials, "maximize", 1)] == [0]


def test_confirmation_has_seeds_that_no_trial_had() -> None:
    assert seeds_of(4, 3) == (5, 6, 7)


def test_without_a_complete_trial_the_default_is_the_outcome() -> None:
    found = unconfirmed(None, "there is nothing to confirm")
    assert (found.outcome, found.winner) == ("no better", None)
    assert unconfirmed(complete(1, 0.3, 0.2), "top is 0").winner == 1

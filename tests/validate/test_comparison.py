"""Holm's procedure over all comparisons of a run, against its definition."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from trainwright.significance import holm
from trainwright.validate.comparison import Distance, decide
from trainwright.validate.null_distribution import NoChance


@dataclass(frozen=True)
class Even:
    """A distance that is even over [0, 1] by chance."""

    def tail(self, value: float) -> float:
        return 1 - value

    def floor(self, level: float) -> float:
        return 1 - level


def measured(values: list[float], limit: float = 0.0) -> list[Distance]:
    return [
        Distance(f"c{n}", "x", "previous", value, limit, Even(), (1, 1)) for n, value in enumerate(values)
    ]


@given(st.lists(st.integers(0, 1_000).map(lambda n: n / 1_000), min_size=1, max_size=12))
def test_what_moves_is_what_holms_adjusted_probabilities_reject(values: list[float]) -> None:
    found = [entry.moved for entry in decide(measured(values), 0.0505)]
    assert found == [adjusted < 0.0505 for adjusted in holm([1 - value for value in values])]


def test_one_column_that_moved_eases_the_floor_of_the_next() -> None:
    first, second, third = decide(measured([0.99, 0.976, 0.5]), 0.05)
    assert [round(entry.floor, 6) for entry in (first, second, third)] == [0.983333, 0.975, 0.95]
    assert [entry.moved for entry in (first, second, third)] == [True, True, False]


def test_what_comes_after_the_first_that_could_be_chance_is_held_to_the_same_level() -> None:
    floors = [round(entry.floor, 6) for entry in decide(measured([0.9, 0.8, 0.1]), 0.05)]
    assert floors == [0.983333] * 3


def test_comparisons_that_chance_cannot_move_take_no_part_of_the_rate() -> None:
    still = [Distance(f"s{n}", "x", "previous", 0.0, 0.0, NoChance(), (1, 1)) for n in range(9)]
    found = decide([*still, *measured([0.96])], 0.05)
    assert found[-1].moved
    assert not any(entry.moved for entry in found[:-1])


def test_a_distance_beyond_chance_but_within_its_limit_has_not_moved() -> None:
    (found,) = decide(measured([0.999], limit=0.9995), 0.05)
    assert (found.moved, found.effective, round(found.floor, 9)) == (False, 0.9995, 0.95)

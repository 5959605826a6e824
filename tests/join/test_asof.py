"""The definition of a point-in-time lookup, against a search through every row."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.join.asof import NOTHING, History

ROW = st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 15))
ASKED = st.tuples(st.integers(-1, 3), st.integers(-2, 18))


def known_by_search(
    rows: list[tuple[int, int, int]], key: int, at: int, max_age: int
) -> tuple[bool, bool, tuple[int, int] | None]:
    """Whether it expired, whether something newer was held back, and the event and creation found."""
    before = [row for row in rows if row[0] == key and row[1] <= at]
    known = max(((event, created) for _, event, created in before if created <= at), default=None)
    newest = max(((event, created) for _, event, created in before), default=None)
    if known is None:
        return False, newest is not None, None
    expired = bool(max_age) and known[0] < at - max_age
    return expired, newest != known, None if expired else known


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(ROW, max_size=25), asked=st.lists(ASKED, min_size=1, max_size=15), max_age=st.integers(0, 6)
)
def test_a_lookup_finds_what_a_search_through_every_row_finds(
    rows: list[tuple[int, int, int]], asked: list[tuple[int, int]], max_age: int
) -> None:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    history = History(columns[:, 0], columns[:, 1], columns[:, 2])
    keys, at = np.array(asked, dtype=np.int64).T
    found = history.newest(keys, at, max_age=max_age)
    for place, (key, moment) in enumerate(asked):
        expired, held_back, expected = known_by_search(rows, key, moment, max_age)
        position = found.position[place]
        got = None if position == NOTHING else (int(columns[position, 1]), int(columns[position, 2]))
        assert (bool(found.expired[place]), bool(found.held_back[place]), got) == (
            expired,
            held_back,
            expected,
        )
        assert position == NOTHING or columns[position, 0] == key


def test_ties_are_the_pairs_that_nothing_orders() -> None:
    key, event, created = np.array([[1, 5, 5], [1, 5, 6], [2, 5, 5], [1, 5, 5]]).T
    first, second = History(key, event, created).ties()
    assert [{int(a), int(b)} for a, b in zip(first, second, strict=True)] == [{0, 3}]


@pytest.mark.parametrize("shape", ["at once", "newest first"])
def test_a_backfill_of_a_long_history_costs_no_walk_a_row(shape: str) -> None:
    rows = 200_000
    key, event = np.zeros(rows, dtype=np.int64), np.arange(rows, dtype=np.int64)
    created = np.full(rows, 10 * rows) if shape == "at once" else 10 * rows - event
    created[0] = 0
    started = time.perf_counter()
    found = History(key, event, created).newest(key, event, max_age=0)
    assert time.perf_counter() - started < 5
    assert (found.position == 0).all()
    assert int(found.held_back.sum()) == rows - 1

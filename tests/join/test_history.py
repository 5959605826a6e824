"""Point-in-time lookups against a search through every row, and keys that an engine takes for one another."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.join.history import (
    NOTHING,
    UNKNOWN,
    KeyCodes,
    PointInTimeIndex,
    _distinguishable,
    _earlier_created,
    complete,
    distinct_rows,
)

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


STRETCHED = {"small": (1, 1), "whole seconds": (2**29, 10**12), "too wide for 64 bits": (2**29, 10**12 + 1)}
"""Keys and times are multiplied by these: as they are, in units of seconds, or by the places of the times."""


@pytest.mark.parametrize("stretched", STRETCHED)
@settings(max_examples=60)
@given(
    rows=st.lists(ROW, max_size=25),
    asked=st.lists(ASKED, min_size=1, max_size=15),
    max_age=st.integers(0, 6),
    beside=st.integers(-1, 1),
)
def test_a_lookup_finds_what_a_search_through_every_row_finds(
    stretched: str,
    rows: list[tuple[int, int, int]],
    asked: list[tuple[int, int]],
    max_age: int,
    beside: int,
) -> None:
    key_by, time_by = STRETCHED[stretched]
    rows = [(key * key_by, event * time_by, created * time_by) for key, event, created in rows]
    asked = [(key * key_by, at * time_by + beside) for key, at in asked]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    history = PointInTimeIndex(columns[:, 0], columns[:, 1], columns[:, 2])
    keys, at = np.array(asked, dtype=np.int64).T
    found = history.newest(keys, at, max_age=max_age * time_by)
    for place, (key, moment) in enumerate(asked):
        expired, held_back, expected = known_by_search(rows, key, moment, max_age * time_by)
        position = found.position[place]
        got = None if position == NOTHING else (int(columns[position, 1]), int(columns[position, 2]))
        assert (bool(found.expired[place]), bool(found.held_back[place]), got) == (
            expired,
            held_back,
            expected,
        )
        assert position == NOTHING or columns[position, 0] == key


KEY = st.tuples(st.sampled_from(["a", "b", "", None]), st.sampled_from([0, 7, -5, 2**40, -(2**63), None]))


@settings(max_examples=60)
@given(rows=st.lists(KEY.filter(lambda key: None not in key), max_size=12), asked=st.lists(KEY, max_size=12))
@pytest.mark.parametrize("columns", [[0], [1], [0, 1], [1, 0, 1]])
def test_codes_are_equal_exactly_where_the_keys_are(
    columns: list[int], rows: list[tuple[str, int]], asked: list[tuple[str | None, int | None]]
) -> None:
    kinds = (pa.string(), pa.int64())

    def arrays(keys: list[tuple[str | None, int | None]]) -> list[pa.ChunkedArray]:
        return [pa.chunked_array([pa.array([key[place] for key in keys], kinds[place])]) for place in columns]

    codes = KeyCodes(arrays(rows))
    known = {tuple(row[place] for place in columns): code for row, code in zip(rows, codes.own, strict=True)}
    assert len(set(known.values())) == len(known)
    assert all(
        known[tuple(row[place] for place in columns)] == code
        for row, code in zip(rows, codes.own, strict=True)
    )
    for key, code in zip(asked, codes.of(arrays(asked)), strict=True):
        assert known.get(tuple(key[place] for place in columns), UNKNOWN) == code or (
            code not in known.values() and tuple(key[place] for place in columns) not in known
        )


def test_ties_are_the_pairs_that_nothing_orders() -> None:
    key, event, created = np.array([[1, 5, 5], [1, 5, 6], [2, 5, 5], [1, 5, 5]]).T
    first, second = PointInTimeIndex(key, event, created).ties()
    assert [{int(a), int(b)} for a, b in zip(first, second, strict=True)] == [{0, 3}]


def lines_run(work: Callable[[], object], *functions: Callable[..., object]) -> int:
    """Count the lines that some functions run: what a loop costs, on a machine of any speed."""
    codes = {function.__code__ for function in functions}
    count = 0

    def line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: line if frame.f_code in codes else None)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("shape", ["at once", "newest first"])
def test_a_backfill_of_a_long_history_costs_no_walk_a_row(shape: str) -> None:
    rows = 200_000
    key, event = np.zeros(rows, dtype=np.int64), np.arange(rows, dtype=np.int64)
    created = np.full(rows, 10 * rows) if shape == "at once" else 10 * rows - event
    created[0] = 0
    found = []
    history = PointInTimeIndex(key, event, created)
    count = lines_run(
        lambda: found.append(history.newest(key, event, max_age=0)), PointInTimeIndex._known, _earlier_created
    )
    assert 0 < count < 200
    assert (found[0].position == 0).all()
    assert int(found[0].held_back.sum()) == rows - 1


def asked(*columns: list[object]) -> pa.Table:
    return pa.table([pa.array(column) for column in columns], names=[f"c{n}" for n in range(len(columns))])


def test_rows_whose_keys_are_the_same_as_one_text_are_asked_for_apart() -> None:
    rows = asked([1, 12, 7, 12, 1], [23, 3, 7, 3, 23], [5, 5, 5, 6, 6])
    parts = [part.tolist() for part in _distinguishable(rows, np.arange(5))]
    assert parts == [[0, 2, 3], [1, 4]]


def test_rows_of_one_key_are_asked_for_at_once() -> None:
    assert [part.tolist() for part in _distinguishable(asked([1, 12], [5, 5]), np.arange(2))] == [[0, 1]]


def test_a_row_with_a_null_in_its_key_is_not_asked_for_and_a_repeated_one_once() -> None:
    rows = asked([1, None, 1, 2], ["a", "a", "a", None])
    first, number = distinct_rows(rows.columns)
    assert [first[place] for place in number] == [0, 1, 0, 3]
    assert complete(rows.take(pa.array(first))).sum() == 1
    assert _distinguishable(rows, np.empty(0, dtype=np.int64)) == []

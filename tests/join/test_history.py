"""Point-in-time lookups against a search through every row, and answers of an engine."""

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.featurestore.repository import PRICES, UTC_US, at, write_table
from trainwright.errors import InternalError
from trainwright.featurestore import Service, View
from trainwright.join.engine import EngineHistory, _distinguishable
from trainwright.join.history import (
    NOTHING,
    UNKNOWN,
    KeyCodes,
    PointInTimeIndex,
    _earlier_created,
    complete,
    distinct_rows,
    microseconds,
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
@settings(max_examples=150, deadline=None)
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


@settings(max_examples=150, deadline=None)
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


Answer = Callable[[pa.Table], pa.Table]


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


@pytest.fixture(scope="module", autouse=True)
def no_spark() -> Iterator[None]:
    """Start none: tests/engines has Spark itself, and its failures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainwright.join.engine.spark_session", lambda *_: nullcontext())
        yield


class Engine:
    """An engine of Feast's that gives what a test wants it to."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def get_historical_features(self, *, entity_df: Any, **_: Any) -> Any:
        answer = self._answer(pa.Table.from_pandas(entity_df, preserve_index=False))
        frame = SimpleNamespace(toArrow=lambda: answer)
        return SimpleNamespace(to_spark_df=lambda: frame)


def source(folder: Path, answer: Answer) -> EngineHistory:
    """A view of prices, at most six hours old, that an engine joins."""
    write_table(folder / "prices.parquet", PRICES)
    batch_source = SimpleNamespace(spark_options=SimpleNamespace(path=""))
    view = View(
        name="prices",
        features={"price": "Float64"},
        keys={"product": "product"},
        ttl=timedelta(hours=6),
        source=str(folder / "prices.parquet"),
        content="",
        time="event",
        created="created",
        renamed={},
        feast=SimpleNamespace(batch_source=batch_source, projection=SimpleNamespace(join_key_map={})),
    )
    config = SimpleNamespace(offline_store=SimpleNamespace(type="spark", spark_conf=None))
    provider = SimpleNamespace(offline_store=Engine(answer))
    feast = SimpleNamespace(config=config, provider=provider, registry=None, project="shop")
    return EngineHistory(view, Service(name="shop_v1", views=(view,), feast=feast))


ROWS = pa.table({"product": [1, 2, 1], "sold": pa.array([at(1), at(2), at(10)], UTC_US)})
SOLD = microseconds(ROWS["sold"])


Times = dict[float, tuple[float, float]]
RIGHT: Times = {1: (0, 1), 2: (1, 2), 10: (9, 9)}


def given(asked: pa.Table, times: Times) -> pa.Table:
    """The asked rows with the product's number as price, of these times and creations by the asked hour."""
    hours = [(moment - at(0)) / timedelta(hours=1) for moment in asked["event_timestamp"].to_pylist()]
    found = asked.append_column("price", asked["product"].cast(pa.float64()))
    for place, name in enumerate(("trainwright_event", "trainwright_created")):
        found = found.append_column(name, pa.array([at(times[hour][place]) for hour in hours], UTC_US))
    return found


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_an_engine_may_answer_in_any_order(order: list[int], tmp_path: Path) -> None:
    found = source(tmp_path, lambda asked: given(asked, RIGHT).take(order))
    first = found.find(ROWS, SOLD)
    assert found.take(first)["price"].to_pylist() == [1.0, 2.0, 1.0]
    assert found.ages(first, SOLD).tolist() == [3_600_000_000] * 3
    assert not found.wrong(first, ROWS, SOLD).any()


@pytest.mark.parametrize(
    ("times", "wrong"),
    [({1: (1.1, 1)}, 0), ({2: (1, 2.1)}, 1), ({10: (3.9, 9)}, 2)],
    ids=["of a later time", "created later", "past its TTL"],
)
def test_a_value_that_an_engine_must_not_give_is_a_leak(times: Times, wrong: int, tmp_path: Path) -> None:
    found = source(tmp_path, lambda asked: given(asked, RIGHT | times))
    assert np.flatnonzero(found.wrong(found.find(ROWS, SOLD), ROWS, SOLD)).tolist() == [wrong]


@pytest.mark.parametrize("places", [[0, 1], [0, 1, 2, 2], [0, 1, 1]])
def test_an_engine_that_loses_a_row_or_gives_one_twice_is_refused(places: list[int], tmp_path: Path) -> None:
    found = source(tmp_path, lambda asked: given(asked, RIGHT).take(places))
    with pytest.raises(InternalError, match=f"returned {len(places)} rows, expected 3"):
        found.find(ROWS, SOLD)

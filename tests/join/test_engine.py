"""What is asked of an engine, and which of its answers are not believed. Spark itself is in tests/engines."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.featurestore.repository import PRICES, UTC_US, at, write_table
from trainwright.errors import DependencyError, InternalError
from trainwright.featurestore import Service, View
from trainwright.join.engine import EngineHistory, _distinguishable
from trainwright.join.history import complete_rows, distinct_rows, microseconds

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
    assert complete_rows(rows.take(pa.array(first))).size == 1
    assert _distinguishable(rows, np.empty(0, dtype=np.int64)) == []


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
    config = SimpleNamespace(offline_store=SimpleNamespace(type="spark"))
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


def test_an_engine_that_fails_is_a_dependency_that_is_down(tmp_path: Path) -> None:
    def fail(asked: pa.Table) -> pa.Table:
        raise RuntimeError("no executors")

    with pytest.raises(DependencyError, match="could not join view 'prices': RuntimeError: no executors"):
        source(tmp_path, fail).find(ROWS, SOLD)

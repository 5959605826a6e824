"""Answers of an engine that loses or repeats rows, leaks or dies: ``make test-engines`` has Spark."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.featurestore.repository import PRICES, UTC_US, at, write_table
from trainwright.errors import InternalError
from trainwright.featurestore import Service, View
from trainwright.join.history import EngineHistory, microseconds

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("pyspark") is None,
    reason="no Spark: make test-engines has it",
)
Answer = Callable[[pa.Table], pa.Table]


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


KILLED = """
import os, signal
from trainwright.errors import TrainwrightError
from trainwright.featurestore import spark_session
try:
    with spark_session({"spark.master": "local[1]"}, "the join failed", "offline_store") as session:
        os.kill(session.sparkContext._gateway.proc.pid, signal.SIGKILL)
        session.range(5).count()
except TrainwrightError as error:
    print(error.code, error.what)
"""


def test_killed_driver_is_a_typed_error() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.startswith("21 the join failed: Py4J")

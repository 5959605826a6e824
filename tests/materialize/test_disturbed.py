"""Whatever disturbs a run, the store ends up as if nothing had, or the run says that it does not."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.materialize.shop import STOCK, Shop, at, forget, history, row
from tests.materialize.strikes import COUNT, REPLIES, struck
from trainwright.errors import DependencyError, TransientError
from trainwright.featurestore import open_online
from trainwright.materialize.materialize import materialize
from trainwright.materialize.redis import SCRIPT_ROWS
from trainwright.storage.lease import hold_lease


def start(shop: Shop, out: str, **changes: Any) -> ForkProcess:
    """Run in a process of its own: a copy of this one, which has imported all that takes long."""
    section, folder = shop.section(**changes), shop.folder / out

    def work() -> None:
        materialize(section, "features", at(100).isoformat(), folder, folder / "summary.md")

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def many(count: int, hours: float, stock: int) -> pa.Table:
    rows = pa.Table.from_pylist([row(0, hours, stock)], schema=STOCK)
    table = pa.concat_tables([rows] * count).combine_chunks()
    return table.set_column(0, "product", pa.array(range(count), pa.int64()))


def test_a_run_killed_while_it_writes_leaves_nothing_that_the_next_one_does_not_mend(
    make_shop: Callable[..., Shop],
) -> None:
    from tests.materialize.test_layout import contents

    shop = make_shop("redis").apply()
    shop.add("a", many(COUNT, 0, 1))
    shop.run(date=at(10).isoformat())
    before = contents(shop)
    shop.add("b", many(COUNT, 9.5, 2))
    late = {"date": at(100).isoformat(), "overlap_s": 3600 * 200}
    _, ended = os.waitpid(struck(signal.SIGKILL, lambda: shop.run(**late)), 0)
    assert os.WTERMSIG(ended) == signal.SIGKILL
    written = sum(value != before[key] for key, value in contents(shop).items())
    assert REPLIES * SCRIPT_ROWS <= written < COUNT
    assert history(shop).last().number == 1  # type: ignore[union-attr]
    forget(shop.folder / "state")

    mark = shop.run(**late).views[0].mark
    assert (mark.number, mark.keys) == (2, COUNT)

    undisturbed = make_shop("redis").apply()
    undisturbed.add("a", many(COUNT, 0, 1))
    undisturbed.add("b", many(COUNT, 9.5, 2))
    undisturbed.run(date=at(100).isoformat())
    name, other = shop.project.encode(), undisturbed.project.encode()
    left = {key.removesuffix(name): value for key, value in contents(shop).items()}
    right = {key.removesuffix(other): value for key, value in contents(undisturbed).items()}
    assert left == right
    assert len(left) == COUNT


def test_two_runs_at_once_write_one_after_the_other(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop("redis").apply()
    shop.add("a", [row(1, 0, 10), row(1, 9, 19), row(2, 3, 23)])
    runs = [start(shop, f"run{number}", wait_s=600) for number in range(2)]
    for process in runs:
        process.join()
    assert [process.exitcode for process in runs] == [0, 0]
    assert history(shop).last().number == 2  # type: ignore[union-attr]
    assert shop.read(1, 2) == [(19, "n19"), (23, "n23")]


def test_a_living_writer_is_waited_for_and_then_left_alone(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    folder = str(shop.folder / "state" / shop.project / "stock")
    refused = pytest.raises(TransientError, match="another run has been writing here")
    with hold_lease(folder, lease_s=600, wait_s=0), refused:
        shop.run(wait_s=1, lease_s=600)
    shop.run(wait_s=0)


def test_the_check_finds_a_store_that_holds_something_else(make_shop: Callable[..., Shop]) -> None:
    """Another writer, outside of the lease, puts other values there between the write and the check."""
    from trainwright.materialize.materialize import _Task

    shop = make_shop("redis").apply()
    shop.add("a", [row(1, 0, 10), row(2, 0, 20)])
    opened = open_online(str(shop.repository))
    from trainwright.materialize.check import check, require_equal
    from trainwright.materialize.latest import latest_rows
    from trainwright.materialize.watermark import TimeWindow
    from trainwright.storage import list_files

    window = TimeWindow(None, at(5))
    [view] = opened.views
    with latest_rows(view, list_files(view.source), window) as latest:
        rows = latest.sample(10)
        found = check(opened, view, rows, window)
        assert (found.wrong, found.example) == (2, "product=1: it is not there")
        with pytest.raises(DependencyError, match="2 of 2 compared keys of view 'stock'"):
            require_equal(found, view, "redis")
        task = _Task(opened, view, (), shop.section(), Held(), at(5), None, window, window)  # type: ignore[arg-type]
        task.write(latest)
        assert check(opened, view, rows, window).wrong == 0
    shop.add("a", [row(1, 0, 11), row(2, 1, 20)])
    with latest_rows(view, list_files(view.source), window) as latest:
        found = check(opened, view, latest.sample(10), window)
    assert found.wrong == 2
    assert found.example == "product=1: stock, note differ"


class Held:
    """A lease that is always held."""

    def require(self) -> None:
        """Say nothing."""


def test_an_engine_that_swallows_its_errors_is_found_out(make_shop: Callable[..., Shop]) -> None:
    """Ray's does: with no store listening it reported success, and nothing was written."""
    engine = {"type": "tests.materialize.engines.SilentEngine"}
    shop = make_shop(settings={"batch_engine": engine}).apply()
    shop.add("a", [row(1, 0, 10)])
    with pytest.raises(DependencyError, match=r"1 of 1 compared keys .* product=1: it is not there"):
        shop.run()
    assert history(shop).last() is None


@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")
def test_feasts_own_engine_gets_our_window_and_our_check(make_shop: Callable[..., Shop]) -> None:
    engine = {"type": "tests.materialize.engines.OwnEngine"}
    shop = make_shop(settings={"batch_engine": engine}, path="offline/stock/*.parquet").apply()
    shop.add("a", [row(1, 0, 10), row(1, 8, 18), row(2, 3, 23)])
    state = shop.run(date=at(5).isoformat())
    assert shop.read(1, 2) == [(10, "n10"), (23, "n23")]
    assert state.views[0].way.endswith("by Feast's tests.materialize.engines.OwnEngine")


def test_a_lease_whose_owner_died_is_taken_over_and_the_dead_one_may_not_write(tmp_path: Path) -> None:
    from trainwright.storage.lease import _take

    folder = str(tmp_path / "lease")
    started = time.monotonic()
    dead = _take(folder, 0.1, 0)
    dead._ended.set()  # no sign of life from now on
    with hold_lease(folder, lease_s=1, wait_s=120):
        assert time.monotonic() - started > 0.5
        with pytest.raises(TransientError, match="the lease was lost"):
            dead.require()


def test_of_many_that_ask_at_once_one_holds(tmp_path: Path) -> None:
    folder, inside, most = str(tmp_path / "lease"), [0], [0]

    def work() -> None:
        with hold_lease(folder, lease_s=600, wait_s=600):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.02)
            inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    names = sorted(path.name for path in Path(folder).iterdir())
    assert names == ["lease.00000006.done.json", "lease.00000006.json"]


def test_a_server_that_is_down_is_a_dependency_that_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.materialize.servers import free_port
    from tests.materialize.shop import redis

    monkeypatch.setattr("redis.retry.sleep", lambda _: None)  # it asks again and again
    shop = Shop(tmp_path, redis(free_port())).apply()
    with pytest.raises(DependencyError, match="Redis failed: ConnectionError"):
        shop.run()

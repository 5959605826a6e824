"""Whatever interrupts a run, the store ends up as if nothing had, or the run says that it does not."""

import multiprocessing
import os
import shutil
import signal
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.materialize import servers
from tests.materialize.shop import Shop, at, contents, forget, history, many, redis, row
from tests.materialize.strikes import COUNT, REPLIES, struck
from tests.ports import free_port
from trainwright.errors import DependencyError, TransientError
from trainwright.featurestore import open_online, open_service
from trainwright.featurestore.repository import is_transient
from trainwright.materialize import watermark
from trainwright.materialize.materialize import materialize
from trainwright.materialize.watermark import WatermarkHistory
from trainwright.materialize.writers import SCRIPT_ROWS, RedisWriter
from trainwright.storage.lease import hold_lease


def start(shop: Shop, out: str, **changes: Any) -> ForkProcess:
    """Run in a process of its own: a copy of this one, which has imported all that takes long."""
    section, folder = shop.section(**changes), shop.folder / out

    def work() -> None:
        materialize(section, "features", at(100).isoformat(), folder, folder / "summary.md")

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def test_a_run_killed_while_it_writes_leaves_nothing_that_the_next_one_does_not_mend(
    make_shop: Callable[..., Shop],
) -> None:
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
    from trainwright.materialize.materialize import write_rows

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
        write_rows(opened, view, window, latest, lambda: None)
        assert check(opened, view, rows, window).wrong == 0
    shop.add("a", [row(1, 0, 11), row(2, 1, 20)])
    with latest_rows(view, list_files(view.source), window) as latest:
        found = check(opened, view, latest.sample(10), window)
    assert found.wrong == 2
    assert found.example == "product=1: stock, note differ"


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
    from tests.materialize.shop import redis

    monkeypatch.setattr("redis.retry.sleep", lambda _: None)  # it asks again and again
    shop = Shop(tmp_path, redis(free_port())).apply()
    with pytest.raises(DependencyError, match="Redis failed: ConnectionError"):
        shop.run()


ENOUGH = 200
CHANGES = {"os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "sqlite3.connect"}


def killed_at(shop: Shop, moment: int) -> bool:
    """Run in a copy of this process that kills itself at a moment; tell whether it came to that."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    seen = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        changes = event in CHANGES or (event == "open" and arguments[1] not in {"r", "rb"})
        if changes and any(str(shop.folder) in str(argument) for argument in arguments[:2]):
            seen += 1
            if seen == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    status = 1
    try:
        shop.run(date=at(10).isoformat())
        status = 0
    finally:
        os._exit(status)


@pytest.mark.covers("F53")
def test_a_run_killed_at_any_moment_is_mended_by_the_next(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    shop.add("a", [row(1, 0, 10), row(2, 3, 23)])
    shop.run(date=at(5).isoformat())
    before = shop.folder / "before"
    shutil.copytree(shop.folder / "state", before / "state")
    shutil.copy(shop.folder / "online.db", before)
    shop.add("b", [row(1, 8, 18), row(3, 9, 39)])
    shop.run(date=at(10).isoformat())
    undisturbed = contents(shop)
    for moment in range(1, ENOUGH):
        shutil.rmtree(shop.folder / "state")
        shutil.copytree(before / "state", shop.folder / "state")
        shutil.copy(before / "online.db", shop.folder)
        killed = killed_at(shop, moment)
        forget(shop.folder / "state")
        mark = shop.run(date=at(10).isoformat()).views[0].mark
        assert (mark.number in {2, 3}, mark.reached) == (True, at(10).isoformat())
        assert contents(shop) == undisturbed
        if not killed:
            break
    assert 10 < moment < ENOUGH - 1


def later(seconds: float, call: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer


def test_online_store_that_comes_back_within_retry_s_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis.retry.sleep", lambda _: None)  # its own retries: the policy is ours
    port = free_port()
    shop = Shop(tmp_path, redis(port)).apply()
    shop.add("a", [row(1, 0, 10)])
    started: list[subprocess.Popen[bytes]] = []
    command = ["redis-server", "--port", str(port), "--save", "", "--dir", str(tmp_path)]
    later(3, lambda: started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL)))
    begun = time.monotonic()
    try:
        state = shop.run(date=at(5).isoformat(), retry_s=120)
        assert shop.read(1) == [(10, "n10")]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert state.views[0].mark.written == 1
    assert time.monotonic() - begun >= 3


def test_online_store_that_stays_away_ends_with_21_after_retry_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis.retry.sleep", lambda _: None)
    shop = Shop(tmp_path, redis(free_port())).apply()
    shop.add("a", [row(1, 0, 10)])
    begun = time.monotonic()
    with pytest.raises(DependencyError, match=r"Redis failed: ConnectionError: .* \(\d+ attempts in \d+ s\)"):
        shop.run(date=at(5).isoformat(), retry_s=2)
    assert time.monotonic() - begun >= 2


def test_store_that_was_never_applied_or_holds_other_rows_is_not_retried(
    make_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure that stays costs one attempt, however long the deadline is."""
    shop = make_shop().apply()
    shop.add("a", [row(1, 0, 10)])
    Path(str(shop.online["path"])).write_bytes(b"this is no database" * 100)
    begun = time.monotonic()
    with pytest.raises(DependencyError, match="not a database"):
        shop.run(date=at(5).isoformat(), retry_s=600)
    assert time.monotonic() - begun < 60


def test_sql_registry_that_stays_away_ends_with_21_after_the_deadline(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    settings = shop.repository / "feature_store.yaml"
    place = f"postgresql+psycopg://nobody@127.0.0.1:{free_port()}/registry"
    settings.write_text(
        settings.read_text().replace(
            "registry: registry.db", f"registry: {{registry_type: sql, path: '{place}'}}"
        )
    )
    with pytest.raises(
        DependencyError, match=r"(?s)cannot read its registry: .*\(([2-9]|\d\d+) attempts in \d+ s\)"
    ) as found:
        open_service(str(shop.repository), "any", retry_s=1)
    assert found.value.retryable


@contextmanager
def at_return(function: Any, number: int, blow: Callable[[], object]) -> Iterator[list[int]]:
    """Strike when a function returns for the n-th time; the list holds how often it has returned."""
    returned = [0]

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_code is function.__code__:
            returned[0] += 1
            if returned[0] == number:
                blow()

    sys.setprofile(watch)
    try:
        yield returned
    finally:
        sys.setprofile(None)


class Restarting:
    """A Redis without persistence."""

    def __init__(self, folder: Path) -> None:
        servers.installed("redis-server", lambda: shutil.which("redis-server") is not None)
        self.port, self._folder = free_port(), folder
        self.start()

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--save", "", "--dir", str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        servers.wait_until(lambda: servers.answers(self.port), "redis")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def restart_empty(self) -> None:
        self.stop()
        self.start()


@pytest.fixture
def restarting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Restarting]:
    monkeypatch.setattr("redis.retry.sleep", lambda _: None)
    server = Restarting(tmp_path)
    yield server
    server.stop()


def test_redis_that_restarts_empty_during_a_write_gets_the_rows_of_earlier_runs_back(
    restarting: Restarting, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, redis(restarting.port)).apply()
    shop.add("a", [row(COUNT + 1, 0, 10), row(COUNT + 2, 1, 20)])
    shop.run(date=at(5).isoformat())
    shop.add("b", many(COUNT, 6, 1))
    with at_return(RedisWriter._reply, REPLIES, restarting.restart_empty):
        state = shop.run(date=at(10).isoformat(), retry_s=120)
    assert shop.read(COUNT + 1, COUNT + 2) == [(10, "n10"), (20, "n20")]
    assert [value[0] for value in shop.read(0, COUNT - 1)] == [1, 1]
    assert (state.views[0].asked, state.views[0].gone) == (2, 2)
    assert state.views[0].mark.start == ""


def test_emptied_store_is_written_from_the_beginning_again_after_a_lost_connection(
    restarting: Restarting, tmp_path: Path
) -> None:
    """The rows that the first attempt wrote make the store look as if nothing had been lost."""
    import redis as client

    shop = Shop(tmp_path, redis(restarting.port)).apply()
    shop.add("a", many(COUNT, 0, 1))
    shop.run(date=at(5).isoformat())
    other = client.Redis(port=restarting.port)
    other.flushall()

    def cut_off() -> None:
        assert other.client_kill_filter(_type="normal", skipme=True)

    with at_return(RedisWriter._reply, REPLIES, cut_off):
        shop.run(date=at(10).isoformat(), retry_s=120)
    step = COUNT // 50
    assert {value[0] for value in shop.read(*range(0, COUNT, step))} == {1}
    other.close()


def test_tls_connection_that_was_cut_off_is_transient_and_a_certificate_is_final() -> None:
    assert is_transient(ssl.SSLEOFError(8, "EOF occurred in violation of protocol"))
    assert is_transient(ssl.SSLError(1, "[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC]"))
    assert not is_transient(ssl.SSLCertVerificationError(1, "self-signed"))


def test_full_disk_and_time_limits_of_the_server_are_final(tmp_path: Path) -> None:
    from psycopg.errors import LockNotAvailable, QueryCanceled

    with sqlite3.connect(tmp_path / "full.db") as database:
        database.execute("CREATE TABLE t (x)")
        database.execute("PRAGMA max_page_count = 2")
        with pytest.raises(sqlite3.OperationalError) as full:
            database.execute("INSERT INTO t VALUES (zeroblob(1000000))")
    database.close()
    assert not is_transient(full.value)
    assert not is_transient(QueryCanceled("canceling statement due to statement timeout"))
    assert not is_transient(LockNotAvailable("canceling statement due to lock timeout"))
    assert is_transient(sqlite3.OperationalError("database is locked"))


def empty(shop: Shop, *products: int) -> None:
    """Remove a shop's rows from its store, or those of some products, behind the back of everyone."""

    from trainwright.materialize.encoding import entity_keys

    wanted = entity_keys(pa.table({"product": pa.array(products, pa.int64())}), shop.keys).to_pylist()
    if shop.online["type"] == "sqlite":
        import sqlite3

        with sqlite3.connect(shop.online["path"]) as database:
            for key in wanted:
                database.execute(f"DELETE FROM {shop.project}_stock WHERE entity_key = ?", [key])  # noqa: S608
        database.close()
    elif shop.online["type"] == "postgres":
        import psycopg

        port = shop.online["port"]
        with psycopg.connect(host="127.0.0.1", port=port, dbname="postgres", user="feast") as database:
            for key in wanted:
                database.execute(f'DELETE FROM "{shop.project}_stock" WHERE entity_key = %s', [key])  # noqa: S608
    else:
        import redis

        with redis.Redis(port=int(shop.online["connection_string"].split(":")[1].split(",")[0])) as client:
            assert client.delete(*(key + shop.project.encode() for key in wanted)) == len(wanted)


def test_an_emptied_store_is_written_again_from_the_beginning_and_the_summary_says_so(any_shop: Shop) -> None:
    any_shop.add("a", [row(1, 0, 10), row(2, 3, 23)])
    any_shop.run(date=at(10).isoformat())
    empty(any_shop, 1, 2)
    any_shop.add("b", [row(3, 10.5, 30)])
    state = any_shop.run(date=at(11).isoformat())
    assert any_shop.read(1, 2, 3) == [(10, "n10"), (23, "n23"), (30, "n30")]
    assert (state.views[0].asked, state.views[0].gone, state.views[0].mark.start) == (2, 2, "")
    said = (any_shop.folder / "out" / "summary.md").read_text()
    assert "**The store had none of 2 keys of stock that earlier runs wrote**" in said
    mark = any_shop.run(date=at(12).isoformat()).views[0].mark
    assert mark.start == "2024-03-01T10:00:00Z"


def test_single_keys_that_are_gone_are_counted_and_left_to_a_backfill(any_shop: Shop) -> None:
    any_shop.add("a", [row(1, 0, 10), row(2, 3, 23)])
    any_shop.run(date=at(10).isoformat())
    empty(any_shop, 1)
    state = any_shop.run(date=at(11).isoformat())
    assert any_shop.read(1, 2) == [(None, None), (23, "n23")]
    assert (state.views[0].asked, state.views[0].gone) == (2, 1)
    assert "**1 of 2 keys of stock from before" in (any_shop.folder / "out" / "summary.md").read_text()
    any_shop.run(start=at(0), end=at(11))
    assert any_shop.read(1) == [(10, "n10")]


def test_a_store_that_was_put_back_to_an_older_state_is_written_again(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    shop.add("a", [row(1, 0, 10), row(2, 0, 20)])
    shop.run(date=at(1).isoformat())
    backup = (shop.folder / "online.db").read_bytes()
    shop.add("a", [row(1, 5, 15), row(2, 5, 25)])
    shop.run(date=at(10).isoformat())
    (shop.folder / "online.db").write_bytes(backup)
    shop.run(date=at(20).isoformat())
    assert shop.read(1, 2) == [(15, "n15"), (25, "n25")]


def test_few_keys_of_few_row_groups_are_looked_up(make_shop: Callable[..., Shop]) -> None:

    from trainwright.materialize.check import SAMPLED_GROUPS, SAMPLED_KEYS, look_up_earlier
    from trainwright.materialize.watermark import TimeWindow
    from trainwright.storage import list_files

    shop = make_shop().apply()
    table = pa.concat_tables([many(1000, 1, 1), many(1000, 30, 2)])
    pq.write_table(table, shop.repository / "offline" / "stock" / "a.parquet", row_group_size=100)
    shop.run(date=at(40).isoformat())
    online = open_online(str(shop.repository))
    [view] = online.views
    files = list_files(view.source)
    window = TimeWindow(at(20), at(40))
    assert look_up_earlier(online, view, files, window, None).looked_up == SAMPLED_GROUPS * SAMPLED_KEYS
    assert look_up_earlier(online, view, files, window, at(1) + timedelta(seconds=1)).looked_up == 0
    assert look_up_earlier(online, view, files, TimeWindow(None, at(40)), None).looked_up == 0
    online.close()


def test_keys_that_are_to_expire_are_not_missed(make_shop: Callable[..., Shop], redis_port: int) -> None:
    from tests.materialize import shop as shops

    shop = make_shop("redis")
    shop.online = shops.redis(redis_port) | {"key_ttl_seconds": 3600}
    shop.apply().add("a", [row(1, 0, 10)])
    shop.run(date=at(10).isoformat())
    empty(shop, 1)
    assert shop.run(date=at(11).isoformat()).views[0].asked == 0


def test_of_the_watermarks_the_last_are_kept(
    make_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermark, "RETAINED", 3)
    shop = make_shop().apply()
    mark = shop.run(date=at(1).isoformat()).views[0].mark
    folder = shop.folder / "state" / shop.project / "stock"
    for number in range(2, 6):
        WatermarkHistory(str(folder)).add(replace(mark, number=number, reached=at(number).isoformat()))
    assert sorted(path.name for path in folder.glob("watermark.*")) == [
        f"watermark.{number:08d}.json" for number in (3, 4, 5)
    ]
    last = WatermarkHistory(str(folder)).last()
    assert last is not None
    assert (last.number, last.reached) == (5, at(5).isoformat())

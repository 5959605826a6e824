"""Servers that are away for a moment are waited for within the step; what stays broken is told at once."""

import shutil
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.materialize import servers
from tests.materialize.shop import Shop, at, redis, row
from tests.materialize.strikes import COUNT, REPLIES
from tests.materialize.test_disturbed import many
from trainwright.errors import DependencyError, TransientError
from trainwright.featurestore import open_service
from trainwright.featurestore.repository import is_transient
from trainwright.materialize.check import look_up_earlier
from trainwright.materialize.redis import RedisWriter


def later(seconds: float, call: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer


def test_online_store_that_comes_back_within_retry_s_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis.retry.sleep", lambda _: None)  # its own retries: the policy is ours
    port = servers.free_port()
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
    shop = Shop(tmp_path, redis(servers.free_port())).apply()
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
    place = f"postgresql+psycopg://nobody@127.0.0.1:{servers.free_port()}/registry"
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
        self.port, self._folder = servers.free_port(), folder
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


def test_store_that_is_emptied_between_the_look_up_and_the_write_ends_the_run(
    restarting: Restarting, tmp_path: Path
) -> None:
    import redis as client

    shop = Shop(tmp_path, redis(restarting.port)).apply()
    shop.add("a", [row(1, 0, 10)])
    shop.run(date=at(5).isoformat())
    shop.add("b", [row(2, 6, 20)])
    other = client.Redis(port=restarting.port)
    with (
        at_return(look_up_earlier, 1, other.flushall),
        pytest.raises(TransientError, match="emptied after its earlier rows were looked up"),
    ):
        shop.run(date=at(10).isoformat())
    other.close()
    shop.run(date=at(10).isoformat())
    assert shop.read(1, 2) == [(10, "n10"), (20, "n20")]


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

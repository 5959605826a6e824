"""Servers that are away for a moment are waited for within the step; what stays broken is told at once."""

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.materialize import servers
from tests.materialize.shop import Shop, at, redis, row
from trainwright.errors import DependencyError
from trainwright.featurestore import open_service


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
        DependencyError, match=r"cannot read its registry: .*[23] attempts|attempts in"
    ) as found:
        open_service(str(shop.repository), "any", retry_s=1)
    assert found.value.retryable

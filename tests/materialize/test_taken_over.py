"""A run that was paused for longer than its lease writes nothing any more, at whatever moment it goes on."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.materialize.shop import Shop, at, forget, history, row
from tests.materialize.strikes import COUNT, struck
from tests.materialize.test_disturbed import many
from trainwright.errors import TransientError
from trainwright.featurestore import open_online
from trainwright.materialize.encoding import SerializedRows, encode_rows
from trainwright.materialize.latest import latest_rows
from trainwright.materialize.watermark import TimeWindow
from trainwright.materialize.writers import OnlineWriter, RequireLease, writer_for
from trainwright.storage import lease, list_files


@contextmanager
def writing(shop: Shop, held: RequireLease) -> Iterator[tuple[OnlineWriter, SerializedRows]]:
    """Give a writer and the rows that are there now, as a run that began now has them."""
    online = open_online(str(shop.repository))
    [view] = online.views
    with latest_rows(view, list_files(view.source), TimeWindow(None, at(100))) as latest:
        [batch] = latest.batches()
    writer = writer_for(online, view, held)
    try:
        yield writer, encode_rows(view, batch)
    finally:
        writer.close()
        online.close()


def test_a_run_that_was_stopped_while_another_took_over_replaces_nothing_of_that_one(
    make_shop: Callable[..., Shop],
) -> None:
    """The other brings corrections: rows of the same times, which one that comes later would replace."""
    shop = make_shop("redis").apply()
    shop.add("a", many(COUNT, 9.5, 1))
    step = COUNT // 50

    def written(stock: int) -> int:
        return sum(value[0] == stock for value in shop.read(*range(0, COUNT, step)))

    child = struck(signal.SIGSTOP, lambda: shop.run(date=at(100).isoformat()))
    assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    try:
        assert 0 < written(1) < COUNT // step
        corrected = many(COUNT, 9.5, 2)
        known = corrected.column("created").to_pylist()[0].replace(hour=12)
        place = corrected.schema.get_field_index("created")
        shop.add("b", corrected.set_column(place, "created", [[known] * COUNT]).cast(shop.schema))
        forget(shop.folder / "state")
        shop.run(date=at(100).isoformat())
    finally:
        os.kill(child, signal.SIGCONT)
        _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) == TransientError.code
    assert written(2) == COUNT // step
    assert history(shop).last().number == 1  # type: ignore[union-attr]


def test_a_run_that_pauses_right_before_it_writes_finds_its_token_replaced(
    make_shop: Callable[..., Shop],
) -> None:
    """No check of the lease on this side can tell: the pause comes after it. So the server tells."""
    shop = make_shop("redis").apply()
    shop.add("a", [row(1, 0, 10)])

    def paused() -> None:
        shop.add("b", [row(1, 0, 11, known=1)])
        shop.run(date=at(50).isoformat())

    with (
        writing(shop, paused) as (writer, rows),
        pytest.raises(TransientError, match="another run took over"),
    ):
        writer.write(rows)
    assert shop.read(1) == [(11, "n11")]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_batch_after_the_lease_was_lost_is_not_passed_to_feast(
    kind: str, make_shop: Callable[..., Shop]
) -> None:
    shop = make_shop(kind).apply()
    shop.add("a", [row(1, 0, 10)])

    def lost() -> None:
        raise TransientError("the lease was lost", where="here", hint="")

    with writing(shop, lost) as (writer, rows):
        shop.add("b", [row(1, 0, 11, known=1)])
        shop.run(date=at(50).isoformat())
        with pytest.raises(TransientError, match="the lease was lost"):
            writer.write(rows)
    assert shop.read(1) == [(11, "n11")]


def test_a_store_that_is_emptied_between_two_pieces_ends_the_run(
    make_shop: Callable[..., Shop], redis_port: int
) -> None:
    import redis

    shop = make_shop("redis").apply()
    shop.add("a", [row(1, 0, 10)])
    with writing(shop, lambda: None) as (writer, rows):
        assert writer.write(rows) == 1
        with redis.Redis(port=redis_port) as client:
            client.flushall()
        with pytest.raises(TransientError, match="the store was emptied meanwhile"):
            writer.write(rows)


def test_no_token_of_a_run_is_left_behind(make_shop: Callable[..., Shop], redis_port: int) -> None:
    import redis

    shop = make_shop("redis").apply()
    shop.add("a", [row(1, 0, 10)])
    shop.run(date=at(5).isoformat())
    with redis.Redis(port=redis_port) as client:
        assert list(client.scan_iter("trainwright*")) == []


def test_a_heartbeat_that_arrives_during_a_takeover_counts(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives after the other listed the signs, and before it asked the store for the time."""
    folder = str(tmp_path / "lease")
    first = lease._take(folder, 600, 0)
    first._ended.set()  # it gives signs by hand from here on
    first._thread.join()
    forget(tmp_path / "lease")
    real, beaten = lease.create, []

    def create(uri: str, content: bytes) -> Any:
        if "time." in uri and not beaten:
            beaten.append(real(lease.join(folder, lease._name(1, "beat.00000001.")), b"{}"))
        return real(uri, content)

    monkeypatch.setattr(lease, "create", create)
    with pytest.raises(TransientError, match="another run has been writing"):
        lease._take(folder, 600, 0)
    assert beaten


def test_a_heartbeat_that_arrives_too_late_ends_the_lease(tmp_path: Any) -> None:
    """Another may have looked just before it, and be about to claim."""
    held = lease._take(str(tmp_path / "lease"), 3, 0)
    held._heard -= 10  # as after a pause of ten seconds
    held._thread.join(120)
    assert not held._thread.is_alive()
    with pytest.raises(TransientError, match="the last heartbeat came too late"):
        held.require()

"""Rows in Redis: their layout, kinds of servers, and writers that were taken over."""

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pyarrow as pa
import pytest

from tests.materialize import servers
from tests.materialize.shop import TIMES, UTC_US, Shop, at, contents, forget, history, many, row
from tests.materialize.strikes import COUNT, struck
from tests.ports import free_port
from trainwright.errors import DependencyError, TransientError
from trainwright.featurestore import Online, OnlineView, close_store, open_online
from trainwright.materialize import writers
from trainwright.materialize.encoding import SerializedRows, encode_rows, is_fast
from trainwright.materialize.latest import latest_rows
from trainwright.materialize.watermark import TimeWindow
from trainwright.materialize.writers import FeastWriter, OnlineWriter, RedisWriter, RequireLease, writer_for
from trainwright.storage import lease, list_files

EXAMPLES = 20
TEXTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=200)
MOMENTS = st.datetimes(datetime(1950, 1, 1), datetime(2200, 1, 1)).map(lambda time: time.replace(tzinfo=UTC))
SCALARS: dict[str, tuple[str, pa.DataType, st.SearchStrategy[Any]]] = {
    "Float64": ("DOUBLE", pa.float64(), st.floats(allow_nan=True)),
    "Float32": ("FLOAT", pa.float32(), st.floats(width=32, allow_nan=True)),
    "Int64": ("INT64", pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "Int32": ("INT32", pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "Bool": ("BOOL", pa.bool_(), st.booleans()),
    "String": ("STRING", pa.string(), TEXTS),
    "Bytes": ("BYTES", pa.binary(), st.binary(min_size=1, max_size=200)),
    "UnixTimestamp": ("UNIX_TIMESTAMP", UTC_US, MOMENTS),
}
INTEGERS = {"Int64", "Int32"}
OTHERS: dict[str, tuple[str, pa.DataType, st.SearchStrategy[Any]]] = {
    "Uuid": ("UUID", pa.string(), st.uuids().map(str)),
    "Json": ("JSON", pa.string(), st.sampled_from(['{"a": 1}', "[]", "3"])),
    "Decimal": ("DECIMAL", pa.decimal128(9, 2), st.decimals(-999, 999, places=2).map(Decimal)),
    "Set(String)": ("STRING_SET", pa.list_(pa.string()), st.lists(st.text(max_size=5), max_size=1)),
}


def columns() -> dict[str, tuple[str, pa.DataType, st.SearchStrategy[Any]]]:
    """Every type: what Feast stores, how files hold it, and its values with nulls.

    Feast itself rounds integers beyond 2^53 beside a null, fails on a null in a list of integers, takes bytes
    for null where all of a batch are empty, and cannot write a null character into PostgreSQL: these are left
    out here, and have tests of their own.
    """
    found = {}
    for name, (kind, arrow, values) in SCALARS.items():
        nullable = values if name in INTEGERS else st.none() | values
        found[name] = (kind, arrow, nullable)
        entries = values if name in INTEGERS else st.none() | values
        whole = st.none() | st.lists(entries, max_size=5)
        found[f"Array({name})"] = (f"{kind}_LIST", pa.list_(arrow), whole)
    found |= {name: (kind, arrow, st.none() | values) for name, (kind, arrow, values) in OTHERS.items()}
    return found


COLUMNS = columns()
NAMES = {kind: f"f{place}" for place, kind in enumerate(COLUMNS)}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    count = draw(st.integers(1, 6))
    keys = draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=count, max_size=count, unique=True))
    times = draw(st.lists(MOMENTS, min_size=count, max_size=count))
    known = draw(st.lists(MOMENTS, min_size=count, max_size=count))
    found = {"product": pa.array(keys, pa.int64())}
    for kind, (_, arrow, values) in COLUMNS.items():
        found[NAMES[kind]] = pa.array(draw(st.lists(values, min_size=count, max_size=count)), arrow)
    return pa.table(found | {"event": pa.array(times, UTC_US), "created": pa.array(known, UTC_US)})


def shop_of_all_types(make_shop: Callable[..., Shop], kind: str) -> Shop:
    fields = [("product", pa.int64()), *((NAMES[kind], arrow) for kind, (_, arrow, _) in COLUMNS.items())]
    schema = pa.schema([*fields, *TIMES])
    types = {name: kind for kind, name in NAMES.items()}
    return make_shop(kind, schema=schema, types=types).apply()


def empty(shop: Shop) -> None:
    if shop.online["type"] == "sqlite":
        with sqlite3.connect(shop.online["path"]) as database:
            database.execute(f"DELETE FROM {shop.project}_stock")  # noqa: S608
    elif shop.online["type"] == "postgres":
        import psycopg

        port = shop.online["port"]
        with psycopg.connect(host="127.0.0.1", port=port, dbname="postgres", user="feast") as database:
            database.execute(f'DELETE FROM "{shop.project}_stock"')  # noqa: S608
    else:
        import redis

        client = redis.Redis(port=int(shop.online["connection_string"].split(":")[1].split(",")[0]))
        for key in client.scan_iter(f"*{shop.project}", count=10_000):
            client.delete(key)


def write_by_feast(online: Online, view: OnlineView, table: pa.Table) -> None:
    """Convert and write with Feast's code alone, as ``FeatureStore.materialize`` does."""
    from feast.utils import _convert_arrow_to_proto
    from feast.value_type import ValueType

    keys = {name: ValueType[kind] for name, kind in view.keys.items()}
    ready = _convert_arrow_to_proto(table.combine_chunks(), view.feast, keys)
    online.feast.provider.online_write_batch(online.feast.config, view.feast, ready, None)
    close_store(online.feast)


@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
def test_the_store_holds_what_feasts_own_writer_would_have_written(
    kind: str, make_shop: Callable[..., Shop]
) -> None:
    shop = shop_of_all_types(make_shop, kind)
    online = open_online(str(shop.repository))
    [view] = online.views
    chosen = writer_for(online, view, lambda: None)
    chosen.close()
    assert isinstance(chosen, RedisWriter if kind == "redis" else FeastWriter)

    @hypothesis.settings(
        max_examples=EXAMPLES,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(tables())
    def holds(table: pa.Table) -> None:
        [batch] = table.to_batches()
        empty(shop)
        writer = writer_for(online, view, lambda: None)
        assert writer.write(encode_rows(view, batch)) == table.num_rows
        writer.close()
        close_store(online.feast)
        ours = contents(shop)
        empty(shop)
        write_by_feast(online, view, table)
        assert ours == contents(shop)
        assert ours

    holds()


def test_feasts_own_writer_is_given_few_rows_at_a_time(
    make_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default Feast turns all rows into Python objects at once: 8 GB for a million of ten features."""
    monkeypatch.setattr(writers, "FEAST_ROWS", 2)
    shop = make_shop().apply()
    online = open_online(str(shop.repository))
    [view] = online.views
    asked: list[None] = []
    writer = FeastWriter(online, view, lambda: asked.append(None))
    rows = pa.Table.from_pylist([row_of(product, product) for product in range(5)], shop.schema)
    assert writer.write(encode_rows(view, rows.to_batches()[0])) == 5
    assert len(asked) == 3
    assert shop.read(0, 3, 4) == [(0, "n"), (3, "n"), (4, "n")]
    online.close()


def test_all_types_but_maps_and_the_like_are_written_from_arrays() -> None:
    slow = {kind for kind, arrow, _ in COLUMNS.values() if not is_fast(kind, arrow)}
    assert slow == {"JSON", "DECIMAL", "STRING_SET"}


@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
def test_integers_beside_a_null_stay_exact_where_feast_rounds_them(
    kind: str, make_shop: Callable[..., Shop]
) -> None:
    shop = make_shop(kind).apply()
    big = 2**53 + 1
    shop.add("rows", [row_of(1, big), row_of(2, None)])
    shop.run()
    assert shop.read(1, 2) == [(big, "n"), (None, "n")]


def row_of(product: int, stock: int | None) -> dict[str, Any]:
    return {"product": product, "stock": stock, "note": "n", "event": at(0), "created": at(0)}


def test_empty_bytes_are_not_null_even_where_all_are_empty(make_shop: Callable[..., Shop]) -> None:
    schema = pa.schema([("product", pa.int64()), ("f", pa.binary()), *TIMES])
    shop = make_shop("sqlite", schema=schema, types={"f": "Bytes"}).apply()
    shop.add("rows", [{"product": 1, "f": b"", "event": at(0), "created": at(0)}])
    shop.run()
    assert shop.read(1) == [(b"",)]


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_string_with_a_null_character_is_served(kind: str, make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(kind).apply()
    shop.add("rows", [row_of(1, 1) | {"note": "a\0b"}])
    shop.run()
    assert shop.read(1) == [(1, "a\0b")]


def test_a_string_with_a_null_character_is_rejected_where_postgresql_cannot_store_it(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop("postgres").apply()
    shop.add("rows", [row_of(1, 1) | {"note": "a\0b"}])
    with pytest.raises(DependencyError, match="NUL"):
        shop.run()


def test_a_null_in_a_list_of_integers_is_zero_where_feast_fails(make_shop: Callable[..., Shop]) -> None:
    schema = pa.schema([("product", pa.int64()), ("f", pa.list_(pa.int64())), *TIMES])
    shop = make_shop("sqlite", schema=schema, types={"f": "Array(Int64)"}).apply()
    shop.add("rows", [{"product": 1, "f": [1, None, 3], "event": at(0), "created": at(0)}])
    shop.run()
    assert shop.read(1) == [([1, 0, 3],)]


KEYS = {
    "INT32": (pa.int32(), [1, -5, 2**31 - 1]),
    "INT64": (pa.int64(), [1, -5, 2**63 - 1]),
    "STRING": (pa.string(), ["a", "", "ä€"]),
    "BYTES": (pa.binary(), [b"a", b"", b"\x00\xff"]),
    "UNIX_TIMESTAMP": (UTC_US, [at(0), at(1.5), at(-1e6)]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_every_kind_of_key_that_feast_looks_up_is_found(kind: str, make_shop: Callable[..., Shop]) -> None:
    arrow, values = KEYS[kind]
    schema = pa.schema([("product", arrow), ("stock", pa.int64()), *TIMES])
    shop = make_shop("sqlite", schema=schema, types={"stock": "Int64"}, keys={"product": kind}).apply()
    rows = [
        {"product": value, "stock": place, "event": at(0), "created": at(0)}
        for place, value in enumerate(values)
    ]
    shop.add("rows", rows)
    state = shop.run()
    assert state.views[0].mark.checked == 3


def test_several_keys_are_stored_in_the_order_that_feast_looks_them_up(
    make_shop: Callable[..., Shop],
) -> None:
    schema = pa.schema([("z", pa.string()), ("a", pa.int64()), ("stock", pa.int64()), *TIMES])
    keys = {"z": "STRING", "a": "INT64"}
    shop = make_shop("sqlite", schema=schema, types={"stock": "Int64"}, keys=keys).apply()
    shop.add("rows", [{"z": "x", "a": 1, "stock": 5, "event": at(0), "created": at(0)}])
    assert shop.run().views[0].mark.checked == 1


def test_a_row_of_before_1970_is_replaced_by_its_successor_and_not_the_other_way_round(
    any_shop: Shop,
) -> None:
    old, new = datetime(1965, 1, 1, tzinfo=UTC), datetime(1965, 1, 1, 0, 0, 1, tzinfo=UTC)
    any_shop.add("a", [row_of(1, 1) | {"event": new}])
    any_shop.run(start="1960-01-01T00:00:00Z", end="1970-01-01T00:00:00Z")
    any_shop.add("b", [row_of(1, 2) | {"event": old}])
    any_shop.run(start="1960-01-01T00:00:00Z", end="1965-01-01T00:00:01Z")
    assert any_shop.read(1) == [(1, "n")]
    any_shop.add("c", [row_of(1, 3) | {"event": new + timedelta(seconds=1)}])
    any_shop.run(start="1960-01-01T00:00:00Z", end="1970-01-01T00:00:00Z")
    assert any_shop.read(1) == [(3, "n")]


def serve(shop: Shop, online: dict[str, Any]) -> str:
    """Materialize newer rows after older ones and the other way round; return the way they went."""
    shop.online = {"type": "redis"} | online
    shop.apply().add("a", [row(1, 0, 10), row(1, 8, 18), row(2, 3, 23)])
    way = shop.run(date=at(5).isoformat()).views[0].way
    shop.run(date=at(10).isoformat())
    shop.run(start=at(0), end=at(4))
    assert shop.read(1, 2, 3) == [(18, "n18"), (23, "n23"), (None, None)]
    return way


@contextlib.contextmanager
def redis_with(folder: Path, *options: str) -> Iterator[int]:
    """Start a server with options in which PORT is its port."""
    servers.installed("redis-server", lambda: shutil.which("redis-server") is not None)
    port = free_port()
    command = ["redis-server", "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with servers.running(
        [*command, *(option.replace("PORT", str(port)) for option in options)], port, folder / f"log{port}"
    ):
        yield port


def test_rows_go_through_tls_to_a_server_whose_certificate_is_checked(
    tmp_path: Path, make_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=redis"]
    make += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True)
    files = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    files += ["--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no"]
    with redis_with(tmp_path, "--port", "0", "--tls-port", "PORT", *files) as port:
        place = f"127.0.0.1:{port},ssl=true"
        known = {"connection_string": f"{place},ssl_ca_certs={certificate}"}
        assert serve(make_shop(), known) == "redis, from arrays"
        monkeypatch.setattr("redis.retry.sleep", lambda _: None)  # it asks again and again
        with pytest.raises(DependencyError, match=r"Redis failed: .*certificate"):
            serve(make_shop(), {"connection_string": place})


def test_rows_go_to_the_master_that_a_sentinel_names(tmp_path: Path, make_shop: Callable[..., Shop]) -> None:
    with redis_with(tmp_path, "--port", "PORT") as master:
        settings = tmp_path / "sentinel.conf"
        port = free_port()
        settings.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor shops 127.0.0.1 {master} 1\n"
        )
        with servers.running(["redis-server", str(settings), "--sentinel"], port, tmp_path / "sentinel"):
            online = {"redis_type": "redis_sentinel", "sentinel_master": "shops"}
            shop = make_shop()
            assert serve(shop, online | {"connection_string": f"127.0.0.1:{port}"}) == "redis, from arrays"
            mark = shop.run(date=at(11).isoformat()).views[0].mark
            assert mark.store == f"redis shops 127.0.0.1:{port}"
            unknown = online | {"sentinel_master": "others", "connection_string": f"127.0.0.1:{port}"}
            with pytest.raises(DependencyError, match="MasterNotFoundError"):
                serve(make_shop(), unknown)


def test_rows_go_to_a_cluster_by_feasts_own_writer(tmp_path: Path, make_shop: Callable[..., Shop]) -> None:
    with contextlib.ExitStack() as nodes:
        ports = []
        for number in range(3):
            folder = tmp_path / str(number)
            folder.mkdir()
            ports.append(
                nodes.enter_context(redis_with(folder, "--port", "PORT", "--cluster-enabled", "yes"))
            )
        places = [f"127.0.0.1:{port}" for port in ports]
        create = ["redis-cli", "--cluster", "create", *places, "--cluster-yes"]
        subprocess.run(create, check=True, capture_output=True)
        for port in ports:  # each finds out by itself
            asked = ["redis-cli", "-p", str(port), "cluster", "info"]
            servers.wait_until(lambda asked=asked: "cluster_state:ok" in _said(asked), f"the node at {port}")
        online = {"redis_type": "redis_cluster", "connection_string": ",".join(places)}
        assert serve(make_shop(), online) == "redis, by Feast itself"


def _said(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


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


def test_clock_that_jumps_ahead_does_not_hand_over_a_living_lease(tmp_path: Any) -> None:
    """To a reader of wall clocks, the last heartbeat is then as old as the jump."""
    folder = tmp_path / "lease"
    with lease.hold_lease(str(folder), lease_s=30, wait_s=0) as held:
        for path in folder.iterdir():
            os.utime(path, (time.time() - 60, time.time() - 60))
        with pytest.raises(TransientError, match="another run has been writing"):
            lease._take(str(folder), 30, 0.3)
        held.require()


def test_heartbeats_keep_a_lease_however_long_another_waits(tmp_path: Any) -> None:
    folder = str(tmp_path / "lease")
    with lease.hold_lease(folder, lease_s=6, wait_s=0) as held:
        with pytest.raises(TransientError, match="another run has been writing"):
            lease._take(folder, 6, 9)
        held.require()


def test_a_heartbeat_that_arrives_too_late_ends_the_lease(tmp_path: Any) -> None:
    """Another may have looked just before it, and be about to claim."""
    held = lease._take(str(tmp_path / "lease"), 3, 0)
    held._heard -= 10  # as after a pause of ten seconds
    held._thread.join(120)
    assert not held._thread.is_alive()
    with pytest.raises(TransientError, match="the last heartbeat came too late"):
        held.require()

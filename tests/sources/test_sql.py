import datetime as dt
import decimal
import pickle
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest

from tests.sources.postgres import PASSWORD, Postgres, Proxy
from tests.sources.reading import section
from trainwright.artifacts import Listing
from trainwright.errors import (
    DependencyError,
    InputError,
    PermissionRefused,
    TrainwrightError,
    TransientError,
)
from trainwright.experiment import Data
from trainwright.sources import list_source, open_source
from trainwright.sources.database import Connector, parse_database
from trainwright.storage import Access

HERE = Access(local_addresses=True, retry_s=5)
ALL = "SELECT * FROM flights"


def asked(database: Postgres | None = None, types: dict[str, str] | None = None, **query: object) -> Data:
    given: dict[str, object] = {"select": ALL, "tables": ["flights"]}
    if database:
        given |= {"user": "owner", "password_file": str(database.password_file)}
    return section(format="sql", sql=given | query, types=types or {})


def take(url: str, data: Data, access: Access = HERE) -> tuple[Listing, pa.Table]:
    """Resolve, as one step does, and read what was resolved, as another does."""
    listing = list_source(url, data, access)
    assert list_source(listing.source, data, Access()) == listing
    source = pickle.loads(pickle.dumps(open_source(listing, data, access)))  # noqa: S301 - our own
    (part,) = source.parts()
    tables = [rows for _, _, rows in source.batches(part)]
    return listing, pa.concat_tables([source.schema.empty_table(), *tables])


def test_rows_come_by_the_key_with_the_types_of_the_database(database: Postgres) -> None:
    _, table = take(database.url, asked(database))
    kinds = {field.name: str(field.type) for field in table.schema}
    assert kinds == {
        "id": "string", "at": "timestamp[us, tz=UTC]", "late": "int32", "delay": "double",
        "price": "decimal128(8, 2)", "free": "decimal128(38, 18)", "day": "date32[day]",
        "local": "timestamp[us]", "yes": "bool", "small": "int16", "big": "int64", "uid": "string",
        "doc": "string", "short": "string", "raw": "binary", "single": "float",
    }  # fmt: skip
    assert table["id"].to_pylist() == [f"f{n:06d}" for n in range(1, 25_001)]
    assert table.slice(6, 1).to_pylist() == [
        {
            "id": "f000007", "at": dt.datetime(2013, 1, 1, 0, 7, tzinfo=dt.UTC), "late": 0, "delay": 1.0,
            "price": decimal.Decimal("7.25"), "free": decimal.Decimal("0.875"), "day": dt.date(2013, 1, 8),
            "local": dt.datetime(2013, 1, 1, 0, 0, 7), "yes": False, "small": 7, "big": 7_000_000_049,
            "uid": "00000000-0000-0000-0000-000000000007", "doc": '{"n": 7}', "short": "s7",
            "raw": b"\x00\xff", "single": 3.5,
        }
    ]  # fmt: skip


def test_rows_are_given_with_those_before_them_and_in_batches(database: Postgres) -> None:
    data = asked(database)
    source = open_source(list_source(database.url, data, HERE), data, HERE)
    seen = [(uri, start, rows.num_rows) for uri, start, rows in source.batches(source.parts()[0])]
    assert seen == [(database.url, 0, 10_000), (database.url, 10_000, 10_000), (database.url, 20_000, 5_000)]


def test_same_rows_have_one_digest_and_any_other_row_another(database: Postgres) -> None:
    database.execute("create table moving as select id, late from flights limit 100")
    data = asked(database, select="SELECT id, late FROM moving", tables=["moving"])
    first = list_source(database.url, data, HERE)
    assert list_source(database.url, data, HERE) == first
    assert first.source == f"{database.url}#{first.files[0].checksum.replace(':', '=')}"
    database.execute("update moving set late = 5 where id = (select min(id) from moving)")
    assert list_source(database.url, data, HERE).content_digest != first.content_digest
    source = open_source(first, data, HERE)
    with pytest.raises(InputError, match="the database has other rows now"):
        list(source.batches(source.parts()[0]))


def test_version_query_stands_for_the_rows_and_is_asked_in_the_same_transaction(database: Postgres) -> None:
    database.execute(
        "create table versioned as select id, 1 as n from flights limit 10",
        "create table log as select 1 as v",
    )
    data = asked(
        database,
        select="SELECT id, n FROM versioned WHERE n >= :least",
        version="SELECT max(v), count(*) FROM log",
        tables=["versioned", "log"],
        parameters={"least": 0},
    )
    first, table = take(database.url, data)
    assert table.num_rows == 10
    database.execute("update versioned set n = 2")
    assert list_source(database.url, data, HERE) == first
    database.execute("insert into log values (2)")
    assert list_source(database.url, data, HERE) != first
    source = open_source(first, data, HERE)
    with pytest.raises(InputError, match="the database has other rows now"):
        next(source.batches(source.parts()[0]))


def test_what_is_written_while_it_is_read_is_not_seen(database: Postgres) -> None:
    database.execute("create table busy as select id from flights")
    data = asked(database, select="SELECT id FROM busy", tables=["busy"])
    source = open_source(list_source(database.url, data, HERE), data, HERE)
    batches = source.batches(source.parts()[0])
    rows = next(batches)[2].num_rows
    database.execute("delete from busy where id > 'f010500'", "insert into busy values ('new')")
    assert rows + sum(table.num_rows for _, _, table in batches) == 25_000


def test_transaction_only_reads_one_state_and_ends_in_time(database: Postgres) -> None:
    query = asked(database, timeout_s=7).sql
    assert query
    server = Connector(parse_database(database.url), query, HERE)
    settings = ("transaction_read_only", "transaction_isolation", "statement_timeout", "TimeZone")
    with server.transaction() as connection:
        found = [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in settings]
    assert found == ["on", "repeatable read", "7s", "UTC"]
    with pytest.raises(InputError, match="read-only transaction"), server.transaction() as connection:
        connection.exec_driver_sql("DELETE FROM flights")


@pytest.mark.covers("B31")
def test_values_are_bound_and_never_a_part_of_the_statement(database: Postgres) -> None:
    hostile = "' OR 1=1; DROP TABLE flights; --"
    where = "WHERE short = :short AND at >= :since AND delay < :most"
    select = f"SELECT id, delay, '100%' AS share FROM flights {where}"  # noqa: S608 - values are bound
    values: dict[str, object] = {"short": "s7", "since": "2013-01-02", "most": 300.5}
    _, table = take(database.url, asked(database, select=select, parameters=values))
    assert table.num_rows == sum(1 for n in range(1, 25_001) if n % 9 == 7 and n >= 1440 and n / 7 < 300.5)
    assert table["share"].unique().to_pylist() == ["100%"]
    _, none = take(database.url, asked(database, select=select, parameters=values | {"short": hostile}))
    assert none.num_rows == 0
    assert none.column_names == ["id", "delay", "share"]


@pytest.mark.covers("F45")
def test_lost_connection_is_made_again_and_no_row_is_missing_or_there_twice(database: Postgres) -> None:
    data = asked(database, select="SELECT id, delay, doc FROM flights")
    listing, whole = take(database.url, data)
    proxy = Proxy(database.port, [None, 400_000, 900_000, 200, None])
    url = database.url.replace(str(database.port), str(proxy.port))
    moved = list_source(f"{url}#{listing.source.partition('#')[2]}", data, HERE)
    source = open_source(moved, data, HERE)
    table = pa.concat_tables([rows for _, _, rows in source.batches(source.parts()[0])])
    proxy.close()
    assert table.equals(whole)
    assert proxy.connections >= 5


def test_connection_that_is_lost_again_and_again_fails_after_the_deadline(database: Postgres) -> None:
    data = asked(database, version="SELECT count(*) FROM flights")
    proxy = Proxy(database.port, [None, None, *[600_000, None] * 20])
    url = database.url.replace(str(database.port), str(proxy.port))
    source = open_source(list_source(url, data, HERE), data, HERE)
    with pytest.raises(TransientError, match=r"lost 5 times, last after 0 rows") as caught:
        list(source.batches(source.parts()[0]))
    proxy.close()
    assert caught.value.retryable


@pytest.mark.covers("F46")
def test_rows_that_changed_before_the_second_try_are_rejected_and_not_mixed(database: Postgres) -> None:
    database.execute("create table mixed as select id, delay from flights")
    data = asked(database, select="SELECT id, delay FROM mixed", tables=["mixed"])
    listing = list_source(database.url, data, HERE)
    proxy = Proxy(database.port, [None, 700_000])
    url = database.url.replace(str(database.port), str(proxy.port))
    source = open_source(list_source(f"{url}#{listing.source.partition('#')[2]}", data, HERE), data, HERE)
    batches = source.batches(source.parts()[0])
    next(batches)
    database.execute("update mixed set delay = -1 where id = 'f000001'")
    with pytest.raises(InputError, match="the database has other rows now"):
        list(batches)
    proxy.close()


def test_nothing_that_answers_is_told_from_a_server_that_fails(tmp_path: Path) -> None:
    with pytest.raises(DependencyError, match="nothing answers there"):
        list_source("postgresql://127.0.0.1:9/flights", asked(), Access(local_addresses=True, retry_s=0.5))


def test_statement_that_takes_too_long_is_stopped(database: Postgres) -> None:
    select = "SELECT a.id FROM flights a, flights b, flights c WHERE a.delay + b.delay + c.delay < 0"
    with pytest.raises(TransientError, match="the statement did not end within 1 s"):
        list_source(database.url, asked(database, select=select, timeout_s=1), HERE)


def test_wrong_password_user_or_database_is_told_without_the_password(
    database: Postgres, tmp_path: Path
) -> None:
    wrong = tmp_path / "password"
    wrong.write_text("planted-and-wrong\n")
    for given, kind in (
        (asked(database, password_file=str(wrong)), PermissionRefused),
        (asked(database, user="nobody_at_all"), PermissionRefused),
        (asked(database, password_file=str(tmp_path / "none")), InputError),
    ):
        with pytest.raises(kind) as caught:
            list_source(database.url, given, HERE)
        assert "planted" not in str(caught.value)
        assert PASSWORD not in str(caught.value)
    with pytest.raises(InputError, match='database "other" does not exist'):
        list_source(database.url.replace("/flights", "/other"), asked(database), HERE)
    with pytest.raises(PermissionRefused, match="permission denied for table secrets"):
        list_source(
            database.url,
            asked(database, user="reader", select="SELECT word AS id FROM secrets", tables=["secrets"]),
            HERE,
        )


def test_password_is_in_nothing_that_is_kept(database: Postgres, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    data = asked(database, select="SELECT id FROM flights WHERE delay < 1")
    listing, _ = take(database.url, data)
    source = open_source(listing, data, HERE)
    for text in (caplog.text, listing.to_json(), repr(source.__dict__), data.to_json()):
        assert PASSWORD not in text
    assert PASSWORD.encode() not in pickle.dumps(source)


@pytest.mark.parametrize(
    ("select", "said"),
    [
        ("SELECT id, ARRAY_AGG(late) AS x FROM flights GROUP BY id", "without ArrayAgg"),
        ("SELECT id, at - local AS x FROM flights", r"'x' is interval"),
        ("SELECT id, '12:00'::time AS x FROM flights", "'x' is time"),
        ("SELECT id, '{1,2}'::int[] AS x FROM flights", "without|'x' is int"),
        (
            "SELECT id, 1e30::numeric / 3 AS x FROM flights",
            r"'x' is decimal128\(38, 18\), which does not take",
        ),
        (
            "SELECT id, 'NaN'::numeric AS x FROM flights",
            r"'x' is decimal128\(38, 18\), which does not take NaN in row 1",
        ),
        ("SELECT id, 'infinity'::timestamp AS x FROM flights", "timestamp too large"),
        ("SELECT id, id FROM flights", r"columns \['id'\] appear twice"),
        ("SELECT late FROM flights", "no column 'id'"),
        ("SELECT id, nothing FROM flights", 'column "nothing" does not exist'),
        ("SELECT id, 1 / (late - late) AS x FROM flights", "division by zero"),
    ],
)
def test_what_is_not_taken_is_named(database: Postgres, select: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        list_source(database.url, asked(database, select=select), HERE)


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        ("postgresql://me:planted@db/flights", InputError, "carries a user or a password"),
        ("postgresql://me@db/flights", InputError, "carries a user or a password"),
        ("postgresql://db/flights?password=planted", InputError, "carries a user or a password"),
        (
            "postgresql://db/flights?options=-csearch_path=x",
            InputError,
            r"options \['options'\] .* not taken",
        ),
        ("postgresql://db/", InputError, "names no host and database"),
        ("postgresql://db:port/flights", InputError, "is no URL"),
        ("mysql://db/flights", InputError, "known are postgresql:// and sqlite://"),
        ("flights", InputError, "is no database"),
        ("postgresql://127.0.0.1/flights", PermissionRefused, "this machine"),
        ("postgresql://localhost/flights", PermissionRefused, "this machine"),
        ("postgresql://169.254.169.254/flights", PermissionRefused, "metadata"),
        ("postgresql://[::ffff:169.254.169.254]/flights", PermissionRefused, "metadata"),
        ("postgresql://metadata.google.internal/flights", PermissionRefused, "metadata"),
        ("sqlite:///etc/passwd.db", PermissionRefused, "belongs to the machine"),
        ("sqlite:////no/such.db", InputError, "no such SQLite file"),
        ("sqlite://", InputError, "names no SQLite file"),
    ],
)
def test_url_is_taken_or_refused_before_anything_is_sent(
    url: str, error: type[TrainwrightError], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        list_source(url.replace("///etc", "////etc"), asked(), Access(retry_s=1))
    assert "planted" not in str(caught.value)


def test_only_hosts_on_the_list_are_reached_if_there_is_one(database: Postgres) -> None:
    data = asked(database, select="SELECT id FROM flights WHERE delay < 1")
    with pytest.raises(PermissionRefused, match="allowed: other"):
        list_source(database.url, data, Access(("other",), local_addresses=True))
    assert list_source(database.url, data, Access(("127.0.0.1",))).files


def test_pin_of_another_kind_is_rejected(database: Postgres) -> None:
    with pytest.raises(InputError, match="pinned by version, and not by sha256"):
        list_source(f"{database.url}#version=5", asked(database), HERE)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a b.db"
    with sqlite3.connect(path) as connection:
        connection.execute(
            "create table flights (id integer primary key, at text, late int, delay real, word text, raw)"
        )
        connection.executemany(
            "insert into flights values (?, ?, ?, ?, ?, ?)",
            [(n, f"2013-01-01 {n % 24:02d}:00:00", None, n / 2, f"w{n}", b"x") for n in range(20_001, 0, -1)],
        )
    connection.close()
    return path


def test_sqlite_is_read_too_and_says_its_types_by_its_values(file: Path) -> None:
    data = asked(types={"late": "int64"})
    _, table = take(f"sqlite:///{file}".replace(" ", "%20"), data)
    assert [str(kind) for kind in table.schema.types] == [
        "int64", "timestamp[us]", "int64", "double", "string", "binary",
    ]  # fmt: skip
    assert table["id"].to_pylist() == list(range(1, 20_002))
    assert table["at"][4].as_py() == dt.datetime(2013, 1, 1, 5)
    _, some = take(
        f"sqlite:///{file}",
        asked(
            select="SELECT id, word FROM flights WHERE word = :w AND id < :n", parameters={"w": "w5", "n": 9}
        ),
    )
    assert some.to_pylist() == [{"id": 5, "word": "w5"}]


def test_bound_value_that_a_database_reads_as_the_present_is_rejected(file: Path) -> None:
    data = asked(select="SELECT id FROM flights WHERE at < :until", parameters={"until": "yesterday"})
    with pytest.raises(InputError, match=r"values \['until'\] are another time at every call"):
        take(f"sqlite:///{file}", data)


def test_sqlite_columns_of_two_kinds_and_endless_statements_are_rejected(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("update flights set word = 5 where id = 7")
        connection.execute("update flights set raw = 5 where id = 7")
    connection.close()
    with pytest.raises(InputError, match="column 'raw' holds values of"):
        list_source(f"sqlite:///{file}", asked(), HERE)
    endless = "SELECT a.id FROM flights a, flights b, flights c WHERE a.delay + b.delay + c.delay < 0"
    with pytest.raises(TransientError, match="did not end within 1 s"):
        list_source(f"sqlite:///{file}", asked(select=endless, timeout_s=1), HERE)

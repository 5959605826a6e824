"""A corpus of injections and of honest statements; the refused ones are refused without any database."""

import contextlib

import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.errors import InputError, PermissionRefused, TrainwrightError
from trainwright.sources.sql_statement import POSTGRES, SQLITE, Dialect, checked


def check(
    text: str, *parameters: str, dialect: Dialect = POSTGRES, tables: tuple[str, ...] = ("flights",)
) -> str:
    return checked(text, tables, parameters, dialect, "data.sql.select")


SEVERAL = [
    "SELECT 1 FROM flights; DROP TABLE flights",
    "SELECT 1 FROM flights; SELECT 2",
    "SELECT 1 FROM flights;;DELETE FROM flights",
    "SELECT 1 FROM flights\n;\n-- \nUPDATE flights SET late = 1",
    "",
    ";",
    "-- nothing",
]
OTHERS = [
    "INSERT INTO flights VALUES (1)",
    "UPDATE flights SET late = 1",
    "DELETE FROM flights RETURNING *",
    "MERGE INTO flights USING flights b ON TRUE WHEN MATCHED THEN DELETE",
    "TRUNCATE flights",
    "DROP TABLE flights",
    "CREATE TABLE x AS SELECT * FROM flights",
    "ALTER TABLE flights ADD x int",
    "GRANT ALL ON flights TO public",
    "COPY flights TO '/tmp/x'",
    "COPY (SELECT * FROM flights) TO PROGRAM 'sh'",
    "EXPLAIN ANALYZE SELECT * FROM flights",
    "SET ROLE postgres",
    "RESET ALL",
    "BEGIN",
    "COMMIT",
    "LOCK TABLE flights",
    "VACUUM flights",
    "CALL f()",
    "DO $$ BEGIN DELETE FROM flights; END $$",
    "PREPARE x AS SELECT 1",
    "EXECUTE x",
    "DECLARE c CURSOR FOR SELECT 1",
    "LISTEN x",
    "NOTIFY x",
    "VALUES (1)",
    "LOAD 'x'",
    "REFRESH MATERIALIZED VIEW x",
    "PRAGMA writable_schema = 1",
    "ATTACH DATABASE '/tmp/x' AS y",
]
WITHIN = [
    "WITH x AS (DELETE FROM flights RETURNING *) SELECT * FROM x",
    "WITH x AS (INSERT INTO flights VALUES (1) RETURNING *) SELECT * FROM x",
    "WITH x AS (UPDATE flights SET late = 1 RETURNING *) SELECT * FROM x",
    "SELECT * INTO stolen FROM flights",
    "SELECT * FROM flights FOR UPDATE",
    "SELECT * FROM flights FOR SHARE NOWAIT",
    "SELECT * FROM (SELECT * FROM flights FOR UPDATE) x",
    "SELECT 1 OPERATOR(pg_catalog.+) 2 FROM flights",
    "SELECT (x).y FROM flights",
    "SELECT E'a\\\\' FROM flights",
    "SELECT U&'\\0061' FROM flights",
    "SELECT $tag$ x $tag$ FROM flights",
    "SELECT * FROM XMLTABLE('/a' PASSING x COLUMNS y TEXT)",
    "SELECT * FROM JSON_TABLE(x, '$' COLUMNS (a INT PATH '$'))",
    "SELECT $1 FROM flights",
]
CALLED = [
    "pg_read_file('/etc/passwd')",
    "pg_read_binary_file('/etc/passwd')",
    "pg_ls_dir('/')",
    "pg_stat_file('/etc/passwd')",
    "pg_sleep(1000)",
    "pg_catalog.pg_sleep(1000)",
    '"pg_sleep"(1000)',
    "PG_SLEEP/**/(1000)",
    "lo_import('/etc/passwd')",
    "lo_export(1, '/tmp/x')",
    "lo_get(1)",
    "dblink('host=evil', 'select 1')",
    "dblink_exec('host=evil', 'drop table x')",
    "set_config('role', 'postgres', false)",
    "current_setting('data_directory')",
    "nextval('s')",
    "setval('s', 1)",
    "pg_advisory_lock(1)",
    "pg_terminate_backend(1)",
    "pg_reload_conf()",
    "query_to_xml('select * from secrets', true, true, '')",
    "table_to_xml('secrets', true, true, '')",
    "database_to_xml(true, true, '')",
    "ts_stat('select word from secrets')",
    "pg_notify('x', 'y')",
    "txid_current()",
    "version()",
    "inet_server_addr()",
    "my_own_function(1)",
    "load_extension('/tmp/x.so')",
    "readfile('/etc/passwd')",
    "writefile('/tmp/x', 'y')",
    "repeat_dangerously('x')",
]
ANEW = ["now()", "CURRENT_TIMESTAMP", "current_date", "random()", "gen_random_uuid()", "LOCALTIMESTAMP"]
ELSEWHERE = [
    "SELECT * FROM secrets",
    "SELECT * FROM flights JOIN secrets ON TRUE",
    "SELECT * FROM flights, secrets",
    "SELECT * FROM flights UNION ALL SELECT * FROM secrets",
    "SELECT (SELECT max(word) FROM secrets) FROM flights",
    "SELECT * FROM flights WHERE EXISTS (SELECT 1 FROM secrets)",
    "SELECT * FROM flights WHERE id IN (TABLE secrets)",
    "SELECT * FROM flights f, LATERAL (SELECT * FROM secrets) s",
    "SELECT * FROM public.flights",
    "SELECT * FROM other.flights",
    'SELECT * FROM "Flights"',
    'SELECT * FROM "secrets"',
    "SELECT * FROM pg_shadow",
    "SELECT * FROM pg_catalog.pg_authid",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM sqlite_master",
    "WITH secrets AS (SELECT * FROM secrets) SELECT * FROM secrets",
    "WITH a AS (SELECT * FROM b), b AS (SELECT * FROM flights) SELECT * FROM a",
    "SELECT * FROM (WITH secrets AS (SELECT 1) SELECT * FROM secrets) x, secrets",
    "WITH x AS (WITH secrets AS (SELECT 1 AS n) SELECT * FROM secrets) SELECT * FROM x, secrets",
    "SELECT * FROM flights CROSS JOIN (SELECT * FROM flights, pg_user) x",
    "TABLE secrets",
]
HONEST = [
    "SELECT * FROM flights",
    "SELECT * FROM FLIGHTS",
    "select f.id, f.at::date as day from flights as f where f.delay between :low and :high order by 1",
    "WITH big AS (SELECT * FROM flights), more AS (SELECT * FROM big) SELECT * FROM more",
    "WITH flights AS (SELECT * FROM flights) SELECT * FROM flights",
    "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT * FROM n",
    "SELECT date_trunc('hour', at), count(*) FILTER (WHERE a = 1) FROM flights GROUP BY 1 HAVING sum(x) > 1",
    "SELECT lag(a) OVER (PARTITION BY b ORDER BY at ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) FROM flights",
    "SELECT CASE WHEN delay > 15 THEN 1 ELSE 0 END, coalesce(late, 0), extract(epoch FROM at) FROM flights",
    "SELECT doc ->> 'n', upper(left(id, 2)) || '_x', to_char(at, 'YY'), greatest(a, b) FROM flights LIMIT 9",
    "SELECT * FROM flights WHERE id LIKE '50%' AND word <> 'a;b--c' AND x IS NOT NULL /* a note ; */ -- more",
    "SELECT id FROM flights EXCEPT SELECT id FROM flights WHERE late IN (1, 2)",
    "SELECT id, at + interval '1 day', round(delay::numeric, 2), at AT TIME ZONE 'UTC' FROM flights;",
]


@pytest.mark.covers("B30")
@pytest.mark.parametrize("text", SEVERAL)
def test_anything_but_one_statement_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match=r"statements, but only one SELECT|not understood"):
        check(text)


@pytest.mark.covers("B30")
@pytest.mark.parametrize("text", OTHERS)
@pytest.mark.parametrize("dialect", [POSTGRES, SQLITE])
def test_anything_but_a_select_is_rejected(text: str, dialect: Dialect) -> None:
    with pytest.raises(InputError, match=r"only one SELECT is allowed|not understood|without Values"):
        check(text, dialect=dialect)


@pytest.mark.covers("A5")
@pytest.mark.parametrize("text", WITHIN)
def test_what_writes_locks_or_hides_within_a_select_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match=r"only a plain SELECT|not understood|without a name"):
        check(text)


@pytest.mark.parametrize("call", CALLED)
@pytest.mark.parametrize(
    "form", ["SELECT {} FROM flights", "SELECT * FROM {} AS x", "SELECT * FROM flights WHERE id = ({})::text"]
)
def test_function_that_is_not_known_to_be_harmless_is_rejected_wherever_it_stands(
    call: str, form: str
) -> None:
    with pytest.raises(TrainwrightError) as caught:
        check(form.format(call))
    assert caught.value.code in {10, 50}


@pytest.mark.covers("F46")
@pytest.mark.parametrize("call", ANEW)
def test_what_is_another_at_every_call_is_rejected(call: str) -> None:
    with pytest.raises(InputError, match="is another at every call") as caught:
        check(" ".join(["SELECT * FROM flights WHERE at <", call]))
    assert "data.sql.parameters" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ("SELECT * FROM flights WHERE at < 'now'", POSTGRES),
        ("SELECT * FROM flights WHERE at < ' Yesterday 12:00 UTC'::timestamptz", POSTGRES),
        ("SELECT timestamp 'today' FROM flights", POSTGRES),
        ("SELECT datetime(at, 'NOW') FROM flights", SQLITE),
        ("SELECT date(), id FROM flights", SQLITE),
        ("SELECT time(), id FROM flights", SQLITE),
        ("SELECT datetime(), id FROM flights", SQLITE),
        ("SELECT unixepoch(), id FROM flights", SQLITE),
    ],
)
def test_present_in_disguise_is_rejected_too(text: str, dialect: Dialect) -> None:
    with pytest.raises(InputError, match="is another at every call"):
        check(text, dialect=dialect)


def test_text_that_only_begins_like_the_present_is_a_text() -> None:
    check("SELECT * FROM flights WHERE id IN ('Now playing', 'nowhere', 'news of today', '')")
    check("SELECT date(at) FROM flights", dialect=SQLITE)


@pytest.mark.parametrize("text", ["SELECT '\0' FROM flights", "SELECT '\ud800' FROM flights"])
def test_sign_that_no_driver_takes_is_bad_input(text: str) -> None:
    with pytest.raises(InputError, match="invalid character"):
        check(text)


@pytest.mark.covers("B32")
@pytest.mark.parametrize("text", ELSEWHERE)
def test_table_that_is_not_on_the_list_is_rejected(text: str) -> None:
    with pytest.raises(PermissionRefused, match="which it is not allowed to") as caught:
        check(text)
    assert caught.value.code == 50


@pytest.mark.parametrize("text", HONEST)
def test_honest_select_is_taken_and_stays_the_same(text: str) -> None:
    """Parsed again, what is sent is the same tree as what was written."""
    sent = check(text, "low", "high").replace("%%", "%")
    for name in ("low", "high"):
        sent = sent.replace(f"%({name})s", f":{name}")
    assert sqlglot.parse_one(sent, read="postgres") == sqlglot.parse_one(text, read="postgres")


def test_tables_are_named_as_they_are_allowed() -> None:
    assert check('SELECT * FROM public."Flights"', tables=('public."Flights"',))
    assert check("SELECT * FROM Public.FLIGHTS", tables=("public.flights",))
    assert check('SELECT * FROM "FLIGHTS"', tables=("flights",), dialect=SQLITE)
    with pytest.raises(InputError, match="no name of a table"):
        check("SELECT * FROM flights", tables=("flights; drop",))


def test_values_come_by_name_alone() -> None:
    assert check("SELECT * FROM flights WHERE a = :x AND b = :x AND c = :y", "x", "y").endswith(
        "WHERE a = %(x)s AND b = %(x)s AND c = %(y)s"
    )
    assert check("SELECT '5%' FROM flights WHERE a = :x", "x", dialect=SQLITE).endswith(
        "'5%' FROM flights WHERE a = :x"
    )
    for text in ("SELECT * FROM flights WHERE a = ?", "SELECT * FROM flights WHERE a = %s"):
        with pytest.raises(InputError, match="values are written :name"):
            check(text)
    with pytest.raises(InputError, match=r"values \['day'\] are not bound"):
        check("SELECT * FROM flights WHERE a = :day", "x")
    with pytest.raises(InputError, match="has a meaning here"):
        check("SELECT 'trainwright_value_0_' FROM flights WHERE a = :x", "x")


def test_what_is_written_in_another_way_than_it_was_read_is_rejected() -> None:
    """Of this sqlglot writes that it reads a table named flightsLATERAL."""
    with pytest.raises(TrainwrightError):
        check("SELECT * FROM flights LATERAL A")


def test_bomb_of_brackets_is_rejected_and_ends_nothing() -> None:
    with pytest.raises(InputError):
        check("SELECT " + "(" * 20_000 + "1" + ")" * 20_000 + " FROM flights")
    with pytest.raises(InputError, match="more than 100,000"):
        check("SELECT " + "1 +" * 50_000 + " 1 FROM flights")


WORDS = """SELECT FROM flights secrets WHERE WITH AS UNION x 1 /* */ -- $$ E' DELETE INTO pg_sleep(1) :n
{date} LATERAL ONLY TABLE ( ) ; , . * ' " % : ? $ - + \\"""
PIECES = st.sampled_from([*WORDS.split(), "\n", "FOR UPDATE"])


@pytest.mark.covers("A5")
@settings(max_examples=150, deadline=2000)
@given(pieces=st.lists(PIECES | st.text(max_size=3), max_size=25))
def test_any_text_is_a_select_of_allowed_tables_or_a_typed_error(pieces: list[str]) -> None:
    for start in ([], ["SELECT * FROM flights"]):
        text = " ".join([*start, *pieces])
        with contextlib.suppress(TrainwrightError):
            sent = check(text, "n")
            tree = sqlglot.parse_one(sent, read="postgres")
            assert isinstance(tree, sqlglot.exp.Query)
            assert {table.name.lower() for table in tree.find_all(sqlglot.exp.Table)} <= {"flights", "x", ""}

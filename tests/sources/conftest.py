from collections.abc import Iterator

import pytest

from tests.sources import postgres


@pytest.fixture(scope="session")
def database() -> Iterator[postgres.Postgres]:
    if not postgres.PROGRAMS:
        pytest.skip("no PostgreSQL here: apt-get install -y postgresql")
    with postgres.running() as found:
        found.execute(
            """
            create table flights (
                id text primary key, at timestamptz not null, late int, delay double precision,
                price numeric(8, 2), free numeric, day date, local timestamp, yes boolean, small smallint,
                big bigint, uid uuid, doc jsonb, short varchar(9), raw bytea, single real)
            """,
            """
            insert into flights select
                'f' || lpad(n::text, 6, '0'), timestamptz '2013-01-01Z' + n * interval '1 minute',
                case when n % 10 = 0 then null else (n % 3 = 0)::int end, n / 7.0, n + 0.25, n / 8.0::numeric,
                date '2013-01-01' + n % 100, timestamp '2013-01-01' + n * interval '1 second', n % 2 = 0,
                n % 100,
                n * 1000000007::bigint, ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid,
                jsonb_build_object('n', n), 's' || n % 9, '\\x00ff'::bytea, n / 2.0
            from generate_series(1, 25000) n order by md5(n::text)
            """,
            "create table secrets (word text)",
            "insert into secrets values ('hidden')",
            "create role reader login password '" + postgres.PASSWORD + "'",
            "grant select on flights to reader",
        )
        yield found

"""A store that lost what was written to it is noticed by the next run, and written again."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pyarrow.parquet as pq

from tests.materialize.shop import Shop, at, row
from trainwright.featurestore import open_online
from trainwright.materialize.watermark import WatermarkHistory


def empty(shop: Shop, *products: int) -> None:
    """Remove a shop's rows from its store, or those of some products, behind the back of everyone."""
    import pyarrow as pa

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
    import pyarrow as pa

    from tests.materialize.test_disturbed import many
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
    assert look_up_earlier(online, view, files, window, None).asked == SAMPLED_GROUPS * SAMPLED_KEYS
    assert look_up_earlier(online, view, files, window, at(1) + timedelta(seconds=1)).asked == 0
    assert look_up_earlier(online, view, files, TimeWindow(None, at(40)), None).asked == 0
    online.close()


def test_keys_that_are_to_expire_are_not_missed(make_shop: Callable[..., Shop], redis_port: int) -> None:
    from tests.materialize import shop as shops

    shop = make_shop("redis")
    shop.online = shops.redis(redis_port) | {"key_ttl_seconds": 3600}
    shop.apply().add("a", [row(1, 0, 10)])
    shop.run(date=at(10).isoformat())
    empty(shop, 1)
    assert shop.run(date=at(11).isoformat()).views[0].asked == 0


def test_of_the_watermarks_the_last_are_kept(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    mark = shop.run(date=at(1).isoformat()).views[0].mark
    folder = shop.folder / "state" / shop.project / "stock"
    for number in range(2, 6):
        WatermarkHistory(str(folder), retained=3).add(
            replace(mark, number=number, reached=at(number).isoformat())
        )
    assert sorted(path.name for path in folder.glob("watermark.*")) == [
        f"watermark.{number:08d}.json" for number in (3, 4, 5)
    ]
    last = WatermarkHistory(str(folder)).last()
    assert last is not None
    assert (last.number, last.reached) == (5, at(5).isoformat())

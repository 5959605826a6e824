"""Runs: which window they take, what they write, and inputs that they reject."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from tests.materialize.shop import TIMES, Shop, at, history, row, sqlite
from trainwright.errors import InputError, PermissionRefused, TransientError
from trainwright.materialize.watermark import WatermarkHistory


def test_the_newest_row_of_each_key_before_the_end_is_served(any_shop: Shop) -> None:
    any_shop.add("rows", [row(1, 0, 10), row(1, 5, 15), row(1, 9, 19), row(2, 1, 21)])
    state = any_shop.run(date=at(9).isoformat())
    assert any_shop.read(1, 2, 3) == [(15, "n15"), (21, "n21"), (None, None)]
    mark = state.views[0].mark
    assert (mark.rows, mark.keys, mark.written, mark.checked) == (3, 2, 2, 2)
    assert (mark.start, mark.end) == ("", "2024-03-01T09:00:00Z")


def test_of_two_rows_of_one_time_the_one_created_last_is_served_whatever_their_order(any_shop: Shop) -> None:
    rows = [row(1, 0, 10, known=2), row(1, 0, 11, known=1)]
    any_shop.add("a", rows)
    any_shop.run(date=at(3).isoformat())
    assert any_shop.read(1) == [(10, "n10")]
    any_shop.add("b", [row(1, 0, 12, known=4)])  # a correction: same time, known later
    any_shop.run(date=at(5).isoformat(), overlap_s=3600 * 6)
    assert any_shop.read(1) == [(12, "n12")]


def test_a_row_with_a_known_creation_wins_over_one_without(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    shop.add("a", [row(1, 0, 10) | {"created": None}, row(1, 0, 11)])
    shop.run()
    assert shop.read(1) == [(11, "n11")]


def test_rows_that_stand_twice_count_once(any_shop: Shop) -> None:
    any_shop.add("a", [row(1, 0, 10), row(1, 0, 10)])
    any_shop.add("b", [row(1, 0, 10)])
    mark = any_shop.run().views[0].mark
    assert (mark.rows, mark.keys) == (3, 1)
    assert any_shop.read(1) == [(10, "n10")]


def test_two_rows_of_the_same_times_with_other_values_are_refused(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    shop.add("a", [row(1, 0, 10), row(1, 0, 11), row(2, 0, 20)])
    with pytest.raises(InputError, match=r"ambiguous: 1 rows .* such as product=1, event=2024-03-01"):
        shop.run()
    assert history(shop).last() is None


def test_an_increment_goes_on_where_the_last_run_ended_and_looks_back_for_late_rows(any_shop: Shop) -> None:
    any_shop.add("a", [row(1, 0, 10)])
    any_shop.run(date=at(10).isoformat())
    any_shop.add("b", [row(2, 9.5, 25), row(1, 10, 11)])  # the first came late: half an hour before the end
    mark = any_shop.run(date=at(11).isoformat()).views[0].mark
    assert (mark.start, mark.end) == ("2024-03-01T09:00:00Z", "2024-03-01T11:00:00Z")
    assert any_shop.read(1, 2) == [(11, "n11"), (25, "n25")]


@pytest.mark.covers("F51")
def test_rows_later_than_the_overlap_are_counted_and_a_backfill_brings_them(any_shop: Shop) -> None:
    any_shop.add("a", [row(1, 0, 10)])
    any_shop.run(date=at(10).isoformat())
    known = (datetime.now(UTC) - at(0)) / timedelta(hours=1)
    any_shop.add("b", [row(2, 3, 23, known=known + 1), row(1, 2, 12, known=known + 1)])
    state = any_shop.run(date=at(11).isoformat())
    assert state.views[0].late == 2
    assert any_shop.read(1, 2) == [(10, "n10"), (None, None)]
    assert "**2 rows of stock became known" in (any_shop.folder / "out" / "summary.md").read_text()
    any_shop.run(date=at(11).isoformat(), start=at(1), end=at(5))
    assert any_shop.read(1, 2) == [(12, "n12"), (23, "n23")]


def test_a_backfill_of_old_times_never_replaces_newer_rows(any_shop: Shop) -> None:
    any_shop.add("a", [row(1, 0, 10), row(1, 8, 18), row(2, 1, 21)])
    any_shop.run(date=at(10).isoformat())
    state = any_shop.run(date=at(10).isoformat(), start=at(0), end=at(5))
    assert any_shop.read(1, 2) == [(18, "n18"), (21, "n21")]
    view = state.views[0]
    # Feast's writers replace a newer row by an older one: their window is extended to the last written time.
    expected = (2, 1, 1) if any_shop.online["type"] == "redis" else (2, 2, 0)
    assert (view.mark.keys, view.mark.written, view.newer) == expected
    assert state.views[0].mark.reached == at(10).isoformat()


def test_rows_of_one_second_are_told_apart_though_a_store_keeps_whole_seconds(any_shop: Shop) -> None:
    early = row(1, 0, 10) | {"event": at(0) + timedelta(milliseconds=200)}
    late = row(1, 0, 11) | {"event": at(0) + timedelta(milliseconds=900)}
    any_shop.add("a", [early, late])
    any_shop.run(date=at(1).isoformat())
    any_shop.run(date=at(1).isoformat(), start=at(-1), end=at(0) + timedelta(milliseconds=500))
    assert any_shop.read(1) == [(11, "n11")]


def test_a_changed_definition_or_store_makes_all_rows_due_again(make_shop: Callable[..., Shop]) -> None:
    """Else a new feature would only be there for keys that happen to have new rows."""
    shop = make_shop(types={"stock": "Int64"}).apply()
    shop.add("a", [row(1, 0, 10)])
    shop.run(date=at(5).isoformat())
    shop.types = {"stock": "Int64", "note": "String"}
    shop.apply()
    shop.run(date=at(6).isoformat())
    assert shop.read(1) == [(10, "n10")]
    shop.online = {"type": "sqlite", "path": str(shop.folder / "other.db")}
    shop.apply()
    shop.run(date=at(7).isoformat())
    assert shop.read(1) == [(10, "n10")]


def test_nothing_of_the_registry_is_written_by_a_run(make_shop: Callable[..., Shop]) -> None:
    """Feast keeps its watermark and a state there, which a kill leaves wrong and a second writer loses."""
    shop = make_shop().apply()
    shop.add("a", [row(1, 0, 10)])
    before = (shop.repository / "registry.db").read_bytes()
    shop.run()
    assert (shop.repository / "registry.db").read_bytes() == before


def test_row_groups_outside_the_window_are_not_read(make_shop: Callable[..., Shop]) -> None:
    """Shown by one that cannot be read: its pages are destroyed, its statistics are not."""
    import pyarrow.parquet as pq

    shop = make_shop().apply()
    path = shop.repository / "offline" / "stock" / "a.parquet"
    table = pa.Table.from_pylist([row(1, hours, 10 + hours) for hours in (0, 1, 20, 21)], schema=shop.schema)
    pq.write_table(table, path, row_group_size=2)
    shop.run(date=at(10).isoformat())
    columns = [pq.ParquetFile(path).metadata.row_group(0).column(index) for index in range(5)]
    first, last = columns[0].dictionary_page_offset, columns[-1]
    content = bytearray(path.read_bytes())
    stop = last.dictionary_page_offset + last.total_compressed_size
    content[first:stop] = b"\xff" * (stop - first)
    path.write_bytes(bytes(content))
    assert shop.run(date=at(24).isoformat()).views[0].mark.rows == 2
    assert shop.read(1) == [(31, "n31")]


@pytest.mark.covers("B48")
def test_null_keys_and_times_are_refused_with_their_column_and_count(make_shop: Callable[..., Shop]) -> None:
    for name in ("product", "event"):
        shop = make_shop().apply()
        shop.add("a", [row(1, 0, 10), row(2, 0, 10) | {name: None}])
        with pytest.raises(InputError, match=f"column '{name}' of view 'stock' has 1 nulls"):
            shop.run()


def test_a_missing_column_names_the_close_one(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    table = pa.Table.from_pylist([row(1, 0, 10)], schema=shop.schema)
    shop.add("none", table.rename_columns(["product", "stock", "note", "evemt", "created"]))
    with pytest.raises(InputError, match=r"no column 'event' \(close: evemt\)"):
        shop.run()


@pytest.mark.covers("B45")
def test_an_unknown_view_names_the_known_ones(make_shop: Callable[..., Shop]) -> None:
    with pytest.raises(InputError, match="no feature view 'stocks'; did you mean stock"):
        make_shop().apply().run(views=["stocks"])


@pytest.mark.covers("B47")
def test_a_store_without_the_views_table_says_who_makes_it(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    (shop.folder / "online.db").unlink()
    with pytest.raises(InputError, match="was never applied here") as raised:
        shop.run()
    assert "trainwright features plan" in raised.value.hint
    assert not (shop.folder / "online.db").exists()


def test_a_registry_in_postgresql_serves_as_well(make_shop: Callable[..., Shop], postgres_port: int) -> None:
    path = f"postgresql+psycopg://feast@127.0.0.1:{postgres_port}/postgres?sslmode=disable"
    registry = {"registry_type": "sql", "path": path}
    shop = make_shop("redis", settings={"registry": registry}).apply()
    shop.add("a", [row(1, 0, 10)])
    shop.run()
    assert shop.read(1) == [(10, "n10")]


def test_the_record_names_the_views_and_the_summary_the_windows(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    shop.add("a", [row(1, 0, 10)])
    state = shop.run(date=at(5).isoformat())
    record = json.loads((shop.folder / "out" / "record.json").read_text())
    assert record["headline"] == "1 keys of 1 view up to 2024-03-01T05:00:00Z, 1 checked"
    assert record["outputs"]["view.stock"] == state.views[0].mark.definition
    assert (
        "| stock | the beginning | 2024-03-01T05:00:00Z | 1 | 1 | 1 | 1 |"
        in (shop.folder / "out" / "summary.md").read_text()
    )


def test_a_backfill_that_leaves_a_gap_does_not_move_the_watermark(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    shop.add("a", [row(1, 0, 10), row(2, 5, 25)])
    assert shop.run(start=at(4), end=at(6)).views[0].mark.reached == ""
    mark = shop.run(date=at(10).isoformat()).views[0].mark
    assert (mark.start, mark.keys) == ("", 2)
    assert shop.run(start=at(9), end=at(12)).views[0].mark.reached == at(12).isoformat()


def test_a_ttl_of_zero_does_not_hide_rows_older_than_a_year(make_shop: Callable[..., Shop]) -> None:
    """Feast's first increment starts 52 weeks ago then, without a word; ours at the first row."""
    shop = make_shop(ttl=timedelta(0)).apply()
    shop.add("a", [row(1, -24 * 800, 10)])
    shop.run()
    assert shop.read(1) == [(10, "n10")]


def test_a_ttl_does_not_decide_where_the_first_window_starts(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(ttl=timedelta(hours=1)).apply()
    shop.add("a", [row(1, -24 * 800, 10)])
    assert shop.run().views[0].mark.keys == 1


def test_the_first_window_can_be_told_to_start_later(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    shop.add("a", [row(1, 0, 10), row(2, 5, 25)])
    assert shop.run(since=at(4)).views[0].mark.keys == 1


@pytest.mark.covers("F52")
@pytest.mark.parametrize("where", ["end", "date"])
def test_a_future_end_is_refused_with_both_times_in_utc(where: str, make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    now = at(10)
    asked = {where: (now + timedelta(hours=1)).isoformat()}
    with pytest.raises(InputError, match="T11:00:00Z lies in the future: it is 2024-03-01T10:00:00Z now"):
        shop.run(now=now, **asked)
    assert history(shop).last() is None


def test_an_end_that_only_a_skewed_clock_puts_into_the_future_is_taken_for_now(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop().apply()
    mark = shop.run(now=at(10), date=(at(10) + timedelta(minutes=4)).isoformat()).views[0].mark
    assert mark.end == "2024-03-01T10:00:00Z"


def test_a_run_that_starts_late_goes_up_to_the_time_of_its_schedule(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop().apply()
    left = "{{$.pipeline_job_schedule_time_utc}}"
    for hour, scheduled, end in ((9, at(8).isoformat(), at(8)), (10, left, at(10))):
        mark = shop.run(now=at(hour), scheduled=scheduled).views[0].mark
        assert mark.end == f"{end:%Y-%m-%dT%H:%M:%SZ}"


@pytest.mark.covers("B46")
def test_a_start_at_or_after_the_end_is_refused_with_both(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    with pytest.raises(InputError, match="2024-03-01T05:00:00Z is not before the end 2024-03-01T05:00:00Z"):
        shop.run(start=at(5), date=at(5).isoformat())
    with pytest.raises(ValueError, match=r"start .* is not before end"):
        shop.section(start=at(5), end=at(4))


@pytest.mark.covers("B46")
@pytest.mark.parametrize("text", ["2024-03-01T05:00:00", "yesterday"])
def test_a_date_without_a_zone_or_sense_is_refused(text: str, make_shop: Callable[..., Shop]) -> None:
    wanted = r"no time zone; in UTC it would be 2024|expected a date, found 'yesterday'"
    with pytest.raises(InputError, match=wanted):
        make_shop().run(date=text)
    with pytest.raises(ValueError, match=r"must be a time"):
        make_shop().section(end=text)


def test_a_day_stands_for_its_first_moment_and_the_lag_holds_back_what_may_still_come(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop().apply()
    assert shop.run(date="2024-03-02").views[0].mark.end == "2024-03-02T00:00:00Z"
    assert shop.run(now=at(30), lag_s=600).views[0].mark.end == "2024-03-02T05:50:00Z"


@pytest.mark.covers("F52")
def test_a_pod_whose_clock_is_ahead_cannot_move_the_window_into_the_future(
    make_shop: Callable[..., Shop],
) -> None:
    """The store that keeps the watermarks also says what time it is."""
    shop = make_shop().apply()
    shop.run(now=datetime.now(UTC) + timedelta(days=365))
    reached = history(shop).last().reached_time  # type: ignore[union-attr]
    assert reached <= datetime.now(UTC)  # type: ignore[operator]


def test_a_watermark_from_the_future_does_not_brick_later_runs(make_shop: Callable[..., Shop]) -> None:
    """Feast's does: after one future end, every increment is empty or refused."""
    shop = make_shop().apply()
    shop.add("a", [row(1, 0, 10)])
    shop.run(date=at(1).isoformat())
    shop.run(date=at(20).isoformat())  # at(5) was the true time: this clock was ahead
    shop.add("b", [row(1, 4, 14)])
    mark = shop.run(now=at(6)).views[0].mark
    assert mark.start == "2024-03-01T00:00:00Z"
    assert shop.read(1) == [(14, "n14")]


def test_an_apply_does_not_reset_the_watermark(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    shop.run(date=at(5).isoformat())
    shop.apply()
    assert shop.run(date=at(6).isoformat()).views[0].mark.start == "2024-03-01T04:00:00Z"


ROOT = Path(__file__).resolve().parents[2]


def test_a_repository_without_an_online_store_says_what_to_set(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    settings = shop.repository / "feature_store.yaml"
    settings.write_text(yaml.safe_dump(yaml.safe_load(settings.read_text()) | {"online_store": None}))
    with pytest.raises(InputError, match="this repository has no online store") as caught:
        shop.run(date=at(5).isoformat())
    assert "sqlite, redis or postgres" in caught.value.hint


def test_a_watermark_that_something_else_wrote_is_named(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    place = shop.folder / "state" / shop.project / "stock" / "watermark.00000001.json"
    place.parent.mkdir(parents=True)
    place.write_text("{")
    with pytest.raises(InputError, match="this watermark is not valid") as caught:
        shop.run(date=at(5).isoformat())
    assert caught.value.where == str(place)
    place.unlink()
    assert shop.run(date=at(5).isoformat()).views[0].mark.number == 1


def test_of_two_runs_that_end_with_the_same_number_the_second_is_told(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    mark = shop.run(date=at(5).isoformat()).views[0].mark
    with pytest.raises(TransientError, match="another run of view 'stock' finished meanwhile"):
        WatermarkHistory(str(shop.folder / "state" / shop.project / "stock")).add(mark)


READ_ONLY = """
import sys
from pathlib import Path

from tests.materialize.shop import Shop, at, sqlite
from trainwright.errors import reported

folder = Path(sys.argv[1])
with reported("materialize"):
    Shop(folder, sqlite(folder / "store"), project="p1").run(date=at(5).isoformat())
"""
MOUNTED = """
set -e
mount --bind "$1/store" "$1/store"
mount -o remount,ro,bind "$1/store"
shift
exec "$@"
"""


def test_online_store_on_a_read_only_mount_is_rejected_with_the_option_that_mounts_it(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    Shop(tmp_path, sqlite(tmp_path / "store"), project="p1").apply()
    own = ["unshare", "--mount", "sh", "-c", MOUNTED, "sh", str(tmp_path)]
    if (
        not shutil.which("unshare")
        or subprocess.run([*own, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("nothing can be mounted here: it takes the superuser's rights")
    command = [*own, sys.executable, "-c", READ_ONLY, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == PermissionRefused.code, done.stderr
    assert f"Read-only file system: {tmp_path}/store/online.db" in done.stderr
    assert f"--mount {tmp_path}/store:rw" in done.stderr


def test_a_key_of_floats_is_refused_before_a_row_is_written(
    make_shop: Callable[..., Shop], tmp_path: Path
) -> None:
    schema = pa.schema([("product", pa.float64()), ("stock", pa.int64()), *TIMES])
    shop = make_shop(schema=schema, types={"stock": "Int64"}, keys={"product": "DOUBLE"}).apply()
    shop.add("a", [{"product": 1.5} | {name: row(1, 0, 10)[name] for name in ("stock", "event", "created")}])
    with pytest.raises(InputError, match="key 'product' is DOUBLE"):
        shop.run(date=at(5).isoformat())

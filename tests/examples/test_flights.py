"""The flights' rows and features, recomputed from the CSV files by another method."""

import contextlib
import csv
import json
import multiprocessing
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml

from tests.examples.conftest import FLIGHTS, PACKAGE, Columns
from tests.join.test_repositories import upload
from tests.storage.stores import Bucket
from trainwright import tables
from trainwright.authoring.arguments import load
from trainwright.experiment import Experiment
from trainwright.featurestore import open_service
from trainwright.join.join import make_training_set
from trainwright.storage import take_listing

NEW_YORK = ZoneInfo("America/New_York")
NO_AIRPORT = {"BQN": "America/Puerto_Rico", "PSE": "America/Puerto_Rico", "SJU": "America/Puerto_Rico"}
NO_AIRPORT["STT"] = "America/St_Thomas"


@pytest.fixture(scope="module")
def feature_tables() -> Iterator[ModuleType]:
    sys.path.insert(0, str(FLIGHTS))
    import feature_tables

    yield feature_tables
    sys.path.remove(str(FLIGHTS))


def offline(name: str) -> pa.Table:
    return pq.read_table(FLIGHTS / "feature_repo" / "offline" / f"{name}.parquet")


def scheduled(raw: Columns, place: int) -> datetime:
    """The scheduled departure, from New York's wall clock."""
    year, month, day, clock = (int(raw[name][place]) for name in ("year", "month", "day", "sched_dep_time"))
    return datetime(year, month, day, clock // 100, clock % 100, tzinfo=NEW_YORK).astimezone(UTC)


def number(text: str) -> float | None:
    return None if text == "NA" else float(text)


@pytest.fixture(scope="module")
def departures(raw: Columns) -> list[datetime]:
    return [scheduled(raw, place) for place in range(len(raw["year"]))]


# The rows


def test_every_flight_is_there_once_with_its_own_columns_and_five_more(
    flights: pa.Table, raw: Columns
) -> None:
    assert flights.num_rows == len(raw["year"]) == 336_776
    assert flights.column_names[:19] == list(raw)
    assert flights.column_names[19:] == [
        "flight_id",
        "scheduled_departure",
        "day_of_week",
        "minute_of_day",
        "late",
    ]
    assert len(flights["flight_id"].unique()) == 336_776


def test_a_departure_is_planned_by_the_clock_of_new_york_through_both_changes(
    flights: pa.Table, raw: Columns, departures: list[datetime]
) -> None:
    dates = (
        "{}-{:0>2}-{:0>2}".format(*day) for day in zip(raw["year"], raw["month"], raw["day"], strict=True)
    )
    names = (
        "-".join(parts) for parts in zip(dates, raw["carrier"], raw["flight"], raw["origin"], strict=True)
    )
    expected = dict(zip(names, departures, strict=True))
    found = dict(
        zip(flights["flight_id"].to_pylist(), flights["scheduled_departure"].to_pylist(), strict=True)
    )
    assert found == expected


def test_late_is_an_arrival_over_15_minutes_behind_and_unknown_without_one(
    flights: pa.Table, raw: Columns
) -> None:
    delays = [number(text) for text in raw["arr_delay"]]
    expected = [
        sum(test) for test in ((d is None for d in delays), (d is not None and d > 15 for d in delays))
    ]
    assert [flights["late"].null_count, pc.sum(flights["late"]).as_py()] == expected == [9_430, 77_630]
    border = flights.filter(pc.equal(flights["arr_delay"], 15))
    assert pc.sum(border["late"]).as_py() == 0


def test_the_weekday_and_the_minute_are_those_of_new_york(flights: pa.Table) -> None:
    for row in flights.take(np.arange(0, flights.num_rows, 997)).to_pylist():
        local = row["scheduled_departure"].astimezone(NEW_YORK)
        assert (local.isoweekday(), local.hour * 60 + local.minute) == (
            row["day_of_week"],
            row["minute_of_day"],
        )


# The features


def test_every_flight_had_landed_well_before_it_counts_as_certain(raw: Columns) -> None:
    """Elapsed time by the clocks of both airports: taxiing took less than four hours, so 48 are enough."""
    with (PACKAGE / "airports.csv").open() as stream:
        zones = {row["faa"]: row["tzone"] for row in csv.DictReader(stream)} | NO_AIRPORT
    wanted = (
        "dep_time",
        "dep_delay",
        "arr_time",
        "air_time",
        "dest",
        "year",
        "month",
        "day",
        "sched_dep_time",
    )
    longest = 0.0
    for place, row in enumerate(zip(*(raw[name] for name in wanted), strict=True)):
        if place % 5 or row[3] == "NA":
            continue
        left = scheduled(raw, place) + timedelta(minutes=float(row[1]))
        clock = left.astimezone(ZoneInfo(zones[row[4]]))
        elapsed = (int(row[2]) // 100 * 60 + int(row[2]) % 100 - clock.hour * 60 - clock.minute) % 1440
        assert 0 < elapsed - float(row[3]) < 240
        longest = max(longest, float(row[1]) + elapsed)
    assert longest < 40 * 60


@pytest.mark.parametrize(
    ("carrier", "day"),
    [("UA", "2013-05-01"), ("HA", "2013-01-04"), ("EV", "2013-11-04"), ("OO", "2013-03-01")],
)
def test_a_carriers_punctuality_counts_what_was_certain_in_30_days(
    carrier: str, day: str, raw: Columns, departures: list[datetime]
) -> None:
    midnight = datetime.fromisoformat(day).replace(tzinfo=UTC)
    first, last = midnight - timedelta(days=32), midnight - timedelta(hours=48)
    own = [
        place
        for place, at in enumerate(departures)
        if raw["carrier"][place] == carrier and first <= at < last
    ]
    delays = [delay for place in own if (delay := number(raw["arr_delay"][place])) is not None]
    cancelled = sum(raw["dep_time"][place] == "NA" for place in own)
    table = offline("carrier_punctuality").to_pylist()
    row = next(row for row in table if row["carrier"] == carrier and row["event_timestamp"] == midnight)
    assert row["created_timestamp"] == midnight
    assert row["carrier_flights_30d"] == len(own)
    if not own:
        assert row["carrier_late_share_30d"] is None
        return
    assert row["carrier_late_share_30d"] == pytest.approx(sum(delay > 15 for delay in delays) / len(delays))
    assert row["carrier_arrival_delay_30d"] == pytest.approx(sum(delays) / len(delays))
    assert row["carrier_cancelled_share_30d"] == pytest.approx(cancelled / len(own))


@pytest.mark.parametrize(
    ("origin", "at"), [("EWR", "2013-02-08T23:30"), ("JFK", "2013-07-10T22:00"), ("LGA", "2013-11-03T06:30")]
)
def test_an_airports_traffic_counts_departures_already_made(
    origin: str, at: str, raw: Columns, departures: list[datetime]
) -> None:
    now = datetime.fromisoformat(at).replace(tzinfo=UTC)
    gone, waiting = [], 0
    for place, due in enumerate(departures):
        if raw["origin"][place] != origin or not now - timedelta(days=2) <= due < now:
            continue
        delay = number(raw["dep_delay"][place])
        left = None if delay is None else due + timedelta(minutes=max(delay, 0))
        if left is not None and now - timedelta(hours=2) <= left < now:
            gone.append(delay)
        waiting += due >= now - timedelta(hours=3) and (left is None or left >= now)
    row = next(
        row
        for row in offline("origin_traffic").to_pylist()
        if (row["origin"], row["event_timestamp"]) == (origin, now)
    )
    assert row["origin_departures_2h"] == len(gone)
    assert row["origin_waiting"] == waiting
    if gone:
        assert row["origin_departure_delay_2h"] == pytest.approx(sum(gone) / len(gone))
        assert row["origin_late_share_2h"] == pytest.approx(sum(delay > 15 for delay in gone) / len(gone))
    else:
        assert row["origin_departure_delay_2h"] is None


def test_changing_what_had_not_happened_yet_changes_no_feature_that_existed(
    flights: pa.Table, feature_tables: ModuleType
) -> None:
    now = datetime(2013, 6, 15, 17, 45, tzinfo=UTC)
    due = flights["scheduled_departure"].cast(pa.int64()).to_numpy()
    delay = flights["dep_delay"].to_numpy()
    moment = int(now.timestamp() * 1e6)
    not_left = np.isnan(delay) & (due > moment - 3 * 3_600_000_000) | (
        due + np.nan_to_num(np.maximum(delay, 0)) * 6e7 >= moment
    )
    up = due + np.nan_to_num(delay + flights["air_time"].to_numpy()) * 6e7 >= moment
    random_delay = np.random.default_rng(0).integers(0, 900, delay.size).astype(float)
    later = np.where(not_left, np.maximum(random_delay, (moment - due) / 6e7), delay)
    other = flights
    for name, values, changed in (("dep_delay", later, not_left), ("arr_delay", random_delay, not_left | up)):
        old = flights[name].to_numpy()
        column = pa.array(np.where(changed, values, old), from_pandas=True)
        other = other.set_column(other.column_names.index(name), name, column)
    for name in ("carrier_punctuality", "origin_traffic"):
        before, after = offline(name), getattr(feature_tables, name)(other)
        existed = pc.less_equal(before["created_timestamp"], now)
        assert before.filter(existed).num_rows > 2000
        assert before.filter(existed).equals(after.filter(existed))
        assert not before.equals(after)


def test_an_hours_weather_is_known_when_the_hour_is_over(weather: list[dict[str, str]]) -> None:
    table = offline("weather")
    lag = pc.subtract(table["created_timestamp"].cast(pa.int64()), table["event_timestamp"].cast(pa.int64()))
    assert pc.unique(lag).to_pylist() == [3_600_000_000]
    assert table.num_rows == len(weather) == 26_115
    found = {(row["origin"], row["event_timestamp"]): row for row in table.to_pylist()}
    for entry in np.random.default_rng(1).choice(weather, 200):
        hour = datetime.fromisoformat(entry["time_hour"])
        row = found[entry["origin"], hour]
        assert row["event_timestamp"].astimezone(NEW_YORK).hour == int(entry["hour"])
        assert [row[name] for name in ("temp", "wind_gust", "visib")] == [
            number(entry[name]) for name in ("temp", "wind_gust", "visib")
        ]


def test_the_features_of_some_flights_are_what_was_known_when_they_were_due(
    flights: pa.Table, weather: list[dict[str, str]], tmp_path: Path
) -> None:
    experiment = load(FLIGHTS / "flights.yaml")
    sample = flights.take(np.sort(np.random.default_rng(2).choice(flights.num_rows, 400, replace=False)))
    roles = {"key": experiment.data.key, "time": experiment.data.time, "label": experiment.data.label}
    snapshot = tables.write_snapshot(tmp_path / "rows", {"train": [sample]}, parents={}, roles=roles)
    places = {
        "repository": str(FLIGHTS / "feature_repo"),
        "source": str(FLIGHTS / experiment.features.source),
    }
    features = experiment.features.model_copy(update=places)
    version = take_listing(features.source).content_digest
    made = make_training_set(
        tmp_path / "rows", snapshot.digest, features, version, tmp_path / "set", tmp_path / "s.md"
    )
    joined = tables.read_split(tmp_path / "set", made, "train").to_pylist()
    hours = {(row["origin"], datetime.fromisoformat(row["time_hour"])): row for row in weather}
    for row, flight in zip(joined, sample.to_pylist(), strict=True):
        assert row["flight_id"] == flight["flight_id"]
        over = flight["scheduled_departure"].replace(minute=0) - timedelta(hours=1)
        if entry := hours.get((row["origin"], over)):
            assert row["temp"] == number(entry["temp"])
    assert joined[0].keys().isdisjoint(features.known_after)
    assert made.quality["leaks.weather"] == made.quality["leaks.origin_traffic"] == 0


def test_repository_and_offline_files_uploaded_to_s3_give_the_same_training_set(
    flights: pa.Table, s3: Bucket, tmp_path: Path
) -> None:
    experiment = load(FLIGHTS / "flights.yaml")
    sample = flights.take(np.sort(np.random.default_rng(2).choice(flights.num_rows, 100, replace=False)))
    roles = {"key": experiment.data.key, "time": experiment.data.time, "label": experiment.data.label}
    snapshot = tables.write_snapshot(tmp_path / "rows", {"train": [sample]}, parents={}, roles=roles)
    uri = upload(s3, FLIGHTS / "feature_repo", "flights/feature_repo")
    made = []
    for place in (str(FLIGHTS / "feature_repo"), uri):
        features = experiment.features.model_copy(update={"repository": place, "source": f"{place}/**/*[!c]"})
        version, folder = take_listing(features.source).content_digest, tmp_path / f"set{len(made)}"
        rows = tmp_path / "rows", snapshot.digest
        made.append(make_training_set(*rows, features, version, folder, tmp_path / "s.md"))
    assert made[0].digest == made[1].digest


# The experiment and the preparation


def test_the_experiment_file_is_valid_and_its_spans_begin_at_midnight_in_new_york() -> None:
    experiment = load(FLIGHTS / "flights.yaml")
    assert isinstance(experiment, Experiment)
    for window in experiment.data.splits.values():
        for end in (window.start, window.end):
            local = end.astimezone(NEW_YORK)
            assert (local.day, local.hour, local.minute) == (1, 0, 0)
    assert set(experiment.evaluation.slices) <= set(experiment.features.request)


def test_the_service_has_no_feature_that_is_known_only_afterwards() -> None:
    features = yaml.safe_load((FLIGHTS / "flights.yaml").read_text())["features"]
    service = open_service(str(FLIGHTS / "feature_repo"), features["service"])
    assert len(service.features) == 24
    assert not set(service.features) & {*features["known_after"], "late"}
    assert all(view.created for view in service.views)


def copy_of_the_example(folder: Path) -> Path:
    skip = shutil.ignore_patterns("data", "offline", "__pycache__")
    shutil.copytree(FLIGHTS, folder, ignore=skip)
    (folder / "data").mkdir()
    return folder


def prepare(folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, folder / "prepare.py"], capture_output=True, text=True, check=False
    )


def prepare_in_a_copy(folder: Path) -> str:
    """Run it in a copy of this process, which has loaded Feast, and return what it prints."""
    printed = folder.with_name("printed.txt")

    def work() -> None:
        with printed.open("w") as file, contextlib.redirect_stdout(file):
            runpy.run_path(str(folder / "prepare.py"), run_name="__main__")

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == 0
    return printed.read_text()


def test_preparing_elsewhere_gives_the_same_bytes_and_the_second_time_nothing_to_do(tmp_path: Path) -> None:
    folder = copy_of_the_example(tmp_path / "flights")
    (folder / "data" / ".package").symlink_to(FLIGHTS / "data" / ".package")
    assert prepare_in_a_copy(folder).startswith("flights   336,776 rows, 24 columns\n")
    second = prepare(folder)
    assert (second.returncode, second.stdout) == (0, "flights: already prepared, nothing changed\n")
    stamps = [
        json.loads((where / "data" / "prepared.json").read_text())["outputs"] for where in (folder, FLIGHTS)
    ]
    made: list[dict[str, Any]] = [
        {name: digest for name, digest in stamp.items() if not name.endswith("registry.db")}
        for stamp in stamps
    ]
    assert made[0] == made[1]
    assert len(made[0]) == 5
    digests = [
        open_service(str(where / "feature_repo"), "flight_delay_v1").digest for where in (folder, FLIGHTS)
    ]
    assert digests[0] == digests[1]
    assert not list(folder.rglob("*.pyc"))


def test_without_the_package_preparing_says_how_to_get_it_and_writes_nothing(tmp_path: Path) -> None:
    folder = copy_of_the_example(tmp_path / "flights")
    done = prepare(folder)
    assert done.returncode == 10
    assert "no flights.csv.zip, weather.csv, planes.csv" in done.stderr
    assert "--require-hashes" in done.stderr
    assert not list((folder / "data").iterdir())


def test_the_own_model_takes_the_features_of_the_flights_within_their_limits() -> None:
    flights, own = (
        load(place).features
        for place in (FLIGHTS / "flights.yaml", FLIGHTS.parent / "own_model" / "own_model.yaml")
    )
    assert own.model_copy(update={"repository": flights.repository, "source": flights.source}) == flights

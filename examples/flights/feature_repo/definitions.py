"""What is known about a flight at its scheduled departure, as Feast entities, views and one service.

Paths are relative to this folder. ``prepare.py`` writes the tables and says how each is made.
"""

from datetime import timedelta

from feast import Entity, FeatureService, FeatureView, Field, FileSource, ValueType
from feast.data_format import ParquetFormat
from feast.types import Float64, Int64, String

origin = Entity(name="origin", value_type=ValueType.STRING, description="Airport of departure, IATA code.")
tailnum = Entity(name="tailnum", value_type=ValueType.STRING, description="Tail number of the aircraft.")
carrier = Entity(name="carrier", value_type=ValueType.STRING, description="Airline, two-letter IATA code.")


def _table(name: str, description: str) -> FileSource:
    return FileSource(
        name=f"{name}_table",
        path=f"offline/{name}.parquet",
        file_format=ParquetFormat(),
        timestamp_field="event_timestamp",
        created_timestamp_column="created_timestamp",
        description=description,
    )


weather = FeatureView(
    name="weather",
    description="Hourly weather at the airport; an hour's row is known when the hour is over.",
    entities=[origin],
    ttl=timedelta(hours=4),
    source=_table("weather", "One row an hour and airport."),
    schema=[
        Field(name="temp", dtype=Float64, description="Temperature, degrees Fahrenheit."),
        Field(name="dewp", dtype=Float64, description="Dew point, degrees Fahrenheit."),
        Field(name="humid", dtype=Float64, description="Relative humidity, per cent."),
        Field(name="wind_dir", dtype=Float64, description="Wind direction, degrees; null when it varies."),
        Field(name="wind_speed", dtype=Float64, description="Wind speed, miles per hour."),
        Field(name="wind_gust", dtype=Float64, description="Gust speed, miles per hour; null without gusts."),
        Field(name="precip", dtype=Float64, description="Precipitation of the hour, inches."),
        Field(name="pressure", dtype=Float64, description="Sea-level pressure, millibars."),
        Field(name="visib", dtype=Float64, description="Visibility, miles, at most 10."),
    ],
    online=True,
)

planes = FeatureView(
    name="planes",
    description="The aircraft, from the registration of its tail number; it never changes.",
    entities=[tailnum],
    ttl=timedelta(0),
    source=_table("planes", "One row an aircraft."),
    schema=[
        Field(name="year_built", dtype=Int64, description="Year of manufacture."),
        Field(name="aircraft_type", dtype=String, description="Fixed wing or rotorcraft, number of engines."),
        Field(name="manufacturer", dtype=String),
        Field(name="model", dtype=String),
        Field(name="engine", dtype=String, description="Kind of engine."),
        Field(name="engines", dtype=Int64, description="Number of engines."),
        Field(name="seats", dtype=Int64, description="Number of seats."),
    ],
    online=True,
)

carrier_punctuality = FeatureView(
    name="carrier_punctuality",
    description="The carrier's past 30 days, from flights that had landed for certain; made at 00:00 UTC.",
    entities=[carrier],
    ttl=timedelta(days=1),
    source=_table("carrier_punctuality", "One row a day and carrier."),
    schema=[
        Field(name="carrier_flights_30d", dtype=Int64, description="Scheduled flights."),
        Field(name="carrier_late_share_30d", dtype=Float64, description="Late arrivals of all arrivals."),
        Field(name="carrier_arrival_delay_30d", dtype=Float64, description="Mean arrival delay, minutes."),
        Field(
            name="carrier_cancelled_share_30d", dtype=Float64, description="Never departed, of all scheduled."
        ),
    ],
    online=True,
)

origin_traffic = FeatureView(
    name="origin_traffic",
    description="How the airport is running right now; made every 30 minutes from departures already made.",
    entities=[origin],
    ttl=timedelta(hours=1),
    source=_table("origin_traffic", "One row a half hour and airport."),
    schema=[
        Field(name="origin_departures_2h", dtype=Int64, description="Departures of the past two hours."),
        Field(name="origin_departure_delay_2h", dtype=Float64, description="Their mean delay, minutes."),
        Field(name="origin_late_share_2h", dtype=Float64, description="Share over 15 minutes late."),
        Field(name="origin_waiting", dtype=Int64, description="Due in the past 3 hours and not gone."),
    ],
    online=True,
)

flight_delay_v1 = FeatureService(
    name="flight_delay_v1",
    description="Everything the model of examples/flights reads besides the row itself.",
    features=[weather, planes, carrier_punctuality, origin_traffic],
)

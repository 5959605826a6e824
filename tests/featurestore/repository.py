"""Small, real Feast repositories: written, applied and read like any other."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

UTC_US = pa.timestamp("us", tz="UTC")
START = datetime(2024, 3, 1, tzinfo=UTC)


def at(hours: float) -> datetime:
    """A time, in hours after the first of March 2024."""
    return START + timedelta(hours=hours)


@dataclass
class ViewSpec:
    """A feature view to be made, and its rows: keys, features, ``event`` and ``created``.

    They are written into the repository, unless ``path`` says where they are already.
    """

    name: str
    keys: Mapping[str, pa.DataType]
    features: Mapping[str, pa.DataType]
    rows: list[dict[str, Any]]
    ttl: timedelta = timedelta(0)
    has_created: bool = True
    renamed: Mapping[str, str] = field(default_factory=dict)
    path: str = ""


def write_table(path: Path, view: ViewSpec) -> None:
    times = {"event": UTC_US} | ({"created": UTC_US} if view.has_created else {})
    schema = pa.schema([*view.keys.items(), *view.features.items(), *times.items()])
    rows = [{name: row.get(name) for name in schema.names} for row in view.rows]
    back = {new: old for old, new in view.renamed.items()}
    table = pa.Table.from_pylist(rows, schema=schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.rename_columns([back.get(name, name) for name in schema.names]), path)


def make_repository(folder: Path, views: list[ViewSpec], *, service: str = "shop_v1") -> Path:
    """Write and apply a repository whose one service has all the views. Paths in it are relative."""
    from feast import Entity, FeatureService, FeatureStore, FeatureView, Field, FileSource, ValueType
    from feast.types import from_value_type

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "feature_store.yaml").write_text(
        "project: shop\nprovider: local\nregistry: registry.db\noffline_store:\n  type: duckdb\n"
        "online_store: null\nentity_key_serialization_version: 3\n"
    )
    kinds = {
        pa.string(): ValueType.STRING,
        pa.int64(): ValueType.INT64,
        pa.float64(): ValueType.DOUBLE,
        pa.list_(pa.float64()): ValueType.DOUBLE_LIST,
    }
    keys = {name: kind for view in views for name, kind in view.keys.items()}
    entities = {name: Entity(name=name, value_type=kinds[kind]) for name, kind in keys.items()}
    made = []
    for view in views:
        path = view.path or f"offline/{view.name}.parquet"
        if not view.path:
            write_table(folder / path, view)
        source = FileSource(
            name=f"{view.name}_table",
            path=path,
            timestamp_field="event",
            created_timestamp_column="created" if view.has_created else "",
            field_mapping=dict(view.renamed),
        )
        fields = [
            Field(name=name, dtype=from_value_type(kinds[kind])) for name, kind in view.features.items()
        ]
        made.append(
            FeatureView(
                name=view.name,
                entities=[entities[name] for name in view.keys],
                ttl=view.ttl,
                source=source,
                schema=fields,
                online=False,
            )
        )
    parts = [*entities.values(), *made, FeatureService(name=service, features=made)]
    FeatureStore(repo_path=str(folder)).apply(parts)
    return folder


PRICES = ViewSpec(
    name="prices",
    keys={"product": pa.int64()},
    features={"price": pa.float64(), "currency": pa.string()},
    rows=[
        {"product": 1, "price": 10.0, "currency": "EUR", "event": at(0), "created": at(0)},
        {"product": 1, "price": 11.0, "currency": "EUR", "event": at(24), "created": at(24)},
        {"product": 2, "price": 20.0, "currency": "USD", "event": at(0), "created": at(0)},
    ],
)

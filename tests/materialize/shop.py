"""A small shop whose features are served: repositories with an online store, rows, and one way to run."""

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainwright.experiment import Materialize
from trainwright.featurestore import close_store
from trainwright.materialize.materialize import OnlineState, materialize
from trainwright.materialize.watermark import WatermarkHistory

UTC_US = pa.timestamp("us", tz="UTC")
START = datetime(2024, 3, 1, tzinfo=UTC)
TIMES = [("event", UTC_US), ("created", UTC_US)]
STOCK = pa.schema([("product", pa.int64()), ("stock", pa.int64()), ("note", pa.string()), *TIMES])


def at(hours: float) -> datetime:
    """A time, in hours after the first of March 2024."""
    return START + timedelta(hours=hours)


def row(product: int, hours: float, stock: int | None, *, known: float | None = None) -> dict[str, Any]:
    """One row of the stock, created when it happened unless it became known later."""
    created = at(hours if known is None else known)
    return {"product": product, "stock": stock, "note": f"n{stock}", "event": at(hours), "created": created}


def sqlite(folder: Path) -> dict[str, Any]:
    return {"type": "sqlite", "path": str(folder / "online.db")}


def redis(port: int) -> dict[str, Any]:
    return {"type": "redis", "connection_string": f"127.0.0.1:{port},db=0"}


def postgres(port: int) -> dict[str, Any]:
    place = {"host": "127.0.0.1", "port": port, "database": "postgres", "db_schema": "public"}
    return {"type": "postgres", "user": "feast", "password": "unused", "sslmode": "disable"} | place


@dataclass
class Shop:
    """A repository with one view, ``stock``, and the state of its runs."""

    folder: Path
    online: Mapping[str, Any]
    project: str = "shop"
    ttl: timedelta = timedelta(0)
    schema: pa.Schema = STOCK
    types: Mapping[str, str] = field(default_factory=lambda: {"stock": "Int64", "note": "String"})
    keys: Mapping[str, str] = field(default_factory=lambda: {"product": "INT64"})
    settings: Mapping[str, Any] = field(default_factory=dict)
    created: str = "created"
    path: str = "offline/stock"
    on_spark: bool = False

    @property
    def repository(self) -> Path:
        return self.folder / "repo"

    def apply(self) -> "Shop":
        """Write the settings and apply the definitions."""
        import yaml
        from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType
        from feast import types as feast_types
        from feast.data_format import ParquetFormat

        self.repository.mkdir(parents=True, exist_ok=True)
        settings = {
            "project": self.project,
            "provider": "local",
            "registry": "registry.db",
            "offline_store": {"type": "duckdb"},
            "online_store": dict(self.online),
            "entity_key_serialization_version": 3,
        }
        (self.repository / "feature_store.yaml").write_text(yaml.safe_dump(settings | dict(self.settings)))
        entities = [Entity(name=name, value_type=ValueType[kind]) for name, kind in self.keys.items()]
        times = {"timestamp_field": "event", "created_timestamp_column": self.created}
        if self.on_spark:
            from feast.infra.offline_stores.contrib.spark_offline_store.spark_source import SparkSource

            path = str(self.repository / self.path)
            source = SparkSource(name="stock_table", path=path, file_format="parquet", **times)
        else:
            source = FileSource(name="stock_table", path=self.path, file_format=ParquetFormat(), **times)
        fields = [Field(name=name, dtype=eval(kind, vars(feast_types))) for name, kind in self.types.items()]  # noqa: S307
        view = FeatureView(
            name="stock", entities=entities, ttl=self.ttl, source=source, schema=fields, online=True
        )
        (self.repository / "offline" / "stock").mkdir(parents=True, exist_ok=True)
        if not list((self.repository / "offline" / "stock").iterdir()):
            self.add("none", [])  # Feast looks at the columns
        store = FeatureStore(repo_path=str(self.repository))
        store.apply([*entities, view])
        close_store(store)
        return self

    def add(self, name: str, rows: list[dict[str, Any]] | pa.Table) -> None:
        """Add a file of rows."""
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows, schema=self.schema)
        folder = self.repository / "offline" / "stock"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / f"{name}.parquet")

    def section(self, **changes: Any) -> Materialize:
        places = {
            "repository": str(self.repository),
            "source": str(self.repository / "**" / "*"),
            "state": str(self.folder / "state"),
        }
        return Materialize.model_validate(places | {"lease_s": 600, "wait_s": 60, "retry_s": 0} | changes)

    def run(
        self, *, now: datetime | None = None, date: str = "", scheduled: str = "", **changes: Any
    ) -> OnlineState:
        out = self.folder / "out"
        times = {"now": now, "scheduled": scheduled}
        return materialize(self.section(**changes), "features", date, out, out / "summary.md", **times)

    def read(self, *products: Any) -> list[tuple[Any, ...]]:
        """Return what Feast serves: each product's features."""
        from feast import FeatureStore

        names = list(self.types)
        store = FeatureStore(repo_path=str(self.repository))
        [key] = self.keys
        found = store.get_online_features(
            features=[f"stock:{name}" for name in names], entity_rows=[{key: value} for value in products]
        ).to_dict()
        close_store(store)
        return list(zip(*(found[name] for name in names), strict=True))


def history(shop: Shop) -> WatermarkHistory:
    """Return the watermarks of a shop's view."""
    return WatermarkHistory(str(shop.folder / "state" / shop.project / "stock"))


def forget(folder: Path) -> None:
    """Release all leases, in place of waiting until those of the dead expire."""
    for path in folder.rglob("lease.*.json"):
        if re.fullmatch(r"lease\.\d{8}\.json", path.name):
            path.with_suffix(".done.json").write_text("{}")


def many(count: int, hours: float, stock: int) -> pa.Table:
    rows = pa.Table.from_pylist([row(0, hours, stock)], schema=STOCK)
    table = pa.concat_tables([rows] * count).combine_chunks()
    return table.set_column(0, "product", pa.array(range(count), pa.int64()))


def contents(shop: Shop) -> dict[Any, Any]:
    """Everything that the store holds of a shop, and nothing of how it got there."""
    if shop.online["type"] == "sqlite":
        with sqlite3.connect(shop.online["path"]) as database:
            found = database.execute(f"SELECT * FROM {shop.project}_stock").fetchall()  # noqa: S608
        return {(entry[0], entry[1]): entry[2:] for entry in found}
    if shop.online["type"] == "postgres":
        import psycopg

        port = shop.online["port"]
        with psycopg.connect(host="127.0.0.1", port=port, dbname="postgres", user="feast") as database:
            found = database.execute(f'SELECT * FROM "{shop.project}_stock"').fetchall()  # noqa: S608
        return {(entry[0], entry[1]): entry[2:] for entry in found}
    import redis

    client = redis.Redis(port=int(shop.online["connection_string"].split(":")[1].split(",")[0]))
    keys = list(client.scan_iter(f"*{shop.project}", count=10_000))
    together = client.pipeline(transaction=False)
    for key in keys:
        together.hgetall(key)
    return dict(zip(keys, together.execute(), strict=True))

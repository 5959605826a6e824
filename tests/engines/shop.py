"""What is done with an engine of Feast's, in the environment that has it: ``python -m tests.engines.shop``.

Arguments: ``spark`` or ``ray``, a folder, the port of a Redis server. The last line printed is JSON: what
each part gave, for the tests to judge. One process does it all, because an engine takes long to start.
"""

import json
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import redis

from tests.featurestore.repository import ViewSpec, write_table
from tests.materialize import shop as stores
from tests.materialize.shop import Shop, at, row
from trainwright import tables
from trainwright.errors import TrainwrightError
from trainwright.experiment import Features
from trainwright.join.join import make_training_set
from trainwright.storage import take_listing

SPARK = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
}
RAY = {"num_cpus": 1, "object_store_memory": 100_000_000, "include_dashboard": False}
ENGINES = {
    "spark": {"type": "spark.engine", "spark_conf": SPARK},
    "ray": {"type": "ray.engine", "ray_conf": RAY},
}


def windows(engine: str, folder: Path) -> Any:
    """Increments and a backfill into SQLite, which lets an old row replace a new one when Feast writes."""
    folder.mkdir()
    shop = Shop(
        folder,
        stores.sqlite(folder),
        settings={"batch_engine": ENGINES[engine]},
        path="offline/stock/*.parquet",
    ).apply()
    shop.add("a", [row(1, 0, 10), row(1, 5, 15), row(2, 3, 23)])
    first = shop.run(date=at(5).isoformat())
    read = [shop.read(1, 2)]
    shop.add("b", [row(3, 4.5, 34)])
    second = shop.run(date=at(10).isoformat())
    read.append(shop.read(1, 2, 3))
    shop.run(start=at(0), end=at(4))
    read.append(shop.read(1, 2, 3))
    return {
        "read": read,
        "ways": [first.views[0].way, second.views[0].way],
        "checked": [first.views[0].mark.checked, second.views[0].mark.checked],
    }


def refused(engine: str, folder: Path, port: int) -> Any:
    """A server that answers and takes no writes."""
    folder.mkdir()
    settings = {"batch_engine": ENGINES[engine]}
    shop = Shop(
        folder, stores.redis(port), project=engine, settings=settings, path="offline/stock/*.parquet"
    ).apply()
    shop.add("a", [row(1, 0, 10), row(2, 3, 23)])
    with redis.Redis(port=port) as client:
        client.config_set("min-replicas-to-write", 1)
        try:
            shop.run(date=at(5).isoformat())
        except TrainwrightError as error:
            return {"error": type(error).__name__, "what": error.what}
        finally:
            client.config_set("min-replicas-to-write", 0)
    return {"error": ""}


STOCK = ViewSpec(
    "stock",
    {"place": pa.int64(), "product": pa.int64()},
    {"pieces": pa.int64()},
    [
        {"place": 1, "product": 23, "pieces": 2**53 + 1, "event": at(0), "created": at(0)},
        {"place": 12, "product": 3, "pieces": 2, "event": at(0), "created": at(0)},
        {"place": 1, "product": 23, "pieces": 3, "event": at(1), "created": at(9)},
        {"place": 12, "product": 3, "pieces": 4, "event": at(4), "created": at(4)},
    ],
)
SALES = [(1, 23, 2.0), (12, 3, 2.0), (1, 23, 10.0), (12, 3, 10.0), (7, 7, 2.0), (None, 3, 2.0), (12, 3, 99.0)]
EXPECTED = [2**53 + 1, 2, 3, 4, None, None, None]


def joined(folder: Path) -> Any:
    """A join by Spark, of keys that as one text are the same: 1 and 23, 12 and 3."""
    repository = folder / "repo"
    _apply_on_spark(repository)
    schema = pa.schema(
        [("sale", pa.int64()), ("sold", stores.UTC_US), ("shop", pa.int64()), ("product", pa.int64())]
    )
    rows = [
        {"sale": number, "sold": at(hours), "shop": shop, "product": product}
        for number, (shop, product, hours) in enumerate(SALES)
    ]
    sales = tables.write_snapshot(
        folder / "sales",
        {"train": [pa.Table.from_pylist(rows, schema)]},
        parents={},
        roles={"key": "sale", "time": "sold"},
    )
    section = {"repository": str(repository), "source": f"{repository}/**/*[!c]", "service": "shop_v1"}
    features = Features.parse(json.dumps(section), "features")
    version = take_listing(features.source).content_digest
    made = make_training_set(
        folder / "sales", sales.digest, features, version, folder / "set", folder / "summary.md"
    )
    found = tables.read_split(folder / "set", made, "train")
    return {
        "sales": found["sale"].to_pylist(),
        "pieces": found["pieces"].to_pylist(),
        "quality": dict(made.quality),
        "summary": (folder / "summary.md").read_text(),
    }


def _apply_on_spark(repository: Path) -> None:
    import yaml
    from feast import Entity, FeatureService, FeatureStore, FeatureView, Field, ValueType
    from feast.infra.offline_stores.contrib.spark_offline_store.spark_source import SparkSource
    from feast.types import Int64

    write_table(repository / "offline" / "stock.parquet", STOCK)
    settings = {
        "project": "shop",
        "provider": "local",
        "registry": "registry.db",
        "offline_store": {"type": "spark", "spark_conf": SPARK},
        "online_store": None,
        "entity_key_serialization_version": 3,
    }
    (repository / "feature_store.yaml").write_text(yaml.safe_dump(settings))
    entities = [Entity(name=name, value_type=ValueType.INT64) for name in STOCK.keys]
    source = SparkSource(
        name="stock_table",
        path=str(repository / "offline" / "stock.parquet"),
        file_format="parquet",
        timestamp_field="event",
        created_timestamp_column="created",
    )
    view = FeatureView(
        name="stock",
        entities=entities,
        ttl=timedelta(days=1, hours=6),
        source=source,
        schema=[Field(name="pieces", dtype=Int64)],
        online=False,
    )
    service = FeatureService(name="shop_v1", features=[view.with_join_key_map({"place": "shop"})])
    FeatureStore(repo_path=str(repository)).apply([*entities, view, service])


def main(engine: str, folder: Path, port: int) -> None:
    """Do all of it and print what it gave."""
    warnings.simplefilter("ignore")
    found = {
        "windows": windows(engine, folder / "windows"),
        "refused": refused(engine, folder / "refused", port),
    }
    if engine == "spark":
        found["joined"] = joined(folder / "joined")
    print("\n" + json.dumps(found), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))

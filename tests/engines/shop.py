"""Steps on a cluster of Feast's engines, in the environment that has them: ``python -m tests.engines.shop``.

Arguments: ``spark`` or ``ray``, a folder, the port of a Redis server. The last line printed is JSON: what
each part gave, for the tests to judge. One process does it all, because an engine takes long to start.
"""

import json
import os
import secrets
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import redis
import yaml

from tests.engines.clusters import RAY, RayCluster, SparkCluster, running, tree
from tests.featurestore.repository import ViewSpec, make_repository, write_table
from tests.materialize import shop as stores
from tests.materialize.shop import Shop, at, contents, row
from trainwright import tables
from trainwright.errors import TrainwrightError
from trainwright.experiment import Features
from trainwright.featurestore import spark as product
from trainwright.join.join import make_training_set
from trainwright.retries import OUTAGE_S
from trainwright.storage import take_listing

SHORT_S = 6.0
"""How long Spark may have no executor where it will never have one, of ten minutes."""


def error_of(action: Callable[[], Any]) -> dict[str, Any]:
    """Return the error that a step ends with."""
    try:
        action()
    except TrainwrightError as error:
        return {"code": error.code, "what": error.what}
    return {"code": 0, "what": ""}


def spark_conf(cluster: SparkCluster) -> dict[str, str]:
    return {
        "spark.master": cluster.address,
        "spark.master.rest.port": str(cluster.rest_port),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": str(cluster.folder / "other"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",  # it would join small partitions to one
        "spark.sql.session.timeZone": "UTC",
    }


def busy_executors() -> int:
    """Return how many of Spark's executors have a task; the first one listed is the driver."""
    from pyspark import SparkContext

    context = getattr(SparkContext._active_spark_context, "_jsc", None)
    if context is None:  # none yet, or none any more
        return 0
    executors = context.sc().statusTracker().getExecutorInfos()
    return sum(executor.numRunningTasks() > 0 for executor in list(executors)[1:])


def applied(shop: Shop) -> Shop:
    """Apply a shop without its engine: Ray would end this process with the cluster."""
    settings, shop.settings = shop.settings, {**shop.settings, "batch_engine": "local"}
    shop.apply()
    path = shop.repository / "feature_store.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | dict(settings)))
    shop.settings = settings
    return shop


def windows(
    folder: Path, settings: Mapping[str, Any], around: Callable[[], Callable[[], bool]] | None
) -> Any:
    """Increments and a backfill into SQLite, which lets an old row replace a new one when Feast writes.

    ``around`` arranges that a node is killed during the second.
    """
    folder.mkdir()
    path = "offline/stock/*.parquet"
    on_spark, ttl = "offline_store" in settings, timedelta(hours=1)
    shop = Shop(folder, stores.sqlite(folder), settings=settings, path=path, on_spark=on_spark, ttl=ttl)
    applied(shop)
    shop.add("a", [row(1, 0, 10), row(1, 5, 15), *(row(key, 3, 20 + key) for key in range(2, 9))])
    first = shop.run(date=at(5).isoformat())
    shop.add("b", [row(key, 4.5, 30 + key) for key in range(3, 7)])
    killed = around() if around else bool
    second = shop.run(date=at(10).isoformat())
    lost = killed()
    shop.run(start=at(0), end=at(4))
    return {
        "online": sorted(map(repr, contents(shop).items())),
        "read": shop.read(1, 2, 3),
        "ways": [first.views[0].way, second.views[0].way],
        "marks": [[one.views[0].mark.rows, one.views[0].mark.checked] for one in (first, second)],
        "killed": lost,
    }


def rejected_by_redis(folder: Path, settings: Mapping[str, Any], port: int, project: str) -> Any:
    """A server that answers and takes no writes."""
    folder.mkdir()
    path, on_spark = "offline/stock/*.parquet", "offline_store" in settings
    shop = applied(Shop(folder, stores.redis(port), project, settings=settings, path=path, on_spark=on_spark))
    shop.add("a", [row(1, 0, 10), row(2, 3, 23)])
    with redis.Redis(port=port) as client:
        client.config_set("min-replicas-to-write", 1)
        found = error_of(lambda: shop.run(date=at(5).isoformat()))
        client.config_set("min-replicas-to-write", 0)
    return found


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
    ttl=timedelta(days=1),
)
SALES = [(1, 23, 2.0), (12, 3, 2.0), (1, 23, 10.0), (12, 3, 10.0), (7, 7, 2.0), (None, 3, 2.0), (12, 3, 99.0)]
EXPECTED = [2**53 + 1, 2, 3, 4, None, None, None]


def join(folder: Path, repository: Path, name: str) -> Any:
    """A join of keys that as one text are the same: 1 and 23, 12 and 3."""
    schema = pa.schema(
        [("sale", pa.int64()), ("sold", stores.UTC_US), ("place", pa.int64()), ("product", pa.int64())]
    )
    rows = [
        {"sale": number, "sold": at(hours), "place": place, "product": product}
        for number, (place, product, hours) in enumerate(SALES)
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
        folder / "sales", sales.digest, features, version, folder / name, folder / "summary.md"
    )
    found = tables.read_split(folder / name, made, "train")
    return {
        "version": made.digest,
        "sales": found["sale"].to_pylist(),
        "pieces": found["pieces"].to_pylist(),
        "quality": dict(made.quality),
        "summary": (folder / "summary.md").read_text(),
    }


def repository_on_spark(repository: Path, conf: Mapping[str, str]) -> Path:
    """Write and apply the repository of :func:`join` for Spark."""
    from feast import Entity, FeatureService, FeatureStore, FeatureView, Field, ValueType
    from feast.infra.offline_stores.contrib.spark_offline_store.spark_source import SparkSource
    from feast.types import Int64

    write_table(repository / "offline" / "stock.parquet", STOCK)
    settings = {
        "project": "shop",
        "provider": "local",
        "registry": "registry.db",
        "offline_store": {"type": "spark", "spark_conf": dict(conf)},
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
    fields = [Field(name="pieces", dtype=Int64)]
    view = FeatureView(
        name="stock", entities=entities, ttl=STOCK.ttl, source=source, schema=fields, online=False
    )
    FeatureStore(repo_path=str(repository)).apply(
        [*entities, view, FeatureService(name="shop_v1", features=[view])]
    )
    return repository


def in_settings(repository: Path, before: str, after: str) -> Path:
    path = repository / "feature_store.yaml"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    return repository


def on_spark(folder: Path, port: int) -> dict[str, Any]:
    """Do everything on a standalone cluster of two workers."""
    cluster = SparkCluster(folder)
    os.environ["SPARK_LOCAL_HOSTNAME"] = "pod.invalid"  # as in a pod, whose name no executor can resolve
    with running(cluster):
        return {
            **_without_executors(folder, cluster),
            **_on_workers(folder, cluster, port),
            **_after_the_loss(folder, cluster),
        }


def _without_executors(folder: Path, cluster: SparkCluster) -> dict[str, Any]:
    repository = repository_on_spark(folder / "repo", spark_conf(cluster))
    in_settings(repository, "spark.sql.adaptive", "sparks.sql.adaptive")
    option = error_of(lambda: join(folder, repository, "option"))
    in_settings(repository, "sparks.sql.adaptive", "spark.sql.adaptive")
    cluster.start_master()
    product.EXECUTOR_WAIT_S = SHORT_S
    found = {"option": option, "rejected": error_of(lambda: join(folder, repository, "rejected"))}
    product.EXECUTOR_WAIT_S = OUTAGE_S
    return found


def _on_workers(folder: Path, cluster: SparkCluster, port: int) -> dict[str, Any]:
    def kill_one() -> Callable[[], bool]:
        return cluster.kill_during(lambda: "2" if busy_executors() == 2 else None, cluster.start_worker)

    for name in ("1", "2"):
        cluster.start_worker(name)
    local = make_repository(folder / "local-repo", [STOCK])
    killed = kill_one()
    joined = join(folder, folder / "repo", "set") | {"killed": killed()}
    settings = {
        "offline_store": {"type": "spark", "spark_conf": spark_conf(cluster)},
        "batch_engine": {"type": "spark.engine", "spark_conf": spark_conf(cluster)},
    }
    other = folder / "other" / "feast-0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: feast\nVersion: 0.1\n")
    packages = error_of(lambda: windows(folder / "packages", settings, None))
    (other / "METADATA").unlink()
    other.rmdir()
    return {
        "joined": joined,
        "local_join": join(folder, local, "local"),
        "packages": packages,
        "windows": windows(folder / "windows", settings, kill_one),
        "local_windows": windows(folder / "local-windows", {}, None),
        "stored": rejected_by_redis(folder / "stored", settings, port, "spark"),
    }


def _after_the_loss(folder: Path, cluster: SparkCluster) -> dict[str, Any]:
    repository = folder / "repo"

    def kill_the_rest(_: str) -> None:
        cluster.kill("2", "master")
        product.EXECUTOR_WAIT_S = SHORT_S

    killed = cluster.kill_during(lambda: "1" if busy_executors() else None, kill_the_rest)
    lost = error_of(lambda: join(folder, repository, "lost")) | {"killed": killed()}
    away = error_of(lambda: join(folder, repository, "away"))
    jars = folder / "jars"  # a master that says that it is of another version
    jars.mkdir()
    (jars / "spark-version-info.properties").write_text("version=3.5.1\n")
    cluster.start_master(SPARK_DAEMON_CLASSPATH=str(jars))
    version = error_of(lambda: join(folder, repository, "version"))
    names = ("option", "rejected", "lost", "away", "version")
    written = [str(path) for name in names for path in (folder / name).rglob("*")]
    return {"lost": lost, "away": away, "version": version, "written": written}


def on_ray(folder: Path, port: int) -> dict[str, Any]:
    """Do everything on a cluster of a head and two nodes."""
    say_token(folder)
    os.environ.update(RAY, RAY_AUTH_TOKEN_PATH=str(folder / "token"))
    cluster = RayCluster(folder)
    with running(cluster):
        cluster.start_head()
        for name in ("1", "2"):
            cluster.start_node(name)
        engine = {"type": "ray.engine", "ray_address": cluster.address}

        def kill_one() -> Callable[[], bool]:
            return cluster.kill_during(cluster.writing, cluster.start_node)

        found = {
            "windows": windows(folder / "windows", {"batch_engine": engine}, kill_one),
            "local_windows": windows(folder / "local-windows", {}, None),
            "stored": rejected_by_redis(folder / "stored", {"batch_engine": engine}, port, "ray"),
        }
        return found | _failures_of_ray(folder, cluster, engine)


def _failures_of_ray(folder: Path, cluster: RayCluster, engine: dict[str, Any]) -> dict[str, Any]:
    shop = Shop(
        folder, stores.sqlite(folder), settings={"batch_engine": engine}, path="offline/stock/*.parquet"
    )
    applied(shop).add("a", [row(1, 0, 10)])

    def run() -> dict[str, Any]:
        return error_of(lambda: shop.run(date=at(5).isoformat()))

    engine["ray_conf"] = {"nonsense": 1}
    applied(shop)
    option = run()
    del engine["ray_conf"]
    applied(shop)
    token = say_token(folder)
    rejected = run()
    (folder / "token").write_text(token)
    before = _say_version(cluster.address, '{"ray_version": "2.0.0", "python_version": "3.11.0"}')
    version = run()
    _say_version(cluster.address, before)
    left = _left_by_a_killed_step(cluster.address)
    killed = cluster.kill_during(cluster.writing, lambda _: cluster.kill("head"))
    return {
        "option": option,
        "rejected": rejected,
        "version": version,
        "left": left,
        "lost": run() | {"killed": killed()},
        "away": run(),
        "written": [str(path) for path in (folder / "state").rglob("watermark*")],
    }


IN_CLUSTER = """
import sys, time
from trainwright.materialize.writers import _ray_node
with _ray_node(sys.argv[1]):
    print("in", flush=True)
    time.sleep(600)
"""


def _left_by_a_killed_step(address: str) -> list[str]:
    """Kill a process that has joined a cluster; return what runs of its node 30 s later."""
    command = [sys.executable, "-c", IN_CLUSTER, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as step:
        assert step.stdout is not None
        assert step.stdout.readline() == "in\n"
        made = set(tree(step.pid))
        step.kill()
        step.wait()
    until = time.monotonic() + 30
    while made & set(tree(1)) and time.monotonic() < until:
        time.sleep(0.5)
    return [name for number, name in tree(1).items() if number in made]


def say_token(folder: Path) -> str:
    """Write a new token, which only a node that starts reads; return the one before."""
    path = folder / "token"
    before = path.read_text() if path.exists() else ""
    path.write_text(secrets.token_hex(32))
    return before


SAY_VERSION = """
import sys
from ray._raylet import GcsClient
client, place = GcsClient(address=sys.argv[1]), (b"CLUSTER_METADATA", b"cluster")
print(client.internal_kv_get(*place).decode())
client.internal_kv_put(place[0], sys.argv[2].encode(), True, place[1])
"""


def _say_version(address: str, metadata: str) -> str:
    """Let a Ray cluster report other versions; return what it reported. A client ends with its cluster."""
    command = [sys.executable, "-c", SAY_VERSION, address, metadata]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def main(engine: str, folder: Path, port: int) -> None:
    """Do all of it and print what it gave."""
    warnings.simplefilter("ignore")
    found = (on_spark if engine == "spark" else on_ray)(folder, port)
    print("\n" + json.dumps(found), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))

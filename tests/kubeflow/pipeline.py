"""A pipeline small enough for any cluster: it makes rows and features, ingests the rows, and summarizes."""

from pathlib import Path
from typing import Any

from kfp import compiler, dsl

from trainwright.authoring import catalog, images, tasks

DATA = {
    "source": "elsewhere",
    "format": "csv",
    "key": "id",
    "time": "at",
    "label": "late",
    "splits": {"train": {"fraction": 0.7}, "evaluate": {"fraction": 0.3}},
    "split_by": "id",
    "min_rows": 10,
}
SCHEMA = """
feature { name: "id" type: INT presence { min_fraction: 1 min_count: 1 } }
feature { name: "at" type: INT presence { min_fraction: 1 min_count: 1 } }
feature { name: "shop" type: BYTES domain: "shop" presence { min_fraction: 1 min_count: 1 } }
feature { name: "queue" type: FLOAT presence { min_fraction: 1 min_count: 1 }
  float_domain { min: 0 max: 1 } }
feature { name: "late" type: INT presence { min_fraction: 1 min_count: 1 }
  int_domain { min: 0 max: 1 is_categorical: true } }
string_domain { name: "shop" value: "east" value: "north" value: "south" value: "west" }
"""
CORES, MEMORY = "400m", "600M"
ROWS = 2000


def sample(rows: dsl.Output[dsl.Dataset], count: int, wait_s: int, schema: str) -> str:
    """Write rows, their schema, and a Feast repository with one feature of them, below the artifact's folder.

    Args:
        rows: The folder. Rows of one count are always the same.
        count: Number of rows.
        wait_s: Seconds to wait first: time for somebody to delete the pod.
        schema: Text of the schema.

    Returns:
        URI of the folder.
    """
    import datetime
    import random
    import time
    from pathlib import Path

    import pyarrow as pa
    import pyarrow.parquet as pq

    time.sleep(wait_s)
    offline = Path(rows.path) / "feature_repo" / "offline"
    offline.mkdir(parents=True)
    draw, start = random.Random(0), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)  # noqa: S311
    shops, day = ("east", "north", "south", "west"), datetime.timedelta(days=1)
    days = range(-1, count * 15 // 1440 + 1)
    load = {(number, shop): draw.random() for number in days for shop in shops}
    lines = ["id,at,shop,queue,late"]
    for number in range(count):
        at, shop = start + number * datetime.timedelta(minutes=15), draw.choice(shops)
        queue = draw.random() * (0.4 + 0.6 * number / count)  # it grows with time: two spans are not alike
        late = queue + load[(at - start) // day, shop] + draw.gauss(0, 0.2) > 0.9
        lines.append(f"{number},{at:%Y-%m-%dT%H:%M:%SZ},{shop},{queue:.6f},{int(late)}")
    (Path(rows.path) / "schema.pbtxt").write_text(schema)
    (Path(rows.path) / "rows.csv").write_text("\n".join([*lines, ""]))
    made = pa.array([start + number * day for number, _ in load], pa.timestamp("us", "UTC"))
    table = {"shop": [shop for _, shop in load], "load": list(load.values())}
    pq.write_table(
        pa.table(table | {"event_timestamp": made, "created_timestamp": made}), offline / "load.parquet"
    )
    (offline.parent / "feature_store.yaml").write_text(
        "project: acceptance\nprovider: local\nregistry: registry.db\noffline_store: {type: duckdb}\n"
        "online_store: {type: sqlite, path: online.db}\nentity_key_serialization_version: 3\n"
    )
    (offline.parent / "definitions.py").write_text(
        "from datetime import timedelta\n"
        "from feast import Entity, FeatureService, FeatureView, Field, FileSource, ValueType\n"
        "from feast.types import Float64\n"
        'shop = Entity(name="shop", value_type=ValueType.STRING)\n'
        'source = FileSource(name="load", path="offline/load.parquet", timestamp_field="event_timestamp",\n'
        '                    created_timestamp_column="created_timestamp")\n'
        'load = FeatureView(name="shop_load", entities=[shop], ttl=timedelta(days=2), source=source,\n'
        '                   schema=[Field(name="load", dtype=Float64)], online=True)\n'
        'service = FeatureService(name="acceptance", features=[load])\n'
    )
    return rows.uri


def describes(snapshot: dsl.Input[dsl.Dataset]) -> None:
    """Check that the metadata that Kubeflow keeps of a snapshot is that of its manifest."""
    from pathlib import Path

    from trainwright.artifacts import Snapshot
    from trainwright.errors import InputError, reported

    with reported("describes"):
        expected, found = Snapshot.read(Path(snapshot.path)), snapshot.metadata
        if (expected.digest, expected.rows) != (found.get("version"), found.get("rows")):
            raise InputError(
                f"expected version {expected.digest} and {expected.rows} rows in the metadata, found {found}",
                where=snapshot.uri,
            )


def delete_model(tracking_uri: str, model: str) -> None:
    """Delete a registered model, its versions and their runs from MLflow: only pods may reach it.

    Args:
        tracking_uri: Address of MLflow.
        model: Name of the model; there may be none.
    """
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri, tracking_uri)
    for version in client.search_model_versions(f"name = '{model}'"):
        client.delete_run(version.run_id)
    for found in client.search_registered_models(f"name = '{model}'"):
        client.delete_registered_model(found.name)


def write(folder: Path, name: str, registry: str) -> Path:
    """Compile the pipeline under a name of its own, so that nothing of another one is in its cache.

    Args:
        folder: Where the YAML goes.
        name: Name of the pipeline.
        registry: Put in front of every image; empty for none.
    """
    image = f"{registry.rstrip('/')}/{images.INGEST}" if registry else images.INGEST
    resolve, ingest, summarize = (
        catalog.load(verb, registry=registry) for verb in ("resolve", "ingest", "summarize")
    )
    make, look = (
        dsl.component(base_image=image, install_kfp_package=False)(function)
        for function in (sample, describes)
    )

    @dsl.pipeline(name=name, display_name="Acceptance", description="Checks an installation; safe to delete.")
    def acceptance(
        missing: str = "", count: int = ROWS, wait_s: int = 0, data: dict[str, Any] = DATA
    ) -> None:
        finish = tasks.configure(summarize(), cpu=CORES, memory=MEMORY, cached=False)
        with dsl.ExitHandler(finish, name="acceptance"):
            made = tasks.configure(make(count=count, wait_s=wait_s, schema=SCHEMA), cpu=CORES, memory=MEMORY)
            found = resolve(source=f"{made.outputs['Output']}/rows.csv{missing}", data=data)
            tasks.configure(found, cpu=CORES, memory=MEMORY, cached=False)
            taken = ingest(source=found.outputs["source"], source_version=found.outputs["version"], data=data)
            tasks.configure(taken, cpu=CORES, memory=MEMORY)
            tasks.configure(look(snapshot=taken.outputs["snapshot"]), cpu=CORES, memory=MEMORY)

    path = folder / f"{name}.yaml"
    compiler.Compiler().compile(acceptance, str(path))
    return path


def write_cleanup(folder: Path, name: str, registry: str) -> Path:
    """Compile the pipeline that deletes the registered model of this suite.

    Args:
        folder: Where the YAML goes.
        name: Name of the pipeline.
        registry: Put in front of the image; empty for none.
    """
    image = f"{registry.rstrip('/')}/{images.MLFLOW}" if registry else images.MLFLOW
    forget = dsl.component(base_image=image, install_kfp_package=False)(delete_model)

    @dsl.pipeline(name=name, display_name="Acceptance, cleanup")
    def cleanup(tracking_uri: str, model: str) -> None:
        tasks.configure(forget(tracking_uri=tracking_uri, model=model), cpu=CORES, memory="1G", cached=False)

    path = folder / f"{name}.yaml"
    compiler.Compiler().compile(cleanup, str(path))
    return path

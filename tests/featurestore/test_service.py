"""What a service promises: clear errors before any join, and an identity that only its meaning changes."""

import re
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.featurestore.repository import PRICES, ViewSpec, at, make_repository, write_table
from trainwright.errors import DependencyError, InputError
from trainwright.featurestore import open_service
from trainwright.materialize.__main__ import main


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", [PRICES])


def test_a_service_says_what_it_joins_and_from_where(repository: Path) -> None:
    view = open_service(str(repository), "shop_v1").views[0]
    assert (view.name, list(view.features), dict(view.keys)) == (
        "prices",
        ["price", "currency"],
        {"product": "product"},
    )
    assert (view.time, view.created, view.ttl) == ("event", "created", timedelta(0))
    assert view.source == str(repository / "offline" / "prices.parquet")


def test_the_digest_is_the_same_elsewhere_and_after_applying_again(repository: Path, tmp_path: Path) -> None:
    first = open_service(str(repository), "shop_v1").digest
    shutil.copytree(repository, tmp_path / "copy")
    make_repository(tmp_path / "again", [PRICES])
    assert open_service(str(tmp_path / "copy"), "shop_v1").digest == first
    assert open_service(str(tmp_path / "again"), "shop_v1").digest == first


CHANGES = {
    "a value": replace(PRICES, rows=[*PRICES.rows[:2], {**PRICES.rows[2], "price": 20.01}]),
    "a creation time": replace(PRICES, rows=[*PRICES.rows[:2], {**PRICES.rows[2], "created": at(1)}]),
    "the TTL": replace(PRICES, ttl=timedelta(hours=5)),
    "the order of features": replace(PRICES, features=dict(reversed(PRICES.features.items()))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_digest_changes_with(change: str, repository: Path, tmp_path: Path) -> None:
    first = open_service(str(repository), "shop_v1").digest
    other = make_repository(tmp_path / "other", [CHANGES[change]])
    assert open_service(str(other), "shop_v1").digest != first


@pytest.mark.covers("B45")
def test_a_missing_service_is_named_with_its_close_matches(repository: Path) -> None:
    with pytest.raises(InputError, match="no feature service 'shop_v2'; did you mean shop_v1") as raised:
        open_service(str(repository), "shop_v2")
    assert "The registry has: shop_v1." in raised.value.hint


@pytest.mark.covers("B47")
def test_a_repository_that_was_never_applied_says_so_and_its_hint_applies_it(
    repository: Path, tmp_path: Path
) -> None:
    (repository / "registry.db").unlink()
    before = sorted(repository.rglob("*"))
    with pytest.raises(InputError, match="not applied: no registry") as raised:
        open_service(str(repository), "shop_v1")
    assert sorted(repository.rglob("*")) == before
    commands = re.findall(r"`trainwright features ([^`]*)`", raised.value.hint)
    assert [command.split()[0] for command in commands] == ["plan", "apply"]
    plan = tmp_path / "plan.json"
    for command, option in zip(commands, ("--output", "--plan"), strict=True):
        main([*command.split(), option, str(plan)])  # as `trainwright features` passes it on
    assert (repository / "registry.db").is_file()


def test_a_registry_that_is_not_one_is_a_broken_dependency(repository: Path) -> None:
    (repository / "registry.db").write_bytes(b"not a registry at all")
    with pytest.raises(DependencyError, match="Feast cannot read its registry"):
        open_service(str(repository), "shop_v1")


def test_opening_writes_nothing(repository: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in repository.rglob("*")}
    open_service(str(repository), "shop_v1")
    assert {path: path.stat().st_mtime_ns for path in repository.rglob("*")} == before


@pytest.mark.covers("B44")
def test_a_folder_that_is_no_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no Feast repository here"):
        open_service(str(tmp_path), "shop_v1")


def test_a_repository_in_a_bucket_is_refused_where_a_folder_is_needed() -> None:
    with pytest.raises(InputError, match="this works on a folder of this machine"):
        open_service("gs://bucket/repo", "shop_v1")


def test_definitions_without_a_registry_are_applied_to_a_private_one_and_nowhere_else(
    repository: Path,
) -> None:
    settings = (repository / "feature_store.yaml").read_text()
    (repository / "feature_store.yaml").write_text(
        settings.replace("registry.db", "../data/registry.db").replace(
            "online_store: null", "online_store: {type: sqlite, path: ../data/online.db}"
        )
    )
    (repository / "registry.db").unlink()
    (repository / "definitions.py").write_text(
        "from feast import Entity, FeatureService, FeatureView, Field, FileSource, ValueType\n"
        "from feast.types import Float64\n"
        "product = Entity(name='product', value_type=ValueType.INT64)\n"
        "table = FileSource(name='t', path='offline/prices.parquet', timestamp_field='event')\n"
        "schema = [Field(name='price', dtype=Float64)]\n"
        "prices = FeatureView(name='prices', entities=[product], source=table, schema=schema, online=True)\n"
        "shop_v2 = FeatureService(name='shop_v2', features=[prices])\n"
    )
    with pytest.raises(InputError, match="not applied: no registry"):
        open_service(str(repository), "shop_v2")
    before = {path for path in repository.parent.rglob("*") if not path.name.startswith(".trainwright-")}
    assert list(open_service(str(repository), "shop_v2", fetched=True).views[0].features) == ["price"]
    after = {path for path in repository.parent.rglob("*") if not path.name.startswith(".trainwright-")}
    assert after == before, "no online store and no registry was made outside of the repository"


@pytest.mark.parametrize(
    ("definitions", "error"),
    [
        ("import no_such_module\n", "ModuleNotFoundError: .*'no_such_module'"),
        ("from feast import Entity\nEntity(name=7)\n", r'TypeCheckError: argument "name" \(int\) is not'),
    ],
)
def test_definitions_that_cannot_be_read_are_bad_input(
    repository: Path, definitions: str, error: str
) -> None:
    (repository / "registry.db").unlink()
    (repository / "definitions.py").write_text(definitions)
    with pytest.raises(InputError, match=f"cannot be read: {error}"):
        open_service(str(repository), "shop_v1", fetched=True)


def test_settings_that_feast_cannot_read_are_refused(repository: Path) -> None:
    (repository / "feature_store.yaml").write_text("project: shop\nprovider: [")
    with pytest.raises(InputError, match="Feast cannot read its settings"):
        open_service(str(repository), "shop_v1")


def test_the_store_that_drops_rows_without_a_match_is_refused(repository: Path) -> None:
    settings = repository / "feature_store.yaml"
    settings.write_text(settings.read_text().replace("type: duckdb", "type: dask"))
    with pytest.raises(InputError, match="offline store 'dask' is not joined from"):
        open_service(str(repository), "shop_v1")


def test_a_missing_offline_file_is_named(repository: Path) -> None:
    (repository / "offline" / "prices.parquet").unlink()
    with pytest.raises(InputError, match="the offline file of view 'prices' is not there") as raised:
        open_service(str(repository), "shop_v1")
    assert raised.value.where == str(repository / "offline" / "prices.parquet")


def test_an_offline_file_without_a_feature_names_the_close_column(repository: Path) -> None:
    table = ViewSpec("prices", PRICES.keys, {"prize": pa.float64(), "currency": pa.string()}, [])
    write_table(repository / "offline" / "prices.parquet", table)
    with pytest.raises(InputError, match=r"no column 'price' \(close: prize\)"):
        open_service(str(repository), "shop_v1")


def test_an_offline_file_that_is_cut_off_is_named(repository: Path) -> None:
    path = repository / "offline" / "prices.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(
        InputError, match="the offline file of view 'prices' is not Parquet, or broken"
    ) as raised:
        open_service(str(repository), "shop_v1")
    assert raised.value.where == str(path)


def as_folder(repository: Path) -> Path:
    """Turn the offline file of the prices into a folder of the same name with that file in it."""
    path = repository / "offline" / "prices.parquet"
    table = pq.read_table(path)
    path.unlink()
    path.mkdir()
    pq.write_table(table, path / "a.parquet")
    return path


def test_every_offline_file_of_a_view_must_be_like_the_first(repository: Path) -> None:
    folder = as_folder(repository)
    table = pq.read_table(folder / "a.parquet")
    place = table.column_names.index("price")
    pq.write_table(table.set_column(place, "price", table["price"].cast("float")), folder / "b.parquet")
    with pytest.raises(InputError, match="of view 'prices' differ: 'price' is float, was double") as raised:
        open_service(str(repository), "shop_v1")
    assert raised.value.where == str(folder / "b.parquet")
    pq.write_table(table.drop_columns(["price"]), folder / "b.parquet")
    with pytest.raises(InputError, match="no column 'price'"):
        open_service(str(repository), "shop_v1")


def test_what_is_no_table_in_a_folder_of_offline_files_is_not_read(repository: Path) -> None:
    (as_folder(repository) / "README.md").write_text("what this is")
    assert open_service(str(repository), "shop_v1").features


def test_nanoseconds_are_refused_before_duckdb_chokes_on_them(repository: Path) -> None:
    path = repository / "offline" / "prices.parquet"
    table = pq.read_table(path)
    nanoseconds = table["event"].cast(pa.timestamp("ns", tz="UTC"))
    place = table.column_names.index("event")
    pq.write_table(table.set_column(place, "event", nanoseconds), path)
    with pytest.raises(InputError, match=r"column 'event' of view 'prices' is timestamp\[ns, tz=UTC\]"):
        open_service(str(repository), "shop_v1")


def test_a_ttl_that_feast_cannot_add_to_a_time_is_refused(tmp_path: Path) -> None:
    folder = make_repository(tmp_path / "repo", [replace(PRICES, ttl=timedelta(hours=36))])
    with pytest.raises(InputError, match="TTL of 1 day, 12:00:00: Feast's DuckDB store takes whole days"):
        open_service(str(folder), "shop_v1")


def test_a_view_that_is_disabled_is_refused_as_feast_refuses_it(repository: Path) -> None:
    from feast import FeatureStore

    store = FeatureStore(repo_path=str(repository))
    view = store.get_feature_view("prices")
    view.enabled = False
    store.apply([view])
    with pytest.raises(InputError, match="view 'prices' is disabled"):
        open_service(str(repository), "shop_v1")


def test_a_service_that_pins_a_version_of_a_view_gets_it_as_it_was_then(repository: Path) -> None:
    """The version is part of the name under which the training set and the model name the view."""
    from feast import FeatureService, FeatureStore

    new = replace(PRICES, features={"price": pa.float64()})
    write_table(repository / "offline" / "new.parquet", new)
    settings = repository / "feature_store.yaml"
    versions = "{path: registry.db, enable_online_feature_view_versioning: true}"
    settings.write_text(settings.read_text().replace("registry: registry.db", f"registry: {versions}"))
    make_view_read(repository, "offline/new.parquet")
    store = FeatureStore(repo_path=str(repository))
    asked = {"old": "prices@v0", "now": "prices"}
    store.apply([FeatureService(name=name, features=[view]) for name, view in asked.items()])
    [old], [now] = (open_service(str(repository), name).views for name in asked)
    assert (old.name, list(old.features)) == ("prices@v0", ["price", "currency"])
    assert old.source == str(repository / "offline" / "prices.parquet")
    assert (now.name, list(now.features)) == ("prices", ["price"])
    assert now.source == str(repository / "offline" / "new.parquet")


def make_view_read(repository: Path, path: str) -> None:
    """Apply the view again, with another file and the price alone: for Feast that is a new version."""
    from feast import FeatureStore, FeatureView, Field, FileSource
    from feast.types import Float64

    store = FeatureStore(repo_path=str(repository))
    before = store.get_feature_view("prices")
    source = FileSource(
        name="new_table", path=path, timestamp_field="event", created_timestamp_column="created"
    )
    fields = [Field(name="price", dtype=Float64)]
    entities = [store.get_entity("product")]
    store.apply([FeatureView(name="prices", entities=entities, ttl=before.ttl, source=source, schema=fields)])

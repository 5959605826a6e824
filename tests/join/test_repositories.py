"""Feast repositories that are fetched from an object store or a commit."""

import runpy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from feast import FeatureStore

from tests.featurestore.repository import PRICES, at, make_repository
from tests.join.conftest import Joined, features_of, write_sales
from tests.storage.git_server import commit as git_commit
from tests.storage.git_server import serving
from tests.storage.servers import certificate as certificate_in
from tests.storage.stores import Bucket
from trainwright.errors import InputError, PermissionRefused
from trainwright.featurestore import checked_out
from trainwright.join.join import make_training_set
from trainwright.storage import head, take_listing

SALES = {"train": [{"sale": "a", "sold": at(30), "returned": 0, "shop": "x", "product": 1, "pieces": 2}]}
DEFINITIONS = """
from datetime import timedelta
from feast import Entity, FeatureService, FeatureView, Field, FileSource, ValueType
from feast.types import Float64, String

product = Entity(name="product", value_type=ValueType.INT64)
table = FileSource(
    name="prices_table", path={path!r}, timestamp_field="event", created_timestamp_column="created"
)
prices = FeatureView(
    name="prices", entities=[product], ttl=timedelta(0), source=table, online=False,
    schema=[Field(name="price", dtype=Float64), Field(name="currency", dtype=String)],
)
shop_v1 = FeatureService(name="shop_v1", features=[prices])
"""


def upload(bucket: Bucket, folder: Path, prefix: str) -> str:
    """Put every file of a folder below a prefix, as `aws s3 cp --recursive` does; return its URI."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            bucket.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return f"{bucket.uri}/{prefix}"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with definitions, offline files and a registry file inside."""
    folder = make_repository(tmp_path / "repo", [PRICES])
    (folder / "definitions.py").write_text(DEFINITIONS.format(path="offline/prices.parquet"))
    return folder


def test_uploaded_repository_joins_like_its_folder(
    bucket: Bucket, repository: Path, tmp_path: Path, join: Callable[..., Joined]
) -> None:
    local, rows, _, _ = join(repository, SALES)
    shutil.rmtree(tmp_path / "set")
    fetched, again, _, _ = join(upload(bucket, repository, "team/repo"), SALES)
    assert fetched.digest == local.digest
    assert again.equals(rows)
    assert again["price"].to_pylist() == [11.0]


def test_repository_without_its_registry_file_is_joined_from_its_definitions(
    s3: Bucket, repository: Path, join: Callable[..., Joined]
) -> None:
    settings = (repository / "feature_store.yaml").read_text()
    outside = settings.replace("registry.db", "../data/registry.db").replace(
        "online_store: null", "online_store: {type: sqlite, path: ../data/online.db}"
    )
    (repository / "feature_store.yaml").write_text(outside)
    (repository / "registry.db").unlink()
    _, rows, _, _ = join(upload(s3, repository, "repo"), SALES)
    assert rows["price"].to_pylist() == [11.0]


def test_offline_files_at_an_absolute_uri_are_read_where_they_lie(
    s3: Bucket, repository: Path, join: Callable[..., Joined]
) -> None:
    offline = upload(s3, repository / "offline", "features/offline")
    shutil.rmtree(repository / "offline")
    (repository / "registry.db").unlink()
    (repository / "definitions.py").write_text(DEFINITIONS.format(path=f"{offline}/prices.parquet"))
    uri = upload(s3, repository, "features/repo")
    _, rows, _, _ = join(uri, SALES, source=f"{s3.uri}/features/**/*[!c]")
    assert rows["price"].to_pylist() == [11.0]
    with pytest.raises(InputError, match=r"features\.source does not hold s3://.*/features/offline/prices"):
        join(uri, SALES, source=f"{uri}/**/*[!c]")


def made(tmp_path: Path, uri: str, version: str) -> None:
    sales = write_sales(tmp_path / "sales", SALES)
    places = tmp_path / "sales", sales.digest, features_of(uri), version
    make_training_set(*places, tmp_path / "set", tmp_path / "summary.md")


def test_change_after_resolve_is_an_input_error(s3: Bucket, repository: Path, tmp_path: Path) -> None:
    uri = upload(s3, repository, "repo")
    version = take_listing(f"{uri}/**/*[!c]").content_digest
    s3.put("repo/definitions.py", b"# other")
    with pytest.raises(InputError, match="changed after `resolve`") as caught:
        made(tmp_path, uri, version)
    assert caught.value.hint == "Run again: `resolve` lists it first."


def test_prefix_without_settings_is_named(s3: Bucket, repository: Path, tmp_path: Path) -> None:
    uri = upload(s3, repository / "offline", "offline")
    with pytest.raises(InputError, match=r"no Feast repository here: no feature_store\.yaml") as caught:
        made(tmp_path, uri, take_listing(f"{uri}/**/*[!c]").content_digest)
    assert caught.value.where == uri


def test_source_that_leaves_out_the_settings_is_refused(
    s3: Bucket, repository: Path, join: Callable[..., Joined]
) -> None:
    uri = upload(s3, repository, "repo")
    with pytest.raises(InputError, match=r"source does not hold s3://.*/repo/feature_store\.yaml") as caught:
        join(uri, SALES, source=f"{uri}/offline/*.parquet")
    assert caught.value.hint == f"Name all of the repository but compiled Python: {uri}/**/*[!c]"


def test_prefix_that_is_not_there_and_a_web_page_are_input_errors(
    s3: Bucket, repository: Path, tmp_path: Path, join: Callable[..., Joined]
) -> None:
    with pytest.raises(InputError, match=r"no file matches 's3://.*/nowhere"):
        join(f"{s3.uri}/nowhere", SALES)
    with pytest.raises(InputError, match="a Feast repository cannot be fetched from there"):
        join("https://example.com/repo", SALES, source=f"{repository}/**/*[!c]")


@pytest.mark.covers("A3")
def test_object_whose_name_leads_out_of_the_copy_is_never_written(
    s3: Bucket, repository: Path, tmp_path: Path
) -> None:
    uri = upload(s3, repository, "repo")
    s3.put(f"repo/{tmp_path}/planted.txt", b"x")  # repo//tmp/...: an absolute path behind the prefix
    listing = take_listing(f"{uri}/**/*[!c]")
    planted = replace(listing, files=(*listing.files, head(f"{uri}/{tmp_path}/planted.txt")))
    with pytest.raises(PermissionRefused, match="leads out of the folder"), checked_out(uri, planted):
        pass
    assert not (tmp_path / "planted.txt").exists()


def test_commit_of_git_with_a_registry_elsewhere_is_rejected(
    repository: Path, tmp_path: Path, join: Callable[..., Joined], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`feast apply` changes what a SQL registry holds, and neither the commit nor the cache key."""
    settings = repository / "feature_store.yaml"
    registry = f"sqlite:///{tmp_path}/registry.sqlite"
    sql = f"registry: {{registry_type: sql, path: '{registry}'}}"
    settings.write_text(settings.read_text().replace("registry: registry.db", sql))
    monkeypatch.syspath_prepend(str(repository))
    found = runpy.run_path(str(repository / "definitions.py"))
    store = FeatureStore(repo_path=str(repository))
    store.apply([found["product"], found["prices"], found["shop_v1"]])
    (repository / "registry.db").unlink()
    local = tmp_path / "git" / "team"
    shutil.copytree(repository, local)
    head = git_commit(local)
    certificate, key = certificate_in(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    monkeypatch.setenv("NO_PROXY", "*")
    with serving(tmp_path / "git", certificate, key) as address:
        uri = f"git+{address}/team@{head}"
        with pytest.raises(InputError, match="the commit does not hold sqlite:///") as caught:
            join(uri, SALES, source=uri)
    assert "relative registry.path" in caught.value.hint


def test_repository_at_a_commit_of_git_joins_like_its_folder(
    repository: Path, tmp_path: Path, join: Callable[..., Joined], monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "registry.db").unlink()
    local = tmp_path / "git" / "team"
    shutil.copytree(repository, local / "feature_repo")
    head = git_commit(local)
    certificate, key = certificate_in(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    monkeypatch.setenv("NO_PROXY", "*")
    with serving(tmp_path / "git", certificate, key) as address:
        uri = f"git+{address}/team@{head}#subdirectory=feature_repo"
        _, rows, _, _ = join(uri, SALES, source=uri)
        assert rows["price"].to_pylist() == [11.0]
        with pytest.raises(InputError, match=r"no Feast repository here: no feature_store\.yaml") as caught:
            join(f"git+{address}/team@{head}", SALES, source=uri)
    assert caught.value.hint == "Name the folder that holds it: #subdirectory=FOLDER."

"""Registries on a disk and in a bucket: a plan writes nothing, and of two applies at once one waits."""

import fcntl
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.storage.stores import Bucket
from trainwright.errors import TransientError
from trainwright.featurestore import close_store
from trainwright.materialize.definitions import apply_plan, make_plan
from trainwright.storage import list_files
from trainwright.storage.lease import hold_lease

ENTITY = "from feast import Entity, ValueType\nproduct = Entity(name='product', value_type=ValueType.INT64)\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository that defines an entity and was never applied."""
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "definitions.py").write_text(ENTITY)
    write_settings(folder, str(tmp_path / "registry.db"))
    return folder


def write_settings(folder: Path, registry: str) -> None:
    settings = {"project": "shop", "provider": "local", "registry": registry, "online_store": None}
    settings |= {"offline_store": {"type": "duckdb"}, "entity_key_serialization_version": 3}
    (folder / "feature_store.yaml").write_text(yaml.safe_dump(settings))


def names(repository: Path) -> list[str]:
    """The entities of the registry."""
    from feast import FeatureStore

    store = FeatureStore(repo_path=str(repository))
    found = [entity.name for entity in store.list_entities() if entity.name != "__dummy"]
    close_store(store)
    return found


@pytest.fixture
def registry(bucket: Bucket, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The repository's registry, in a bucket; the files that Feast leaves open there are closed after."""
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "tests")
    write_settings(repository, f"{bucket.uri}/registry.db")
    yield f"{bucket.uri}/registry.db"
    gc.collect()


OPEN_FILES = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@contextmanager
def applying(repository: Path) -> Iterator[None]:
    """What an apply of another process does until it ends."""
    with (repository / "feature_store.yaml").open() as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        yield


def test_while_one_applies_another_waits_and_applies_nothing(repository: Path) -> None:
    plan = make_plan(str(repository))
    with applying(repository), pytest.raises(TransientError, match="another apply held the lock"):
        apply_plan(str(repository), plan, wait_s=0)
    assert not (repository.parent / "registry.db").exists()
    before = sorted(repository.iterdir())
    apply_plan(str(repository), plan, wait_s=0)
    assert names(repository) == ["product"]
    assert sorted(repository.iterdir()) == before


@OPEN_FILES
def test_a_registry_in_a_bucket_has_a_lease_beside_it(repository: Path, registry: str) -> None:
    """Whoever else writes it may be on any machine; Feast itself writes it without any condition."""
    plan = make_plan(str(repository))
    with (
        hold_lease(f"{registry}.lease", lease_s=60, wait_s=0),
        pytest.raises(TransientError, match="another run"),
    ):
        apply_plan(str(repository), plan, wait_s=0)
    apply_plan(str(repository), plan, wait_s=0)
    assert names(repository) == ["product"]
    assert make_plan(str(repository)).changes == ()


@OPEN_FILES
def test_a_plan_writes_nothing_into_a_bucket(repository: Path, registry: str, bucket: Bucket) -> None:
    """Feast itself makes an empty registry where it finds none."""
    bucket.put("other", b"")
    assert make_plan(str(repository)).changes
    assert [file.uri for file in list_files(bucket.uri)] == [f"{bucket.uri}/other"]

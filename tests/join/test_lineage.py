"""What a training set says that it was made from, and changes of it that must not go unseen."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.featurestore.repository import PRICES, ViewSpec, make_repository
from tests.join.conftest import features_of, write_sales
from tests.join.sales import Join, sale
from trainwright.artifacts import Record, Snapshot
from trainwright.errors import InputError
from trainwright.join.join import make_training_set
from trainwright.storage import take_listing


def test_the_manifest_names_the_rows_and_the_service_and_the_same_inputs_give_the_same_bytes(
    join: Join, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    first, _, _, _ = join(repository, {"train": [sale("a", 1)]})
    again, _, _, _ = join(repository, {"train": [sale("a", 1)]})
    record = Record.read(tmp_path / "set")
    assert first.digest == again.digest == record.outputs["training_set"]
    assert first.parents["entities"] == Snapshot.read(tmp_path / "sales").digest
    assert first.parents["features"] == record.outputs["service"]


def test_the_digests_of_the_service_and_of_every_view_are_on_the_training_set(
    join: Join, tmp_path: Path
) -> None:
    visits = ViewSpec("visits", {"shop": pa.string()}, {"visitors": pa.float64()}, [])
    first = join(make_repository(tmp_path / "repo", [visits, PRICES]), {"train": [sale("a", 1)]})[0].parents
    assert set(first) == {"entities", "features", "features.visits", "features.prices"}
    assert Record.read(tmp_path / "set").inputs["features.prices"] == first["features.prices"]
    longer = replace(PRICES, ttl=timedelta(days=9))
    second = join(make_repository(tmp_path / "repo", [visits, longer]), {"train": [sale("a", 1)]})[0].parents
    assert second["features.visits"] == first["features.visits"]
    assert second["features.prices"] != first["features.prices"]
    assert second["features"] != first["features"]


def test_features_that_changed_since_they_were_looked_at_are_refused(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    sales = write_sales(tmp_path / "sales", {"train": [sale("a", 1)]})
    version = take_listing(features_of(repository).source).content_digest
    make_repository(repository, [replace(PRICES, rows=PRICES.rows[:1])])
    with pytest.raises(InputError, match="they changed after `resolve`"):
        make_training_set(
            tmp_path / "sales",
            sales.digest,
            features_of(repository),
            version,
            tmp_path / "set",
            tmp_path / "summary.md",
        )


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("offline", "feature_store.yaml, the definitions of the views"),
        ("offline/visits.parquet", "prices.parquet, feature_store.yaml"),
        ("**/*.[py]*", "the definitions of the views"),
    ],
)
def test_a_source_of_features_that_would_not_show_a_change_of_them_is_refused(
    source: str, missing: str, join: Join, tmp_path: Path
) -> None:
    """A cached join knows nothing of what its source does not hold, such as a TTL in the registry."""
    visits = ViewSpec("visits", {"shop": pa.string()}, {"visitors": pa.float64()}, [])
    repository = make_repository(tmp_path / "repo", [visits, PRICES])
    with pytest.raises(InputError, match="a change of the features would go unseen") as raised:
        join(repository, {"train": [sale("a", 1)]}, source=str(repository / source))
    assert missing in raised.value.what
    assert raised.value.hint.endswith(f"{repository}/**/*[!c]")
    assert not (tmp_path / "set").exists()


def test_with_its_registry_elsewhere_the_definitions_show_a_change_of_the_features(
    join: Join, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    (repository / "registry.db").rename(tmp_path / "registry.db")
    settings = repository / "feature_store.yaml"
    settings.write_text(settings.read_text().replace("registry.db", "../registry.db"))
    with pytest.raises(InputError, match="does not hold the definitions of the views"):
        join(repository, {"train": [sale("a", 1)]})
    (repository / "definitions.py").write_text("# as they were applied")
    assert join(repository, {"train": [sale("a", 1)]})[0].rows == 1

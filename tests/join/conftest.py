"""Rows to join to, and one way to join them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.featurestore.repository import UTC_US, ViewSpec, at, make_repository
from trainwright import tables
from trainwright.artifacts import Record, Snapshot
from trainwright.experiment import Features
from trainwright.featurestore.repository import defer_type_checks
from trainwright.join.join import make_training_set
from trainwright.storage import take_listing

defer_type_checks()  # before a test's own import of Feast, which then takes 2 seconds instead of 5
Joined = tuple[Snapshot, pa.Table, str, str]
ROLES = {"key": "sale", "time": "sold", "label": "returned"}
SALES = pa.schema(
    [
        ("sale", pa.string()),
        ("sold", UTC_US),
        ("returned", pa.int64()),
        ("shop", pa.string()),
        ("product", pa.int64()),
        ("pieces", pa.int64()),
        ("refund", pa.float64()),
    ]
)


def write_sales(folder: Path, splits: dict[str, list[dict[str, Any]]], **overrides: Any) -> Snapshot:
    rows = {
        name: [
            pa.Table.from_pylist([{field: row.get(field) for field in SALES.names} for row in rows], SALES)
        ]
        for name, rows in splits.items()
    }
    return tables.write_snapshot(folder, rows, **({"parents": {}, "roles": ROLES} | overrides))


def features_of(repository: Path | str, **changes: Any) -> Features:
    section = {
        "repository": str(repository),
        "source": f"{repository}/**/*[!c]",
        "service": "shop_v1",
        "request": ["shop", "pieces"],
        "known_after": ["refund"],
        "limits": {"max_missing_default": 1},
    }
    return Features.parse(json.dumps(section | changes), "features")


def repository_of(tmp_path: Path, columns: dict[str, pa.Array]) -> Path:
    """Make a repository whose one view, ``codes``, has these columns: the key product, and a feature."""
    [feature] = [name for name in columns if name != "product"]
    view = ViewSpec("codes", {"product": pa.int64()}, {feature: pa.float64()}, [])
    repository = make_repository(tmp_path / "repo", [view])
    times = pa.array([at(0)] * len(columns[feature]), UTC_US)
    table = pa.table(columns | {"event": times, "created": times})
    pq.write_table(table, repository / "offline" / "codes.parquet")
    return repository


@pytest.fixture
def join(tmp_path: Path) -> Callable[..., Joined]:
    """Join a service to sales; gives the manifest, all rows, the headline and the summary."""

    def joined(repository: Path | str, splits: dict[str, list[dict[str, Any]]], **changes: Any) -> Joined:
        roles = changes.pop("roles", ROLES)
        sales = write_sales(tmp_path / "sales", splits, roles=roles)
        features = features_of(repository, **changes)
        version = take_listing(features.source).content_digest
        made = make_training_set(
            tmp_path / "sales", sales.digest, features, version, tmp_path / "set", tmp_path / "summary.md"
        )
        rows = pa.concat_tables([tables.read_split(tmp_path / "set", made, name) for name in made.splits])
        return made, rows, Record.read(tmp_path / "set").headline, (tmp_path / "summary.md").read_text()

    return joined

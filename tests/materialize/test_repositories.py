"""Repositories and rows in buckets."""

import io
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.join.test_repositories import upload
from tests.materialize.shop import Shop, at, row
from tests.storage.stores import Bucket
from trainwright.errors import InputError, PermissionRefused, TransientError
from trainwright.experiment import Materialize
from trainwright.materialize.materialize import OnlineState, materialize
from trainwright.storage import list_files, take_listing
from trainwright.storage.lease import _take, hold_lease


def put(bucket: Bucket, name: str, shop: Shop, rows: list[dict[str, Any]]) -> None:
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=shop.schema), content)
    bucket.put(f"offline/{name}.parquet", content.getvalue())


def test_offline_files_and_state_in_a_bucket_serve_as_those_of_a_disk(
    bucket: Bucket, make_shop: Callable[..., Shop]
) -> None:
    shop = make_shop(path=f"{bucket.uri}/offline")
    put(bucket, "a", shop, [row(1, 0, 10), row(2, 3, 23)])
    shop.apply()
    state = f"{bucket.uri}/state"
    shop.run(date=at(5).isoformat(), state=state)
    put(bucket, "b", shop, [row(1, 6, 16)])
    mark = shop.run(date=at(7).isoformat(), state=state).views[0].mark
    assert (mark.number, mark.start) == (2, "2024-03-01T04:00:00Z")
    assert shop.read(1, 2) == [(16, "n16"), (23, "n23")]
    names = {file.uri.rsplit("/", 1)[-1] for file in list_files(state) if ".beat." not in file.uri}
    assert names == {
        "lease.00000002.done.json",
        "lease.00000002.json",
        "watermark.00000001.json",
        "watermark.00000002.json",
    }


def test_a_lease_in_a_bucket_outlives_its_owner_only_for_a_while(bucket: Bucket) -> None:
    folder = f"{bucket.uri}/lease"
    dead = _take(folder, 2, 0)
    dead._ended.set()  # no sign of life from now on
    with (
        pytest.raises(TransientError, match="another run has been writing"),
        hold_lease(folder, lease_s=600, wait_s=0),
    ):
        pass
    time.sleep(2.1)  # the lease of the dead one has run out then, however long all else takes
    with hold_lease(folder, lease_s=2, wait_s=120), pytest.raises(TransientError, match="the lease was lost"):
        dead.require()


def run(uri: str, shop: Shop, version: str = "") -> OnlineState:
    section = Materialize(repository=uri, source=f"{uri}/**/*[!c]", state=str(shop.folder / "state"))
    places = shop.folder / "out", shop.folder / "out" / "summary.md"
    version = version or take_listing(section.source).content_digest
    return materialize(section, version, at(5).isoformat(), *places)


def test_uploaded_repository_is_materialized_into_a_store_that_outlives_the_step(
    s3: Bucket, make_shop: Callable[..., Shop]
) -> None:
    shop = make_shop("redis").apply()
    shop.add("a", [row(1, 0, 10), row(2, 3, 23)])
    uri = upload(s3, shop.repository, "repo")
    hidden = shop.repository.rename(shop.folder / "elsewhere")
    assert run(uri, shop).views[0].mark.written == 2
    hidden.rename(shop.repository)
    assert shop.read(1, 2) == [(10, "n10"), (23, "n23")]


def test_embedded_online_store_inside_a_fetched_repository_is_refused_before_the_start(
    s3: Bucket, make_shop: Callable[..., Shop]
) -> None:
    shop = make_shop(settings={"online_store": {"type": "sqlite", "path": "online.db"}}).apply()
    shop.add("a", [row(1, 0, 10)])
    uri = upload(s3, shop.repository, "repo")
    with pytest.raises(InputError, match="the online store is 'sqlite', a file in the temporary") as caught:
        run(uri, shop)
    assert caught.value.where == "feature_store.yaml: online_store.path 'online.db'"
    assert "redis, postgres" in caught.value.hint
    assert not (shop.folder / "state").exists()


def test_embedded_online_store_that_cannot_be_written_is_refused_before_the_start(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop().apply()
    shop.add("a", [row(1, 0, 10)])
    settings = shop.repository / "feature_store.yaml"
    settings.write_text(settings.read_text().replace(f"{shop.folder}/online.db", "/proc/online.db"))
    with pytest.raises(PermissionRefused, match="'sqlite', a file that cannot be written"):
        shop.run(date=at(5).isoformat())
    assert not (shop.folder / "state").exists()


def test_repository_that_changed_since_resolve_is_refused(s3: Bucket, make_shop: Callable[..., Shop]) -> None:
    shop = make_shop("redis").apply()
    uri = upload(s3, shop.repository, "repo")
    with pytest.raises(InputError, match="changed after `resolve`"):
        run(uri, shop, version="0" * 64)

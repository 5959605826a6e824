"""A repository in an object store, materialized by a step that has nothing but its URI."""

from collections.abc import Callable

import pytest

from tests.join.test_fetched import upload
from tests.materialize.shop import Shop, at, row
from tests.storage.stores import Bucket
from trainwright.errors import InputError, PermissionRefused
from trainwright.experiment import Materialize
from trainwright.materialize.materialize import OnlineState, materialize
from trainwright.storage import take_listing


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
    with pytest.raises(InputError, match="they changed after `resolve`"):
        run(uri, shop, version="0" * 64)

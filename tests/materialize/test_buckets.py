"""Files, watermarks and leases in a bucket, as on a cluster."""

import io
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.materialize.shop import Shop, at, row
from tests.storage.stores import Bucket
from trainwright.errors import TransientError
from trainwright.storage import list_files
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

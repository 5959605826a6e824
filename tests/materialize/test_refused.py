"""What cannot be materialized, or must not be believed, is refused by name before a row is written."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from tests.materialize.shop import TIMES, Shop, at, row, sqlite
from trainwright.errors import InputError, PermissionRefused, TransientError
from trainwright.materialize.watermark import WatermarkHistory

ROOT = Path(__file__).resolve().parents[2]


def test_a_repository_without_an_online_store_says_what_to_set(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    settings = shop.repository / "feature_store.yaml"
    settings.write_text(yaml.safe_dump(yaml.safe_load(settings.read_text()) | {"online_store": None}))
    with pytest.raises(InputError, match="this repository has no online store") as caught:
        shop.run(date=at(5).isoformat())
    assert "sqlite, redis or postgres" in caught.value.hint


def test_a_watermark_that_something_else_wrote_is_named(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    place = shop.folder / "state" / shop.project / "stock" / "watermark.00000001.json"
    place.parent.mkdir(parents=True)
    place.write_text("{")
    with pytest.raises(InputError, match="this watermark is not valid") as caught:
        shop.run(date=at(5).isoformat())
    assert caught.value.where == str(place)
    place.unlink()
    assert shop.run(date=at(5).isoformat()).views[0].mark.number == 1


def test_of_two_runs_that_end_with_the_same_number_the_second_is_told(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    mark = shop.run(date=at(5).isoformat()).views[0].mark
    with pytest.raises(TransientError, match="another run of view 'stock' finished meanwhile"):
        WatermarkHistory(str(shop.folder / "state" / shop.project / "stock")).add(mark)


READ_ONLY = """
import sys
from pathlib import Path

from tests.materialize.shop import Shop, at, sqlite
from trainwright.errors import reported

folder = Path(sys.argv[1])
with reported("materialize"):
    Shop(folder, sqlite(folder / "store"), project="p1").run(date=at(5).isoformat())
"""
MOUNTED = """
set -e
mount --bind "$1/store" "$1/store"
mount -o remount,ro,bind "$1/store"
shift
exec "$@"
"""


def test_online_store_on_a_read_only_mount_is_rejected_with_the_option_that_mounts_it(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    Shop(tmp_path, sqlite(tmp_path / "store"), project="p1").apply()
    own = ["unshare", "--mount", "sh", "-c", MOUNTED, "sh", str(tmp_path)]
    if (
        not shutil.which("unshare")
        or subprocess.run([*own, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("nothing can be mounted here: it takes the superuser's rights")
    command = [*own, sys.executable, "-c", READ_ONLY, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == PermissionRefused.code, done.stderr
    assert f"Read-only file system: {tmp_path}/store/online.db" in done.stderr
    assert f"--mount {tmp_path}/store:rw" in done.stderr


def test_a_key_of_floats_is_refused_before_a_row_is_written(
    make_shop: Callable[..., Shop], tmp_path: Path
) -> None:
    schema = pa.schema([("product", pa.float64()), ("stock", pa.int64()), *TIMES])
    shop = make_shop(schema=schema, types={"stock": "Int64"}, keys={"product": "DOUBLE"}).apply()
    shop.add("a", [{"product": 1.5} | {name: row(1, 0, 10)[name] for name in ("stock", "event", "created")}])
    with pytest.raises(InputError, match="key 'product' is DOUBLE"):
        shop.run(date=at(5).isoformat())

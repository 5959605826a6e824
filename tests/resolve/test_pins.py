"""What is handed on is pinned, so that a source that moves on afterwards breaks nothing."""

import datetime as dt
import json
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from trainwright.artifacts import Record
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Data
from trainwright.resolve.resolve import resolve
from trainwright.sources import list_source
from trainwright.storage import Access

SECTION = {"source": "x", "key": "id", "time": "at", "label": "late", "splits": {"train": {"fraction": 1}}}
NOW = dt.datetime(2099, 1, 1, tzinfo=dt.UTC)


def data(**changes: object) -> str:
    return json.dumps(SECTION | changes)


def test_a_delta_table_is_handed_on_with_its_version(tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"id": [1, 2]}))
    found = resolve(str(table), tmp_path / "1", data(format="delta"))
    assert found.source == f"{table}#version=0"
    write_deltalake(table, pa.table({"id": [3]}), mode="append")
    assert resolve(str(table), tmp_path / "2", data(format="delta")).version != found.version
    again = list_source(found.source, Data.parse(data(format="delta"), "test"), Access())
    assert again.content_digest == found.version


def test_the_limits_of_a_table_are_those_of_the_files_of_its_version(tmp_path: Path) -> None:
    """Removed files are no part of it: the second version has the smaller half of the bytes."""
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"id": list(range(100_000))}))
    write_deltalake(table, pa.table({"id": [1]}), mode="overwrite")
    section = data(format="delta", quality={"max_bytes": 5_000})
    assert resolve(str(table), tmp_path / "1", section).version
    old = data(format="delta", version="0", quality={"max_bytes": 5_000, "fresh_within_s": 60})
    with pytest.raises(DataRefused, match=r"in 1 files; data\.quality\.max_bytes is 5,000\n.* days ago"):
        resolve(str(table), tmp_path / "2", old, now=NOW)


def test_a_database_is_handed_on_with_the_digest_of_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table flights (id integer, late integer)")
        connection.executemany("insert into flights values (?, ?)", [(n, n % 2) for n in range(10)])
    connection.close()
    section = data(format="sql", sql={"select": "SELECT * FROM flights", "tables": ["flights"]})
    found = resolve(f"sqlite:///{path}", tmp_path / "1", section)
    digest = found.listing.files[0].checksum.removeprefix("sha256:")
    assert found.source == f"sqlite:///{path}#sha256={digest}"
    assert Record.read(tmp_path / "1").headline == f"1 query, source {found.version[:6]}…"
    with sqlite3.connect(path) as connection:
        connection.execute("insert into flights values (10, 1)")
    connection.close()
    assert resolve(f"sqlite:///{path}", tmp_path / "2", section).version != found.version
    with pytest.raises(InputError, match="sql is absent"):
        resolve(f"sqlite:///{path}", tmp_path / "3", data(format="sql"))

"""Logs and metadata of lake tables with any content: each is read, or rejected with a typed error."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog

from tests.limits.offenders import BYTES, JSON, SHORT, any_text, plain
from tests.sources.reading import read
from trainwright.errors import InputError, InternalError, TrainwrightError

ROWS = pa.table({"id": [1, 2, 3], "word": ["a", "b", "c"]})
FEW = settings(SHORT, max_examples=25)
HUGE = (2**31, 2**63, 2**64, -(2**63) - 1, 10**30, -1, 0, 1e308)
WRONG = st.none() | st.booleans() | st.sampled_from(HUGE) | any_text(12) | plain
OFFENDERS = (*(text.encode(errors="surrogatepass") for text in JSON), *BYTES)


def delta(folder: Path) -> Path:
    for part in (ROWS.slice(0, 2), ROWS.slice(2)):
        write_deltalake(folder / "delta", part, mode="append")
    return folder / "delta"


def iceberg(folder: Path) -> Path:
    catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/w")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", schema=ROWS.schema)
    table.append(ROWS)
    catalog.engine.dispose()
    return Path(table.location().removeprefix("file://"))


@pytest.fixture(scope="module", params=[delta, iceberg], ids=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real table, and the document that describes its newest version."""
    place: Path = request.param(tmp_path_factory.mktemp("lake"))
    found = sorted([*place.glob("_delta_log/*.json"), *place.glob("metadata/*.metadata.json")])
    return found[-1]


def require_read_or_rejected(document: Path, content: bytes) -> None:
    kept = document.read_bytes()
    place = document.parent.parent
    kind = "delta" if document.parent.name == "_delta_log" else "iceberg"
    document.write_bytes(content)
    code = InputError.code
    try:
        read(place, format=kind)
    except TrainwrightError as error:
        code = error.code
    finally:
        document.write_bytes(kept)
    assert code != InternalError.code


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(entry, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], other)
    return copy


@FEW
@given(data=st.data())
def test_log_with_any_value_anywhere_is_read_or_rejected(table: Path, data: st.DataObject) -> None:
    lines = [json.loads(line) for line in table.read_text().splitlines()]
    number = data.draw(st.integers(0, len(lines) - 1))
    path = data.draw(st.sampled_from(list(places(lines[number]))))
    lines[number] = replaced(lines[number], path, data.draw(WRONG))
    require_read_or_rejected(table, "\n".join(json.dumps(line) for line in lines).encode())


@FEW
@given(data=st.data())
def test_truncated_log_is_read_or_rejected(table: Path, data: st.DataObject) -> None:
    content = table.read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    require_read_or_rejected(table, content[:cut] + data.draw(st.binary(max_size=8)))


@pytest.mark.covers("A20")
@pytest.mark.parametrize("content", OFFENDERS, ids=range(len(OFFENDERS)))
def test_historic_log_is_read_or_rejected(table: Path, content: bytes) -> None:
    require_read_or_rejected(table, content)
    require_read_or_rejected(table, table.read_bytes() + b"\n" + content)


def test_log_larger_than_any_is_rejected_unread(table: Path) -> None:
    kept = table.read_bytes()
    os.truncate(table, 300 << 20)  # a hole: it takes no room
    kind = "delta" if table.parent.name == "_delta_log" else "iceberg"
    try:
        with pytest.raises(InputError, match="this document has 314,572,800 bytes; at most 268,435,456 are"):
            read(table.parent.parent, format=kind)
    finally:
        table.write_bytes(kept)

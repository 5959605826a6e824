import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainwright.artifacts import (
    Column,
    Environment,
    Listing,
    Progress,
    Record,
    Snapshot,
    SnapshotFile,
    SourceFile,
)
from trainwright.documents import read_json
from trainwright.errors import InputError, InternalError
from trainwright.verdicts import Verdict

FILE = SnapshotFile(uri="data/train/part-00000.parquet", size=10, checksum="ab", rows=3, split="train")
SNAPSHOT = Snapshot(files=(FILE,), columns=(Column(name="x", type="int64"),), roles={"key": "x"})


def test_a_document_survives_its_file(tmp_path: Path) -> None:
    path = SNAPSHOT.write(tmp_path)
    assert path.name == "manifest.json"
    assert Snapshot.read(tmp_path) == SNAPSHOT


def test_the_digest_is_the_sha256_of_the_canonical_json() -> None:
    listing = Listing(source="rows", files=())
    text = '{"files":[],"protection":"","schema_version":1,"source":"rows"}'
    assert listing.digest == hashlib.sha256(text.encode()).hexdigest()


def test_the_data_version_is_the_sha256_of_the_content_alone() -> None:
    text = '{"columns":[["x","int64"]],"files":[["train",3,10,"ab"]],"roles":{"key":"x"}}'
    assert SNAPSHOT.digest == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"files": (replace(FILE, uri="gs://bucket/elsewhere.parquet", version="17"),)},
        {"parents": {"source": "another place"}},
        {"quality": {"rows.train": 3.0}},
        {"protection": "versioned"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_where_data_lies_and_what_is_said_about_it_leave_its_version_alone(change: dict[str, Any]) -> None:
    assert replace(SNAPSHOT, **change).digest == SNAPSHOT.digest


@pytest.mark.parametrize(
    "change",
    [
        {"files": (FILE, FILE)},
        {"files": (replace(FILE, checksum="ac"),)},
        {"files": (replace(FILE, size=11),)},
        {"files": (replace(FILE, rows=4),)},
        {"files": (replace(FILE, split="evaluate"),)},
        {"columns": (Column(name="x", type="int32"),)},
        {"roles": {"time": "x"}},
    ],
)
def test_whatever_a_reader_would_read_otherwise_is_another_version(change: dict[str, Any]) -> None:
    assert replace(SNAPSHOT, **change).digest != SNAPSHOT.digest


def test_a_document_has_the_same_digest_before_it_is_written_and_after_it_is_read(tmp_path: Path) -> None:
    snapshot = Snapshot(files=(FILE,), columns=(), quality={"rows": 3})
    assert Snapshot.read(snapshot.write(tmp_path)).digest == snapshot.digest


def test_rows_are_counted_by_split() -> None:
    second = SnapshotFile(uri="b", size=1, checksum="", rows=4, split="evaluate")
    snapshot = Snapshot(files=(FILE, second, FILE), columns=())
    assert (snapshot.rows, snapshot.splits) == (10, {"train": 6, "evaluate": 4})


@pytest.mark.covers("B9")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "schema_version 2; this library reads 1"),
        ({"surprise": 1}, "surprise: unknown field"),
        ({"files": "no list"}, "files: Input should be a valid array; got 'no list'"),
        ({"files": [{"uri": "a"}]}, "files[0].size: missing"),
        ({"columns": [{"name": "x", "type": 3}]}, "columns[0].type: Input should be a valid string; got 3"),
        ({"quality": {"rows": True}}, "quality.rows: Input should be a valid number; got True"),
    ],
)
def test_a_reader_refuses_what_it_does_not_know(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(SNAPSHOT.to_json() | change))
    with pytest.raises(InputError) as refused:
        Snapshot.read(path)
    assert message in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_missing_or_torn_document_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the file is missing"):
        Snapshot.read(tmp_path)
    (tmp_path / "manifest.json").write_text('{"files": [')
    with pytest.raises(InputError, match="not JSON"):
        Snapshot.read(tmp_path)


def test_a_document_that_could_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        Progress(
            step=1, total=2, epoch=1, loss=float("nan"), samples_per_s=1, eta_s=1, time="2026-11-20"
        ).write(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "progress.json").mkdir()
    with pytest.raises(IsADirectoryError):
        Progress(step=1, total=2, epoch=1, loss=0.5, samples_per_s=1, eta_s=1, time="2026-11-20").write(
            tmp_path / "taken"
        )
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["progress.json"]


def test_a_listing_of_a_copied_source_has_the_same_content_digest() -> None:
    def listing(folder: str, checksum: str = "aa") -> Listing:
        names = ("a.parquet", "deep/b.parquet")
        files = tuple(SourceFile(uri=f"{folder}/{name}", size=3, checksum=checksum) for name in names)
        return Listing(source=folder, files=files)

    here, there = listing("/data/flights"), listing("gs://bucket/of/ours")
    assert here.content_digest == there.content_digest
    assert here.digest != there.digest
    assert listing("/data/flights", "bb").content_digest != here.content_digest


def test_another_value_of_the_only_partition_is_another_content() -> None:
    """The name of the folder is a column of the rows, although all files share it."""

    def listing(folder: str) -> Listing:
        files = (SourceFile(uri=f"{folder}/a.parquet", size=3, checksum="aa"),)
        return Listing(source="rows", files=files)

    assert listing("/rows/day=1").content_digest != listing("/rows/day=2").content_digest
    assert listing("/rows/day=1").content_digest == listing("s3://bucket/copy/day=1").content_digest


def test_a_record_carries_the_records_it_came_from(tmp_path: Path) -> None:
    place = Environment(name="t", lock_sha256="", library="0", library_sha256="", python="", platform="")
    first = Record(
        step="ingest", headline="3 rows", started="2026-01-01T00:00:00+00:00", seconds=1, environment=place
    )
    second = Record(step="join", headline="", started="", seconds=2.5, environment=place, parents=(first,))
    assert Record.read(second.write(tmp_path)).parents == (first,)


def test_a_verdict_decides_only_what_readers_know() -> None:
    with pytest.raises(InternalError, match="'MAYBE'"):
        Verdict(decision="MAYBE", rules=(), judged={})


def test_pods_that_write_the_same_document_at_once_do_not_disturb_one_another(tmp_path: Path) -> None:
    """Their processes have the same id: here they are threads of one."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: SNAPSHOT.write(tmp_path), range(200)))
    assert Snapshot.read(tmp_path) == SNAPSHOT
    assert [path.name for path in tmp_path.iterdir()] == [Snapshot.FILE]


@pytest.mark.covers("B7")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": [', "Expecting value"),
        ('{"a": 1, "a": 2}', "key 'a' is there twice"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": [-Infinity]}', "-Infinity is not a JSON number"),
        ("[1e999]", "Out of range float"),
        ('"\\ud800"', "surrogates not allowed"),
        (b'"\xff"', "can't decode byte 0xff"),
        ("[" * 11 + "]" * 11, "nested deeper than 10"),
        ("[" * 100_000, "nested deeper than 10"),
        ('{"a": ' * 11 + "1" + "}" * 11, "nested deeper than 10"),
        ("1" * 1001, "more than the 1,000 bytes allowed"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_json_outside_the_limits_is_rejected_with_the_reason(
    text: str | bytes, problem: str, tmp_path: Path
) -> None:
    limits = {"max_depth": 10, "max_bytes": 1000 if problem.startswith("more") else 1_000_000}
    with pytest.raises(InputError) as rejected:
        read_json(text, where="a file", **limits)
    assert problem in str(rejected.value)
    assert "a file" in str(rejected.value)
    path = tmp_path / "a.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as rejected:
        read_json(path, **limits)
    assert problem in str(rejected.value)
    assert str(path) in str(rejected.value)


def test_json_within_the_limits_is_read_as_it_is() -> None:
    text = '{"a": [[[1, 2.5, null]]], "b": "{[{[", "c": "\\ud83d\\ude00"}'
    assert read_json(text, max_depth=4) == json.loads(text)
    assert read_json(text.encode(), max_bytes=len(text)) == json.loads(text)
    assert read_json("[" * 160 + "]" * 160) == json.loads("[" * 160 + "]" * 160)


def test_floats_survive_a_document_to_the_last_bit(tmp_path: Path) -> None:
    values = {f"{number}": (number + 0.1) ** 7.3 / 3 for number in range(20_000)}
    values |= {"small": 5e-324, "large": 1.7976931348623157e308, "zero": -0.0}
    snapshot = replace(SNAPSHOT, quality=values)
    assert Snapshot.read(snapshot.write(tmp_path)).quality == values


def test_a_document_with_many_faults_names_the_first_five(tmp_path: Path) -> None:
    with pytest.raises(InputError) as rejected:
        Snapshot.from_json(SNAPSHOT.to_json() | {f"odd{number}": 1 for number in range(7)})
    assert [line.strip() for line in str(rejected.value).splitlines()[1:]] == [
        *(f"odd{number}: unknown field" for number in range(5)),
        "and 2 more",
    ]

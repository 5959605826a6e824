import hashlib
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainwright.artifacts import Listing, Record
from trainwright.errors import InputError
from trainwright.resolve.resolve import readable_size, resolve


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "day=1").mkdir(parents=True)
    (folder / "day=1" / "a.csv").write_text("id\n1\n")
    (folder / "b.csv").write_text("id\n2\n")
    return folder


def test_the_digest_is_that_of_names_sizes_and_checksums(source: Path, tmp_path: Path) -> None:
    """Recomputed by hand, from the files."""
    rows = [
        [name, len(content), f"md5:{hashlib.md5(content, usedforsecurity=False).hexdigest()}"]
        for name in ("b.csv", "day=1/a.csv")
        for content in [(source / name).read_bytes()]
    ]
    found = resolve(str(source), tmp_path / "listing")
    names = [entry.uri for entry in found.listing.files]
    assert names == [f"{source}/b.csv", f"{source}/day=1/a.csv"]
    assert [[entry.size, entry.checksum] for entry in found.listing.files] == [row[1:] for row in rows]
    expected = json.dumps([[name.removeprefix("/"), *rest] for name, *rest in rows], separators=(",", ":"))
    slashed = json.dumps([["/" + name, *rest] for name, *rest in rows], separators=(",", ":"))
    digests = {hashlib.sha256(text.encode()).hexdigest() for text in (expected, slashed)}
    assert found.version in digests
    assert found.source == str(source)
    assert found.newest_since == ""


def test_a_copied_source_has_the_same_digest(source: Path, tmp_path: Path) -> None:
    first = resolve(str(source), tmp_path / "1")
    shutil.copytree(source, tmp_path / "elsewhere" / "deep")
    assert resolve(str(tmp_path / "elsewhere" / "deep"), tmp_path / "2").version == first.version


def test_a_relative_path_has_the_digest_of_the_absolute_one(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source)
    relative, absolute = resolve("b.csv", tmp_path / "1"), resolve(str(source / "b.csv"), tmp_path / "2")
    assert relative.version == absolute.version


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 4), bit=st.integers(0, 7))
def test_any_changed_bit_changes_the_digest(source: Path, tmp_path: Path, place: int, bit: int) -> None:
    path = source / "b.csv"
    path.write_bytes(b"id\n2\n")
    before = resolve(str(source), tmp_path / "listing").version
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)
    assert resolve(str(source), tmp_path / "listing").version != before


def test_an_added_and_a_removed_file_change_the_digest(source: Path, tmp_path: Path) -> None:
    before = resolve(str(source), tmp_path / "1").version
    (source / "c.csv").write_text("id\n3\n")
    more = resolve(str(source), tmp_path / "2").version
    (source / "b.csv").unlink()
    less = resolve(str(source), tmp_path / "3").version
    assert len({before, more, less}) == 3


def test_listing_and_record_are_written_and_the_headline_says_how_much(source: Path, tmp_path: Path) -> None:
    found = resolve(str(source), tmp_path / "listing")
    assert Listing.read(tmp_path / "listing") == found.listing
    record = Record.read(tmp_path / "listing")
    assert record.headline == f"2 files, 10 bytes, source {found.version[:6]}…"
    assert record.outputs["source"] == found.version


def test_a_source_that_is_not_there_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        resolve(str(tmp_path / "nothing.parquet"), tmp_path / "listing")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999_999, "1.0 MB"),
        (999, "999 bytes"),
        (5_400_000, "5.4 MB"),
        (7_200_000_000_000, "7.2 TB"),
    ],
)
def test_sizes_are_written_for_people(size: int, text: str) -> None:
    assert readable_size(size) == text


def test_features_and_baseline_are_digested_beside_the_source(source: Path, tmp_path: Path) -> None:
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "a.parquet").write_text("first")
    (tmp_path / "2026-01-31.json").write_text("{}")
    features, baseline = str(tmp_path / "features" / "*.parquet"), str(tmp_path / "{date}.json")
    found = resolve(
        str(source), tmp_path / "out", date="2026-01-31", beside={"features": features, "baseline": baseline}
    )
    alone = resolve(features, tmp_path / "alone")
    assert (found.beside["features"].version, found.beside["features"].source) == (alone.version, features)
    assert found.beside["baseline"].source == str(tmp_path / "2026-01-31.json")
    outputs = Record.read(tmp_path / "out").outputs
    assert (outputs["features"], outputs["baseline"]) == (alone.version, found.beside["baseline"].version)
    assert Listing.read(tmp_path / "out" / "features").content_digest == alone.version
    (tmp_path / "features" / "a.parquet").write_text("other")
    again = resolve(str(source), tmp_path / "again", beside={"features": features, "baseline": ""})
    assert again.version == found.version != again.beside["features"].version
    assert (again.beside["baseline"].version, again.beside["baseline"].source) == ("", "")


def test_a_baseline_that_is_not_there_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.json"):
        resolve(str(source), tmp_path / "out", beside={"baseline": str(tmp_path / "nothing.json")})


def test_a_schema_that_a_later_step_writes_may_be_absent(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "schema-{date}.pbtxt"
    beside, options = {"schema": str(place)}, {"date": "2026-01-31", "may_be_absent": ["schema"]}
    found = resolve(str(source), tmp_path / "out", beside=beside, **options).beside["schema"]
    assert (found.source, found.version) == (str(tmp_path / "schema-2026-01-31.pbtxt"), "")
    (tmp_path / "schema-2026-01-31.pbtxt").write_text("feature {}")
    again = resolve(str(source), tmp_path / "again", beside=beside, **options).beside["schema"]
    assert (again.source, bool(again.version)) == (found.source, True)

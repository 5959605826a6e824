import datetime as dt
import json
import os
from pathlib import Path

import pytest

from trainwright.artifacts import Listing, SourceFile
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Quality
from trainwright.resolve.resolve import require_limits, resolve

NOW = dt.datetime(2026, 1, 31, 5, tzinfo=dt.UTC)
SECTION = {"source": "x", "key": "id", "time": "at", "label": "late", "splits": {"train": {"fraction": 1}}}


def data(**changes: object) -> str:
    return json.dumps(SECTION | changes)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two files, written three days and one hour before the present."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name, age in (("a.csv", dt.timedelta(days=3)), ("b.csv", dt.timedelta(hours=1))):
        (folder / name).write_text("id,at,late\n1,2026-01-30,1\n")
        moment = (NOW - age).timestamp()
        os.utime(folder / name, (moment, moment))
    return folder


def test_the_age_is_that_of_the_newest_object(source: Path, tmp_path: Path) -> None:
    assert resolve(str(source), tmp_path / "1", data(quality={"fresh_within_s": 3600}), now=NOW).version
    with pytest.raises(DataRefused) as caught:
        resolve(str(source), tmp_path / "2", data(quality={"fresh_within_s": 3599}), now=NOW)
    assert caught.value.code == 11
    assert caught.value.what == (
        "the newest of 2 files was written at 2026-01-31T04:00:00Z, 1.0 hours ago; "
        "data.quality.fresh_within_s is 3,599 (3599 s)"
    )
    assert not (tmp_path / "2").exists()


def test_a_source_that_is_too_large_is_refused_before_it_is_read(source: Path, tmp_path: Path) -> None:
    """A terabyte of nothing, which would take half an hour to read."""
    size = (source / "a.csv").stat().st_size * 2
    assert resolve(str(source), tmp_path / "1", data(quality={"max_bytes": size}), now=NOW).version
    os.truncate(source / "b.csv", 10**12)
    with pytest.raises(DataRefused, match=r"has 1,000,000,000,026 bytes \(1\.0 TB\) in 2 files; .* is 52"):
        resolve(str(source), tmp_path / "2", data(quality={"max_bytes": size}), now=NOW)


def test_everything_that_is_wrong_is_named_at_once_and_what_cannot_be_told_is_refused() -> None:
    files = [SourceFile(uri="x", size=5, checksum="", written="2026-01-01T00:00:00Z")]
    with pytest.raises(DataRefused) as caught:
        require_limits(files, Quality(max_bytes=4, fresh_within_s=60), "x", NOW)
    assert caught.value.what.count("\n") == 1
    assert "30.2 days ago" in caught.value.what
    unknown = [SourceFile(uri="https://x", size=5, checksum="")]
    with pytest.raises(InputError, match="does not say when an object was written"):
        require_limits(unknown, Quality(fresh_within_s=60), "x", NOW)


def test_the_newest_row_must_reach_the_first_moment_of_the_day_less_the_limit(
    source: Path, tmp_path: Path
) -> None:
    section = data(quality={"fresh_rows_within_s": 86_400 + 3600})
    for date, now in (("2026-01-31", NOW), ("", NOW), ("", NOW.replace(hour=23))):
        found = resolve(str(source), tmp_path / f"out{date}{now.hour}", section, date, now=now)
        assert found.newest_since == "2026-01-29T23:00:00Z"
    assert resolve(str(source), tmp_path / "none", data(), now=NOW).newest_since == ""


def test_a_source_that_is_absent_is_an_empty_listing(tmp_path: Path) -> None:
    found = resolve("", tmp_path / "out")
    assert (found.version, found.source, found.newest_since) == ("", "", "")
    assert Listing.read(tmp_path / "out").files == ()


def test_limits_that_a_database_cannot_be_held_to_are_refused(tmp_path: Path) -> None:
    section = data(
        format="sql",
        sql={"select": "SELECT 1", "tables": ["x"]},
        quality={"max_bytes": 5, "fresh_within_s": 5},
    )
    with pytest.raises(InputError, match="max_bytes, fresh_within_s: a database says neither"):
        resolve("postgresql://db/x", tmp_path / "out", section)


@pytest.mark.parametrize("text", ["{", "[]", '{"key": 1}', "null", '{"source": "x", "kay": "id"}'])
def test_a_section_that_is_wrong_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(str(tmp_path), tmp_path / "out", text)
    assert caught.value.where == "parameter data"

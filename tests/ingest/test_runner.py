import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ingest.taking import data, flights, put, take, version_of
from trainwright.errors import DependencyError, InputError
from trainwright.ingest.ingest import ingest


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Six shards of 500 rows, from two files."""
    table = flights(3000)
    put(tmp_path / "in" / "a.parquet", table.slice(0, 1000), row_group_size=250)
    put(tmp_path / "in" / "b.parquet", table.slice(1000), row_group_size=250)
    return tmp_path / "in"


SPLITS = {"train": {"fraction": 0.7}, "evaluate": {"fraction": 0.3}}


def test_one_process_several_and_beam_make_the_same_bytes(tmp_path: Path, source: Path) -> None:
    runners: dict[str, dict[str, object]] = {
        "one": {"workers": 1},
        "two": {"workers": 2},
        "more": {"workers": 5},
        "beam": {"engine": "beam"},
        "beam here": {"engine": "beam", "options": ["--runner=DirectRunner", "--direct_num_workers=2"]},
    }
    made = {
        name: take(source, tmp_path / name, data(shard_rows=500, splits=SPLITS, runner=runner))
        for name, runner in runners.items()
    }
    first = made.pop("one")
    assert len(first.files) == 12
    for name, snapshot in made.items():
        assert snapshot.digest == first.digest, name
        assert [entry.checksum for entry in snapshot.files] == [entry.checksum for entry in first.files]
        assert snapshot.quality == first.quality
        for entry in snapshot.files:
            content = (tmp_path / name / "snapshot" / entry.uri).read_bytes()
            assert content == (tmp_path / "one" / "snapshot" / entry.uri).read_bytes()


def test_the_size_of_shards_changes_files_and_not_rows(tmp_path: Path, source: Path) -> None:
    few = take(source, tmp_path / "few", data(splits=SPLITS))
    many = take(source, tmp_path / "many", data(splits=SPLITS, shard_rows=250))
    assert few.splits == many.splits
    assert len(few.files) < len(many.files)


@pytest.mark.parametrize("runner", [{"workers": 1}, {"workers": 3}, {"engine": "beam"}])
def test_the_first_bad_shard_is_the_error_however_many_workers_there_are(
    tmp_path: Path, source: Path, runner: dict[str, object]
) -> None:
    bad = flights(3000).slice(1000)
    ids = [None if n in {700, 1900} else f"f{n}" for n in range(2000)]
    put(source / "b.parquet", bad.set_column(0, "id", [ids]), row_group_size=250)
    with pytest.raises(InputError, match=r"no value in 1 of 250 rows read; the first is row 701") as caught:
        take(source, tmp_path / "out", data(shard_rows=500, runner=runner))
    assert caught.value.where == str(source / "b.parquet")
    assert not list((tmp_path / "out" / "snapshot").glob("*"))


def test_other_machines_need_a_store(tmp_path: Path, source: Path) -> None:
    runner = {"engine": "beam", "options": ["--runner=FlinkRunner"]}
    with pytest.raises(InputError, match="FlinkRunner works on other machines") as caught:
        take(source, tmp_path / "out", data(runner=runner))
    assert caught.value.hint == "Name a bucket, or a folder that all machines mount, in data.store."


def test_what_beam_says_is_in_the_error(tmp_path: Path, source: Path) -> None:
    runner = {"engine": "beam", "options": ["--runner=NoSuchRunner"]}
    section = data(store=str(tmp_path / "store"), runner=runner)
    with pytest.raises(InputError, match=r"NoSuchRunner\. Valid values are .*FlinkRunner") as caught:
        take(source, tmp_path / "out", section)
    assert caught.value.where == "engine.options"


@pytest.mark.covers("F39")
def test_a_source_that_is_written_while_it_is_read_is_refused(tmp_path: Path) -> None:
    def append(source: Path) -> None:
        with source.open("ab") as stream:
            stream.write(b"more")

    with pytest.raises(InputError) as caught:
        _disturbed(tmp_path, append)
    assert (
        caught.value.what == "the source changed since it was resolved: a file was written while it was read"
    )
    assert "Run the pipeline again" in caught.value.hint
    assert list((tmp_path / "out").glob("*")) == []


def test_a_source_that_is_cut_short_before_it_is_opened_is_a_changed_one(tmp_path: Path) -> None:
    """Not a broken one: the listing saw it whole."""
    source = put(tmp_path / "in.parquet", flights())
    version = version_of(source)

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if left and event == "shutil.rmtree" and str(arguments[0]).endswith(".attempt"):
            left.clear()
            source.write_bytes(source.read_bytes()[:-8])

    left = [True]
    sys.addaudithook(watch)
    with pytest.raises(InputError, match="the source changed since it was resolved: Parquet footer missing"):
        ingest(str(source), version, data(), tmp_path / "out", tmp_path / "summary.md")


def test_a_source_that_vanishes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="changed since it was resolved: a file was removed while it was re"):
        _disturbed(tmp_path, Path.unlink)


def test_source_written_anew_with_the_same_bytes_is_an_error_to_retry(
    tmp_path: Path,
) -> None:
    def rewrite(source: Path) -> None:
        source.write_bytes(source.read_bytes())

    with pytest.raises(DependencyError, match="a file was written while it was read"):
        _disturbed(tmp_path, rewrite)
    assert list((tmp_path / "out").glob("*")) == []


def _disturbed(folder: Path, disturb: Callable[[Path], object]) -> None:
    """Ingest a file that something happens to when the fourth shard of it is begun."""
    source = put(folder / "in.parquet", flights(), row_group_size=10)
    section = data(shard_rows=10, runner={"workers": 1})
    version = version_of(source, section)
    left = [True]

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if left and event == "open" and str(arguments[0]).endswith("part-00003.parquet"):
            left.pop()
            disturb(source)

    sys.addaudithook(watch)  # there is no way to remove it
    try:
        ingest(str(source), version, section, folder / "out", folder / "summary.md")
    finally:
        left.clear()

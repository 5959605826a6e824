"""Listing of local files, and the cache of their checksums."""

import json
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright import storage
from trainwright.artifacts import SourceFile
from trainwright.errors import InputError, PermissionRefused
from trainwright.storage import local
from trainwright.storage.local import digest_files
from trainwright.storage.uris import matcher

NOBODY = 65534


def test_folder_lists_its_tables_but_not_what_is_hidden(tmp_path: Path) -> None:
    for name in ("b.parquet", "deep/a.csv", ".hidden.csv", "_tmp/x.parquet", "readme.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    entries = storage.list_files(str(tmp_path), storage.TABLE_SUFFIXES)
    assert [entry.uri for entry in entries] == [str(tmp_path / "b.parquet"), str(tmp_path / "deep/a.csv")]
    assert entries == storage.list_files(f"file://{tmp_path}", storage.TABLE_SUFFIXES)


def test_folder_lists_its_tables_through_links_and_whatever_the_case_of_their_names(tmp_path: Path) -> None:
    """As a volume of Kubernetes has it: what is seen are links into a folder that is hidden."""
    for name in ("data/a.CSV", "data/..2026/b.csv", "data/..2026/deep/C.Parquet", "data/.kept/single.csv.GZ"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "data" / "folder").symlink_to("..2026")
    (tmp_path / "data" / "link.csv.gz").symlink_to(".kept/single.csv.GZ")
    (tmp_path / "current").symlink_to("data")
    for seen in ("data", "current"):
        found = [entry.uri for entry in storage.list_files(str(tmp_path / seen), storage.TABLE_SUFFIXES)]
        names = ["a.CSV", "folder/b.csv", "folder/deep/C.Parquet", "link.csv.gz"]
        assert found == [str(tmp_path / seen / name) for name in names]


@pytest.mark.covers("B15")
@pytest.mark.parametrize("source", ["data", "data/*.csv", "data/**"])
@pytest.mark.parametrize("target", ["elsewhere/secret.csv", "elsewhere"])
def test_link_out_of_the_sources_folder_is_rejected(tmp_path: Path, source: str, target: str) -> None:
    for name in ("data/a.csv", "elsewhere/secret.csv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("x")
    (tmp_path / "data" / "b.csv").symlink_to(tmp_path / target)
    with pytest.raises(PermissionRefused, match="a link leads out of the source's folder") as caught:
        storage.list_files(str(tmp_path / source), storage.TABLE_SUFFIXES)
    assert caught.value.code == 50


@pytest.mark.parametrize("source", ["", "*.csv"])
def test_link_to_nothing_is_an_error_and_not_a_missing_file(tmp_path: Path, source: str) -> None:
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "b.csv").symlink_to(tmp_path / "gone.csv")
    with pytest.raises(InputError, match="a link to a file that is not there") as caught:
        storage.list_files(str(tmp_path / source), storage.TABLE_SUFFIXES)
    assert caught.value.where == str(tmp_path / "b.csv")


def test_link_that_leads_back_is_an_error_and_not_followed_for_ever(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "back").symlink_to(tmp_path)
    with pytest.raises(InputError, match="a link leads back to"):
        storage.list_files(str(tmp_path), storage.TABLE_SUFFIXES)


@pytest.mark.covers("B19")
@pytest.mark.parametrize("hidden", ["deep", "deep/b.csv"])
def test_what_may_not_be_read_is_rejected_and_not_left_out(hidden: str) -> None:
    """Asked as another user where this one may read everything."""
    me = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "deep").mkdir()
        for table in ("a.csv", "deep/b.csv"):
            (folder / table).write_text(table)
        (folder / hidden).chmod(0)
        os.seteuid(me or NOBODY)
        try:
            with pytest.raises(PermissionRefused):
                storage.take_listing(name)
        finally:
            os.seteuid(me)
            (folder / hidden).chmod(0o755)


def test_glob_takes_files_over_folders(tmp_path: Path) -> None:
    for name in ("2013/01.csv", "2013/02.csv", "2014/01.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = [entry.uri for entry in storage.list_files(str(tmp_path / "2013" / "*.csv"))]
    assert found == [str(tmp_path / "2013/01.csv"), str(tmp_path / "2013/02.csv")]
    assert len(storage.list_files(str(tmp_path / "**" / "01.csv"))) == 2


def test_file_whose_name_looks_like_a_glob_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a[1].csv").write_text("x")
    assert [entry.size for entry in storage.list_files(str(tmp_path / "a[1].csv"))] == [1]


@pytest.mark.covers("B18")
def test_nothing_found_names_the_nearest_that_exists(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "flights.parquet").write_text("x")
    with pytest.raises(InputError, match="no such file or folder") as caught:
        storage.list_files(str(tmp_path / "data" / "flight.parquet"))
    assert caught.value.hint == f"The nearest that exists is {tmp_path}/data: it holds flights.parquet."
    with pytest.raises(InputError, match="no file matches") as caught:
        storage.list_files(str(tmp_path / "date" / "*.csv"))
    assert "it holds data." in caught.value.hint


def test_folder_without_tables_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=r"no file ending in .*\.csv") as caught:
        storage.list_files(str(tmp_path), storage.TABLE_SUFFIXES)
    assert caught.value.hint == "it holds notes.txt."


def test_find_gives_nothing_for_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert list(storage.find(str(tmp_path / "no"), "record.json")) == []


def test_file_that_is_written_while_it_is_digested_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("one")
    (entry,) = storage.list_files(str(tmp_path))
    (tmp_path / "a.csv").write_text("two, longer")
    with pytest.raises(storage.ObjectChanged, match="was written while it was read"):
        digest_files([entry])


def test_jsonl_is_a_table_and_a_text_is_none(tmp_path: Path) -> None:
    names = ["a.jsonl", "b.ndjson.gz", "c.csv.zst", "d.pq", "e.parquet", "f.csv", "g.csv.bz2", "h.jsonl.gz"]
    for name in (*names, "x.txt", "y.json", "z.parquet.tmp"):
        (tmp_path / name).write_text(name)
    found = [Path(entry.uri).name for entry in storage.list_files(str(tmp_path), storage.TABLE_SUFFIXES)]
    assert found == names
    assert [Path(file.uri).name for file in storage.take_listing(f"{tmp_path}/*").files] == names


def test_pipe_among_the_files_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.csv")
    with pytest.raises(InputError, match="expected a file, found a pipe"):
        storage.take_listing(str(tmp_path))


@pytest.mark.parametrize(
    "call", [storage.read_bytes, storage.head, storage.open_file, lambda uri: storage.remove([uri])]
)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.csv/b.csv", "a file lies where a folder should be"),
        ("n" * 300, "this name is longer than the disk takes"),
    ],
)
def test_name_that_no_file_can_have_is_bad_input_and_no_bug_of_ours(
    tmp_path: Path, call: Callable[[str], object], name: str, said: str
) -> None:
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(InputError, match=said):
        call(str(tmp_path / name))
    with pytest.raises(InputError):
        storage.create(str(tmp_path / name), b"x")
    with pytest.raises(InputError):
        storage.take_listing(str(tmp_path / name))


def test_pipe_is_rejected_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.csv")
    for call in (storage.read_bytes, storage.open_file, storage.head):
        with pytest.raises(InputError, match="expected a file, found a pipe"):
            call(str(tmp_path / "a.csv"))


def test_link_to_itself_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").symlink_to(tmp_path / "a.csv")
    for source in (tmp_path, tmp_path / "*.csv"):
        with pytest.raises(InputError, match="a link that leads back to itself") as caught:
            storage.take_listing(str(source))
        assert caught.value.where == str(tmp_path / "a.csv")


def test_name_that_is_no_utf8_is_rejected_before_a_listing_would_hold_it(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv")).write_text("x")
    with pytest.raises(InputError, match="the name of this file is no UTF-8") as caught:
        storage.take_listing(str(tmp_path))
    assert caught.value.where == f"{tmp_path}/\\udcff.csv"
    for source in (f"{tmp_path}/\udcff.csv", f"file://{tmp_path}/%FF.csv", f"file://{tmp_path}/%00.csv"):
        with pytest.raises(InputError, match="names no file"):
            storage.read_bytes(source)


def test_file_that_goes_away_while_its_folder_is_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("x")
    stat = os.stat

    def gone(path: object, **options: object) -> os.stat_result:
        if str(path).endswith("a.csv"):
            (tmp_path / "a.csv").unlink(missing_ok=True)
        return stat(path, **options)  # type: ignore[arg-type, call-overload, no-any-return]

    monkeypatch.setattr(os, "stat", gone)
    with pytest.raises(InputError, match="no such file") as caught:
        storage.take_listing(str(tmp_path))
    assert caught.value.where == str(tmp_path / "a.csv")


def test_glob_of_many_stars_takes_no_longer_than_one_of_few() -> None:
    """With a step back for every star, these would take longer than anyone can wait."""
    assert not matcher("*a" * 20 + "b")("a" * 200)
    assert not matcher("**/" * 20 + "*" * 40 + "b")("a/" * 20 + "a" * 40)
    assert matcher("*a" * 20 + "b")("a" * 200 + "b")
    assert matcher("[*]x*y**")("*x-y-z")
    with pytest.raises(InputError, match=r"'\[z-a\]' is no pattern: bad character range"):
        matcher("[z-a]")


@given(st.text("ab.*?", min_size=1, max_size=8), st.text("ab.", min_size=1, max_size=8))
def test_glob_finds_what_the_one_of_python_finds_but_for_what_is_hidden(pattern: str, name: str) -> None:
    if "**" not in pattern:
        hidden = name.startswith(".") and not pattern.startswith((".", "a", "b"))
        assert matcher(pattern)(name) == (fnmatchcase(name, pattern) and not hidden)


@pytest.mark.parametrize("remember", ["a.csv", "a.csv/deeper"])
def test_cache_that_can_be_no_folder_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remember: str
) -> None:
    (tmp_path / "a.csv").write_text("x")
    monkeypatch.setattr(local, "TICK_NS", -(10**18))
    with pytest.raises(InputError, match="where a folder should be"):
        storage.take_listing(str(tmp_path / "a.csv"), remember=str(tmp_path / remember))


LONG_AGO = time.time() - 3600


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two files that were written long before they are read, as its clock has it."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a.csv", "b.csv"):
        (folder / name).write_text(name)
        os.utime(folder / name, (LONG_AGO, LONG_AGO))
    monkeypatch.setattr(local.time, "time_ns", lambda: int((time.time() + 60) * 1e9))
    return folder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are really read."""
    seen: list[str] = []
    real = local.md5_of

    def md5_of(entry: SourceFile) -> str:
        seen.append(Path(entry.uri).name)
        return real(entry)

    monkeypatch.setattr(local, "md5_of", md5_of)
    return seen


def take(source: Path, tmp_path: Path) -> str:
    return storage.take_listing(str(source), remember=str(tmp_path / "memory")).content_digest


def test_unchanged_file_is_read_once(source: Path, tmp_path: Path, reads: list[str]) -> None:
    first = take(source, tmp_path)
    assert sorted(reads) == ["a.csv", "b.csv"]
    assert take(source, tmp_path) == first == storage.take_listing(str(source)).content_digest
    assert len(reads) == 4  # twice with the memory, once each; and once each without


@pytest.mark.parametrize(
    "change", ["content of equal size and time", "replaced by a file of equal size and time"]
)
def test_changed_bytes_are_read_again_though_size_and_time_of_writing_are_the_same(
    source: Path, tmp_path: Path, reads: list[str], change: str
) -> None:
    before = take(source, tmp_path)
    if change == "replaced":
        (tmp_path / "new").write_text("A.csv")
        os.replace(tmp_path / "new", source / "a.csv")
    else:
        (source / "a.csv").write_text("A.csv")
    os.utime(source / "a.csv", (LONG_AGO, LONG_AGO))
    reads.clear()
    assert take(source, tmp_path) != before
    assert reads == ["a.csv"]


def test_file_written_just_before_it_was_read_is_not_cached(tmp_path: Path, reads: list[str]) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("x")
    for _ in range(2):
        take(tmp_path / "data", tmp_path)
    assert reads == ["a.csv", "a.csv"]


@pytest.mark.parametrize("damage", ["one digit", "cut", "empty", "not text", "other rows"])
def test_broken_cache_is_not_believed(source: Path, tmp_path: Path, reads: list[str], damage: str) -> None:
    truth, path = take(source, tmp_path), tmp_path / "memory" / local.CHECKSUMS_FILE
    text = path.read_text()
    place = text.rindex('"') - 1
    path.write_bytes(
        {
            "one digit": text[:place] + ("0" if text[place] != "0" else "1") + text[place + 1 :],
            "cut": text[: len(text) // 2],
            "empty": "",
            "not text": "\udcff",
            "other rows": json.dumps({}),
        }[damage].encode(errors="surrogateescape")
    )
    reads.clear()
    assert take(source, tmp_path) == truth
    assert sorted(reads) == ["a.csv", "b.csv"]


def test_many_processes_may_remember_at_once(source: Path, tmp_path: Path) -> None:
    truth = storage.take_listing(str(source)).content_digest
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: take(source, tmp_path), range(32))) == {truth}
    assert [path.name for path in (tmp_path / "memory").iterdir()] == [local.CHECKSUMS_FILE]


def test_cache_is_kept_on_a_disk() -> None:
    with pytest.raises(InputError, match="remembered on a disk"):
        local.digest_files([], "gs://bucket/memory")


def test_a_glob_names_files_and_no_folder_that_matches_it(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv/part.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = storage.list_files(str(tmp_path / "*.csv"))
    assert [Path(file.uri).name for file in found] == ["a.csv"]

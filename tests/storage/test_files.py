import os
import tempfile
from pathlib import Path

import pytest

from trainwright import storage
from trainwright.errors import DependencyError, InputError, PermissionRefused

fsspec = pytest.importorskip("fsspec")
NOBODY = 65534


@pytest.fixture
def bucket() -> str:
    """A remote store that is a real fsspec file system, alive as long as this process."""
    files = fsspec.filesystem("memory")
    files.pipe("/bucket/day=1/part.parquet", b"one")
    files.pipe("/bucket/day=2/part.parquet", b"two")
    files.pipe("/bucket/_SUCCESS", b"")
    yield "memory://bucket"
    files.rm("/bucket", recursive=True)


def test_a_folder_lists_its_tables_but_not_what_is_hidden(tmp_path: Path) -> None:
    for name in ("b.parquet", "deep/a.csv", ".hidden.csv", "_tmp/x.parquet", "readme.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    entries = storage.list_files(str(tmp_path), storage.TABLE_SUFFIXES)
    assert [entry.uri for entry in entries] == [str(tmp_path / "b.parquet"), str(tmp_path / "deep/a.csv")]
    assert entries == storage.list_files(f"file://{tmp_path}", storage.TABLE_SUFFIXES)


def test_a_folder_lists_its_tables_through_links_and_whatever_the_case_of_their_names(tmp_path: Path) -> None:
    for name in ("data/a.CSV", "elsewhere/b.csv", "elsewhere/deep/C.Parquet", "single.csv.GZ"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "data" / "folder").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "link.csv.gz").symlink_to(tmp_path / "single.csv.GZ")
    found = [entry.uri for entry in storage.list_files(str(tmp_path / "data"), storage.TABLE_SUFFIXES)]
    names = ["a.CSV", "folder/b.csv", "folder/deep/C.Parquet", "link.csv.gz"]
    assert found == [str(tmp_path / "data" / name) for name in names]


@pytest.mark.parametrize("source", ["", "*.csv"])
def test_a_link_to_nothing_is_an_error_and_not_a_missing_file(tmp_path: Path, source: str) -> None:
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "b.csv").symlink_to(tmp_path / "gone.csv")
    with pytest.raises(InputError, match="a link to a file that is not there") as caught:
        storage.list_files(str(tmp_path / source), storage.TABLE_SUFFIXES)
    assert caught.value.where == str(tmp_path / "b.csv")


def test_a_link_that_leads_back_is_an_error_and_not_followed_for_ever(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "back").symlink_to(tmp_path)
    with pytest.raises(InputError, match="a link leads back to"):
        storage.list_files(str(tmp_path), storage.TABLE_SUFFIXES)


@pytest.mark.parametrize("hidden", ["deep", "deep/b.csv"])
def test_what_may_not_be_read_is_refused_and_not_left_out(hidden: str) -> None:
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


def test_a_glob_takes_files_over_folders(tmp_path: Path) -> None:
    for name in ("2013/01.csv", "2013/02.csv", "2014/01.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = [entry.uri for entry in storage.list_files(str(tmp_path / "2013" / "*.csv"))]
    assert found == [str(tmp_path / "2013/01.csv"), str(tmp_path / "2013/02.csv")]
    assert len(storage.list_files(str(tmp_path / "**" / "01.csv"))) == 2


def test_a_file_whose_name_looks_like_a_glob_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a[1].csv").write_text("x")
    assert [entry.size for entry in storage.list_files(str(tmp_path / "a[1].csv"))] == [1]


def test_nothing_found_names_the_nearest_that_exists(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "flights.parquet").write_text("x")
    with pytest.raises(InputError, match="no such file or folder") as caught:
        storage.list_files(str(tmp_path / "data" / "flight.parquet"))
    assert caught.value.hint == f"The nearest that exists is {tmp_path}/data: it holds flights.parquet."
    with pytest.raises(InputError, match="no file matches") as caught:
        storage.list_files(str(tmp_path / "date" / "*.csv"))
    assert "it holds data." in caught.value.hint


def test_a_folder_without_tables_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=r"no file ending in .*\.csv") as caught:
        storage.list_files(str(tmp_path), storage.TABLE_SUFFIXES)
    assert caught.value.hint == "it holds notes.txt."


def test_a_bucket_is_listed_digested_and_searched_like_a_folder(bucket: str, tmp_path: Path) -> None:
    for name, text in (("day=1/part.parquet", "one"), ("day=2/part.parquet", "two")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    here = storage.take_listing(str(tmp_path))
    there = storage.take_listing(bucket)
    assert [entry.checksum for entry in there.files] == [entry.checksum for entry in here.files]
    assert [entry.size for entry in there.files] == [3, 3]
    assert list(storage.find(bucket, "part.parquet")) == [entry.uri for entry in there.files]
    assert len(storage.list_files(f"{bucket}/day=*/part.parquet")) == 2
    assert storage.open_file(there.files[1].uri).read() == b"two"
    assert there.content_digest == here.content_digest


def test_an_object_written_again_no_longer_has_the_state_it_was_listed_with(bucket: str) -> None:
    before = storage.list_files(bucket)
    fsspec.filesystem("memory").pipe("/bucket/day=2/part.parquet", b"TWO")
    assert storage.list_files(bucket) != before


def test_a_missing_driver_is_named() -> None:
    pytest.importorskip("fsspec")
    if storage_driver_installed("gcsfs"):
        pytest.skip("this environment has the driver")
    with pytest.raises(DependencyError, match="gs:// needs a package") as caught:
        storage.list_files("gs://bucket/x.parquet")
    assert "gcsfs" in caught.value.what


def storage_driver_installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


@pytest.mark.parametrize("uri", ["ftp://host/x.csv", "filecache://x", "simplecache::gs://b/x"])
def test_a_scheme_that_is_not_read_here_is_refused(uri: str) -> None:
    with pytest.raises(InputError, match="is not read here"):
        storage.list_files(uri)


@pytest.mark.parametrize("uri", ["", "a\0b"])
def test_what_names_no_file_is_not_taken_for_the_working_folder(uri: str) -> None:
    with pytest.raises(InputError, match="names no file"):
        storage.list_files(uri)


def test_credentials_in_a_uri_are_refused_and_not_repeated() -> None:
    with pytest.raises(InputError, match="carries a user or a password") as caught:
        storage.list_files("https://me:hunter2@host/x.csv")
    assert "hunter2" not in str(caught.value)


def test_find_gives_nothing_for_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert list(storage.find(str(tmp_path / "no"), "record.json")) == []
    assert list(storage.find("memory://no/such", "record.json")) == []

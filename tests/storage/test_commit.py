"""A local file is written whole under a free name, or not at all, whoever dies or competes."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainwright import storage
from trainwright.errors import DependencyError, InputError, PermissionRefused
from trainwright.storage.local import naming_path

ROOT = Path(__file__).resolve().parents[2]
WRITER = """
import sys
from pathlib import Path
from trainwright import storage
storage.publish(Path(sys.argv[1]), sys.argv[2])
"""


def test_file_is_published_with_its_sha256_and_never_over_another(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    made = storage.publish(tmp_path / "a", str(tmp_path / "deep" / "b"))
    assert (made.size, made.checksum) == (3, f"sha256:{hashlib.sha256(b'one').hexdigest()}")
    assert (made.uri, made.version) == (str(tmp_path / "deep" / "b"), "")
    (tmp_path / "a").write_bytes(b"two")
    with pytest.raises(storage.AlreadyExists, match="a file lies there already") as caught:
        storage.publish(tmp_path / "a", made.uri)
    assert caught.value.code == 10
    assert storage.read_bytes(made.uri) == b"one"
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["b"]


def test_of_many_writers_of_one_name_exactly_one_succeeds(tmp_path: Path) -> None:
    def write(number: int) -> bytes | None:
        try:
            storage.create(str(tmp_path / "manifest.json"), b"%d" % number)
        except storage.AlreadyExists:
            return None
        return b"%d" % number

    with ThreadPoolExecutor(16) as pool:
        (winner,) = [content for content in pool.map(write, range(64)) if content]
    assert storage.read_bytes(str(tmp_path / "manifest.json")) == winner
    assert len(list(tmp_path.iterdir())) == 1


def test_without_links_the_name_is_still_claimed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket mounted as a folder has no hard links."""

    def refuse(source: object, target: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    storage.create(str(tmp_path / "a"), b"one")
    with pytest.raises(storage.AlreadyExists):
        storage.create(str(tmp_path / "a"), b"two")
    assert storage.read_bytes(str(tmp_path / "a")) == b"one"
    assert len(list(tmp_path.iterdir())) == 1


def test_writer_that_is_killed_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    content = os.urandom(48 << 20)
    (tmp_path / "large").write_bytes(content)
    whole = 0
    for number in range(5):
        target = tmp_path / f"out-{number}"
        command = [sys.executable, "-c", WRITER, str(tmp_path / "large"), str(target)]
        process = subprocess.Popen(command, cwd=ROOT)
        deadline = time.monotonic() + 20
        while (
            not list(tmp_path.glob(f".out-{number}.*"))
            and process.poll() is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.002)
        time.sleep(0.004 * number)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not target.exists() or target.read_bytes() == content
        whole += target.exists()
    assert whole < 5
    assert storage.list_files(str(tmp_path)) == [
        entry for entry in storage.list_files(str(tmp_path)) if entry.size == len(content)
    ]


def test_folder_is_not_written_over(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a file lies there already"):
        storage.create(str(tmp_path), b"x")


def test_what_cannot_be_written_is_rejected_before_anything_is_asked() -> None:
    for uri in ("https://host/x", "gs://bucket", "s3://bucket/folder/"):
        with pytest.raises(InputError, match="nothing can be written there"):
            storage.create(uri, b"x")
    with pytest.raises(PermissionRefused):
        storage.create("/dev/x", b"x")


def test_fetch_refuses_bytes_that_are_not_the_listed_ones(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"one")
    (entry,) = storage.take_listing(str(tmp_path / "a.csv")).files
    storage.fetch(entry, tmp_path / "b.csv")
    assert (tmp_path / "b.csv").read_bytes() == b"one"
    (tmp_path / "a.csv").write_bytes(b"two")
    with pytest.raises(storage.ObjectChanged, match="this is not what was listed"):
        storage.fetch(entry, tmp_path / "c.csv")
    assert not (tmp_path / "c.csv").exists()


def test_removing_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    storage.remove([str(tmp_path / "a"), str(tmp_path / "b")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "error", "what"),
    [
        (errno.EIO, DependencyError, "the disk fails"),
        (errno.ENOSPC, DependencyError, "no room"),
        (errno.EACCES, PermissionRefused, "may not"),
        (errno.ENOTDIR, InputError, "a file lies where a folder should be"),
    ],
)
def test_an_error_of_the_disk_is_typed_and_names_the_path(
    number: int, error: type[Exception], what: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=what) as caught, naming_path(tmp_path / "x"):
        raise OSError(number, os.strerror(number))
    assert str(tmp_path / "x") in str(caught.value)


def test_a_file_is_listed_with_its_time_to_the_nanosecond(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "a.csv"
    storage.create(str(path), b"one")
    os.utime(path, ns=(0, 1_795_478_400_123_456_789))
    (entry,) = storage.list_files(str(path))
    assert entry.written == "2026-11-24T00:00:00.123456789Z"
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found

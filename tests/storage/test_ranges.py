"""Reading by range: any byte, of one version, without asking for more than is needed."""

import hashlib
import io
import itertools
import os
import random
import re
from pathlib import Path

import pytest

from tests.storage.stores import Bucket
from trainwright import storage

RANGE = re.compile(r"bytes=(\d+)-(\d+)")
ONE, TWO = b"one\r\n\n\x00", b"two, and more"


@pytest.mark.parametrize("size", [0, 1000, 9 << 20, 33 << 20])
def test_a_file_arrives_whole_and_comes_back_whole(bucket: Bucket, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "here.bin").write_bytes(content)
    made = storage.publish(tmp_path / "here.bin", f"{bucket.uri}/deep/there.bin")
    assert (made.size, made.checksum) == (size, f"sha256:{hashlib.sha256(content).hexdigest()}")
    entry = storage.head(made.uri)
    assert (entry.version, entry.size) == (made.version, size)
    storage.fetch(entry, tmp_path / "back.bin")
    assert (tmp_path / "back.bin").read_bytes() == content == storage.read_bytes(made.uri, made.version)
    with pytest.raises(storage.AlreadyExists):
        storage.publish(tmp_path / "here.bin", made.uri)


def test_reading_jumps_anywhere_and_moves_little(bucket: Bucket) -> None:
    content = b"".join(b"%07d\n" % number for number in range(1_000_000))
    bucket.put("a.txt", content)
    bucket.proxy.clear()
    with storage.open_file(f"{bucket.uri}/a.txt") as stream:
        for place in (7_999_992, 8, 4_000_000, 4_000_008, 8_000_000):
            stream.seek(place)
            assert stream.read(8) == content[place : place + 8]
        stream.seek(0)
        assert b"".join(itertools.islice(stream, 3)) == content[:24]
        assert stream.read() == content[24:]
    assert len(bucket.proxy.seen) < 15


def test_reading_straight_on_asks_for_more_at_a_time_and_for_no_byte_twice(bucket: Bucket) -> None:
    content = os.urandom(9_000_000)
    bucket.put("a.bin", content)
    bucket.proxy.clear()
    with storage.open_file(f"{bucket.uri}/a.bin") as stream:
        assert b"".join(iter(lambda: stream.read(10_000), b"")) == content
    asked = [RANGE.search(str(headers)) for *_, headers in bucket.proxy.seen]
    spans = [(int(found[1]), int(found[2])) for found in asked if found]
    assert [start for start, _ in spans[1:]] == [stop + 1 for _, stop in spans[:-1]]
    assert len(spans) <= 7


@pytest.mark.parametrize("seed", range(3))
def test_any_way_of_reading_gives_the_bytes_that_lie_there(s3: Bucket, seed: int) -> None:
    dice, content = random.Random(seed), os.urandom(3_000_000)  # noqa: S311
    s3.put("a.bin", content)
    there, here = storage.open_file(f"{s3.uri}/a.bin"), io.BytesIO(content)
    for _ in range(60):
        if dice.random() < 0.3:
            place = dice.randrange(len(content))
            there.seek(place)
            here.seek(place)
        length = int(10 ** dice.uniform(0, 6.3))
        assert there.read(length) == here.read(length)
    there.close()


def test_what_is_open_stays_the_same_version_to_its_end(bucket: Bucket) -> None:
    large = bytes(range(256)) * 4096
    bucket.put("a.bin", large)
    stream = storage.open_file(f"{bucket.uri}/a.bin")
    assert stream.read(10) == large[:10]
    bucket.put("a.bin", large[::-1])
    stream.seek(900_000)
    with pytest.raises(storage.ObjectChanged):
        stream.read(10)


def test_what_was_listed_is_read_and_nothing_that_was_written_since(bucket: Bucket) -> None:
    bucket.put("a.csv", ONE)
    (entry,) = storage.list_files(f"{bucket.uri}/a.csv")
    stream = storage.open_file(entry.uri, entry.version)
    bucket.put("a.csv", TWO)
    assert storage.read_bytes(entry.uri) == TWO
    for read in (stream.read, lambda: storage.read_bytes(entry.uri, entry.version)):
        with pytest.raises(storage.ObjectChanged, match="is gone or was replaced") as caught:
            read()
        assert caught.value.code == 21
        assert caught.value.where == entry.uri

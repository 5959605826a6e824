"""Reads of pinned ranges, and what a store that fails means."""

import hashlib
import io
import itertools
import logging
import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.faults import Answer, Damaged, Longer, LostReply, Reset, ResetUpload, Short, Slow
from tests.storage.stores import Bucket
from trainwright import storage
from trainwright.errors import DependencyError, InputError, PermissionRefused, TransientError
from trainwright.storage import Access

RANGE = re.compile(r"bytes=(\d+)-(\d+)")
ONE, TWO = b"one\r\n\n\x00", b"two, and more"


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwright.storage.s3.PART", 5 << 20)  # S3 takes no smaller ones


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size", [0, 1000, 9 << 20])
def test_file_arrives_whole_and_comes_back_whole(bucket: Bucket, tmp_path: Path, size: int) -> None:
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


@pytest.mark.parametrize("seed", range(2))
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


SOON = Access(retry_s=0.5)


def body(scheme: str, code: str) -> bytes:
    """What the store itself says with a failure."""
    if scheme == "gs":
        return b'{"error": {"code": 500, "message": "%s"}}' % code.encode()
    return b"<Error><Code>%s</Code><Message>no</Message></Error>" % code.encode()


@pytest.mark.parametrize(
    ("call", "status"),
    [("read", 408), ("create", 429), ("remove", 500), ("list", 502), ("read", 503), ("create", 504)],
)
def test_transient_failure_is_retried_and_counted(
    bucket: Bucket, status: int, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.put("a.csv", b"one")
    calls: dict[str, Callable[[], object]] = {
        "list": lambda: storage.list_files(bucket.uri),
        "read": lambda: storage.read_bytes(f"{bucket.uri}/a.csv"),
        "create": lambda: storage.create(f"{bucket.uri}/b.csv", b"two"),
        "remove": lambda: storage.remove([f"{bucket.uri}/a.csv"]),
    }
    bucket.proxy.plan(Answer(status, {}, body(bucket.scheme, "SlowDown")), times=2)
    with caplog.at_level(logging.WARNING, "trainwright.storage"):
        calls[call]()
    assert bucket.proxy.unused() == []
    assert any("tries" in line and f"{bucket.uri}" in line for line in caplog.messages)


@pytest.mark.covers("F36")
def test_answer_that_says_when_to_come_back_is_obeyed(bucket: Bucket) -> None:
    bucket.put("a.csv", b"one")
    bucket.proxy.plan(Answer(429, {"Retry-After": "1"}, body(bucket.scheme, "SlowDown")))
    start = time.monotonic()
    storage.read_bytes(f"{bucket.uri}/a.csv")
    assert time.monotonic() - start >= 1


def test_store_that_asks_for_more_time_than_there_is_fails_after_the_deadline_at_once(bucket: Bucket) -> None:
    bucket.proxy.plan(Answer(503, {"Retry-After": "3600"}, body(bucket.scheme, "SlowDown")))
    start = time.monotonic()
    with pytest.raises(TransientError, match="failed 1 times") as caught:
        storage.list_files(bucket.uri, access=SOON)
    assert time.monotonic() - start < 5
    assert caught.value.code == 20
    assert "503" in caught.value.what


def test_patience_ends_with_an_error_that_may_be_retried_and_names_the_place(bucket: Bucket) -> None:
    bucket.proxy.plan(Answer(503, {}, body(bucket.scheme, "SlowDown")), times=1000)
    start = time.monotonic()
    with pytest.raises(TransientError) as caught:
        storage.read_bytes(f"{bucket.uri}/a.csv", access=SOON)
    assert time.monotonic() - start < 10
    assert caught.value.where == f"{bucket.uri}/a.csv"
    assert caught.value.retryable


@pytest.mark.covers("F36")
def test_third_of_all_calls_may_fail_and_all_of_them_succeed(bucket: Bucket, tmp_path: Path) -> None:
    content = os.urandom(300_000)
    (tmp_path / "here.bin").write_bytes(content)
    broken = Answer(503, {}, body(bucket.scheme, "SlowDown")), Answer(429), Reset(100), LostReply(), Short(7)
    with bucket.proxy.storm(0.3, *broken):
        for number in range(6):
            uri = f"{bucket.uri}/{number}.bin"
            made = storage.publish(tmp_path / "here.bin", uri)
            assert storage.read_bytes(uri, made.version) == content
        assert len(storage.list_files(bucket.uri)) == 6


@pytest.mark.covers("F37")
@pytest.mark.parametrize("fault", [Reset(5_000_000), Short(1000), Reset(0)])
def test_read_that_broke_goes_on_where_it_broke(bucket: Bucket, fault: Reset | Short, tmp_path: Path) -> None:
    content = os.urandom(6_000_000)
    bucket.put("a.bin", content)
    (entry,) = storage.list_files(bucket.uri)
    bucket.proxy.clear()
    bucket.proxy.plan(fault, "GET", "a.bin" if bucket.scheme == "s3" else "alt=media")
    storage.fetch(entry, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == content
    asked = [
        headers.get("Range", headers.get("range"))
        for _, path, headers in bucket.proxy.seen
        if "a.bin" in path
    ]
    starts = [int(text.partition("=")[2].partition("-")[0]) for text in asked if text]
    assert starts[0] == 0
    assert len(starts) == 2
    if fault != Reset(0):
        assert starts[1] > 0  # a reset also takes what had come and was not yet read


@pytest.mark.covers("F37")
def test_whole_read_is_checked_against_the_stores_checksum(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("a.bin", b"x" * 1000)
    (entry,) = storage.list_files(bucket.uri)
    for read in (
        lambda: storage.read_bytes(entry.uri, entry.version),
        lambda: storage.fetch(entry, tmp_path / "a.bin"),
    ):
        bucket.proxy.plan(Damaged(500), "GET", "a.bin" if bucket.scheme == "s3" else "alt=media")
        if bucket.scheme == "s3":  # its library checks too, so that it is read again
            assert read() in {None, b"x" * 1000}
            continue
        with pytest.raises(TransientError, match="damaged in transfer"):
            read()
        assert list(tmp_path.iterdir()) == []
    if bucket.scheme == "s3":
        assert (tmp_path / "a.bin").read_bytes() == b"x" * 1000


def test_server_that_sends_another_range_is_not_believed(bucket: Bucket) -> None:
    bucket.put("a.bin", b"0123456789" * 100)
    bucket.proxy.plan(Longer(), "GET", "a.bin" if bucket.scheme == "s3" else "alt=media")
    assert storage.read_bytes(f"{bucket.uri}/a.bin") == b"0123456789" * 100


def test_reply_lost_after_the_commit_is_recognised_as_ours(bucket: Bucket) -> None:
    bucket.proxy.plan(LostReply(), "PUT" if bucket.scheme == "s3" else "POST")
    made = storage.create(f"{bucket.uri}/manifest.json", b"ours")
    assert bucket.proxy.unused() == []
    assert made == storage.head(made.uri) or made.checksum == f"sha256:{hashlib.sha256(b'ours').hexdigest()}"
    with pytest.raises(storage.AlreadyExists):
        storage.create(f"{bucket.uri}/manifest.json", b"ours")


def test_commit_of_another_is_not_taken_for_ours_when_our_own_try_broke(bucket: Bucket) -> None:
    """Our request never arrives; before the next try, another commits."""
    bucket.put("manifest.json", b"theirs")
    bucket.proxy.plan(Reset(0), "PUT" if bucket.scheme == "s3" else "POST")
    with pytest.raises(storage.AlreadyExists):
        storage.create(f"{bucket.uri}/manifest.json", b"our's!")


@pytest.mark.usefixtures("small_parts")
def test_large_upload_whose_last_reply_was_lost_is_known_by_its_bytes(s3: Bucket, tmp_path: Path) -> None:
    (tmp_path / "large.bin").write_bytes(os.urandom(6 << 20))
    s3.proxy.plan(LostReply(), "POST", "uploadId=")
    made = storage.publish(tmp_path / "large.bin", f"{s3.uri}/large.bin")
    assert s3.proxy.unused() == []
    assert made.size == 6 << 20
    assert storage.head(made.uri).checksum.endswith("-2")


@pytest.mark.covers("F38")
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size", [1 << 20, 9 << 20])
def test_upload_that_dies_leaves_nothing_and_is_sent_again(bucket: Bucket, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "here.bin").write_bytes(content)
    bucket.proxy.plan(ResetUpload(100_000), "PUT" if bucket.scheme == "s3" or size > 8 << 20 else "POST")
    made = storage.publish(tmp_path / "here.bin", f"{bucket.uri}/there.bin")
    assert bucket.proxy.unused() == []
    assert storage.read_bytes(made.uri, made.version) == content


def test_what_arrives_damaged_at_the_store_is_not_committed(bucket: Bucket) -> None:
    """The store says that MD5 and content do not agree, once; it is sent again."""
    said = b'{"error": {"code": 400, "message": "Provided MD5 hash does not match"}}'
    answer = said if bucket.scheme == "gs" else body("s3", "BadDigest")
    bucket.proxy.plan(Answer(400, {"Content-Type": "application/json"}, answer))
    made = storage.create(f"{bucket.uri}/a.csv", b"one")
    assert storage.read_bytes(made.uri) == b"one"


def test_slow_answer_is_waited_for(bucket: Bucket) -> None:
    bucket.put("a.csv", b"one")
    bucket.proxy.plan(Slow(0.5))
    assert storage.read_bytes(f"{bucket.uri}/a.csv") == b"one"
    assert bucket.proxy.unused() == []


def test_nothing_that_answers_is_a_dependency_that_is_down(
    gs: Bucket, s3: Bucket, environment: pytest.MonkeyPatch
) -> None:
    from trainwright.storage import gs as google
    from trainwright.storage import s3 as amazon

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
        patch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
        google._client.cache_clear()
        amazon._client.cache_clear()
        for bucket in (gs, s3):
            with pytest.raises(DependencyError, match="nothing answers there") as caught:
                storage.list_files(bucket.uri, access=SOON)
            assert caught.value.code == 21
    google._client.cache_clear()
    amazon._client.cache_clear()


@pytest.mark.covers("B19")
@pytest.mark.parametrize("status", [401, 403])
def test_refusal_is_not_retried_and_names_who_needs_what(bucket: Bucket, status: int) -> None:
    said = b'{"error": {"code": 403, "message": "ann@example.iam does not have storage.objects.list access"}}'
    answer = said if bucket.scheme == "gs" else body("s3", "AccessDenied")
    listing = "/o?" if bucket.scheme == "gs" else "list-type"
    bucket.proxy.plan(Answer(status, {"Content-Type": "application/json"}, answer), "GET", listing, times=3)
    with pytest.raises(PermissionRefused, match="refused") as caught:
        storage.list_files(bucket.uri)
    assert [planned.left for planned in bucket.proxy.unused()] == [2]
    wanted = "roles/storage.objectViewer" if bucket.scheme == "gs" else "access key ends in 1234"
    assert wanted in caught.value.hint
    assert caught.value.code == 50
    if bucket.scheme == "gs" and status == 403:
        assert "ann@example.iam" in caught.value.what


def test_bucket_whose_protection_may_not_be_seen_counts_as_unprotected(bucket: Bucket) -> None:
    bucket.put("a.csv", b"one")
    part = f"/b/{bucket.name}?" if bucket.scheme == "gs" else "versioning"
    bucket.proxy.plan(Answer(403, {}, body(bucket.scheme, "AccessDenied")), "GET", part, times=5)
    assert storage.take_listing(bucket.uri).protection == "pinned_unprotected"
    assert len(bucket.proxy.unused()) == 1


def test_store_that_speaks_s3_but_knows_no_versions_is_pinned_by_etag(s3: Bucket) -> None:
    s3.put("a.csv", b"one")
    s3.proxy.plan(Answer(501, {}, body("s3", "NotImplemented")), "GET", "versioning", times=9)
    listing = storage.take_listing(s3.uri)
    assert (listing.protection, listing.files[0].version[0]) == ("pinned_unprotected", '"')


def test_request_that_the_store_does_not_understand_is_ours_and_not_retried(bucket: Bucket) -> None:
    bucket.proxy.plan(Answer(400, {}, body(bucket.scheme, "InvalidArgument")), times=3)
    with pytest.raises(InputError, match="the store refused the request"):
        storage.list_files(bucket.uri)
    assert [planned.left for planned in bucket.proxy.unused()] == [2]

"""gs:// and s3:// over real HTTP: the same facts hold for both."""

import base64
import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.storage.faults import Answer
from tests.storage.stores import Bucket, amazon_client, google_client
from trainwright import storage
from trainwright.errors import InputError

ONE, TWO = b"one\r\n\n\x00", b"two, and more"


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content, usedforsecurity=False).hexdigest()}"


def fill(bucket: Bucket) -> None:
    for name, content in (
        ("d=1/a.parquet", ONE),
        ("d=2/a.parquet", TWO),
        ("d=2/_SUCCESS", b""),
        ("notes.txt", b"x"),
    ):
        bucket.put(name, content)


def test_bucket_is_listed_without_being_read_and_is_the_same_as_a_folder_of_those_bytes(
    bucket: Bucket, tmp_path: Path
) -> None:
    fill(bucket)
    for name, content in (("d=1/a.parquet", ONE), ("d=2/a.parquet", TWO)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(content)
    bucket.proxy.clear()
    there, here = storage.take_listing(bucket.uri), storage.take_listing(str(tmp_path))
    assert [file.checksum for file in there.files] == [md5(ONE), md5(TWO)]
    assert [file.uri for file in there.files] == [f"{bucket.uri}/d={day}/a.parquet" for day in (1, 2)]
    assert [file.size for file in there.files] == [len(ONE), len(TWO)]
    assert there.content_digest == here.content_digest
    assert not [
        path
        for method, path, _ in bucket.proxy.seen
        if "alt=media" in path or (method == "GET" and "a.parquet" in path)
    ]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("/d=*/a.parquet", ["d=1/a.parquet", "d=2/a.parquet"]),
        ("/d=?/*", ["d=1/a.parquet", "d=2/a.parquet"]),
        ("/**/a.parquet", ["d=1/a.parquet", "d=2/a.parquet"]),
        ("/d=[2-9]/a.*", ["d=2/a.parquet"]),
        ("/d=[!2]/**", ["d=1/a.parquet"]),
        ("/d=2", ["d=2/a.parquet"]),
        ("/d=2/_*", ["d=2/_SUCCESS"]),
        ("/notes.txt", ["notes.txt"]),
        ("", ["d=1/a.parquet", "d=2/a.parquet", "notes.txt"]),
    ],
)
def test_globs_folders_and_partitions_find_what_they_find_on_a_disk(
    bucket: Bucket, tmp_path: Path, pattern: str, names: list[str]
) -> None:
    fill(bucket)
    for name in ("d=1/a.parquet", "d=2/a.parquet", "d=2/_SUCCESS", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [file.uri for file in storage.list_files(bucket.uri + pattern)] == [
        f"{bucket.uri}/{name}" for name in names
    ]
    assert [file.uri for file in storage.list_files(f"{tmp_path}{pattern}")] == [
        f"{tmp_path}/{name}" for name in names
    ]


def test_listing_of_many_pages_has_every_object_once(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"trainwright.storage.{bucket.scheme}._PAGE", 7)
    for number in range(25):
        bucket.put(f"p/{number:04}.csv", b"%d" % number)
    bucket.put("q.csv", b"")
    for setting_up in (True, False):
        found = storage.list_files(f"{bucket.uri}/p", (".csv",))
        assert [file.uri for file in found] == [f"{bucket.uri}/p/{number:04}.csv" for number in range(25)]
        if setting_up:
            keep_versions(bucket)
            for number in range(0, 25, 2):
                bucket.put(f"p/{number:04}.csv", b"again")


def test_what_was_removed_is_moved_when_pinned_and_missing_when_not(bucket: Bucket) -> None:
    made = storage.create(f"{bucket.uri}/a.csv", ONE)
    storage.remove([made.uri, f"{bucket.uri}/never.csv"])
    with pytest.raises(storage.ObjectChanged):
        storage.read_bytes(made.uri, made.version)
    with pytest.raises(InputError, match="no such object"):
        storage.read_bytes(made.uri)


def test_of_many_writers_of_one_name_exactly_one_succeeds_and_nothing_is_replaced(bucket: Bucket) -> None:
    gate, uri = threading.Barrier(8), f"{bucket.uri}/manifest.json"

    def write(number: int) -> bytes | None:
        content = b"writer %d" % number
        gate.wait()
        try:
            storage.create(uri, content)
        except storage.AlreadyExists:
            return None
        return content

    with ThreadPoolExecutor(8) as pool:
        (winner,) = [content for content in pool.map(write, range(8)) if content]
    assert storage.read_bytes(uri) == winner


@pytest.mark.covers("B14")
def test_missing_bucket_is_named(bucket: Bucket) -> None:
    for look in (storage.list_files, storage.take_listing):
        with pytest.raises(InputError, match="there is no bucket 'no-such-bucket'") as caught:
            look(f"{bucket.scheme}://no-such-bucket/a")
        assert caught.value.hint == f"A source is written {bucket.scheme}://BUCKET/PATH."
    with pytest.raises(InputError, match="there is no bucket"):
        storage.create(f"{bucket.scheme}://no-such-bucket/a", b"")


@pytest.mark.covers("B18")
@pytest.mark.parametrize(
    ("source", "nearest"),
    [
        ("/data/flight.parquet", "/data/: it holds flights.parquet, …."),
        ("/dat/*.parquet", "/: it holds data, …."),
        ("/data/day=1/x.csv", "/data/: it holds flights.parquet, planes.csv.tmp."),
    ],
)
def test_nothing_found_names_what_lies_nearest(bucket: Bucket, source: str, nearest: str) -> None:
    for name in ("data/flights.parquet", "data/planes.csv.tmp", "other/x.csv"):
        bucket.put(name, ONE)
    with pytest.raises(InputError, match=r"no such file or folder|no file matches") as caught:
        storage.list_files(bucket.uri + source)
    assert caught.value.hint == f"The nearest that exists is {bucket.uri}{nearest}"


def test_folder_without_tables_says_what_it_holds(bucket: Bucket) -> None:
    bucket.put("data/notes.txt", ONE)
    with pytest.raises(InputError, match=r"no file ending in \.csv below this folder") as caught:
        storage.list_files(f"{bucket.uri}/data", (".csv",))
    assert caught.value.hint == "it holds notes.txt."


def test_find_gives_every_file_of_a_name_and_nothing_where_nothing_is(bucket: Bucket) -> None:
    fill(bucket)
    assert list(storage.find(bucket.uri, "a.parquet")) == [
        f"{bucket.uri}/d={day}/a.parquet" for day in (1, 2)
    ]
    assert list(storage.find(f"{bucket.uri}/no/such", "a.parquet")) == []


def test_object_whose_name_is_a_glob_is_taken_as_it_is(bucket: Bucket) -> None:
    bucket.put("a[1].csv", ONE)
    bucket.put("a1.csv", TWO)
    assert [file.size for file in storage.list_files(f"{bucket.uri}/a[1].csv")] == [len(ONE)]


def test_versions_stay_readable_where_the_bucket_keeps_them_and_the_listing_says_so(bucket: Bucket) -> None:
    bucket.put("a.csv", ONE)
    assert storage.take_listing(bucket.uri).protection == unprotected(bucket)
    keep_versions(bucket)
    bucket.put("b.csv", ONE)
    before = storage.take_listing(bucket.uri)
    bucket.put("b.csv", TWO)
    assert before.protection == "versioned"
    assert [storage.read_bytes(file.uri, file.version) for file in before.files] == [ONE, ONE]
    assert storage.read_bytes(f"{bucket.uri}/b.csv") == TWO


def unprotected(bucket: Bucket) -> str:
    return "soft_delete" if bucket.scheme == "gs" else "pinned_unprotected"  # Google's default is seven days


def keep_versions(bucket: Bucket) -> None:
    if bucket.scheme == "gs":
        found = google_client().get_bucket(bucket.name)
        found.versioning_enabled = True
        found.patch()
    else:
        amazon_client().put_bucket_versioning(
            Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"}
        )


def test_bucket_that_keeps_nothing_is_pinned_but_not_protected(gs: Bucket) -> None:
    found = google_client().get_bucket(gs.name)
    found.soft_delete_policy.retention_duration_seconds = 0
    found.patch()
    gs.put("a.csv", ONE)
    assert storage.take_listing(gs.uri).protection == "pinned_unprotected"
    found.retention_period = 86400
    found.patch()
    assert storage.take_listing(gs.uri).protection == "retention"


def test_composed_object_is_known_by_its_crc32c(gs: Bucket) -> None:
    import google_crc32c

    gs.put("a.csv", ONE + TWO)
    crc = base64.b64encode(google_crc32c.Checksum(ONE + TWO).digest()).decode()
    body = json.dumps({"items": [{"name": "a.csv", "generation": "7", "size": "9", "crc32c": crc}]})
    gs.proxy.plan(Answer(200, {"Content-Type": "application/json"}, body.encode()), "GET", "prefix=")
    (entry,) = storage.list_files(f"{gs.uri}/a.*")
    assert entry.checksum == f"crc32c:{google_crc32c.Checksum(ONE + TWO).digest().hex()}"


def test_object_of_several_parts_is_known_by_its_etag_and_its_shards_by_their_sha256(
    s3: Bucket, tmp_path: Path
) -> None:
    (tmp_path / "large.parquet").write_bytes(b"x" * (33 << 20))
    made = storage.publish(tmp_path / "large.parquet", f"{s3.uri}/large.parquet")
    (entry,) = storage.take_listing(s3.uri).files
    assert entry.checksum.startswith("etag:")
    assert entry.checksum.endswith("-2")
    assert made.checksum == f"sha256:{hashlib.sha256(b'x' * (33 << 20)).hexdigest()}"


def test_etag_that_is_no_md5_is_not_taken_for_one(s3: Bucket) -> None:
    amazon_client().put_object(Bucket=s3.name, Key="a.csv", Body=ONE, ServerSideEncryption="aws:kms")
    (entry,) = storage.take_listing(s3.uri).files
    assert entry.checksum.startswith("etag:")
    assert storage.read_bytes(entry.uri, entry.version) == ONE

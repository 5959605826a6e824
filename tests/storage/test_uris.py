"""Parsing, checking and redacting of URIs."""

import json
import logging
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.faults import Answer
from tests.storage.stores import PLANTED, Bucket, Site
from trainwright import storage
from trainwright.errors import InputError, PermissionRefused, TrainwrightError, as_record
from trainwright.storage.uris import remote


@pytest.mark.covers("B13")
@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("ftp://host/x.csv", "Copy the data to one of these first."),
        ("filecache://x", "Write file://x"),
        ("htttp://host/x.csv", "Write https://host/x.csv"),
        ("http://host/x.csv", "Write https://host/x.csv"),
        ("S3://bucket/x.csv", "Write s3://bucket/x.csv"),
        ("gcs://bucket/x.csv", "Write gs://bucket/x.csv"),
        ("mino://bucket/x.csv", "Write minio://bucket/x.csv"),
    ],
)
def test_scheme_that_is_not_read_here_is_rejected_and_names_the_nearest(uri: str, hint: str) -> None:
    with pytest.raises(InputError, match="is not read here; known are file, gs, s3, minio, https") as caught:
        storage.list_files(uri)
    assert caught.value.hint == hint


@pytest.mark.covers("B14")
@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("gs:///bucket/x", "Write gs://BUCKET/bucket/x"),
        ("s3:/bucket/key", "Write s3://bucket/key"),
        ("gs:bucket/key", "Write gs://bucket/key"),
        ("minio:/bucket/key", "Write minio://bucket/key"),
        ("https:/host/x", "Write https://host/x"),
        ("https:///x", "Write https://HOST/x"),
        ("file:/data/x", "Write file:///data/x"),
        ("file://host/data/x", "Write file:///host/data/x"),
    ],
)
def test_slip_of_the_slashes_is_corrected(uri: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        storage.list_files(uri)
    assert caught.value.hint == hint


@pytest.mark.parametrize("scheme", ["gs", "s3"])
@pytest.mark.parametrize("bucket", [".", "..", "[x", "b?x", "x%2fy", "a b", "-a", "ü"])
def test_what_can_be_no_bucket_is_said_before_a_store_is_asked(scheme: str, bucket: str) -> None:
    for call in (storage.list_files, storage.read_bytes, storage.local_path):
        with pytest.raises(InputError, match="can be no bucket's name"):
            call(f"{scheme}://{bucket}/x.csv")


@pytest.mark.parametrize("uri", ["", " ", "a\0b", "gs://b/\0"])
def test_what_names_no_file_is_not_taken_for_the_working_folder(uri: str) -> None:
    with pytest.raises(InputError, match="names no file"):
        storage.list_files(uri)


@pytest.mark.covers("B15")
@pytest.mark.parametrize(
    "uri",
    [
        "data/../other.csv",
        "/data/../../etc/passwd",
        "gs://bucket/a/../../b",
        "s3://bucket/..",
        "https://host/a/../b",
        "https://host/a/%2e%2e/b",
        "file:///data/%2e%2e/x",
    ],
)
def test_path_that_leads_upwards_is_rejected(uri: str) -> None:
    with pytest.raises(PermissionRefused, match=re.escape("'..'")) as caught:
        storage.open_file(uri)
    assert caught.value.code == 50


@pytest.mark.covers("B16")
@pytest.mark.parametrize(
    "uri",
    [
        "/etc/passwd",
        "file:///etc/passwd",
        "/proc/self/environ",
        "/sys/kernel",
        "/dev/sda",
        "/run/secrets/x",
        "/var/run/secrets/kubernetes.io/serviceaccount/token",
        "/etc/*",
        "//etc/passwd",
        "/etc",
    ],
)
def test_places_of_the_machine_are_rejected(uri: str) -> None:
    for look in (storage.list_files, storage.open_file, storage.read_bytes, storage.take_listing):
        with pytest.raises(PermissionRefused, match="belongs to the machine") as caught:
            look(uri)
        assert caught.value.code == 50


def test_places_of_the_machine_are_rejected_behind_a_link_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").symlink_to("/etc/passwd")
    (tmp_path / "folder").symlink_to("/proc")
    for uri in (tmp_path / "a.csv", tmp_path / "folder" / "self" / "environ"):
        with pytest.raises(PermissionRefused, match=r"it leads to /(etc|proc)"):
            storage.open_file(str(uri))


def test_shared_cache_holds_data(tmp_path: Path) -> None:
    assert storage.local_path("/dev/shm/x") == Path("/dev/shm/x")  # noqa: S108


@pytest.mark.parametrize(
    ("root", "names", "joined"),
    [
        ("gs://bucket", ["a", "b.json"], "gs://bucket/a/b.json"),
        ("s3://bucket/x/", ["b"], "s3://bucket/x/b"),
        ("/data/x/", ["b"], "/data/x/b"),
        ("/", ["b"], "/b"),
    ],
)
def test_names_are_joined_to_folders_of_any_kind(root: str, names: list[str], joined: str) -> None:
    assert storage.join(root, *names) == joined


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x"])
def test_joined_name_stays_below_its_folder(name: str) -> None:
    with pytest.raises(PermissionRefused, match="leads out of the folder"):
        storage.join("gs://bucket/x", name)


@pytest.mark.covers("A20")
@given(
    st.text(st.characters(codec="utf-8"), max_size=40)
    | st.from_regex(r"\A(gs|s3|minio|https?|file|ftp)://[^\0]{0,40}\Z")
)
def test_any_text_is_a_place_or_a_typed_error(text: str) -> None:
    try:
        place = remote(text)
        storage.local_path(text)
    except (InputError, PermissionRefused):
        return
    assert place is None or place.bucket


CARRYING = [
    f"https://me:{PLANTED}@host/x.csv",
    f"https://{PLANTED}@host/x.csv",
    f"https://me:a/{PLANTED}@host/x.csv",
    f"s3://AKIAX:{PLANTED}@bucket/x.csv",
    f"s3://AKIAX:ab/cd+{PLANTED}@bucket/x.csv",
    f"gs://{PLANTED}@bucket/x.csv",
    f"file://me:{PLANTED}@host/x.csv",
    f"https://host/x.csv?X-Amz-Signature={PLANTED}&X-Amz-Date=1",
    f"https://host/x.csv?a=1&x-goog-signature={PLANTED}",
    f"https://host/x.csv?sv=2020&sig={PLANTED}",
    f"https://host/x.csv?token={PLANTED}",
    f"https://host/x.csv?access_token={PLANTED}#here",
    f"https://host/x.csv?api_key={PLANTED}",
    f"ftp://me:{PLANTED}@host/x.csv",
    f"postgresql://me:{PLANTED}@host/db",
]


@pytest.mark.covers("B17")
@pytest.mark.parametrize("uri", CARRYING)
def test_credentials_in_a_uri_are_rejected_and_not_repeated(uri: str) -> None:
    for look in (
        storage.list_files,
        storage.open_file,
        storage.take_listing,
        storage.local_path,
        storage.head,
    ):
        with pytest.raises(InputError, match="carries a") as caught:
            look(uri)
        assert PLANTED not in str(caught.value) + repr(caught.value) + json.dumps(
            as_record(caught.value, "x")
        )
    assert PLANTED not in storage.redacted(f"could not read {uri}: no")


@pytest.mark.parametrize(
    "text",
    ["gs://bucket/a@b.csv", "https://host:8080/a@b", "s3://b/key=3/x", "https://host/x?page=2", "a@b.csv"],
)
def test_what_is_no_secret_is_not_hidden(text: str) -> None:
    assert storage.redacted(text) == text


def test_no_error_log_or_listing_says_the_key_that_it_is_done_with(
    bucket: Bucket, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "trainwright")
    bucket.put("a.csv", b"one")
    said = [repr(storage.take_listing(bucket.uri)), repr(storage.create(f"{bucket.uri}/b.csv", b"x"))]
    for status in (400, 401, 403, 503):
        bucket.proxy.plan(Answer(status, {}, PLANTED.encode()[:0]), times=9)
        with pytest.raises(TrainwrightError) as caught:
            storage.list_files(bucket.uri, access=storage.Access(retry_s=0.2))
        said += [str(caught.value), repr(caught.value), json.dumps(as_record(caught.value, "x"))]
        bucket.proxy.clear()
    out = capfd.readouterr()
    assert PLANTED not in "\n".join([*said, *caplog.messages, out.out, out.err])


def test_redirect_to_a_signed_address_is_followed_and_its_signature_said_by_nobody(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "trainwright")
    signed = f"{site.uri}/y.csv?X-Amz-Signature={PLANTED}"
    site.web.redirects["/x.csv"] = signed
    site.web.put("/y.csv", b"one", '"1"')
    listing = storage.take_listing(f"{site.uri}/x.csv", site.access)
    site.proxy.plan(Answer(503), part="/y.csv", times=99)
    with pytest.raises(TrainwrightError) as caught:
        storage.read_bytes(f"{site.uri}/x.csv", access=storage.Access(site.access.hosts, True, 0.2))
    assert PLANTED not in repr(listing) + str(caught.value) + repr(caught.value) + "".join(caplog.messages)

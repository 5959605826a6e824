"""What a URI may be, and what is said of one that is wrong."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright import storage
from trainwright.errors import InputError, PermissionRefused
from trainwright.storage.uris import remote


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
def test_a_scheme_that_is_not_read_here_is_refused_and_the_nearest_named(uri: str, hint: str) -> None:
    with pytest.raises(InputError, match="is not read here; known are file, gs, s3, minio, https") as caught:
        storage.list_files(uri)
    assert caught.value.hint == hint


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
def test_a_slip_of_the_slashes_is_corrected(uri: str, hint: str) -> None:
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
def test_a_path_that_leads_upwards_is_refused(uri: str) -> None:
    with pytest.raises(PermissionRefused, match=re.escape("'..'")) as caught:
        storage.open_file(uri)
    assert caught.value.code == 50


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
def test_places_of_the_machine_are_refused(uri: str) -> None:
    for look in (storage.list_files, storage.open_file, storage.read_bytes, storage.take_listing):
        with pytest.raises(PermissionRefused, match="belongs to the machine") as caught:
            look(uri)
        assert caught.value.code == 50


def test_places_of_the_machine_are_refused_behind_a_link_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").symlink_to("/etc/passwd")
    (tmp_path / "folder").symlink_to("/proc")
    for uri in (tmp_path / "a.csv", tmp_path / "folder" / "self" / "environ"):
        with pytest.raises(PermissionRefused, match=r"it leads to /(etc|proc)"):
            storage.open_file(str(uri))


def test_shared_memory_holds_data(tmp_path: Path) -> None:
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
def test_a_joined_name_stays_below_its_folder(name: str) -> None:
    with pytest.raises(PermissionRefused, match="leads out of the folder"):
        storage.join("gs://bucket/x", name)


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

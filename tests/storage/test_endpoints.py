"""s3:// and minio:// as a step meets them: endpoint and keys from the SDK's own variables, or none at all."""

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.storage.stores import Bucket
from trainwright import storage
from trainwright.errors import MARK

ROOT = Path(__file__).resolve().parents[2]
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
LOOK = """
import sys
from trainwright import storage
from trainwright.errors import reported
with reported("test"):
    access = storage.Access(retry_s=0)
    print(sys.argv[1], storage.read_bytes(sys.argv[1], access=access).decode())
"""


def look(uri: str, **variables: str | None) -> tuple[int, str, dict[str, object]]:
    """Read an object in a fresh process with only these AWS variables set; give code, output and error."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MINIO_"))}
    known |= {"AWS_EC2_METADATA_DISABLED": "true", "PYTHONPATH": str(ROOT)}
    known |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    known |= {name: value for name, value in variables.items() if value is not None}
    command = [sys.executable, "-c", LOOK, uri]
    done = subprocess.run(command, check=False, env=known, capture_output=True, text=True)
    [line] = [line for line in done.stderr.splitlines() if line.startswith(MARK)] or [MARK + "{}"]
    return done.returncode, done.stdout, json.loads(line.removeprefix(MARK))


@contextmanager
def refusing() -> Iterator[str]:
    """Serve a store that allows nothing; give its endpoint."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(403)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:  # a server whose socket is closed before takes a whole core
            server.shutdown()


def keys() -> dict[str, str]:
    return {name: os.environ[name] for name in KEYS}


@pytest.mark.parametrize("scheme", ["s3", "minio"])
@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
def test_endpoint_and_keys_from_variables_alone_reach_the_store(
    s3: Bucket, scheme: str, variable: str
) -> None:
    s3.put("a/x.txt", b"hello")
    uri = f"{scheme}://{s3.name}/a/x.txt"
    code, said, error = look(uri, **keys(), **{variable: os.environ["AWS_ENDPOINT_URL_S3"]})
    assert (code, said, error) == (0, f"{uri} hello\n", {})


def test_minio_uris_list_write_and_read_like_s3_and_keep_their_scheme(s3: Bucket, tmp_path: Path) -> None:
    root = f"minio://{s3.name}"
    made = storage.create(f"{root}/run/record.json", b"{}")
    (tmp_path / "big.parquet").write_bytes(b"x" * (33 << 20))
    storage.publish(tmp_path / "big.parquet", f"{root}/run/big.parquet")
    assert list(storage.find(root, "record.json")) == [made.uri] == [f"{root}/run/record.json"]
    listing = storage.take_listing(f"{root}/run/**/*")
    assert [entry.uri for entry in listing.files] == [f"{root}/run/big.parquet"]
    assert listing.content_digest == storage.take_listing(f"s3://{s3.name}/run/**/*").content_digest
    with pytest.raises(storage.AlreadyExists):
        storage.create(f"{root}/run/record.json", b"other")
    storage.remove([f"{root}/run/record.json"])
    assert list(storage.find(root, "record.json")) == []


def test_minio_without_an_endpoint_goes_to_the_store_of_kubeflow_pipelines() -> None:
    code, _, error = look("minio://mlpipeline/v2/x.json", **dict.fromkeys(KEYS, "x" * 16))
    assert (code, error["where"]) == (21, "minio://mlpipeline/v2/x.json")
    assert "http://seaweedfs.kubeflow:9000/mlpipeline/v2/x.json" in str(error["what"])


def own() -> dict[str, str]:
    """The keys of the store, as a step gets those of Kubeflow Pipelines' own."""
    return dict(zip(("MINIO_ACCESS_KEY", "MINIO_SECRET_KEY"), keys().values(), strict=True))


def test_minio_has_endpoint_and_keys_of_its_own_beside_those_of_another_store(s3: Bucket) -> None:
    s3.put("a/x.txt", b"hello")
    elsewhere = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1", **dict.fromkeys(KEYS, "x" * 16)}
    elsewhere["AWS_SESSION_TOKEN"] = "of the other store"  # noqa: S105
    uri, endpoint = f"minio://{s3.name}/a/x.txt", os.environ["AWS_ENDPOINT_URL_S3"]
    assert look(uri, MINIO_ENDPOINT=endpoint, **own(), **elsewhere)[:2] == (0, f"{uri} hello\n")
    code, _, error = look(uri, **own(), **elsewhere)
    assert code == 21
    assert "http://seaweedfs.kubeflow:9000/" in str(error["what"]), "its keys never go to another store"


def test_keys_of_kubeflow_pipelines_are_never_used_for_s3(s3: Bucket) -> None:
    """A namespace that reads s3:// by a role has that Secret, too."""
    code, _, error = look(f"s3://{s3.name}/x", AWS_ENDPOINT_URL_S3=os.environ["AWS_ENDPOINT_URL_S3"], **own())
    assert code == 50
    assert "there are no credentials" in str(error["what"])


@pytest.mark.parametrize(
    ("scheme", "names"),
    [
        ("s3", "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"),
        ("minio", "MINIO_ACCESS_KEY, MINIO_SECRET_KEY and MINIO_ENDPOINT"),
    ],
)
@pytest.mark.parametrize("value", [None, ""])
def test_without_keys_the_error_says_which_variables_give_them(
    s3: Bucket, value: str | None, scheme: str, names: str
) -> None:
    code, _, error = look(
        f"{scheme}://{s3.name}/x",
        AWS_ENDPOINT_URL_S3=os.environ["AWS_ENDPOINT_URL_S3"],
        AWS_ACCESS_KEY_ID=value,
        AWS_SECRET_ACCESS_KEY=value,
    )
    assert code == 50
    assert "there are no credentials" in str(error["what"])
    assert str(error["hint"]).startswith(f"Set {names} (docs/storage.md)")
    assert "step" not in str(error["hint"])


@pytest.mark.parametrize(
    "variables", [{"AWS_ENDPOINT_URL_S3": "seaweedfs.kubeflow:9000"}, {"AWS_DEFAULT_REGION": ""}]
)
def test_endpoint_without_a_scheme_or_an_empty_region_is_bad_input(variables: dict[str, str]) -> None:
    code, _, error = look("s3://bucket/x", **variables, **dict.fromkeys(KEYS, "x" * 16))
    assert code == 10
    assert "Invalid endpoint: " in str(error["what"])
    assert "AWS_ENDPOINT_URL_S3, which is written with its scheme" in str(error["hint"])


def test_refusal_at_minio_names_the_key_that_was_used() -> None:
    variables = {"AWS_ACCESS_KEY_ID": "OTHERKEYSIDE9999", "AWS_SECRET_ACCESS_KEY": "x" * 16}
    with refusing() as endpoint:
        code, _, error = look(
            "minio://mlpipeline/x",
            MINIO_ENDPOINT=endpoint,
            MINIO_ACCESS_KEY="PIPELINESKEY4321",
            MINIO_SECRET_KEY="y" * 16,
            **variables,
        )
    assert code == 50
    assert "whose access key ends in 4321" in str(error["hint"])

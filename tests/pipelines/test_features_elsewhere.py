"""The main job with its Feast repository in an object store: nothing of it on the machine of a step."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.conftest import PLANTED, TABULAR, Edit, events, run, tasks
from tests.storage import servers
from trainwright.artifacts import Snapshot

UPLOAD = """
import sys
from pathlib import Path
import boto3
client, folder = boto3.client("s3"), Path(sys.argv[1])
client.create_bucket(Bucket="team")
for path in folder.rglob("*"):
    if path.is_file():
        client.upload_file(str(path), "team", f"feature_repo/{path.relative_to(folder)}")
"""


@pytest.fixture(scope="module")
def store(flights: Path) -> Iterator[None]:
    """A store with the flights' repository; its endpoint and keys are in the SDK's variables alone."""
    with servers.s3() as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_S3", f"http://{address}")
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTTESTTEST1234")
        patch.setenv("AWS_SECRET_ACCESS_KEY", PLANTED)
        patch.setenv("NO_PROXY", "*")
        subprocess.run([TABULAR, "-c", UPLOAD, flights / "feature_repo"], check=True)
        yield


def test_repository_by_uri_gives_the_same_model_as_the_folder(
    store: None,
    finished: dict[str, dict[str, Any]],
    edited: Callable[[Edit], Path],
    runs: Path,
) -> None:
    def move(experiment: dict[str, Any]) -> None:
        places = {"repository": "minio://team/feature_repo", "source": "minio://team/feature_repo/**/*[!c]"}
        experiment["features"] |= places

    done = run(edited(move), runs, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = tasks(events(done))
    assert (found["join"]["state"], found["train"]["state"]) == ("done", "cached")
    one, other = (
        Snapshot.read(Path(each["join"]["outputs"]["training_set"]["uri"])) for each in (finished, found)
    )
    assert one.digest == other.digest


def test_repository_that_is_not_there_ends_the_run_before_the_join_with_bad_input(
    store: None, edited: Callable[[Edit], Path], runs: Path
) -> None:
    def move(experiment: dict[str, Any]) -> None:
        places = {"repository": "s3://team/feature_rep", "source": "s3://team/feature_rep/**/*[!c]"}
        experiment["features"] |= places

    done = run(edited(move), runs, "--json")
    assert done.returncode == 10
    failed = [json.loads(line) for line in done.stdout.splitlines() if '"failed"' in line]
    assert "The nearest that exists is s3://team/: it holds feature_repo." in json.dumps(failed)

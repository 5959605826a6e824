"""Curves on their way to a real MLflow server that is down, silent, or loses answers: each point once."""

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.tracking.server import Way
from trainwright.errors import InputError
from trainwright.tracking.__main__ import replay
from trainwright.tracking.history import (
    HISTORY_FILE,
    HistoryWriter,
    TrackingDestination,
    UploadState,
    kfp_destination,
    upload,
)
from trainwright.tracking.server import open_client

STEPS = 250


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A training of 250 steps with three figures each."""
    path = tmp_path / "home" / HISTORY_FILE
    path.parent.mkdir()
    spool = HistoryWriter(path)
    spool.mark("began", 0, total=STEPS)
    for step in range(1, STEPS + 1):
        spool.add(step, {"loss": 1 / step, "rate": step / 1000, "norm": float(step)})
    spool.close()
    return path


def curve(uri: str, run: str, name: str) -> list[tuple[int, float]]:
    """Ask MLflow itself what it has."""
    found = MlflowClient(uri).get_metric_history(run, name)
    return sorted((point.step, point.value) for point in found)


def expected() -> list[tuple[int, float]]:
    return [(step, 1 / step) for step in range(1, STEPS + 1)]


def test_a_history_arrives_whole(history: Path, way: Way) -> None:
    assert upload(history, TrackingDestination(way.uri), open_client(way.uri)) == 3 * STEPS
    run = UploadState.read(history.with_name(UploadState.FILE)).run
    assert curve(way.uri, run, "loss") == expected()
    assert len(curve(way.uri, run, "norm")) == STEPS


def test_what_was_sent_is_not_sent_again_and_what_is_new_is(history: Path, way: Way) -> None:
    client = open_client(way.uri)
    upload(history, TrackingDestination(way.uri), client)
    assert upload(history, TrackingDestination(way.uri), client) == 0
    spool = HistoryWriter(history)
    spool.add(STEPS + 1, {"loss": 0.0})
    spool.close()
    assert upload(history, TrackingDestination(way.uri), client) == 1
    run = UploadState.read(history.with_name(UploadState.FILE)).run
    assert curve(way.uri, run, "loss") == [*expected(), (STEPS + 1, 0.0)]


def test_when_it_is_forgotten_what_was_sent_no_point_is_there_twice(history: Path, way: Way) -> None:
    client = open_client(way.uri)
    upload(history, TrackingDestination(way.uri), client)
    run = UploadState.read(history.with_name(UploadState.FILE)).run
    history.with_name(UploadState.FILE).unlink()
    assert upload(history, TrackingDestination(way.uri), client) == 3 * STEPS
    assert UploadState.read(history.with_name(UploadState.FILE)).run == run
    assert curve(way.uri, run, "loss") == expected()


def test_the_run_that_is_given_is_joined(history: Path, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    client = open_client(way.uri)
    given = client.create_run("0").info.run_id
    monkeypatch.setenv("MLFLOW_TRACKING_URI", way.uri)
    monkeypatch.setenv("MLFLOW_RUN_ID", given)
    destination = kfp_destination()
    assert destination is not None
    upload(history, destination, client)
    assert curve(way.uri, given, "loss") == expected()
    assert client.get_run(given).info.status == "RUNNING"  # it is not ours to end


def test_replay_brings_the_rest_after_a_server_was_away(history: Path, way: Way) -> None:
    way.mode = "cut"
    with pytest.raises(Exception, match=r"(?i)connection|max retries"):
        upload(history, TrackingDestination(way.uri), open_client(way.uri))
    way.mode = "open"
    told = replay(history.parent, way.uri)
    run = UploadState.read(history.with_name(UploadState.FILE)).run
    assert told == f"250 points are in MLflow run {run} ({way.uri})"
    assert curve(way.uri, run, "loss") == expected()


def test_replay_without_a_history_says_so(tmp_path: Path, way: Way) -> None:
    with pytest.raises(InputError, match=r"no history\.jsonl"):
        replay(tmp_path, way.uri)


def shipper(history: Path, uri: str) -> subprocess.Popen[bytes]:
    told = json.dumps(asdict(TrackingDestination(uri)))
    command = [sys.executable, "-m", "trainwright.tracking", "ship", str(history), told]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


def sent(history: Path) -> int:
    place = history.with_name(UploadState.FILE)
    return UploadState.read(place).offset if place.exists() else 0


@pytest.mark.parametrize("mode", ["lossy", "silent", "cut"])
def test_a_shipper_gets_everything_there_in_the_end_and_leaves_when_the_training_is_over(
    history: Path, way: Way, mode: str
) -> None:
    way.mode = mode
    process = shipper(history, way.uri)
    if mode == "lossy":
        while way.lost < 3:
            time.sleep(0.05)
    else:
        time.sleep(3)
        assert sent(history) == 0
    way.mode = "open"
    while sent(history) < history.stat().st_size:
        assert process.poll() is None
        time.sleep(0.05)
    assert process.stdin
    process.stdin.close()
    assert process.wait(300) == 0
    run = UploadState.read(history.with_name(UploadState.FILE)).run
    assert curve(way.uri, run, "loss") == expected()


def test_a_shipper_that_is_killed_is_followed_by_one_that_goes_on(history: Path, way: Way) -> None:
    first = shipper(history, way.uri)
    while sent(history) == 0:
        time.sleep(0.01)
    first.kill()
    first.communicate()
    second = shipper(history, way.uri)
    assert second.stdin
    second.stdin.close()
    assert second.wait(300) == 0
    run = UploadState.read(history.with_name(UploadState.FILE)).run
    assert curve(way.uri, run, "loss") == expected()


def test_a_shipper_leaves_when_the_training_ends_although_the_server_is_silent(
    history: Path, way: Way
) -> None:
    way.mode = "silent"
    process = shipper(history, way.uri)
    time.sleep(1)
    assert process.stdin
    process.stdin.close()
    assert process.wait(300) == 0
    assert sent(history) == 0

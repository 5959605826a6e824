"""``python -m trainwright.tracking ship HISTORY DESTINATION``: follows a history until its training is gone.

Also ``replay FOLDER URI``: brings what a training has left to MLflow, whatever was sent before; and
``spending URI DATE``: prints what runs have spent since a day, as JSON.
"""

import fcntl
import json
import select
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.errors import InputError, reported
from trainwright.imports import collect_rarely
from trainwright.retries import OUTAGE_S
from trainwright.tracking.history import (
    HISTORY_FILE,
    TrackingDestination,
    TrainingHistory,
    UploadState,
    upload,
)
from trainwright.tracking.run_log import read_spending
from trainwright.tracking.server import open_client, persist

if TYPE_CHECKING:
    from mlflow import MlflowClient

_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_LAST_S = 10.0
"""Seconds that are spent on the rest after the training is gone."""

_REPLAY = "The curves stay in this folder: run the same command again when the server answers."


def ship(history: Path, destination: TrackingDestination) -> None:
    """Send a history as it grows, until all is sent and standard input has closed: the training has ended."""
    while not history.exists():
        if _ended(0.2):
            return
    with history.with_name(".history.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another one is at it
        _follow(history, destination)


def _follow(history: Path, destination: TrackingDestination) -> None:
    client, pause, until = open_client(destination.uri), _PAUSE_S, 0.0
    while True:
        ended = _ended(0)
        until = until or (time.monotonic() + _LAST_S if ended else 0.0)
        try:
            upload(history, destination, client)
            if ended:
                return
            pause = _PAUSE_S
        except Exception as error:  # MLflow raises of all kinds, and the training must not care
            sys.stderr.write(f"MLflow does not take the curves yet: {_first_line(error)}\n")
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        if ended and time.monotonic() > until:
            return
        if _ended(pause):
            time.sleep(_PAUSE_S)


def _ended(wait_s: float) -> bool:
    """Wait for standard input to close, and say whether it has."""
    ready, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(ready)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def replay(folder: Path, uri: str, experiment: str = "trainwright") -> str:
    """Send all of a history, and return a line that says where it went.

    Args:
        folder: A model's folder, a step's or a run's.
        uri: MLflow's address: ``sqlite:///FILE``, ``http://`` or ``https://``.
        experiment: Experiment of a run of our own.

    Raises:
        InputError: There is no history, or the address is of no known kind.
        DependencyError: MLflow was away.
    """
    found = sorted(folder.rglob(HISTORY_FILE)) if folder.is_dir() else []
    if not found:
        raise InputError(f"no {HISTORY_FILE}: no training has left its curves here", where=str(folder))
    client = persist(lambda: open_client(uri), uri, OUTAGE_S, hint=_REPLAY)
    destination = TrackingDestination(uri, experiment=experiment)
    return "\n".join(_replay(history, destination, client) for history in found)


def _replay(history: Path, destination: TrackingDestination, client: "MlflowClient") -> str:
    persist(lambda: upload(history, destination, client), destination.uri, OUTAGE_S, hint=_REPLAY)
    run = UploadState.read(history.with_name(UploadState.FILE)).run
    return f"{len(TrainingHistory.read(history).points):,} points are in MLflow run {run} ({destination.uri})"


def main(arguments: list[str]) -> None:
    """Do what the command line says."""
    match arguments:
        case ["ship", history, destination]:
            ship(Path(history), TrackingDestination(**json.loads(destination)))
        case ["replay", folder, uri]:
            with reported("tracking"):
                sys.stdout.write(replay(Path(folder), uri) + "\n")
        case ["spending", uri, day]:
            with reported("tracking"):
                since = datetime.fromisoformat(day).replace(tzinfo=UTC)
                found = persist(lambda: read_spending(open_client(uri), since), uri, _LAST_S)
                sys.stdout.write(json.dumps([asdict(one) for one in found]) + "\n")
        case _:
            sys.stderr.write(f"{__doc__}\n")
            raise SystemExit(InputError.code)


if __name__ == "__main__":
    collect_rarely()
    main(sys.argv[1:])

"""Brings a history to MLflow: beside the training, again and again while the server is away, each point once.

A process of its own does it (``python -m trainwright.tracking``), so a server that is down, slow or silent
takes no time of the training. How far it came stands in a file beside the history; what is sent twice after a
kill is one point to MLflow, which knows a point by name, step, time and value.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from trainwright.documents import Document, digest_text
from trainwright.errors import InputError
from trainwright.tracking.history import as_point, lines_from

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

_LINES = 100
"""Lines sent in one request: MLflow takes 1,000 values at once."""

_VALUES = 1000

KEY = "trainwright.history"
"""Tag of a run that was made for a history, by which it is found again when an answer was lost."""


@dataclass(frozen=True, kw_only=True)
class Sent(Document):
    """How far a history was sent.

    Attributes:
        uri: The server.
        run: MLflow's run.
        offset: Bytes of the history that it has.
    """

    FILE: ClassVar[str] = "history.sent.json"
    uri: str
    run: str
    offset: int = 0


@dataclass(frozen=True)
class Destination:
    """Where a history goes.

    Attributes:
        uri: Address of the tracking server.
        run: The run to join; empty: one of our own.
        experiment: Experiment of a run of our own.
        name: Name of a run of our own.
    """

    uri: str
    run: str = ""
    experiment: str = "trainwright"
    name: str = "train"


def given_by_kfp() -> Destination | None:
    """Return the run that KFP's MLflow plugin gives a step, as it gives it: by two variables."""
    uri, run = os.environ.get("MLFLOW_TRACKING_URI", ""), os.environ.get("MLFLOW_RUN_ID", "")
    return Destination(uri, run) if uri and run else None


def send(history: Path, destination: Destination, client: "MlflowClient") -> int:
    """Send what is new of a history.

    Args:
        history: The file.
        destination: Where to.
        client: MLflow's client for that address.

    Returns:
        Number of points that were sent.

    Raises:
        MlflowException, OSError: The server did not take them; call again later.
    """
    place = history.with_name(Sent.FILE)
    sent = _so_far(place, destination, client, history)
    count = 0
    for offset, values in requests(history, sent.offset):
        client.log_batch(sent.run, metrics=values)
        count += len(values)
        sent = Sent(uri=sent.uri, run=sent.run, offset=offset)
        sent.write(place)
    return count


def complete(history: Path) -> bool:
    """Tell whether a server has all of a history."""
    try:
        return Sent.read(history.with_name(Sent.FILE)).offset >= history.stat().st_size
    except (OSError, InputError):
        return False


def _so_far(place: Path, destination: Destination, client: "MlflowClient", history: Path) -> Sent:
    if place.exists():
        sent = Sent.read(place)
        if sent.uri == destination.uri and destination.run in ("", sent.run):
            return sent
    run = destination.run or _own_run(destination, client, history)
    sent = Sent(uri=destination.uri, run=run)
    sent.write(place)
    return sent


def _own_run(destination: Destination, client: "MlflowClient", history: Path) -> str:
    """Find the run that was made for this history, or make it."""
    with history.open() as stream:
        key = digest_text(stream.readline())[:16]
    where = experiment_named(destination.experiment, client)
    mine = f"tags.`{KEY}` = '{key}'"
    found = client.search_runs([where], mine, max_results=1, order_by=["attributes.start_time ASC"])
    run = found[0] if found else client.create_run(where, tags={KEY: key}, run_name=destination.name)
    return str(run.info.run_id)


def experiment_named(name: str, client: "MlflowClient") -> str:
    """Return the id of an experiment, made if there is none; another may make it at the same moment."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found:
        return str(found.experiment_id)
    try:
        return str(client.create_experiment(name))
    except MlflowException as error:
        found = client.get_experiment_by_name(name)
        if error.error_code != "RESOURCE_ALREADY_EXISTS" or found is None:
            raise
        return str(found.experiment_id)


def requests(history: Path, offset: int = 0) -> Iterator[tuple[int, list["Metric"]]]:
    """Give the values of a history from a place on, as much as one request takes, with the place they end."""
    from mlflow.entities import Metric

    lines = lines_from(history, offset)
    while chunk := list(islice(lines, _LINES)):
        points = [point for _, line in chunk if (point := as_point(line))]
        values = [
            Metric(name, value, point.time_ms, point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for first in range(0, max(len(values), 1), _VALUES):
            last = first + _VALUES >= len(values)
            yield (chunk[-1][0] if last else offset), values[first : first + _VALUES]
        offset = chunk[-1][0]

"""Training curves: an append-only file, and its upload to MLflow.

One JSON object a line. A point has ``time_ms``, ``step`` and ``values``; an event has ``time_ms``, ``step``
and ``event``: ``began`` (``step`` is greater than 0 after a resume) or ``ended``. Writing never blocks or
fails a training; readers skip a line that a kill cut off.

A process of its own uploads it (``python -m trainwright.tracking``), so a slow server costs the training no
time. The offset is stored beside the history; MLflow identifies a point by name, step, time and value, so a
point that is sent twice counts once.
"""

import json
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from trainwright.documents import Document, digest_text, read_json
from trainwright.errors import InputError
from trainwright.tracking.server import SQLITE, database

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric


HISTORY_FILE = "history.jsonl"
"""Name of the file, beside what was trained."""

_Record = dict[str, Any]


class HistoryWriter:
    """Appends to a history, from a thread of its own.

    Args:
        path: The file; it is continued if it is there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: queue.SimpleQueue[_Record | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="history", daemon=True)
        self._thread.start()

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Append a point; returns at once."""
        plain = {name: value if math.isfinite(value) else str(value) for name, value in values.items()}
        self._put({"step": step, "values": plain})

    def mark(self, event: str, step: int, **facts: Any) -> None:
        """Append an event; returns at once."""
        self._put({"step": step, "event": event, **facts})

    def close(self, timeout_s: float = 10) -> None:
        """Wait until everything is written, but not for ever."""
        self._waiting.put(None)
        self._thread.join(timeout_s)

    def _put(self, line: _Record) -> None:
        self._waiting.put({"time_ms": time.time_ns() // 1_000_000, **line})

    def _write_all(self) -> None:
        """Write what comes; what a full disk refuses is lost, and told once."""
        told = False
        while (line := self._waiting.get()) is not None:
            try:
                with self._path.open("ab") as stream:
                    _end_last_line(stream, self._path)
                    stream.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            except OSError as error:
                if not told:
                    sys.stderr.write(f"the curves of this training have gaps: {error}\n")
                    told = True


def _end_last_line(stream: BinaryIO, path: Path) -> None:
    """End a line that a kill cut off, so that it spoils no other."""
    if stream.tell():
        with path.open("rb") as reader:
            reader.seek(-1, 2)
            if reader.read(1) != b"\n":
                stream.write(b"\n")


@dataclass(frozen=True)
class HistoryPoint:
    """Values of some figures at one step.

    Attributes:
        time_ms: When, in milliseconds since 1970.
        step: Steps taken so far.
        values: By name; may be infinite or NaN.
    """

    time_ms: int
    step: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class TrainingHistory:
    """The points and events of a training history.

    Attributes:
        points: In the order in which they were written. After a resume, steps come again.
        events: Likewise.
    """

    points: list[HistoryPoint] = field(default_factory=list)
    events: list[_Record] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "TrainingHistory":
        """Read a history; one that is not there is empty."""
        history = cls()
        if path.exists():
            for _, line in lines_from(path, 0):
                history.take(line)
        return history

    def take(self, line: _Record) -> None:
        """Add a line."""
        if "event" in line:
            self.events.append(line)
        elif point := as_point(line):
            self.points.append(point)

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """Return the steps and values of a figure, without what was done again after a resume."""
        last: dict[int, tuple[int, float]] = {}
        for index, point in enumerate(self.points):
            if name in point.values:
                last[point.step] = (index, point.values[name])
        steps = sorted(last)
        return steps, [last[step][1] for step in steps]

    @property
    def names(self) -> list[str]:
        """Names of all figures, in the order in which they first came."""
        return list(dict.fromkeys(name for point in self.points for name in point.values))


def as_point(line: _Record) -> HistoryPoint | None:
    """Return the point that a line holds, if it holds one."""
    try:
        values = {str(name): float(value) for name, value in line["values"].items()}
        return HistoryPoint(int(line["time_ms"]), int(line["step"]), values)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def lines_from(path: Path, offset: int) -> Iterator[tuple[int, _Record]]:
    """Give every whole line that begins at or after a place of the file, with the place where it ends."""
    with path.open("rb") as stream:
        stream.seek(offset)
        for raw in stream:
            if not raw.endswith(b"\n"):
                return
            offset += len(raw)
            try:
                line = read_json(raw)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield offset, line


_LINES_PER_REQUEST = 100
"""Lines sent in one request: MLflow takes 1,000 values at once."""

_VALUES_PER_REQUEST = 1000

HISTORY_KEY = "trainwright.history"
"""Tag of a run that was made for a history, by which it is found again when an answer was lost."""


MLFLOW_KEY = "mlflow_key"
"""Key of a record's configuration: the tag of the run that a study made, so that it is nested later."""


@dataclass(frozen=True, kw_only=True)
class UploadState(Document):
    """Upload state of a history.

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
class TrackingDestination:
    """MLflow server and run that a history is uploaded to.

    Attributes:
        uri: Address of the tracking server.
        run: The run to join; empty: one of our own.
        experiment: Experiment of a run of our own.
        name: Name of a run of our own.
        key: Tag by which a run of our own is found again; empty: a digest of the history's first line.
        parent: Run in which a run of our own is nested, in the same experiment; empty: none.
    """

    uri: str
    run: str = ""
    experiment: str = "trainwright"
    name: str = "train"
    key: str = ""
    parent: str = ""


def kfp_destination() -> TrackingDestination | None:
    """Return the run that KFP's MLflow plugin gives a step, as it gives it: by two variables."""
    uri, run = os.environ.get("MLFLOW_TRACKING_URI", ""), os.environ.get("MLFLOW_RUN_ID", "")
    return TrackingDestination(uri, run) if uri and run else None


def upload(history: Path, destination: TrackingDestination, client: "MlflowClient") -> int:
    """Send what is new of a history.

    Returns:
        Number of points that were sent.

    Raises:
        MlflowException, OSError: The server did not take them; call again later.
    """
    place = history.with_name(UploadState.FILE)
    sent = _upload_state(place, destination, client, history)
    count = 0
    for offset, values in metric_batches(history, sent.offset):
        client.log_batch(sent.run, metrics=values)
        count += len(values)
        sent = UploadState(uri=sent.uri, run=sent.run, offset=offset)
        sent.write(place)
    return count


def is_uploaded(history: Path) -> bool:
    """Tell whether a server has all of a history."""
    try:
        return UploadState.read(history.with_name(UploadState.FILE)).offset >= history.stat().st_size
    except (OSError, InputError):
        return False


def _upload_state(
    place: Path, destination: TrackingDestination, client: "MlflowClient", history: Path
) -> UploadState:
    if place.exists():
        sent = UploadState.read(place)
        if sent.uri == destination.uri and destination.run in ("", sent.run):
            return sent
    run = destination.run or _own_run(destination, client, history)
    sent = UploadState(uri=destination.uri, run=run)
    sent.write(place)
    return sent


def history_key(text: str | bytes) -> str:
    """Return the key of a history's run: a digest of its first line."""
    line = text.decode(errors="replace") if isinstance(text, bytes) else text
    return digest_text(f"{line.partition(chr(10))[0]}\n")[:16]


def _own_run(destination: TrackingDestination, client: "MlflowClient", history: Path) -> str:
    """Find the run that was made for this history, or make it."""
    with history.open() as stream:
        key = destination.key or history_key(stream.readline())
    return run_of(replace(destination, key=key), client)


def run_of(destination: TrackingDestination, client: "MlflowClient", started_ms: int | None = None) -> str:
    """Find the run with the key of a destination, or create it."""
    tags = {HISTORY_KEY: destination.key}
    if destination.parent:
        tags["mlflow.parentRunId"] = destination.parent
        where = str(client.get_run(destination.parent).info.experiment_id)
    else:
        where = experiment_named(destination.experiment, client, destination.uri)
    mine = f"tags.`{HISTORY_KEY}` = '{destination.key}'"
    found = client.search_runs([where], mine, max_results=1, order_by=["attributes.start_time ASC"])
    run = found[0] if found else client.create_run(where, started_ms, tags, destination.name)
    return str(run.info.run_id)


def experiment_named(name: str, client: "MlflowClient", uri: str) -> str:
    """Return the id of an experiment, made if there is none; with SQLite, its files lie beside the database.

    Raises:
        InputError: It was deleted.
    """
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        beside = (database(uri).parent / "artifacts").as_uri() if uri.startswith(SQLITE) else None
        try:
            return str(client.create_experiment(name, artifact_location=beside))
        except MlflowException as error:  # another may make it at the same moment
            found = client.get_experiment_by_name(name)
            if error.error_code != "RESOURCE_ALREADY_EXISTS" or found is None:
                raise
    if found.lifecycle_stage != "active":
        raise InputError(
            f"the experiment {name!r} was deleted in MLflow", where=uri, hint="Restore it there."
        )
    return str(found.experiment_id)


def metric_batches(history: Path, offset: int = 0) -> Iterator[tuple[int, list["Metric"]]]:
    """Give the values of a history from a place on, as much as one request takes, with the place they end."""
    from mlflow.entities import Metric

    lines = lines_from(history, offset)
    while chunk := list(islice(lines, _LINES_PER_REQUEST)):
        points = [point for _, line in chunk if (point := as_point(line))]
        values = [
            Metric(name, value, point.time_ms, point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for first in range(0, max(len(values), 1), _VALUES_PER_REQUEST):
            last = first + _VALUES_PER_REQUEST >= len(values)
            yield (chunk[-1][0] if last else offset), values[first : first + _VALUES_PER_REQUEST]
        offset = chunk[-1][0]

"""The curves of a training, as a file that only grows: what is drawn, and what MLflow gets.

One JSON object a line. A point has ``time_ms``, ``step`` and ``values``; an event has ``time_ms``, ``step``
and ``event``: ``began`` (``step`` is what was done before: more than 0 after a resume) or ``ended``.
Writing never waits for a disk and never fails a training; a line that a kill cut off is left out by readers.
"""

import json
import math
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

FILE = "history.jsonl"
"""Name of the file, beside what was trained."""

_Line = dict[str, Any]


class Spool:
    """Appends to a history, from a thread of its own.

    Args:
        path: The file; it is continued if it is there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: queue.SimpleQueue[_Line | None] = queue.SimpleQueue()
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

    def _put(self, line: _Line) -> None:
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
class Point:
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
class History:
    """What a history holds.

    Attributes:
        points: In the order in which they were written. After a resume, steps come again.
        events: Likewise.
    """

    points: list[Point] = field(default_factory=list)
    events: list[_Line] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "History":
        """Read a history; one that is not there is empty."""
        history = cls()
        if path.exists():
            for _, line in lines_from(path, 0):
                history.take(line)
        return history

    def take(self, line: _Line) -> None:
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


def as_point(line: _Line) -> Point | None:
    """Return the point that a line holds, if it holds one."""
    try:
        values = {str(name): float(value) for name, value in line["values"].items()}
        return Point(int(line["time_ms"]), int(line["step"]), values)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def lines_from(path: Path, offset: int) -> Iterator[tuple[int, _Line]]:
    """Give every whole line that begins at or after a place of the file, with the place where it ends."""
    with path.open("rb") as stream:
        stream.seek(offset)
        for raw in stream:
            if not raw.endswith(b"\n"):
                return
            offset += len(raw)
            try:
                line = json.loads(raw)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield offset, line

"""The logs of pods, and what the API answers to who asks for one."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tests.launch.standin.answers import Refused, bad
from tests.launch.standin.resources import Object
from tests.launch.standin.verbs import Answer

Line = tuple[datetime, int, str]
"""Time up to the second, nanoseconds beyond it, text."""


@dataclass
class Log:
    """What one start of a container wrote.

    Attributes:
        lines: Its lines so far.
        closed: Whether nothing more will come.
    """

    lines: list[Line] = field(default_factory=list)
    closed: bool = False
    _news: threading.Condition = field(default_factory=threading.Condition)
    _rest: bytes = b""

    def write(self, data: bytes) -> None:
        """Take what was written; a line counts when it is complete."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        with self._news:
            for line in whole:
                self._add(line)
            self._news.notify_all()

    def close(self) -> None:
        """Note that nothing more will come."""
        with self._news:
            if self._rest:
                self._add(self._rest)
                self._rest = b""
            self.closed = True
            self._news.notify_all()

    def after(self, count: int) -> list[Line]:
        """Wait for lines beyond the first so many; none if there will not be any."""
        with self._news:
            while len(self.lines) <= count and not self.closed:
                self._news.wait(5)
            return self.lines[count:]

    def text(self) -> str:
        """Return all of it."""
        return "".join(f"{line}\n" for _, _, line in self.lines)

    def _add(self, line: bytes) -> None:
        stamp = datetime.now(UTC)
        # Lines that come together still have times of their own, as a runtime's clock gives them.
        nano = stamp.microsecond * 1000 + len(self.lines) % 1000
        self.lines.append((stamp.replace(microsecond=0), nano, line.decode(errors="replace")))


@dataclass
class Logs:
    """The logs of one container, start by start.

    Attributes:
        starts: One log each.
    """

    starts: list[Log] = field(default_factory=list)

    def begin(self) -> Log:
        """Begin the log of a new start."""
        self.starts.append(Log())
        return self.starts[-1]


def answer(pod: Object, container: str, logs: Logs | None, query: dict[str, str]) -> Answer | Iterator[bytes]:
    """Answer who asks for a pod's log.

    Args:
        pod: The pod.
        container: Name of the container whose logs these are.
        logs: What its node has; nothing if it is on none.
        query: The call's options.

    Raises:
        Refused: There is no such log, or none yet.
    """
    name, asked = pod["metadata"]["name"], query.get("container") or container
    inits = [entry["name"] for entry in pod["spec"].get("initContainers") or []]
    if asked not in (container, *inits):
        raise bad(f"container {asked} is not valid for pod {name}")
    if logs is None or asked in inits:
        return Answer(200, "")
    starts, previous = logs.starts, _yes(query, "previous")
    if previous and len(starts) < 2:
        raise bad(f'previous terminated container "{asked}" in pod "{name}" not found')
    if not starts:
        raise bad(f'container "{asked}" in pod "{name}" is waiting to start: {_why(pod)}')
    log = starts[-2] if previous else starts[-1]
    lines = _chosen(log.lines[:], query)
    if _yes(query, "follow"):
        return _followed(log, lines, len(log.lines), query)
    text = "".join(_written(line, query) for line in lines)
    limit = int(query.get("limitBytes") or 0)
    return Answer(200, text.encode()[:limit].decode(errors="ignore") if limit else text)


def out_of_reach(node: str) -> Refused:
    """Answer when the pod's node does not answer."""
    return Refused(
        500, "InternalError", f'Get "https://{node}:10250/containerLogs": dial tcp: connect: no route to host'
    )


def _yes(query: dict[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("1", "t", "true")


def _why(pod: Object) -> str:
    told = (pod["status"].get("containerStatuses") or [{"state": {}}])[0]["state"].get("waiting") or {}
    reason = str(told.get("reason", "ContainerCreating"))
    return "image can't be pulled" if "Image" in reason else reason


def _chosen(lines: list[Line], query: dict[str, str]) -> list[Line]:
    if since := query.get("sinceTime"):
        # The API cuts it to the second: lines come that are a little older than asked for.
        lines = [line for line in lines if line[0] >= datetime.fromisoformat(since[:19] + "+00:00")]
    if seconds := query.get("sinceSeconds"):
        oldest = datetime.now(UTC) - timedelta(seconds=int(seconds))
        lines = [line for line in lines if line[0] + timedelta(microseconds=line[1] / 1000) >= oldest]
    return lines[-int(query["tailLines"]) :] if query.get("tailLines") else lines


def _written(line: Line, query: dict[str, str]) -> str:
    """Write a line. Its time has its last zeros left out."""
    second, nano, text = line
    stamp = f"{second:%Y-%m-%dT%H:%M:%S}.{nano:09}".rstrip("0").rstrip(".")
    return f"{stamp}Z {text}\n" if _yes(query, "timestamps") else f"{text}\n"


def _followed(log: Log, lines: list[Line], count: int, query: dict[str, str]) -> Iterator[bytes]:
    """Give lines as they come, until the container ends."""
    while lines or not log.closed:
        if lines:
            yield "".join(_written(line, query) for line in lines).encode()
        lines = log.after(count)
        count += len(lines)

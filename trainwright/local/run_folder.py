"""The folder of a run: what was asked, what came of each step, and the right to write into it.

::

    runs/0192f3/
        run.json          what was asked: pipeline, arguments, when
        tasks.json        every step: state, seconds, headline, outputs; written after each
        evaluate/         one folder a step: log.txt, reports and artifacts under readable names
        .kfp/             what kfp.local keeps for itself; kfp.log is what it said
"""

import contextlib
import dataclasses
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from trainwright.artifacts import Record
from trainwright.documents import Document
from trainwright.errors import InputError

EPOCH = 1_735_689_600
"""2025-01-01 UTC: run ids count seconds from here, in six digits that sort by time until 2059."""

DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
"""Base 32 without letters that look like digits (Crockford)."""

LOG = "log.txt"
OWN = ".kfp"


@dataclass(frozen=True, kw_only=True)
class Request(Document):
    """What a run was asked to do; kept so that it can be continued."""

    FILE: ClassVar[str] = "run.json"
    run: str
    pipeline: str
    created: str
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Output:
    """One artifact of a step: its KFP type, where it lies, and the metadata the step gave it."""

    type: str
    uri: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What came of one step.

    Attributes:
        step: Its name; ``train.2`` is the third turn of a loop.
        state: ``done``, ``cached`` (reused), ``failed``, ``stopped`` (with the run) or ``skipped`` (not
            reached).
        environment: Short name of the image it ran in.
        seconds: From its start to its end, attempts and waits included; 0 when not reached.
        headline: The fact that its record states.
        decision: What a judging step decided, else empty.
        verb: What its record says it did, such as ``validate``.
        attempts: How often it was started.
        outputs: Its artifacts by name.
        parameters: Its output parameters by name.
        error: The error that it ended with, as :func:`trainwright.errors.as_record` has it; empty if none.
    """

    step: str
    state: str
    environment: str
    seconds: float = 0.0
    headline: str = ""
    decision: str = ""
    verb: str = ""
    attempts: int = 0
    outputs: dict[str, Output] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """It has outputs that later steps can read."""
        return self.state in {"done", "cached"}

    def pages(self) -> tuple[Path, ...]:
        """Return its HTML reports."""
        return tuple(Path(output.uri) for output in self.outputs.values() if output.type == "system.HTML")


@dataclass(frozen=True, kw_only=True)
class Tasks(Document):
    """The state of a run: ``running``, ``done``, ``held`` by a gate, ``failed`` or ``cancelled``."""

    FILE: ClassVar[str] = "tasks.json"
    run: str
    state: str
    tasks: tuple[Task, ...]


def record_of(outputs: dict[str, Output]) -> Record | None:
    """Return the record that a step left in one of its artifacts; None if it left none that is readable."""
    for output in outputs.values():
        path = Path(output.uri) / Record.FILE
        if path.is_file():
            with contextlib.suppress(InputError):
                return Record.read(path)
    return None


def create(runs: Path, pipeline: str, arguments: dict[str, Any]) -> tuple[Path, Request]:
    """Make the folder of a new run, whose name no other run has, and write down what it is asked."""
    runs.mkdir(parents=True, exist_ok=True)
    moment = int(time.time())
    while True:
        folder = runs.resolve() / identifier(moment)
        try:
            folder.mkdir()
            break
        except FileExistsError:
            moment += 1
    created = datetime.now(UTC).isoformat(timespec="seconds")
    request = Request(run=folder.name, pipeline=pipeline, created=created, arguments=arguments)
    request.write(folder)
    return folder, request


def identifier(moment: int) -> str:
    """Write a moment, in seconds since 1970, as six digits; later moments sort after earlier ones."""
    number, digits = moment - EPOCH, ""
    for _ in range(6):
        number, digit = divmod(number, len(DIGITS))
        digits = DIGITS[digit] + digits
    return digits


def resume(runs: Path, run_id: str, pipeline: str, arguments: dict[str, Any]) -> tuple[Path, Request]:
    """Open the folder of an earlier run; arguments given now replace those it was started with.

    Raises:
        InputError: There is no such run, or it is a run of another pipeline.
    """
    folder = runs.resolve() / run_id
    known = sorted(path.parent.name for path in runs.glob(f"*/{Request.FILE}"))
    if run_id not in known:
        hint = f"The last ones are {', '.join(known[-3:])}." if known else "No run is there yet."
        raise InputError(f"there is no run {run_id!r}", where=str(runs), hint=hint)
    request = Request.read(folder)
    if request.pipeline != pipeline:
        raise InputError(f"run {run_id} is a run of {request.pipeline}, not of {pipeline}", where=str(folder))
    request = dataclasses.replace(request, arguments=request.arguments | arguments)
    return folder, request


@contextlib.contextmanager
def held(folder: Path) -> Iterator[int]:
    """Hold the only right to write into a run's folder, and yield the descriptor that holds it.

    It is given back when every process that has the descriptor has ended. If the run before was killed and
    its tasks are still being ended, they are waited for.

    Raises:
        InputError: Another process is running this run.
    """
    own = folder / OWN
    own.mkdir(exist_ok=True)
    descriptor = os.open(own / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _refuse_if_running(folder, os.read(descriptor, 32).decode())
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _refuse_if_running(folder: Path, owner: str) -> None:
    with contextlib.suppress(ProcessLookupError, ValueError):
        os.kill(int(owner), 0)
        raise InputError(
            f"run {folder.name} is running already, in process {owner}",
            where=str(folder),
            hint="Wait for it or stop it; or start a new run, which shares its cache.",
        )

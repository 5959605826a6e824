"""The folder of a run: its request, the result of each step, and the lock on it.

::

    runs/0192f3/
        run.json          pipeline, arguments, creation time
        tasks.json        every step: state, seconds, headline, outputs; written after each
        summary.json      the run in short, for lists; written at its end
        evaluate/         one folder per step: log.txt, reports and artifacts under readable names
        .kfp/             kfp.local's own files; kfp.log has its output
"""

import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from trainwright.artifacts import Progress, Record
from trainwright.artifacts.record import SOURCE_PATCH
from trainwright.documents import Document
from trainwright.errors import InputError, PermissionRefused, in_our_words
from trainwright.redaction import redacted

EPOCH = 1_735_689_600
"""2025-01-01 UTC. Run ids count seconds from here, in six digits that sort by time until 2059."""

DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
"""Base 32 without letters that look like digits (Crockford)."""

LOG = "log.txt"
OWN = ".kfp"


@dataclass(frozen=True, kw_only=True)
class Request(Document):
    """The pipeline and arguments of a run, stored so that it can be resumed.

    ``continues`` is the earlier run whose arguments it changed; empty if there is none.
    """

    FILE: ClassVar[str] = "run.json"
    run: str
    pipeline: str
    created: str
    arguments: dict[str, Any]
    continues: str = ""


@dataclass(frozen=True, kw_only=True)
class Output:
    """One artifact of a step: its KFP type, location and metadata."""

    type: str
    uri: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Task:
    """The result of one step.

    Attributes:
        step: Its name; ``train.2`` is the third iteration of a loop.
        state: ``done``, ``cached`` (reused), ``failed``, ``stopped`` (with the run) or ``skipped`` (not
            reached).
        environment: Short name of its image.
        started: Start, ISO 8601 in UTC; empty when not reached.
        seconds: Wall time including attempts and waits; 0 when not reached.
        headline: The fact that its record states.
        decision: The decision of a gate, else empty.
        verb: The verb of its record, such as ``validate``.
        attempts: Number of attempts.
        outputs: Artifacts by name.
        parameters: Output parameters by name.
        error: Its error as :func:`trainwright.errors.as_record` returns it; empty if none.
    """

    step: str
    state: str
    environment: str
    started: str = ""
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
        """True if later steps can read its outputs."""
        return self.state in {"done", "cached"}

    def pages(self) -> tuple[Path, ...]:
        """Return its HTML reports."""
        return tuple(Path(output.uri) for output in self.outputs.values() if output.type == "system.HTML")


@dataclass(frozen=True, kw_only=True)
class Tasks(Document):
    """The state of a run: ``running``, ``done``, ``held`` by a gate, ``failed`` or ``cancelled``.

    ``steps`` has every step of the pipeline in order, with those that it reads from or waits for.
    """

    FILE: ClassVar[str] = "tasks.json"
    run: str
    state: str
    tasks: tuple[Task, ...]
    steps: dict[str, tuple[str, ...]] = field(default_factory=dict)


def newest_progress(folder: Path) -> Progress | None:
    """Return the progress of a training in the folder of its step; None if there is none yet."""
    # Attempts are numbered; the newest one counts.
    for path in sorted(folder.glob(f"**/{Progress.FILE}"), reverse=True):
        with contextlib.suppress(InputError, OSError):
            return Progress.read(path)
    return None


def record_of(outputs: dict[str, Output]) -> Record | None:
    """Return the record in one of a step's artifacts; None if none is readable."""
    for output in outputs.values():
        path = Path(output.uri) / Record.FILE
        if path.is_file():
            with contextlib.suppress(InputError):
                return Record.read(path)
    return None


def create(runs: Path, pipeline: str, arguments: dict[str, Any], continues: str = "") -> tuple[Path, Request]:
    """Create the folder of a new run with a unique name, and write its request.

    Raises:
        PermissionRefused: The folder of the runs may not be written.
    """
    try:
        folder = _make_folder(runs)
    except OSError as error:
        if not isinstance(refused := in_our_words(error), PermissionRefused):
            raise
        hint = "Name a folder that you may write with --runs."
        raise PermissionRefused(refused.what, where=refused.where, hint=hint) from None
    created = datetime.now(UTC).isoformat(timespec="seconds")
    request = Request(
        run=folder.name, pipeline=pipeline, created=created, arguments=arguments, continues=continues
    )
    request.write(folder)
    return folder, request


def _make_folder(runs: Path) -> Path:
    runs.mkdir(parents=True, exist_ok=True)
    moment = int(time.time())
    while True:
        folder = runs.resolve() / identifier(moment)
        try:
            folder.mkdir()
        except FileExistsError:
            moment += 1
        else:
            return folder


def identifier(moment: int) -> str:
    """Return a time, in seconds since 1970, as six digits that sort by time."""
    number, digits = moment - EPOCH, ""
    for _ in range(6):
        number, digit = divmod(number, len(DIGITS))
        digits = DIGITS[digit] + digits
    return digits


def require_run(runs: Path, run_id: str) -> Path:
    """Return the folder of an earlier run; reject an unknown one."""
    if Path(run_id).name != run_id or not (runs / run_id / Request.FILE).is_file():
        known = sorted(path.parent.name for path in runs.glob(f"*/{Request.FILE}"))
        hint = f"The last ones are {', '.join(known[-3:])}." if known else "No run is there yet."
        raise InputError(f"there is no run {run_id!r}", where=str(runs), hint=hint)
    return runs.resolve() / run_id


def read_request(runs: Path, run_id: str, pipeline: str) -> tuple[Path, Request]:
    """Return the folder and the request of an earlier run of a pipeline."""
    folder = require_run(runs, run_id)
    request = Request.read(folder)
    if request.pipeline != pipeline:
        raise InputError(f"run {run_id} is a run of {request.pipeline}, not of {pipeline}", where=str(folder))
    return folder, request


def is_held(folder: Path) -> bool:
    """Tell whether a process is running a run, by the lock on its folder."""
    try:
        descriptor = os.open(folder / OWN / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def held(folder: Path) -> Iterator[int]:
    """Lock a run's folder for writing, and yield the descriptor that holds the lock.

    The lock is released when every process with the descriptor has ended. If the earlier process of this run
    was killed and its steps are still being stopped, this call waits for them.

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
            owner = os.read(descriptor, 32).decode()
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(owner), 0)
                raise InputError(
                    f"run {folder.name} is running already, in process {owner}",
                    where=str(folder),
                    hint="Wait for it or stop it; or start a new run, which shares its cache.",
                ) from None
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


MAX_BYTES = 1_000_000
"""Longest patch that is stored."""

_MAX_NAMES = 100


def store_changes(folder: Path, run: Path) -> None:
    """Write what differs from the commit of a git work tree into a run's folder; nothing if nothing does.

    The file is a patch for ``git apply``, after comments: the commit, untracked files, and why it may not
    apply. It replaces that of an earlier start, whose results no longer count where the source has changed.
    """
    place = run / SOURCE_PATCH
    place.unlink(missing_ok=True)
    commit = _git(folder, "rev-parse", "HEAD").decode().strip()
    if not commit:
        return
    root = Path(os.fsdecode(_git(folder, "rev-parse", "--show-toplevel").rstrip(b"\n")))
    found = _git(root, "diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")
    others = _git(root, "ls-files", "--others", "--exclude-standard").decode(errors="replace").splitlines()
    if not (found or others):
        return
    text = found[:MAX_BYTES].decode(errors="replace")
    patch = redacted(text)
    notes = [f"# Changes since commit {commit}"]
    notes += [f"# untracked, not included: {redacted(name)}" for name in others[:_MAX_NAMES]]
    notes += [f"# and {len(others) - _MAX_NAMES:,} more"] if len(others) > _MAX_NAMES else []
    notes += [f"# cut after {MAX_BYTES:,} bytes: it does not apply"] if len(found) > MAX_BYTES else []
    notes += ["# secrets are replaced by ***: it may not apply"] if patch != text else []
    place.write_text("\n".join([*notes, patch]))


def _git(folder: Path, *words: str) -> bytes:
    """Return what git prints, one byte more than the limit at most; empty if it fails."""
    command = ["git", "-C", str(folder), *words]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:  # noqa: S603
            assert process.stdout  # noqa: S101 - it is a pipe
            text = process.stdout.read(MAX_BYTES + 1)
            process.kill()
    except OSError:
        return b""
    return text

"""Errors of a job's processes, told through files: torchrun itself turns every exit code into 1.

Each failing process (rank) writes what went wrong into the attempt's folder before it ends; the agent that
started it adds those that could not write any more. Every round has a folder of its own: what ended one is
kept and never taken for the cause of the next one's end. The launcher raises what came first in the last.
"""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from trainwright import errors
from trainwright.documents import Document
from trainwright.errors import InternalError, TrainwrightError
from trainwright.launch import causes, stacks

_FOLDER, _ROUND = "errors", "round-"
_OURS = {kind.__name__: kind for kind in TrainwrightError.__subclasses__()}
_STUCK = frozenset({"HANG", "NCCL_TIMEOUT"})
_FRAMES = 12


@dataclass(frozen=True, kw_only=True)
class RankError(Document):
    """Why one process failed.

    Attributes:
        rank: Its rank in the whole job.
        time_ns: When it failed, in nanoseconds since 1970.
        witnessed: False if the process wrote this itself, True if its agent did, who saw only the end.
        error: Name of the error's class.
        code: The exit code that stands for it.
        what: What is wrong.
        where: Where.
        hint: What to do next.
        kind: Class of failures.
        follows: Whether it mostly is the consequence of another process's end.
        number: The round in which it failed: 0, and 1 more after each restart of the processes.
        evidence: Last lines of its traceback.
        again: Whether the process asks to be started again, although errors of its class are permanent.
    """

    FILE: ClassVar[str] = "rank.json"
    rank: int
    time_ns: int
    witnessed: bool
    error: str
    code: int
    what: str
    where: str = ""
    hint: str = ""
    kind: str = ""
    follows: bool = False
    number: int = 0
    evidence: tuple[str, ...] = ()
    again: bool = False

    @classmethod
    def of(
        cls, error: BaseException, rank: int, *, number: int = 0, witnessed: bool = False, kind: str = ""
    ) -> Self:
        """Describe an error of a rank, in a round; ``kind`` is its class, where that does not show."""
        cause = causes.understood(error)
        record: dict[str, Any] = errors.as_record(cause.error, "")
        fields = {name: record[name] for name in ("code", "what", "where", "hint")}
        names = [entry.__name__ for entry in type(cause.error).__mro__]
        trace = [] if witnessed else "".join(traceback.format_exception(error)).splitlines()
        return cls(
            rank=rank,
            time_ns=time.time_ns(),
            witnessed=witnessed,
            error=next((name for name in names if name in _OURS), names[0]),
            kind=kind or cause.kind,
            follows=cause.follows,
            number=number,
            evidence=tuple(trace[-_FRAMES:]),
            again=bool(getattr(error, "again", False)),
            **fields,
        )

    @property
    def suspicion(self) -> tuple[int, int]:
        """Sorts the errors of one round: the least is the cause, the others follow from it.

        What a rank refused by name comes first. A rank that was killed comes before those that ended with
        an exception of another library: these are mostly its peers, cut off from it.
        """
        killed = self.witnessed and self.kind != "USER_EXCEPTION"
        named = self.error in _OURS and not self.witnessed
        order = 3 if self.follows else 1 if killed else 0 if named else 2
        return order, self.time_ns

    @property
    def passing(self) -> bool:
        """Whether it may go well when the processes are started again."""
        return self.again or self.kind in causes.REPEATED

    def to_error(self) -> TrainwrightError:
        """Return the error to raise in its place, of the class it had where that is one of ours."""
        place = f"rank {self.rank}" + (f", {self.where}" if self.where else "")
        kind = _OURS.get(self.error, InternalError)
        return kind(self.what, where=place, hint=self.hint)

    def save(self, folder: Path) -> None:
        """Write the error into an attempt's folder, if that still is there; the first one of a rank stays.

        What cannot be written goes to the log: a full disk must not change the exit code.
        """
        path = folder / _FOLDER / f"{_ROUND}{self.number}" / f"rank-{self.rank}.json"
        try:
            if not folder.is_dir():
                raise FileNotFoundError(f"there is no folder {folder} any more")
            if not path.exists():
                self.write(path)
        except OSError as error:
            sys.stderr.write(f"rank {self.rank}: {self.what} (could not be noted: {error})\n")


def begin_round(folder: Path, number: int) -> None:
    """Begin a round, from 0: what ended earlier ones is no cause any more."""
    (folder / _FOLDER / f"{_ROUND}{number}").mkdir(parents=True, exist_ok=True)


def rounds(folder: Path) -> list[list[RankError]]:
    """Return the errors of every round of an attempt, in order, in each the likeliest cause first."""
    found = (folder / _FOLDER).glob(f"{_ROUND}*")
    paths = sorted(found, key=lambda path: int(path.name.removeprefix(_ROUND)))
    read = [[RankError.read(path) for path in sorted(place.glob("rank-*.json"))] for place in paths]
    return [sorted(entries, key=lambda entry: entry.suspicion) for entries in read]


def first_error(folder: Path) -> RankError | None:
    """Return the error that made an attempt's last round fail, or nothing if no process left any."""
    last = (rounds(folder) or [[]])[-1]
    return last[0] if last else None


@contextmanager
def reported_rank(folder: Path, rank: int) -> Iterator[None]:
    """Run the body of one process; write its error into the attempt's folder and end with its code.

    The process also ends by itself, at most a second later, when the agent that started it is gone, and
    its agent can have its stacks saved at any time.

    Raises:
        SystemExit: With the code of the error.
    """
    _leave_with_parent()
    stacks.register(folder, rank)
    try:
        yield
    except Exception as error:
        entry = RankError.of(error, rank, number=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
        entry.save(folder)
        _tell_torchrun(error, entry)
        if entry.kind in _STUCK:
            stacks.save(folder, rank, "".join(traceback.format_exception(error)))
        if entry.error not in _OURS or entry.kind in _STUCK:
            traceback.print_exc()
        sys.stderr.flush()
        raise SystemExit(entry.code) from error


def _tell_torchrun(error: BaseException, entry: RankError) -> None:
    """Write the file in which torchrun looks for the cause that it shows in its log."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    extra = {
        "py_callstack": "".join(traceback.format_exception(error)),
        "timestamp": str(entry.time_ns // 10**9),
    }
    body = {"message": {"message": f"{entry.error}: {entry.what}", "extraInfo": extra}}
    try:
        Path(path).write_text(json.dumps(body))
    except OSError as failed:
        sys.stderr.write(f"rank {entry.rank}: {path} could not be written: {failed}\n")


def _leave_with_parent() -> None:
    """End this process when its parent is gone: torchrun gives each rank a session of its own.

    So killing torchrun's process group does not reach the ranks.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(errors.PreemptedUnsaved.code)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def describe(folder: Path) -> str:
    """Say where an attempt stood, from its progress file; empty if it had not begun."""
    try:
        state = json.loads((folder / "progress.json").read_text())
    except (OSError, ValueError):
        return ""
    return f"step {state['step']:,} of {state['total']:,}, loss {state['loss']:.4f}"

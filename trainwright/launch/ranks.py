"""Errors of a job's processes, told through files: torchrun itself turns every exit code into 1.

Each failing process (rank) writes what went wrong into the attempt's folder before it ends; the agent that
started it adds those that could not write any more. The launcher raises what came first.
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

_FOLDER = "errors"
_KINDS = {kind.__name__: kind for kind in TrainwrightError.__subclasses__()}


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

    @classmethod
    def of(cls, error: BaseException, rank: int, *, witnessed: bool = False) -> Self:
        """Describe an error of a rank."""
        record: dict[str, Any] = errors.as_record(error, "")
        fields = {name: record[name] for name in ("error", "code", "what", "where", "hint")}
        return cls(rank=rank, time_ns=time.time_ns(), witnessed=witnessed, **fields)

    @property
    def suspicion(self) -> tuple[int, int]:
        """Sorts the errors of one job: the least is the cause, the others follow from it.

        What a rank refused by name comes first. A rank that died without a word comes before those that
        ended with an exception of another library: these are mostly its peers, cut off from it.
        """
        order = 0 if self.error in _KINDS and not self.witnessed else 1 if self.witnessed else 2
        return order, self.time_ns

    def to_error(self) -> TrainwrightError:
        """Return the error to raise in its place, of the class it had where that is one of ours."""
        place = f"rank {self.rank}" + (f", {self.where}" if self.where else "")
        kind = _KINDS.get(self.error, InternalError)
        return kind(self.what, where=place, hint=self.hint)

    def save(self, folder: Path) -> None:
        """Write the error into an attempt's folder, if that still is there; the first one of a rank stays.

        What cannot be written goes to the log: a full disk must not change the exit code.
        """
        path = folder / _FOLDER / f"rank-{self.rank}.json"
        try:
            path.parent.mkdir(exist_ok=True)
            if not path.exists():
                self.write(path)
        except OSError as error:
            sys.stderr.write(f"rank {self.rank}: {self.what} (could not be noted: {error})\n")


def first_error(folder: Path) -> RankError | None:
    """Return the error that made an attempt fail, or nothing if no process left any."""
    found = [RankError.read(path) for path in sorted((folder / _FOLDER).glob("rank-*.json"))]
    return min(found, key=lambda entry: entry.suspicion, default=None)


@contextmanager
def reported_rank(folder: Path, rank: int) -> Iterator[None]:
    """Run the body of one process; write its error into the attempt's folder and end with its code.

    The process also ends by itself, at most a second later, when the agent that started it is gone.

    Raises:
        SystemExit: With the code of the error.
    """
    _leave_with_parent()
    try:
        yield
    except Exception as error:
        entry = RankError.of(error, rank)
        entry.save(folder)
        if not isinstance(error, TrainwrightError):
            traceback.print_exc()
        sys.stderr.flush()
        raise SystemExit(entry.code) from error


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

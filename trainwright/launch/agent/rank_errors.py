"""Errors of a job's processes, classified and written to files, since torchrun exits with 1 for any of them.

Each failing process (rank) writes its error into the attempt's folder before it exits; its agent adds those
that could not. The launcher raises the first error of the last round.

A round is one world: the processes that one rendezvous brought together. Each round has its own folder,
``errors/round-N``, where N counts the rounds of the whole attempt. So a job that was suspended and resumed, a
container that was restarted in place and a replaced pod start a new round, and no error of an earlier round
counts as the cause. :class:`trainwright.launch.agent.elastic.ElasticAgent` makes the agents agree on N.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from trainwright import errors
from trainwright.documents import Document
from trainwright.errors import Hang, InputError, InternalError, TrainwrightError, TransientError, in_our_words
from trainwright.launch import logs
from trainwright.launch.agent import stacks

RETRIED_CLASSES = frozenset({"HANG", "INFRASTRUCTURE", "NCCL_TIMEOUT", "NODE_GPU", "UNKNOWN"})
"""Classes of failures after which the processes are started again: they may well not come back."""

CLASS_BY_ERROR = {
    "InputError": "CONFIG",
    "PermissionRefused": "CONFIG",
    "DataRefused": "USER_EXCEPTION",
    "ModelRefused": "USER_EXCEPTION",
    "TransientError": "INFRASTRUCTURE",
    "DependencyError": "INFRASTRUCTURE",
    "Diverged": "DIVERGED",
    "Hang": "HANG",
    "Preempted": "PREEMPTED",
    "PreemptedUnsaved": "PREEMPTED",
    "InternalError": "USER_EXCEPTION",
}
"""Failure classes of the library's errors, by the names of their classes."""

ROUND_VARIABLE = "TRAINWRIGHT_ROUND"
"""Environment variable that tells a process the number of its round."""

_FOLDER, _ROUND = "errors", "round-"
_LIBRARY_ERRORS = {kind.__name__: kind for kind in errors.ERRORS.values()}
_HANGS = frozenset({"HANG", "NCCL_TIMEOUT"})
_FRAMES = 12


@dataclass(frozen=True)
class ClassifiedError:
    """An error of the library that says the same, or the error itself if there is none, with its class.

    ``follows`` tells that it mostly is the consequence of another process's end.
    """

    error: BaseException
    kind: str
    follows: bool = False


def classify(error: BaseException) -> ClassifiedError:
    """Classify an error. An error of the library may name its class itself, as ``kind``."""
    ours = in_our_words(error)
    if isinstance(ours, TrainwrightError):
        names = [kind.__name__ for kind in type(ours).__mro__]
        usual = next((CLASS_BY_ERROR[name] for name in names if name in CLASS_BY_ERROR), "USER_EXCEPTION")
        return ClassifiedError(ours, getattr(ours, "kind", usual))
    said = f"{type(error).__name__}: {error}"
    clue = logs.find_clue(said)
    kind = "HOST_OOM" if isinstance(error, MemoryError) else clue.kind if clue else ""
    translated = _translate(kind, said.splitlines()[0][:300])
    if translated is None:
        return ClassifiedError(error, "USER_EXCEPTION")
    kind = clue.kind if clue else kind
    return ClassifiedError(translated, kind, follows=kind in {"NCCL_TIMEOUT", "INFRASTRUCTURE"})


def _translate(kind: str, first: str) -> TrainwrightError | None:
    """Return the error of the library for an error of another one, whose first line is given."""
    match kind:
        case "CUDA_OOM":
            return InputError(
                f"a GPU ran out of memory: {first}",
                where="training.micro_batch",
                hint="Set or lower it: gradients of a batch add up over micro-batches, so the result stays. "
                "Or recompute: true, more processes to shard over, or a GPU with more memory.",
            )
        case "HOST_OOM":
            return InputError(
                f"the process could not get the memory it asked for: {first}",
                where="resources.memory_gib",
                hint="Raise it, or use fewer processes a node or a smaller batch.",
            )
        case "NCCL_TIMEOUT":
            return Hang(
                f"waited in vain for another process: {first}",
                where="training.guards.collective_s",
                hint="The stacks of all ranks, in stacks/, tell which one did not come. If it was only slow, "
                "allow more time.",
            )
        case "NODE_GPU":
            return TransientError(f"a GPU failed: {first}", hint="Have its node drained and looked at.")
        case "INFRASTRUCTURE":
            return TransientError(f"another process was lost: {first}", hint="Its own log tells why.")
    return None


@dataclass(frozen=True, kw_only=True)
class RankError(Document):
    """The error of one process, or of an agent that started none.

    Attributes:
        rank: Its rank in the whole job; None for an agent.
        time_ns: When it failed, in nanoseconds since 1970.
        witnessed: False if the process wrote this itself, True if its agent did, who saw only the end.
        error: Name of the error's class.
        code: The exit code that stands for it.
        what, where, hint: The problem, and what to do next.
        kind: Class of failures.
        follows: Whether it mostly is the consequence of another process's end.
        number: The round in which it failed, counted over the whole attempt from 0.
        evidence: Last lines of its traceback.
        again: Whether the process asks to be started again, although errors of its class are permanent.
    """

    FILE: ClassVar[str] = "rank.json"
    rank: int | None
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

    def __post_init__(self) -> None:
        """Reject a code that stands for no error: the agent ends with it, and the program may write this."""
        if self.code not in errors.ERRORS:
            raise InputError(f"code {self.code} is none of {sorted(errors.ERRORS)}", where=self.FILE)

    @classmethod
    def of(
        cls,
        error: BaseException,
        rank: int | None,
        *,
        number: int = 0,
        witnessed: bool = False,
        kind: str = "",
    ) -> Self:
        """Describe an error of a rank, in a round; ``kind`` is its class, where that does not show."""
        cause = classify(error)
        record: dict[str, Any] = errors.as_record(cause.error, "")
        fields = {name: record[name] for name in ("code", "what", "where", "hint")}
        names = [entry.__name__ for entry in type(cause.error).__mro__]
        trace = [] if witnessed else errors.traceback_of(error).splitlines()
        return cls(
            rank=rank,
            time_ns=time.time_ns(),
            witnessed=witnessed,
            error=next((name for name in names if name in _LIBRARY_ERRORS), names[0]),
            kind=kind or cause.kind,
            follows=cause.follows,
            number=number,
            evidence=tuple(trace[-_FRAMES:]),
            again=bool(getattr(error, "again", False)),
            **fields,
        )

    @property
    def cause_order(self) -> tuple[int, int]:
        """Sort key of the errors of one round: the least is the cause, the others follow from it.

        An error that a rank named itself comes first. A rank that was killed comes before those that ended
        with an exception of another library: these are mostly its peers, cut off from it. An agent that ran
        no process comes last: it waited for the others.
        """
        if self.rank is None:
            return 5 if self.kind == "PREEMPTED" else 4, self.time_ns
        killed = self.witnessed and self.kind != "USER_EXCEPTION"
        named = self.error in _LIBRARY_ERRORS and not self.witnessed
        order = 3 if self.follows else 1 if killed else 0 if named else 2
        return order, self.time_ns

    @property
    def retryable(self) -> bool:
        """True if restarting the processes may help."""
        return self.again or self.kind in RETRIED_CLASSES

    @property
    def name(self) -> str:
        """The process in words."""
        return "an agent" if self.rank is None else f"rank {self.rank}"

    def to_error(self) -> TrainwrightError:
        """Return the error to raise in its place, of the class it had where that is one of ours."""
        place = ", ".join(part for part in (self.name if self.rank is not None else "", self.where) if part)
        kind = _LIBRARY_ERRORS.get(self.error, InternalError)
        return kind(self.what, where=place, hint=self.hint)

    def save(self, folder: Path) -> None:
        """Write the error into an attempt's folder, if that still is there; the first one of a rank stays.

        What cannot be written goes to the log: a full disk must not change the exit code.
        """
        # Every pod has another host name. Two agents of one host, as in a test, differ by their process ids.
        file = f"agent-{socket.gethostname()}-{os.getpid()}" if self.rank is None else f"rank-{self.rank}"
        path = round_folder(folder, self.number) / f"{file}.json"
        try:
            if not folder.is_dir():
                raise FileNotFoundError(f"the folder {folder} is gone")
            if not path.exists():
                self.write(path)
        except OSError as error:
            sys.stderr.write(f"{self.name}: {self.what} (could not be noted: {error})\n")


def round_folder(folder: Path, number: int) -> Path:
    """Return the folder with a round's errors."""
    return folder / _FOLDER / f"{_ROUND}{number}"


def begin_round(folder: Path) -> int:
    """Begin the attempt's next round and return its number: errors of earlier rounds are no cause any more.

    One agent of a round calls this. ``mkdir`` is atomic on NFS too, so two agents never get the same number,
    and no clock is compared.
    """
    (folder / _FOLDER).mkdir(parents=True, exist_ok=True)
    number = len(_numbers(folder))
    while True:
        try:
            round_folder(folder, number).mkdir()
        except FileExistsError:
            number += 1
        else:
            return number


def upcoming_round(folder: Path) -> int:
    """Return the round that an agent waits for: the last one if that still runs, else the next one.

    An agent that fails before it takes part in any round leaves its error there.
    """
    last = last_round(folder)
    return 0 if last is None else last if not errors_of_round(folder, last) else last + 1


def last_round(folder: Path) -> int | None:
    """Return the number of an attempt's last round; None if there was none."""
    return max(_numbers(folder), default=None)


def errors_of_round(folder: Path, number: int) -> list[RankError]:
    """Return the errors of one round, the likeliest cause first."""
    place = round_folder(folder, number)
    paths = sorted([*place.glob("rank-*.json"), *place.glob("agent-*.json")])
    return sorted((RankError.read(path) for path in paths), key=lambda entry: entry.cause_order)


def rounds(folder: Path) -> list[list[RankError]]:
    """Return the errors of every round of an attempt, in order, in each the likeliest cause first."""
    return [errors_of_round(folder, number) for number in _numbers(folder)]


def first_error(folder: Path, number: int | None = None) -> RankError | None:
    """Return the error that made a round fail, the last one by default; None if no process left any."""
    wanted = last_round(folder) if number is None else number
    return next(iter([] if wanted is None else errors_of_round(folder, wanted)), None)


def _numbers(folder: Path) -> list[int]:
    found = (folder / _FOLDER).glob(f"{_ROUND}*")
    return sorted(int(path.name.removeprefix(_ROUND)) for path in found)


@contextmanager
def reported_rank(folder: Path, rank: int) -> Iterator[None]:
    """Run the body of one process; write its error into the attempt's folder and end with its code.

    The process also ends by itself, at most a second later, when the agent that started it is gone, and
    its agent can have its stacks saved at any time.

    Raises:
        SystemExit: With the code of the error.
    """
    _exit_with_parent()
    stacks.register(folder, rank)
    try:
        yield
    except Exception as error:
        entry = RankError.of(error, rank, number=int(os.environ.get(ROUND_VARIABLE, "0")))
        entry.save(folder)
        _write_torchrun_error(error, entry)
        if entry.kind in _HANGS:
            stacks.save(folder, rank, errors.traceback_of(error))
        if entry.error not in _LIBRARY_ERRORS or entry.kind in _HANGS:
            sys.stderr.write(errors.traceback_of(error))
        sys.stderr.flush()
        raise SystemExit(entry.code) from error


def _write_torchrun_error(error: BaseException, entry: RankError) -> None:
    """Write the file in which torchrun looks for the cause that it shows in its log."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    trace, seconds = errors.traceback_of(error), str(entry.time_ns // 10**9)
    extra = {"py_callstack": trace, "timestamp": seconds}
    body = {"message": {"message": f"{entry.error}: {entry.what}", "extraInfo": extra}}
    try:
        Path(path).write_text(json.dumps(body))
    except OSError as failed:
        sys.stderr.write(f"{entry.name}: {path} could not be written: {failed}\n")


def _exit_with_parent() -> None:
    """End this process when its parent is gone: torchrun gives each rank a session of its own.

    So killing torchrun's process group does not reach the ranks.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(errors.PreemptedUnsaved.code)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()

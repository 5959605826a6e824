"""Read what the job's own processes reported about their end: the strongest evidence there is."""

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from trainwright.launch import logs
from trainwright.launch.agent.rank_errors import (
    CLASS_BY_ERROR,
    RankError,
    first_error,
    last_round,
    round_folder,
)
from trainwright.launch.failure import FAILURE_CLASSES, Failure

_VAGUE = frozenset({"UNKNOWN", "USER_EXCEPTION"})
_NOT_FINITE = re.compile(r"not finite|\bnan\b|\binf\b", re.IGNORECASE)
_KILLED_BY = re.compile(r"was killed by (SIG\w+)")
_ENDED_WITH = re.compile(r"ended with exit code (-?\d+)")


@dataclass(frozen=True, kw_only=True)
class ProcessReport:
    """A failure reported by a process.

    Attributes:
        failure: The failure.
        named: Whether the process named the cause. Otherwise its agent only observed its exit, or it raised
            an exception of another library, often only because another process was gone.
    """

    failure: Failure
    named: bool


def read_report(folder: Path) -> ProcessReport | None:
    """Read the report of an attempt's last round: its agents' ``failure.json``, or its ranks' errors.

    The ``failure.json`` of the attempt itself may be of an earlier round, before a suspension or a restart.
    """
    number = last_round(folder)
    if number is None:
        return None
    path = round_folder(folder, number) / Failure.FILE
    if path.exists():
        failure = Failure.read(path)
        # An agent that only observed an exit knows less than the pods, which may show an OOM kill.
        return ProcessReport(failure=failure, named=failure.kind != "UNKNOWN")
    error = first_error(folder, number)
    return report_of_rank(error) if error else None


def report_of_rank(error: RankError) -> ProcessReport:
    """Classify the error of one process."""
    said = f"{error.error}: {error.what}"
    clue = logs.find_clue(said)
    ours = error.error in CLASS_BY_ERROR and not error.witnessed
    kind = error.kind or (clue.kind if clue and not ours else _class_of(error.error, error.what))
    if kind == "DIVERGED" and _NOT_FINITE.search(error.what):
        kind = "NAN_LOSS"
    follows = error.follows or bool(clue and clue.weak and not ours)
    failure = Failure.of(
        kind,
        error.what,
        rank=error.rank,
        exit_code=_exit_code(error),
        reason=error.error,
        evidence=(
            f"{error.name}: {said}" + (f" ({error.where})" if error.where else ""),
            "\n".join(error.evidence),
        ),
        advice=error.hint,
        code=error.code if ours and error.code != FAILURE_CLASSES[kind].code else None,
    )
    named = not follows and (ours or kind not in _VAGUE)
    return ProcessReport(failure=failure, named=named)


def _exit_code(error: RankError) -> int | None:
    """Return the exit code of a process; one that its agent observed is in the agent's message."""
    if not error.witnessed:
        return error.code
    if killed := _KILLED_BY.search(error.what):
        return -signal.Signals[killed[1]] if killed[1] in signal.Signals.__members__ else None
    ended = _ENDED_WITH.search(error.what)
    return int(ended[1]) if ended else None


def _class_of(name: str, what: str) -> str:
    """Return the failure class for the name of an error."""
    if name == "MemoryError":
        return "HOST_OOM"
    kind = CLASS_BY_ERROR.get(name, "USER_EXCEPTION")
    return "NAN_LOSS" if kind == "DIVERGED" and _NOT_FINITE.search(what) else kind

"""What the job's own processes left behind about their end: the strongest evidence there is."""

import json
import re
import signal
from collections.abc import Mapping
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
    """A failure as a process told it.

    Attributes:
        failure: What it told.
        named: Whether the process itself named the cause. Otherwise its agent only saw its end, or an
            exception of another library ended it: often only because another process had gone.
    """

    failure: Failure
    named: bool


def read_report(folder: Path) -> ProcessReport | None:
    """Read what the last round of an attempt left: its agents' ``failure.json``, or the ranks' errors.

    The ``failure.json`` of the attempt itself may be of an earlier round, before a suspension or a restart.
    """
    number = last_round(folder)
    if number is None:
        return None
    path = round_folder(folder, number) / Failure.FILE
    if path.exists():
        failure = Failure.read(path)
        # An agent that saw no more than an end knows less than the pods, which may tell of memory.
        return ProcessReport(failure=failure, named=failure.kind != "UNKNOWN")
    error = first_error(folder, number)
    return report_of_rank(error) if error else None


def report_of_rank(error: RankError) -> ProcessReport:
    """Return what the error of one process amounts to."""
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
    """Return what a process ended with; of one that its agent saw end, the agent's words tell it."""
    if not error.witnessed:
        return error.code
    if killed := _KILLED_BY.search(error.what):
        return -signal.Signals[killed[1]] if killed[1] in signal.Signals.__members__ else None
    ended = _ENDED_WITH.search(error.what)
    return int(ended[1]) if ended else None


def report_of_error_file(text: str, rank: int | None = None) -> ProcessReport | None:
    """Read a torchelastic error file (``TORCHELASTIC_ERROR_FILE``); None if it holds none.

    It is ``{"message": {"message": "ValueError: ...", "extraInfo": {"py_callstack", "timestamp"}}}``; a
    file that an older torch wrote may have a string as the message.
    """
    try:
        body = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        return None
    fields: Mapping[str, object] = body if isinstance(body, Mapping) else {"message": body}
    message, extra = str(fields.get("message") or "").strip(), fields.get("extraInfo")
    if not message:
        return None
    more = extra if isinstance(extra, Mapping) else {}
    clue = logs.find_clue(message)
    name, _, what = message.partition(": ")
    kind = clue.kind if clue else _class_of(name, what)
    trace = str(more.get("py_callstack") or "").strip().splitlines()
    failure = Failure.of(
        kind,
        message,
        rank=rank,
        reason=name if name.isidentifier() else "",
        evidence=("torchelastic error file: " + "\n".join([message, *trace[-6:-1]]),),
    )
    named = name in CLASS_BY_ERROR and not (clue and clue.weak)
    return ProcessReport(failure=failure, named=named)


def _class_of(name: str, what: str) -> str:
    """Return the class for the name of an error."""
    if name == "MemoryError":
        return "HOST_OOM"
    kind = CLASS_BY_ERROR.get(name, "USER_EXCEPTION")
    return "NAN_LOSS" if kind == "DIVERGED" and _NOT_FINITE.search(what) else kind

"""Determine why a step failed: from its own error line, its exit code, or an exception here."""

import contextlib
import json
import traceback
from typing import Any

from trainwright import errors
from trainwright.local.invocation import Invocation
from trainwright.local.processes import Ended
from trainwright.local.run_folder import Task

TAIL_BYTES = 65_536
KILLED = {-1, -2, -9, -15, 129, 130, 137, 143}
"""Exit codes of a process that a signal ended, as written by the shell and by Python."""

DOCUMENTED = {kind.code: kind for kind in errors.TrainwrightError.__subclasses__()}


def failure(call: Invocation, ended: Ended) -> dict[str, Any]:
    """Return the error of a step: the line it printed, or one derived from its exit code.

    Returns:
        The fields of :func:`trainwright.errors.as_record`.
    """
    with call.log.open("rb") as stream:
        stream.seek(max(0, call.log.stat().st_size - TAIL_BYTES))
        lines = stream.read().decode(errors="replace").splitlines()
    if ended.late:
        limit = call.step.timeout_s
        return errors.as_record(errors.Hang(f"stopped after its limit of {limit:,.0f} s"), call.name)
    for line in reversed(lines):
        if line.startswith(errors.MARK):
            with contextlib.suppress(json.JSONDecodeError):
                record: dict[str, Any] = json.loads(line.removeprefix(errors.MARK))
                return record
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
    what = f"ended with exit code {ended.code}; its last line: {last:.300}"
    hint = "If nobody stopped it, the machine ran out of memory: give it less data or more memory."
    if ended.code in KILLED:
        return errors.as_record(errors.PreemptedUnsaved(f"killed: {what}", hint=hint), call.name)
    return errors.as_record(DOCUMENTED.get(ended.code, errors.InternalError)(what), call.name)


def broken(call: Invocation, error: Exception) -> Task:
    """Return the result of a step that could not be started or whose outputs are invalid.

    The step's log gets the traceback of a bug.
    """
    ours = errors.as_ours(error)
    if ours is None:
        call.folder.mkdir(exist_ok=True)
        with call.log.open("a") as log:
            traceback.print_exception(error, file=log)
    return failed(call, errors.as_record(ours or error, call.name))


def failed(call: Invocation, error: dict[str, Any], attempts: int = 0) -> Task:
    """Return the result of a failed step."""
    return Task(
        step=call.name,
        state="failed",
        environment=call.step.toolchain,
        verb=call.step.name,
        attempts=attempts,
        error=error,
    )

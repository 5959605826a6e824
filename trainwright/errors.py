"""The errors of the library and their exit codes.

::

    TrainwrightError
     ├─ InputError           10  bad input or configuration
     ├─ DataRefused          11  a data gate rejected the data
     ├─ ModelRefused         12  a model gate rejected the model
     ├─ TransientError       20  retries exhausted; the same call may succeed later
     ├─ DependencyError      21  a dependency of this step is missing or down
     ├─ Diverged             30  the loss is not finite, or diverged
     ├─ Hang                 31  no progress within the limit
     ├─ Preempted            40  stopped from outside, state saved
     ├─ PreemptedUnsaved     41  stopped from outside, state lost
     ├─ PermissionRefused    50  not allowed
     └─ InternalError        70  our bug

An error says what (with its values), where, and what to do next.
"""

import errno
import json
import os
import resource
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from trainwright.redaction import printable, redacted, shorten

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

MARK = "trainwright-error "
"""What the one machine-readable line of an error starts with on standard error."""

TERMINATION_LOG = "/dev/termination-log"
"""The file of a container whose content Kubernetes keeps when it ends."""

_MAX_TERMINATION = 4_096
"""Bytes that it keeps."""

MAX_TEXT, MAX_RECORD = 8_000, 120_000
"""Longest text of an error, and longest line; the readers of logs read at least the last 128 KiB."""


class TrainwrightError(Exception):
    """The root of every error that this library raises on purpose.

    ``what`` is the problem with the offending values; ``where`` the parameter, file, column or URI (without
    credentials), unless ``what`` names it; ``hint`` the next step.
    """

    code: ClassVar[int] = 70
    retryable: ClassVar[bool] = False

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = what, where, hint
        super().__init__(what, where, hint)

    def __str__(self) -> str:
        """Say what, where and what next, each on its own line."""
        lines = [self.what]
        if self.where:
            lines.append(f"  at    {self.where}")
        if self.hint:
            lines.append(f"  next  {self.hint}")
        return "\n".join(lines)


class InputError(TrainwrightError):
    """Bad input or configuration: the caller can fix it."""

    code = 10


class DataRefused(TrainwrightError):
    """A gate judged the data and refused it."""

    code = 11


class ModelRefused(TrainwrightError):
    """A gate judged the model and refused it, or held it for a person."""

    code = 12


class TransientError(TrainwrightError):
    """Retries are exhausted; the same call may succeed later."""

    code = 20
    retryable = True


class DependencyError(TrainwrightError):
    """A server, program or environment that this step needs is missing or down, or a disk is full."""

    code = 21
    retryable = True


class Diverged(TrainwrightError):
    """Training diverged: a loss or a gradient is not finite, or ran away."""

    code = 30


class Hang(TrainwrightError):
    """No progress within the limit."""

    code = 31


class Preempted(TrainwrightError):
    """Stopped from outside; what was done is saved."""

    code = 40
    retryable = True


class PreemptedUnsaved(TrainwrightError):
    """Stopped from outside; what was done since the last checkpoint is lost."""

    code = 41
    retryable = True


class PermissionRefused(TrainwrightError):
    """The identity of this process may not do what was asked."""

    code = 50


class InternalError(TrainwrightError):
    """Our bug."""

    code = 70


ERRORS = {kind.code: kind for kind in TrainwrightError.__subclasses__()}
"""The error that a documented exit code stands for."""


def in_our_words(error: BaseException) -> BaseException:
    """Return the error of ours for one of the system: a full or read-only disk is no bug. Else, the same."""
    if isinstance(error, OSError) and error.errno in _FORBIDDEN:
        return PermissionRefused(
            f"user {os.geteuid()} may not do that here: {error.strerror}",
            where=str(error.filename or ""),
            hint="Let this user do it (owner, mode, a writable mount), or name another path.",
        )
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return DependencyError(
            f"there is no room to write: {error.strerror}",
            where=str(error.filename or ""),
            hint="Make room on that disk, or raise its quota, and run the step again.",
        )
    return error


def as_ours(error: Exception) -> TrainwrightError | None:
    """Return an error as one of this module; None for a bug. An error of a file or a disk is not a bug."""
    known = in_our_words(error)
    if isinstance(known, OSError):
        return DependencyError(str(error), hint="Look at the disk and at the path.")
    return known if isinstance(known, TrainwrightError) else None


def clean(text: object, limit: int = MAX_TEXT) -> str:
    """Return the text of an error without secrets and terminal escapes, and not longer than ``limit``."""
    lines = "\n".join(line[:MAX_TEXT] for line in str(text).split("\n"))
    return printable(redacted(shorten(lines, limit)))


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error, cleaned: its last line is a message that anything may be in."""
    return clean("".join(traceback.format_exception(error)), MAX_RECORD)


def as_record(error: BaseException, component: str) -> dict[str, Any]:
    """Describe an error as the fields of the one JSON line that every failing step prints."""
    error = in_our_words(error)
    if isinstance(error, TrainwrightError):
        what, where, hint = error.what, error.where, error.hint
        code, retryable = error.code, error.retryable
    else:
        what, where = f"{type(error).__name__}: {error}", ""
        hint = "This is a bug in trainwright, or in the code it was given: the traceback is in the log."
        code, retryable = InternalError.code, False
    return {
        "error": type(error).__name__,
        "code": code,
        "component": component,
        "what": clean(what),
        "where": clean(where),
        "hint": clean(hint),
        "retryable": retryable,
    }


def forbid_core_dumps() -> None:
    """Let no crash of this process, or of its children, leave its memory behind: rows and credentials.

    The limit is one byte, not zero: for zero, Linux still dumps into a pipe that ``core_pattern`` names, and
    for one it does not. Steps get no other limit: allocators reserve and readers map address space that is
    never touched, files are as large as the data, and workers that the kernel kills are reported already.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (1 if hard else 0, hard))


def last_record(log: str, code: int | None = None) -> dict[str, Any] | None:
    """Return the last valid error line of a log, as :func:`as_record` has it; None without one.

    Any code that runs in a step can print such a line. So it only explains a failure that is known already: a
    valid line has the fields of :func:`as_record`, a documented code, and ``code``, the exit code of the
    process, if that is known. Whether a step may be retried follows from the code.
    """
    for line in reversed(log.splitlines()):
        if not line.startswith(MARK) or len(line) > MAX_RECORD:
            continue
        try:
            found = json.loads(line.removeprefix(MARK))
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and _is_record(found) and code in {None, found["code"]}:
            texts = {name: clean(found[name]) for name in _TEXTS}
            return found | texts | {"retryable": ERRORS[found["code"]].retryable}
    return None


def record_in(message: str) -> dict[str, Any] | None:
    """Return the error line at the end of Argo's message of a step; None without one."""
    return last_record(MARK + message.partition(MARK)[2])


_TEXTS = ("error", "component", "what", "where", "hint")


def _is_record(found: dict[str, Any]) -> bool:
    return (
        found.keys() == {*_TEXTS, "code", "retryable"}
        and all(isinstance(found[name], str) for name in _TEXTS)
        and type(found["code"]) is int  # True is 1
        and found["code"] in ERRORS
    )


@contextmanager
def reported(component: str) -> Iterator[None]:
    """Run the body of a step; end a failing one with the error's exit code, or 70 if it is not ours.

    It prints to standard error: the message of an error of ours, else the traceback, and then the JSON line
    that starts with :data:`MARK`.
    """
    forbid_core_dumps()
    try:
        yield
    except Exception as error:
        record, ours = as_record(error, component), in_our_words(error)
        is_ours = isinstance(ours, TrainwrightError)
        said = clean(f"{type(ours).__name__}: {ours}", MAX_RECORD) if is_ours else traceback_of(error)
        print(said, file=sys.stderr)  # noqa: T201
        print(MARK + json.dumps(record), file=sys.stderr, flush=True)  # noqa: T201
        _write_termination_message(record)
        raise SystemExit(record["code"]) from error


def _write_termination_message(record: Mapping[str, object]) -> None:
    """Write the line where the kubelet looks for it: Argo's message of the step holds it then.

    The API of Kubeflow shows that message also where it cannot give the step's log.
    """
    line = MARK + json.dumps(record)
    if len(line) > _MAX_TERMINATION:
        line = MARK + json.dumps({**record, **{name: str(record[name])[:200] for name in _TEXTS}})
    with suppress(OSError):  # there is none outside of a pod
        file = os.open(TERMINATION_LOG, os.O_WRONLY | os.O_TRUNC)
        with os.fdopen(file, "w") as stream:
            stream.write(line)

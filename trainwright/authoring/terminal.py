"""Text that commands print, and how they end: a message, a JSON line if requested, and an exit code."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from trainwright.errors import (
    MAX_RECORD,
    DependencyError,
    InternalError,
    Preempted,
    as_ours,
    as_record,
    clean,
    traceback_of,
)

UNCHANGED = "Nothing was changed."


@contextlib.contextmanager
def reported(as_json: bool = False, *, stopped: str = UNCHANGED) -> Iterator[None]:
    """Convert an exception to a message on standard error, a JSON line if requested, and an exit code.

    An exception that is not a TrainwrightError is a bug: it prints its traceback and ends with 70.

    Args:
        as_json: Print an error as a JSON line on standard output, too.
        stopped: Message for Ctrl-C, which ends with 40.
    """
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        known = as_ours(error)
        if known is None:
            typer.echo(traceback_of(error), err=True)
        else:
            typer.echo(clean(f"{type(known).__name__}: {known}", MAX_RECORD), err=True)
        record = as_record(known or error, "trainwright")
        if as_json:
            typer.echo(json.dumps({"event": "error", **record}))
        raise typer.Exit(known.code if known else InternalError.code) from None
    except KeyboardInterrupt:
        typer.echo(f"\nStopped. {stopped}", err=True)
        raise typer.Exit(Preempted.code) from None


def duration(seconds: float) -> str:
    """Return a duration as text: ``4.1 s``, ``1 m 12 s``, ``2 h 05 m``."""
    if seconds < 59.95:  # noqa: PLR2004 - what is shown as 60.0 s is a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:  # noqa: PLR2004
        return f"{minutes} m {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} m"


def short_path(path: Path) -> str:
    """Return a path relative to the current folder if it lies below it, so that it can be copied."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def message(error: dict[str, Any] | Any) -> str:
    """Return the fields of an error as its message."""
    lines = [f"{error['error']}: {error['what']}"]
    lines += [f"  {word:<6}{error[key]}" for word, key in (("at", "where"), ("next", "hint")) if error[key]]
    return "\n".join(lines)


@dataclass(frozen=True)
class Diagnostic:
    """One result of ``trainwright doctor``."""

    name: str
    state: str  # ok, note (optional and missing), miss, or ? (the caller has no right to look)
    text: str  # what was found, and its consequence
    advice: str = ""  # next step
    use: str = ""  # the use of this machine that requires it
    code: int = DependencyError.code  # exit code that a miss of an installation leads to

    def fields(self) -> dict[str, str]:
        """Return the finding as plain data."""
        found = dataclasses.asdict(self)
        del found["code"]
        return found

    def __str__(self) -> str:
        """Return one line, and the advice on a second."""
        line = f"  {self.state:<5} {self.name:<10} {self.text}"
        return f"{line}\n{'':<19}{self.advice}" if self.advice else line

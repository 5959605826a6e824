"""How a command ends: an error becomes its message, a JSON line if asked for, and its exit code."""

import contextlib
import json
import traceback
from collections.abc import Iterator

import typer

from trainwright.errors import InternalError, Preempted, as_record

UNCHANGED = "Nothing was changed."


@contextlib.contextmanager
def reported(as_json: bool = False, *, stopped: str = UNCHANGED) -> Iterator[None]:
    """Turn an error into its message on standard error, a JSON line if asked for, and its exit code.

    An error that is not ours is a bug: its traceback is shown, and the code is 70.

    Args:
        as_json: Whether an error is a JSON line on standard output, too.
        stopped: What is true when somebody presses Ctrl-C, which ends with 40.
    """
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        from trainwright.authoring.failures import known as as_ours

        known = as_ours(error)
        if known is None:
            traceback.print_exc()
        else:
            typer.echo(f"{type(known).__name__}: {known}", err=True)
        record = as_record(known or error, "trainwright")
        if as_json:
            typer.echo(json.dumps({"event": "error", **record}, ensure_ascii=False))
        raise typer.Exit(known.code if known else InternalError.code) from None
    except KeyboardInterrupt:
        typer.echo(f"\nStopped. {stopped}", err=True)
        raise typer.Exit(Preempted.code) from None

"""How a command ends: an error becomes its message, a JSON line if asked for, and its exit code."""

import contextlib
import json
import traceback
from collections.abc import Iterator

import typer

from trainwright.errors import InternalError, Preempted, as_record


@contextlib.contextmanager
def reported(as_json: bool = False) -> Iterator[None]:
    """Turn an error into its message on standard error, a JSON line if asked for, and its exit code.

    An error that is not ours is a bug: its traceback is shown, and the code is 70.
    """
    try:
        yield
    except typer.Exit:
        raise
    except BrokenPipeError:  # who reads has read enough
        raise typer.Exit(0) from None
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
        typer.echo("Stopped before anything was run.", err=True)
        raise typer.Exit(Preempted.code) from None

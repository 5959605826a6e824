"""What every command for a cluster has in common: the options that say where the API is, and how it ends."""

import contextlib
import functools
import inspect
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainwright.authoring.terminal import reported

if TYPE_CHECKING:
    from trainwright.authoring.submission.connection import Connection, Place

Host = Annotated[str, typer.Option(help="Address of the API: https://HOST/PATH.")]
Namespace = Annotated[str, typer.Option(help="Your profile's; without profiles, leave it out.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(help="File of the token, read at every call; in a pod, Kubeflow's own is found by itself."),
]
CaFile = Annotated[Path | None, typer.Option(help="Certificates to trust, besides the public ones.")]
Json = Annotated[
    bool, typer.Option("--json", help="One JSON line an event on standard output, nothing else.")
]

REACH: Mapping[str, tuple[Any, Any]] = {
    "host": (Host, inspect.Parameter.empty),
    "namespace": (Namespace, ""),
    "token_file": (TokenFile, None),
    "ca_file": (CaFile, None),
}
"""The fields of a place that are options: their types and defaults."""


def on_cluster(stopped: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command that takes a place, and ``as_json``, the options that name a place.

    Args:
        stopped: What is said if it is stopped from outside while it changes something.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command)
        mine = [entry for name, entry in own.parameters.items() if name != "place"]
        asked = [entry for entry in mine if entry.default is inspect.Parameter.empty]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            with reported(given["as_json"], stopped=stopped), stopped_like_ctrl_c():
                from trainwright.authoring.submission.connection import Place

                command(Place(**{name: given.pop(name) for name in REACH}), **given)

        keyword = inspect.Parameter.KEYWORD_ONLY
        reach = [
            inspect.Parameter(name, keyword, annotation=kind, default=default)
            for name, (kind, default) in REACH.items()
        ]
        rest = [entry for entry in mine if entry not in asked]
        entries = [*asked, *reach, *rest]
        parameters = [entry.replace(kind=keyword) for entry in entries]
        called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {entry.name: entry.annotation for entry in entries}
        del called.__wrapped__  # its signature is another one
        return called

    return decorated


def connected(place: "Place") -> "Connection":
    """Connect to an API, after a look that it is one and takes us.

    Raises:
        TrainwrightError: It is none, it is away, or it does not take us.
    """
    from trainwright.authoring.submission import connection

    api = connection.connect(place)
    for text in api.check():
        typer.echo(f"  note: {text}", err=True)
    return api


def reach(place: "Place") -> list[str]:
    """Return the options that reach the same API again."""
    given = {f"--{name.replace('_', '-')}": getattr(place, name) for name in REACH}
    return [word for name, value in given.items() if value for word in (name, os.fspath(value))]


@contextlib.contextmanager
def stopped_like_ctrl_c() -> Iterator[None]:
    """Treat a job of CI that is cancelled like somebody who presses Ctrl-C."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

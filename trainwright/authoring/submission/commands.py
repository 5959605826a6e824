"""The commands for a cluster (``submit``, ``status``, ``terminate``, ``retry``) and their common options."""

import contextlib
import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainwright.authoring.terminal import reported
from trainwright.errors import InputError, Preempted

if TYPE_CHECKING:
    from trainwright.authoring.pipeline_spec import Pipeline
    from trainwright.authoring.submission.connection import Connection, Endpoint
    from trainwright.authoring.submission.runs import SubmittedRun
    from trainwright.authoring.submission.screen import ClusterScreen

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
PipelineName = Annotated[str, typer.Argument(help="Name of a compiled pipeline, or a path to one.")]
Config = Annotated[Path | None, typer.Option(help="Experiment file.")]
Params = Annotated[list[str] | None, typer.Option(help="NAME=VALUE; wins over the experiment.")]
Date = Annotated[str, typer.Option(help="Date that {date} in a source stands for; absent: today.")]
RunId = Annotated[str, typer.Argument(metavar="RUN_ID", help="The run, as submit and the UI name it.")]
Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Follow the run, and end with the failed step's exit code.")
]
Timeout = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="SECONDS", help="With --wait: stop waiting after these, with 40; the run continues."
    ),
]

REACH: Mapping[str, tuple[Any, Any]] = {
    "host": (Host, inspect.Parameter.empty),
    "namespace": (Namespace, ""),
    "token_file": (TokenFile, None),
    "ca_file": (CaFile, None),
}
"""The options of an endpoint: their types and defaults."""


def on_cluster(stopped: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command that takes an endpoint as ``place``, and ``as_json``, the options of an endpoint.

    Args:
        stopped: Message for Ctrl-C, and for a job of CI that is cancelled.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**options: Any) -> None:
            with reported(options["as_json"], stopped=stopped), _sigterm_as_ctrl_c():
                from trainwright.authoring.submission.connection import Endpoint

                command(Endpoint(**{name: options.pop(name) for name in REACH}), **options)

        own = [entry for name, entry in inspect.signature(command).parameters.items() if name != "place"]
        reach = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for name, (kind, default) in REACH.items()
        ]
        required = [entry for entry in own if entry.default is inspect.Parameter.empty]
        entries = [*required, *reach, *(entry for entry in own if entry not in required)]
        parameters = [entry.replace(kind=inspect.Parameter.KEYWORD_ONLY) for entry in entries]
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {entry.name: entry.annotation for entry in entries}
        del called.__wrapped__  # its signature is another one
        return called

    return decorated


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def connected(place: "Endpoint") -> "Connection":
    """Connect to an API, after asking for its health; print notes about the endpoint."""
    from trainwright.authoring.submission import connection

    api = connection.connect(place)
    for text in api.check():
        typer.echo(f"  note: {text}", err=True)
    return api


@on_cluster("The run may be there already: the same command finds it, and makes no second one.")
def submit(  # noqa: PLR0913, PLR0917 - one argument an option
    place: "Endpoint",
    pipeline: PipelineName,
    config: Config = None,
    param: Params = None,
    date: Date = "",
    experiment: Annotated[str, typer.Option(help="Where the run is listed; made if absent.")] = "trainwright",
    service_account: Annotated[str, typer.Option(help="Whose rights the steps have.")] = "",
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; beside commit and branch.")] = None,
    data_version: Annotated[str, typer.Option(help="Digest of the data, if it is known already.")] = "",
    registry: Annotated[str, typer.Option(help="HOST/TEAM put in front of every image.")] = "",
    key: Annotated[
        str,
        typer.Option(help="A second submission with it finds the run; absent: made of the content."),
    ] = "",
    name: Annotated[
        str, typer.Option(help="What the UI calls the run; absent: the model, the time and part of the key.")
    ] = "",
    beside: Annotated[
        bool, typer.Option("--beside", help="Also while a run with these arguments goes on for this date.")
    ] = False,
    wait: Wait = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Run a pipeline on a cluster. It runs once for its key, however often this is called."""
    from trainwright.authoring.submission import connection, order, runs

    _require_following(wait, timeout)
    connection.connect(place)  # reject an invalid address or token first
    prepared = order.prepared(
        pipeline, config, [*(param or [])], date, registry=registry, labels=label or [], key=key,
        data_version=data_version, experiment=experiment, service_account=service_account,
        beside=beside, place=place, name=name,
    )  # fmt: skip
    api = connected(place)
    compiled = prepared.package.pipeline
    screen = _screen(api, compiled, as_json)
    begun = runs.submit(api, prepared, screen.warned)
    if wait:
        raise typer.Exit(_followed(api, begun, compiled, screen, timeout))
    screen.begun(begun)


@on_cluster("Nothing was changed.")
def status(
    place: "Endpoint", run_id: RunId, wait: Wait = False, timeout: Timeout = None, as_json: Json = False
) -> None:
    """Say where a run on a cluster stands. With --wait, follow it to its end."""
    from trainwright.authoring.submission import progress, runs

    _require_following(wait, timeout)
    api = connected(place)
    run = runs.get(api, run_id)
    pipeline = runs.pipeline_of(api, run)
    screen = _screen(api, pipeline, as_json)
    run_now = runs.described(api, run, pipeline)
    if wait or run.state in progress.ENDED:
        raise typer.Exit(_followed(api, run_now, pipeline, screen, timeout))
    screen.begun(run_now)
    for step in progress.steps(run, pipeline, datetime.now(UTC)):
        screen.step(step)
    screen.state(run.state)


@on_cluster("Whether the run is being stopped, its page says; the same command may be repeated.")
def terminate(place: "Endpoint", run_id: RunId, as_json: Json = False) -> None:
    """Stop a run on a cluster. One that has ended stays as it is."""
    from trainwright.authoring.submission import progress, runs

    api = connected(place)
    run = runs.terminate(api, run_id)
    if as_json:
        _screen(api, None, as_json).state(run.state)
    else:
        typer.echo(f"  run {run_id} is {progress.word(run.state)}\n  {api.place.link(run_id)}")


@on_cluster("Whether the run goes on again, its page says; the same command may be repeated.")
def retry(
    place: "Endpoint", run_id: RunId, wait: Wait = False, timeout: Timeout = None, as_json: Json = False
) -> None:
    """Do again the steps of a run that failed or were stopped. What is done stays done."""
    from trainwright.authoring.submission import runs

    _require_following(wait, timeout)
    api = connected(place)
    run, ended_at = runs.retry(api, run_id)
    pipeline = runs.pipeline_of(api, run)
    screen = _screen(api, pipeline, as_json)
    found = "" if ended_at else "goes on already, not tried again"
    run_now = runs.described(api, run, pipeline, found)
    if wait:
        raise typer.Exit(_followed(api, run_now, pipeline, screen, timeout, ended_at))
    screen.begun(run_now)


def _screen(api: "Connection", pipeline: "Pipeline | None", as_json: bool) -> "ClusterScreen":
    from trainwright.authoring.submission import screen

    if as_json:
        return screen.ClusterLines(sys.stdout)
    values = {f"--{name.replace('_', '-')}": getattr(api.place, name) for name in REACH}
    reach = [word for name, value in values.items() if value for word in (name, os.fspath(value))]
    return screen.ClusterScreen(sys.stdout, sys.stderr, pipeline, reach)


def _require_following(wait: bool, timeout: int | None) -> None:
    if timeout and not wait:
        raise InputError(
            "--timeout limits waiting, and --wait is absent", where="--timeout", hint="Add --wait."
        )


def _followed(
    api: "Connection",
    begun: "SubmittedRun",
    pipeline: "Pipeline | None",
    screen: "ClusterScreen",
    timeout: int | None,
    ended_at: datetime | None = None,
) -> int:
    """Follow a run to its end and return its exit code; stopping this does not stop the run."""
    from trainwright.authoring.submission import follow

    screen.stream = sys.__stdout__ or sys.stdout  # a closed reader matters from now on
    run_id = begun.run_id
    try:
        screen.begun(begun)
        with contextlib.suppress(KeyboardInterrupt, follow.TimeUp):
            ending = follow.follow(api, run_id, pipeline, screen, within_s=timeout, ended_at=ended_at)
            screen.ended(ending, api.place.link(run_id))
            return ending.exit_code
        screen.left(run_id)
    except BrokenPipeError:  # Python would report the rest of the buffer at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), screen.stream.fileno())
    return Preempted.code

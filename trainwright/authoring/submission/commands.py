"""The commands for a cluster: ``submit``, ``status``, ``terminate``, ``retry``."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainwright.authoring.ending import reported
from trainwright.errors import Preempted

if TYPE_CHECKING:
    from trainwright.authoring.spec import Pipeline
    from trainwright.authoring.submission.connection import Connection
    from trainwright.authoring.submission.screen import Screen

Host = Annotated[str, typer.Option(help="Address of the API: https://HOST/PATH.")]
Namespace = Annotated[str, typer.Option(help="Your profile's; without profiles, leave it out.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(help="File of the token, read at every call; in a pod, Kubeflow's own is found by itself."),
]
CaFile = Annotated[Path | None, typer.Option(help="Certificates to trust, besides the public ones.")]
RunId = Annotated[str, typer.Argument(metavar="RUN_ID", help="The run, as submit and the UI name it.")]
Json = Annotated[
    bool, typer.Option("--json", help="One JSON line an event on standard output, nothing else.")
]
Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Follow the run, and end with the failed step's exit code.")
]


def submit(  # noqa: PLR0913, PLR0917 - one argument an option
    pipeline: Annotated[str, typer.Argument(help="Name of a compiled pipeline, or a path to one.")],
    host: Host,
    config: Annotated[Path | None, typer.Option(help="Experiment file.")] = None,
    param: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; wins over the experiment.")] = None,
    date: Annotated[str, typer.Option(help="Date that {date} in a source stands for; absent: today.")] = "",
    namespace: Namespace = "",
    experiment: Annotated[str, typer.Option(help="Where the run is listed; made if absent.")] = "trainwright",
    service_account: Annotated[str, typer.Option(help="Whose rights the steps have.")] = "",
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; beside commit and branch.")] = None,
    data_version: Annotated[str, typer.Option(help="Digest of the data, if it is known already.")] = "",
    registry: Annotated[str, typer.Option(help="HOST/TEAM put in front of every image.")] = "",
    key: Annotated[
        str,
        typer.Option(help="A second submission with it finds the run; absent: made of the content."),
    ] = "",
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Run a compiled pipeline on a cluster: once for its key, however often this is called."""
    with reported(as_json):
        from trainwright.authoring.submission import order

        api = connected(host, namespace, token_file, ca_file)
        wanted = order.prepared(
            pipeline, config, [*(param or [])], date, registry=registry, labels=label or [], key=key,
            data_version=data_version, experiment=experiment, service_account=service_account,
            place=api.place,
        )  # fmt: skip
        screen = _screen(api, wanted.pipeline, as_json)
        api.check()
        begun = order.placed(api, wanted, screen.warned)
        screen.begun(begun)
        if wait:
            raise typer.Exit(_followed(api, begun.run_id, wanted.pipeline, screen))


def status(
    run_id: RunId,
    host: Host,
    namespace: Namespace = "",
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Say where a run on a cluster stands; with --wait, follow it to its end."""
    with reported(as_json):
        from datetime import UTC, datetime

        from trainwright.authoring.submission import order, progress, runs, states
        from trainwright.authoring.submission.following import Pace

        api = connected(host, namespace, token_file, ca_file)
        run = runs.get(api, run_id)
        pipeline = order.pipeline_of(api, run)
        screen = _screen(api, pipeline, as_json)
        screen.begun(order.seen(api, run, pipeline))
        if wait or run.state in states.ENDED:
            raise typer.Exit(_followed(api, run_id, pipeline, screen, Pace()))
        for step in progress.steps(run, pipeline, datetime.now(UTC)):
            screen.step(step)
        screen.state(run.state)


def terminate(
    run_id: RunId,
    host: Host,
    namespace: Namespace = "",
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: Json = False,
) -> None:
    """Stop a run on a cluster; one that has ended stays as it is."""
    with reported(as_json):
        from trainwright.authoring.submission import runs, states

        api = connected(host, namespace, token_file, ca_file)
        run = runs.terminate(api, run_id)
        if as_json:
            _screen(api, None, as_json).state(run.state)
        else:
            typer.echo(f"  run {run_id} is {states.word(run.state)}\n  {api.place.link(run_id)}")


def retry(
    run_id: RunId,
    host: Host,
    namespace: Namespace = "",
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Do the steps of a run again that failed or were stopped; what is done stays done."""
    with reported(as_json):
        from trainwright.authoring.submission import order, runs

        api = connected(host, namespace, token_file, ca_file)
        run, _ = runs.retry(api, run_id)
        pipeline = order.pipeline_of(api, run)
        screen = _screen(api, pipeline, as_json)
        screen.begun(order.seen(api, run, pipeline))
        if wait:
            raise typer.Exit(_followed(api, run_id, pipeline, screen))


def connected(host: str, namespace: str, token_file: Path | None, ca_file: Path | None) -> "Connection":
    """Connect to the API that the options of a command name."""
    from trainwright.authoring.submission import connection

    place = connection.Place(host=host, namespace=namespace, token_file=token_file, ca_file=ca_file)
    return connection.connect(place)


def reach(api: "Connection") -> list[str]:
    """Return the options that reach the same API again."""
    options: Mapping[str, Any] = {
        "--host": api.place.host,
        "--namespace": api.place.namespace,
        "--token-file": api.place.token_file,
        "--ca-file": api.place.ca_file,
    }
    return [word for name, value in options.items() if value for word in (name, os.fspath(value))]


def _screen(api: "Connection", pipeline: "Pipeline | None", as_json: bool) -> "Screen":
    from trainwright.authoring.submission import screen

    return (
        screen.Lines(sys.stdout) if as_json else screen.Screen(sys.stdout, sys.stderr, pipeline, reach(api))
    )


def _followed(
    api: "Connection", run_id: str, pipeline: "Pipeline | None", screen: "Screen", pace: Any = None
) -> int:
    """Follow a run to its end and return its exit code; whoever stops this only looks away."""
    from trainwright.authoring.submission import following

    try:
        with _stopped_like_ctrl_c():
            ending = following.follow(api, run_id, pipeline, screen, pace)
    except KeyboardInterrupt:
        screen.left(run_id)
        return Preempted.code
    screen.ended(ending, api.place.link(run_id))
    return ending.exit_code


@contextlib.contextmanager
def _stopped_like_ctrl_c() -> Iterator[None]:
    """Treat a job of CI that is cancelled like somebody who presses Ctrl-C: the run goes on."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

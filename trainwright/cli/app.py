"""The command line.

Exit codes are those of :mod:`trainwright.errors`. Commands import heavy modules themselves, kfp above all, so
that ``--help`` answers at once.
"""

import io
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import trainwright
from trainwright.authoring.schedules import commands as schedules
from trainwright.authoring.submission import commands as cluster
from trainwright.authoring.terminal import reported as _reported
from trainwright.cli import run_commands, step_commands, trigger_commands
from trainwright.cli.step_commands import serve
from trainwright.command import go_on_unheard
from trainwright.errors import InputError, Preempted, clean
from trainwright.imports import collect_rarely

if TYPE_CHECKING:
    from trainwright.local.containers import Engine

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
INTERRUPTED = 130
"""Exit code of typer for Ctrl-C while it parses the command line."""


def run(  # noqa: PLR0913, PLR0917 - typer reads a command's options from its arguments
    pipeline: cluster.PipelineName,
    config: cluster.Config = None,
    param: cluster.Params = None,
    date: cluster.Date = "",
    run_id: Annotated[
        str, typer.Option("--run", help="Resume this run; changed arguments start another.")
    ] = "",
    again_from: Annotated[str, typer.Option("--from", help="Do this step and all after it again.")] = "",
    use_cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Reuse results whose inputs have not changed.")
    ] = True,
    runs: Annotated[Path, typer.Option(help="Folder of the runs and their cache.")] = Path("runs"),
    containers: Annotated[
        bool, typer.Option("--containers", help="Run each step in a container of its image.")
    ] = False,
    network: Annotated[str, typer.Option(help="With --containers: the engine's network to join.")] = "",
    mount: Annotated[
        list[str] | None,
        typer.Option(help="With --containers: PATH that they see too; PATH:rw to write there."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="With --containers: NAME of a variable here that they get, such as a proxy's."),
    ] = None,
    as_json: cluster.Json = False,
) -> None:
    """Run a pipeline on this machine. Each step runs in the environment of its image."""
    with _reported(as_json, stopped="Nothing was run."):
        from trainwright.authoring import arguments as experiments
        from trainwright.authoring import catalog
        from trainwright.local import console, runner
        from trainwright.local.containers import Engine, requested_mounts, variables

        if (network or mount or env) and not containers:
            raise InputError("--network, --mount and --env are for containers", hint="Add --containers.")

        compiled = catalog.pipeline(pipeline)
        arguments = experiments.of_pipeline(compiled, config, param or [], date)
        seen = requested_mounts(mount or [], config) if containers else {}
        engine = Engine(network, seen, variables(env or [])) if containers else None
        resume = _run_command(pipeline, runs, engine)
        restart = shlex.join([*resume, *_file_and_values(config, param or [], date)]) if config else ""
        screen = console.Screen(sys.stdout, sys.stderr, shlex.join(resume), restart)
        listener = console.Lines(sys.stdout) if as_json else screen
        outcome = runner.run(
            compiled,
            arguments,
            runs_folder=runs,
            run_id=run_id,
            again_from=again_from,
            use_cache=use_cache,
            listener=listener,
            engine=engine,
            source=config.resolve().parent if config else None,
        )
    raise typer.Exit(outcome.exit_code)


def _file_and_values(config: Path, params: list[str], date: str) -> list[str]:
    """Return the options of a run that a person repeats after mending the experiment file."""
    values = [word for text in params for word in ("--param", text)]
    return ["--config", str(config), *values, *(["--date", date] if date else [])]


def _run_command(pipeline: str, runs: Path, engine: "Engine | None") -> list[str]:
    """Return the words of the command that runs a pipeline in the same place.

    With containers, ``--mount`` names the folder of the experiment file.
    """
    words = ["trainwright", "run", pipeline, *(["--runs", str(runs)] if runs != Path("runs") else [])]
    if engine:
        words += ["--containers", *(["--network", engine.network] if engine.network else [])]
        for path, writable in engine.seen.items():
            words += ["--mount", f"{path}:rw" if writable else str(path)]
        words += [word for name in engine.variables for word in ("--env", name)]
    return words


def compile_all(
    check: Annotated[bool, typer.Option(help="Write nothing; fail if a file would change.")] = False,
    registry: Annotated[str, typer.Option(help="HOST/TEAM put in front of every image.")] = "",
    lock_images: Annotated[
        Path | None, typer.Option(help="images.json of `make images`: digests in place of tags.")
    ] = None,
    release: Annotated[bool, typer.Option("--release", help="Refuse an image named by its tag.")] = False,
    output: Annotated[Path | None, typer.Option(help="Folder; the repository's own when absent.")] = None,
) -> None:
    """Compile every component and pipeline. Also generate the pages of the components."""
    with _reported(stopped="Files may be missing or old: compile again."):
        from trainwright.authoring import compile as compiler

        lines = compiler.run(
            check=check, registry=registry, lock_images=lock_images, release=release, output=output
        )
        for line in lines:
            typer.echo(line)


def interface_diff(
    old: Annotated[
        Path | None, typer.Argument(help="compiled/ or index.json of a version; the last released if absent.")
    ] = None,
    new: Annotated[Path | None, typer.Argument(help="Of the next one; the library's own if absent.")] = None,
    as_json: cluster.Json = False,
) -> None:
    """Compare the interfaces of two versions. Fail if the version rose too little for them."""
    with _reported(as_json):
        from trainwright.authoring import catalog, interfaces

        last = old or interfaces.released(catalog.folder())
        if last is None:
            typer.echo("{}" if as_json else "no version is out yet: any interface may still change")
            return
        before, after = interfaces.read(last), interfaces.read(new or catalog.folder())
        found = interfaces.changes(before, after)
        for change in found:
            line = f"  {change.level:<6} {change.name:<20} {change.what}"
            typer.echo(json.dumps(vars(change)) if as_json else line)
        if not as_json:
            typer.echo(f"{interfaces.level(found)}: {before['version']} to {after['version']}")
        interfaces.require_version(before, after, found)


def list_all(as_json: cluster.Json = False) -> None:
    """List the components and pipelines."""
    with _reported(as_json):
        from trainwright.authoring import catalog

        kinds = {
            "pipeline": {name: catalog.pipeline(name) for name in catalog.pipelines()},
            "component": {name: catalog.component(name) for name in catalog.names()},
        }
        for kind, found in kinds.items():
            if not as_json:
                typer.echo(f"{kind}s")
            width = max(map(len, found), default=0)
            for name, path in found.items():
                about = catalog.summary(path)
                fields = {"kind": kind, "name": name, "description": about}
                typer.echo(json.dumps(fields) if as_json else f"  {name:<{width}}   {about}")


def doctor(
    host: Annotated[
        str, typer.Option(help="Inspect the Kubeflow behind this address instead: https://HOST/PATH.")
    ] = "",
    namespace: cluster.Namespace = "",
    token_file: cluster.TokenFile = None,
    ca_file: cluster.CaFile = None,
    as_json: cluster.Json = False,
) -> None:
    """Check this machine, or a Kubeflow installation. List what is missing for each use.

    An installation is inspected as far as the caller's rights allow. Nothing is changed.
    """
    with _reported(as_json):
        options = {"--namespace": namespace, "--token-file": token_file, "--ca-file": ca_file}
        if host:
            from trainwright.authoring.installation import cluster_reader, inspection
            from trainwright.authoring.submission import connection

            place = connection.Endpoint(
                host=host, namespace=namespace, token_file=token_file, ca_file=ca_file
            )
            api = connection.connect(place)
            found = inspection.inspect(api, api.profiles(), cluster_reader.connect())
            require = inspection.require
        elif unused := next((name for name, value in options.items() if value), ""):
            text = f"{unused} is about a Kubeflow, and none is named"
            raise InputError(text, where=unused, hint="Add --host https://HOST/PATH.")
        else:
            from trainwright.local import doctor as checks

            found, require = iter(checks.look()), checks.require
        findings = []
        for finding in found:
            findings.append(finding)
            typer.echo(json.dumps(finding.fields()) if as_json else str(finding))
        require(findings)


def setup(
    toolchains: Annotated[list[str] | None, typer.Argument(help="All when absent.")] = None,
    variant: Annotated[
        Literal["gpu", "engines"] | None, typer.Option(help="From the locks of this variant.")
    ] = None,
) -> None:
    """Create missing and outdated environments."""
    with _reported(stopped="What was not finished is made anew by the next call."):
        from trainwright.authoring import environments
        from trainwright.authoring.environments import TOOLCHAINS

        made = environments.make(toolchains or TOOLCHAINS, variant=variant or "", progress=typer.echo)
        if not any(one.changed for one in made):
            typer.echo(f"environments up to date: {' '.join(one.toolchain for one in made)}")


def cache_explain(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Short name of the run.")],
    step: Annotated[str, typer.Argument(help="Name of the step.")],
    runs: Annotated[Path, typer.Option(help="Folder of the runs and their cache.")] = Path("runs"),
) -> None:
    """Explain why a step was reused or repeated. Print each input that changed, from what to what."""
    with _reported():
        from trainwright.local import cache

        for line in cache.lines(runs, run_id, step):
            typer.echo(line)


def new_component(
    name: Annotated[str, typer.Argument(help="A verb in lower case, such as impute.")],
    noun: Annotated[str, typer.Option(help="What it makes: its module in the library.")] = "result",
    image: Annotated[str, typer.Option(help="Short name of the image that it runs in.")] = "tabular",
) -> None:
    """Create a component. It has logic, a test, a wrapper, metadata and a page."""
    with _reported(stopped="Some of its files may be there: see git status."):
        from trainwright.authoring import scaffold

        for path in scaffold.component(name, noun=noun, toolchain=image):
            typer.echo(f"  {path}")
        typer.echo(f"Next, in the repository: make compile test ARGS=tests/{name}")


cache = typer.Typer(no_args_is_help=True, help="Look into what is kept of earlier runs.")
cache.command("explain")(cache_explain)
new = typer.Typer(no_args_is_help=True, help="Write a new part of the library, already passing.")
new.command("component")(new_component)

COMMANDS: Mapping[str, Callable[..., None]] = {
    "init": step_commands.init,
    "run": run,
    "list": list_all,
    "doctor": doctor,
    "setup": setup,
    "submit": cluster.submit,
    "status": cluster.status,
    "retry": cluster.retry,
    "terminate": cluster.terminate,
    "predict": step_commands.predict,
    "compare": step_commands.compare,
    "curves": step_commands.curves,
    "lineage": run_commands.lineage,
    "serve": serve,
    "reproduce": run_commands.reproduce,
    "compile": compile_all,
    "interface-diff": interface_diff,
}
GROUPS: Mapping[str, typer.Typer] = {
    "runs": run_commands.app,
    "schedules": schedules.app,
    "triggers": trigger_commands.app,
    "model": step_commands.model,
    "schema": step_commands.schema,
    "baseline": step_commands.baseline,
    "features": step_commands.features,
    "cache": cache,
    "new": new,
}
"""In the order of ``--help``."""

run_commands.app.command("upload")(step_commands.upload)  # beside those of steps: it needs an environment
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(trainwright.__version__)
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Say the version, and end."),
    ] = False,
) -> None:
    """Training pipelines for Kubeflow Pipelines, the same on a laptop and on a cluster."""


def main() -> None:
    """Start the command line. A usage error ends with 10, like all invalid input."""
    collect_rarely()
    go_on_unheard()
    try:
        code = app(standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except Exception as error:
        if not hasattr(error, "show"):  # what typer raises for a wrong command line can show itself
            raise
        text = io.StringIO()
        error.show(text)
        typer.echo(clean(text.getvalue()), nl=False, err=True)
        code = InputError.code
    sys.exit(Preempted.code if code == INTERRUPTED else code)

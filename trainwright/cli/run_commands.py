"""Commands about earlier runs: list, show, diff, lineage, reproduce."""

import dataclasses
import itertools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainwright.authoring.terminal import duration, reported, short_path
from trainwright.errors import InputError, ModelRefused, clean
from trainwright.redaction import printable

if TYPE_CHECKING:
    from trainwright.artifacts.cost import Spending
    from trainwright.local.run_index import Node, RunSummary
    from trainwright.reproduce.recorded_run import RecordedRun
    from trainwright.reproduce.reproduce import Reproduction

app = typer.Typer(no_args_is_help=True, help="List, show and compare the runs of this machine.")

_DIGITS, _HEADLINE = 8, 60
Runs = Annotated[Path, typer.Option(help="Folder of the runs.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Short name of the run.")]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
RUNS = Path("runs")


@app.command("list")
def runs_list(
    pipeline: Annotated[str, typer.Option(help="Only runs of this pipeline.")] = "",
    state: Annotated[
        str, typer.Option(help="Only these: done, held, failed, cancelled, killed or running.")
    ] = "",
    digest: Annotated[
        str, typer.Option("--version", help="Only runs that read or made it: a digest of data or a model.")
    ] = "",
    where: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE, such as training.learning_rate=0.01; again for more.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Most runs to show; 0: all.")] = 20,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """List runs, the newest first. Conditions narrow the list."""
    with reported(as_json):
        from trainwright.local.run_index import RunFilter, condition, count_runs, read_runs

        conditions = RunFilter(
            pipeline=pipeline, state=state, digest=digest, arguments=dict(map(condition, where or []))
        )
        matching = (one for one in _readable(read_runs(runs)) if conditions.matches(runs, one))
        shown = list(itertools.islice(matching, limit or None))
        if as_json:
            for one in shown:
                typer.echo(json.dumps(one.to_json()))
            return
        _print_runs(shown)
        if limit and len(shown) == limit:
            typer.echo(f"The newest {limit} of {count_runs(runs):,} runs; --limit 0 shows all.")
        if not shown:
            typer.echo(f"No run of {count_runs(runs):,} in {short_path(runs)} matches.")


def _readable(found: Iterable["RunSummary | InputError"]) -> Iterator["RunSummary"]:
    """Yield the runs that can be read, and warn of the others."""
    for one in found:
        if isinstance(one, InputError):
            typer.echo(clean(f"Not readable: {one}"), err=True)
        else:
            yield one


def _print_runs(shown: Sequence["RunSummary"]) -> None:
    rows = [
        (
            one.run,
            one.created[:16].replace("T", " "),
            one.pipeline,
            one.state,
            duration(one.seconds),
            one.version("data")[:_DIGITS] or "-",
            one.registered or one.version("model")[:_DIGITS] or "-",
            one.main_metric or "-",
            one.price or "-",
            printable(one.headline)[:_HEADLINE],
        )
        for one in shown
    ]
    if rows:
        header = (
            "run",
            "created, UTC",
            "pipeline",
            "state",
            "time",
            "data",
            "model",
            "metric",
            "cost",
            "result",
        )
        typer.echo(table([header, *rows]))


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return rows of text in columns that are as wide as their widest cell."""
    listed = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in listed
    )


@app.command("show")
def runs_show(run: RunId, runs: Runs = RUNS, as_json: Json = False) -> None:
    """Show one run: steps, results, versions and reports."""
    with reported(as_json):
        from trainwright.lineage import VERSIONS
        from trainwright.local.run_folder import Tasks, require_run
        from trainwright.local.run_index import read_run

        folder = require_run(runs, run)
        one = read_run(folder)
        if as_json:
            typer.echo(json.dumps(one.to_json(), indent=2))
            return
        typer.echo(f"{one.pipeline} {one.run}  {one.state}  {one.created}  {duration(one.seconds)}")
        tasks = Tasks.read(folder).tasks if (folder / Tasks.FILE).exists() else ()
        steps = [
            (
                f"  {task.step}",
                task.state,
                duration(task.seconds),
                printable(
                    " ".join([task.decision, task.headline or str(task.error.get("what", ""))])
                ).strip(),
            )
            for task in tasks
        ]
        if steps:
            typer.echo(table(steps))
        for name in VERSIONS:
            if digest := one.version(name):
                typer.echo(f"{name:<13}{digest}")
        if one.registered:
            typer.echo(f"{'registered':<13}{one.registered}")
        if one.price:
            typer.echo(f"{'cost':<13}{one.price}")
            for reason, lost in one.waste.items():
                typer.echo(f"{f'  {reason}':<13}{lost:,.4g} lost")
        for task in tasks:
            for page in task.pages():
                typer.echo(f"{'report':<13}{short_path(page)}")


@app.command("cost")
def runs_cost(
    by: Annotated[str, typer.Option(help="owner, cost_centre, pipeline or model.")] = "owner",
    since: Annotated[str, typer.Option(help="First day, UTC. Default: the first of this month.")] = "",
    runs: Runs = RUNS,
    uri: Annotated[str, typer.Option(help="MLflow's address, instead of the runs of this machine.")] = "",
    as_json: Json = False,
) -> None:
    """Sum the cost of runs, and what of it was lost."""
    with reported(as_json):
        from trainwright.artifacts.cost import GROUPS, sum_by, waste_line

        if by not in GROUPS:
            raise InputError(f"expected one of {', '.join(GROUPS)}, found {by!r}", where="--by")
        start = _first_day(since)
        groups = sum_by(by, _spendings(runs, uri, start))
        if as_json:
            typer.echo(json.dumps([dataclasses.asdict(group) for group in groups]))
            return
        rows = [
            (
                printable(group.value) or "-",
                f"{group.cost:,.4g} {group.currency}",
                f"{group.runs:,}",
                waste_line(group.waste) or "-",
            )
            for group in groups
        ]
        typer.echo(table([(by, "cost", "runs", "of it lost"), *rows]) if rows else f"No cost since {start}.")


def _first_day(since: str) -> str:
    today = datetime.now(UTC).date()
    try:
        return (date.fromisoformat(since) if since else today.replace(day=1)).isoformat()
    except ValueError:
        hint = "Write it as 2026-11-01."
        raise InputError(f"expected a date, found {since!r}", where="--since", hint=hint) from None


def _spendings(runs: Path, uri: str, start: str) -> "list[Spending]":
    """Return what runs have spent since a day, by MLflow or by their folder."""
    from trainwright.artifacts.cost import Spending
    from trainwright.local.run_index import read_arguments, read_runs, spending_of

    if uri:
        from trainwright.authoring.arguments import absolute
        from trainwright.authoring.environments import python
        from trainwright.command import run_package

        words = ("tracking", "spending", absolute(uri, Path.cwd()), start)
        return [Spending(**one) for one in json.loads(run_package(python("mlflow"), *words))]
    listed = itertools.takewhile(lambda one: one.created >= start, _readable(read_runs(runs)))
    return [spending_of(one, read_arguments(runs / one.run)) for one in listed if one.cost is not None]


@app.command("diff")
def runs_diff(
    first: Annotated[str, typer.Argument(metavar="FIRST", help="Short name of a run.")],
    second: Annotated[str, typer.Argument(metavar="SECOND", help="Of the run to compare it with.")],
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Compare two runs. Print the arguments, versions and metrics that differ."""
    with reported(as_json):
        from trainwright.local.run_folder import require_run
        from trainwright.local.run_index import compare_runs, read_arguments, read_run

        folders = [require_run(runs, name) for name in (first, second)]
        one, other = map(read_run, folders)
        found = compare_runs(one, other, [*map(read_arguments, folders)])
        if as_json:
            typer.echo(
                json.dumps({part: [dataclasses.asdict(row) for row in rows] for part, rows in found.items()})
            )
            return
        for part, rows in found.items():
            if rows:
                cells = [(f"  {row.key}", _text(row.first), _text(row.second)) for row in rows]
                typer.echo(table([(part, one.run, other.run), *cells]))
        if not any(found.values()):
            typer.echo(f"{one.run} and {other.run} have the same arguments, versions and metrics.")


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return printable(value if isinstance(value, str) else json.dumps(value))[:_HEADLINE]


Config = Annotated[Path | None, typer.Option("--config", help="Experiment file that names the registry.")]
Uri = Annotated[str, typer.Option("--uri", help="MLflow's address, in place of the file's.")]


def lineage(
    start: Annotated[
        str,
        typer.Argument(
            metavar="VERSION",
            help="RUN, NAME@ALIAS, NAME/VERSION, or the beginning of a digest of data or a model.",
        ),
    ],
    runs: Runs = RUNS,
    config: Config = None,
    uri: Uri = "",
    as_json: Json = False,
) -> None:
    """Trace a model or data. Print what it was made from, and what was made from it.

    The runs here count, and with --config or --uri also all versions in MLflow.
    """
    with reported(as_json):
        from trainwright.local.run_index import Lineage, read_runs

        known = list(_readable(read_runs(runs)))
        run = next((one for one in known if one.run == start), None)
        if config or uri:
            registered, start = _registered(start, config, uri)
            known += registered
        graph = Lineage(known)
        digest = graph.find((run.version("model") or run.version("data") or start) if run else start)
        parts = {"made from": [*graph.walk(digest, up=True)], "made into": [*graph.walk(digest, up=False)]}
        if as_json:
            nodes = {
                part: [{"depth": depth, **dataclasses.asdict(node)} for depth, node in found]
                for part, found in parts.items()
            }
            typer.echo(json.dumps({"version": dataclasses.asdict(graph.node(digest)), **nodes}))
            return
        typer.echo(_describe(graph.node(digest)))
        for part, found in parts.items():
            typer.echo(f"{part}{'' if found else '  nothing'}")
            for depth, node in found:
                typer.echo(f"{'  ' * depth}{_describe(node)}")


def _registered(start: str, config: Path | None, uri: str) -> tuple[list["RunSummary"], str]:
    """Return the versions in MLflow, each as a run, and the start with its alias replaced."""
    from trainwright.authoring import arguments
    from trainwright.authoring.environments import python
    from trainwright.command import run_package
    from trainwright.lineage import Derivation
    from trainwright.local.run_index import RunSummary
    from trainwright.registry.names import REFERENCE

    reference = REFERENCE.fullmatch(start)
    name, which = (
        (reference["name"], reference["alias"] or reference["version"]) if reference else ("any", "")
    )
    registry = arguments.read_registry(name, config, "", uri)
    words = ("registry", "lineage", registry, *([which] if which else []))
    found = json.loads(run_package(python("mlflow"), *words))
    versions = [
        RunSummary(
            run=one,
            pipeline="",
            created="",
            state="done",
            registered=one,
            derivations=tuple(Derivation(**made) for made in derivations),
        )
        for one, derivations in found["versions"].items()
    ]
    return versions, found["start"] or start


def reproduce(
    name: Annotated[
        str,
        typer.Argument(metavar="VERSION", help="RUN, or NAME@ALIAS or NAME/VERSION of a registered model."),
    ],
    runs: Runs = RUNS,
    config: Config = None,
    uri: Uri = "",
    output: Annotated[
        Path | None,
        typer.Option(help="New folder for data, run and reproduction.json. Default: reproduced/NAME-TIME."),
    ] = None,
    data: Annotated[
        list[Path] | None, typer.Option(help="Folder that may hold files of the run; again for more.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest difference of a prediction or metric that counts as equal.")
    ] = 0.001,
    as_json: Json = False,
) -> None:
    """Repeat a run with its library, environments and data. Compare the results step by step.

    Exit code 12 if they differ. No registry, audit, store or cache of the run is touched.
    """
    with reported(as_json, stopped="Only the folder of the repetition was written."):
        from trainwright.authoring.environments import user_cache
        from trainwright.local.run_folder import identifier
        from trainwright.reproduce.reproduce import DIFFERENT
        from trainwright.reproduce.reproduce import reproduce as repeat

        unique = f"{name.replace('/', '-')}-{identifier(int(time.time()))}"
        folder = (output or Path("reproduced", unique)).resolve()
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise InputError("the folder exists already", where=str(folder), hint="Name a new one.") from None
        run = _recorded(name, runs, config, uri, folder)
        cache = user_cache() / "reproduce"
        made = repeat(run, folder, cache=cache, roots=data or [], tolerance=tolerance, quiet=as_json)
        typer.echo(json.dumps(made.to_json()) if as_json else "\n".join(_reproduction_lines(made, folder)))
        if made.verdict == DIFFERENT:
            raise ModelRefused(made.reason, where=str(folder))


def _recorded(name: str, runs: Path, config: Path | None, uri: str, folder: Path) -> "RecordedRun":
    from trainwright.authoring import arguments
    from trainwright.registry.names import REFERENCE
    from trainwright.reproduce.recorded_run import from_folder
    from trainwright.reproduce.reproduce import read_version

    reference = REFERENCE.fullmatch(name)
    if not reference:
        return from_folder(runs, name)
    registry = arguments.read_registry(reference["name"], config, "", uri)
    which = reference["alias"] or reference["version"]
    return read_version(reference["name"], registry, which, folder / "recorded")


def _reproduction_lines(made: "Reproduction", folder: Path) -> Iterator[str]:
    rows = [(f"  {step.step}", step.verdict, ", ".join(step.outputs), step.difference) for step in made.steps]
    yield table(rows)
    times = ", ".join(f"{part} {duration(seconds)}" for part, seconds in made.seconds.items())
    source = f"commit {made.commit[:12]}" if made.commit else f"library {made.library[:12]}"
    yield f"{made.of} with {source}: {made.verdict}   ({times})"
    if made.reason:
        yield f"  {made.reason}"
    yield f"  {short_path(folder / made.FILE)}"


def _describe(node: "Node") -> str:
    made = f"  by {node.step} in {', '.join(node.runs[:3])}" if node.step else ""
    more = f" and {len(node.runs) - 3} more" if len(node.runs) > 3 else ""  # noqa: PLR2004 - as many are listed
    labels = f"  registered as {', '.join(node.labels)}" if node.labels else ""
    return printable(f"{node.name} {node.digest[:12]}{made}{more}{labels}")

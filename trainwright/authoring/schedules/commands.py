"""The commands ``schedules plan`` and ``schedules apply``."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainwright.authoring.submission.commands import Json, connected, on_cluster

if TYPE_CHECKING:
    from trainwright.authoring.schedules.reconciling import Action
    from trainwright.authoring.submission.connection import Endpoint

app = typer.Typer(no_args_is_help=True, help="Recurring runs on a cluster, as a file declares them.")
File = Annotated[Path, typer.Argument(help="The file of schedules.")]


@app.command()
@on_cluster("Nothing was changed.")
def plan(place: "Endpoint", file: File, as_json: Json = False) -> None:
    """Say what apply would do, and when each fires next. Nothing is changed."""
    _reconcile(place, file, change=False, as_json=as_json)


@app.command()
@on_cluster("What is said above was done; the next apply goes on from there.")
def apply(
    place: "Endpoint",
    file: File,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="As plan: change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Bring recurring runs to what the file declares. Those of others are never touched."""
    _reconcile(place, file, change=not dry_run, as_json=as_json)


def _reconcile(place: "Endpoint", file: Path, *, change: bool, as_json: bool) -> None:
    from trainwright.authoring.schedules import declaration, reconciling

    owner, declared = declaration.read(file)
    api = connected(place)
    now = datetime.now(UTC)
    actions = reconciling.plan(declared, reconciling.existing(api, owner), now)
    todo = sum(action.do != "keep" for action in actions)
    if not as_json:
        typer.echo(f"{file}   owner {owner}   {len(declared)} declared, {todo or 'nothing'} to do\n")
    for one in declared:
        for text in one.warnings:
            event = {"event": "warning", "name": one.name, "text": text}
            typer.echo(json.dumps(event) if as_json else f"  note: {one.name}: {text}")
    for action in actions:
        fields = {"event": "planned", **action.fields(now)}
        typer.echo(json.dumps(fields) if as_json else _lines(action, now))
    if not change or not todo:
        return
    if not as_json:
        typer.echo("\nApplying.")

    def done(action: "Action") -> None:
        words = {"make": "made", "enable": "switched on", "disable": "switched off"}
        event = {"event": "done", "do": action.do, "name": action.name}
        typer.echo(json.dumps(event) if as_json else f"  {words[action.do]:<12} {action.name}")

    reconciling.apply(api, owner, declared, lambda: datetime.now(UTC), done)


def _lines(action: "Action", now: datetime) -> str:
    """Return a step as text, with the next times of its schedule."""
    schedule, when = action.declared.schedule if action.declared else None, ""
    if schedule:
        interval_s = schedule.interval_s
        when = f"every {interval_s:,} s" if interval_s else f"{schedule.cron} {schedule.zone}"
    about = "   ".join(part for part in (when, action.why) if part)
    times = [f"             {time:%a %Y-%m-%d %H:%M:%S %Z}" for time in action.times(now)]
    return "\n".join([f"  {action.do:<8} {action.name}   {about}".rstrip(), *times])

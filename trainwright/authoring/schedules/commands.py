"""The commands ``schedules plan`` and ``schedules apply``."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainwright.authoring.submission.commands import Json, connected, on_cluster

if TYPE_CHECKING:
    from trainwright.authoring.schedules.declared import Wanted
    from trainwright.authoring.schedules.reconciling import Action
    from trainwright.authoring.submission.connection import Endpoint

app = typer.Typer(no_args_is_help=True, help="Recurring runs on a cluster, as a file declares them.")
File = Annotated[Path, typer.Argument(help="The file of schedules.")]


@app.command()
@on_cluster("Nothing was changed.")
def plan(place: "Endpoint", file: File, as_json: Json = False) -> None:
    """Say what apply would do, and when each fires next. Nothing is changed."""
    _reconciled(place, file, change=False, as_json=as_json)


@app.command()
@on_cluster("What is said above was done; the next apply goes on from there.")
def apply(
    place: "Endpoint",
    file: File,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="As plan: change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Bring recurring runs to what the file declares. Those of others are never touched."""
    _reconciled(place, file, change=not dry_run, as_json=as_json)


def _reconciled(place: "Endpoint", file: Path, *, change: bool, as_json: bool) -> None:
    from trainwright.authoring.schedules import declared, reconciling

    owner, wanted = declared.wanted(file)
    api = connected(place)
    now = datetime.now(UTC)
    found = reconciling.plan(wanted, reconciling.existing(api, owner), now)
    todo = sum(action.do != "keep" for action in found)
    if not as_json:
        typer.echo(f"{file}   owner {owner}   {len(wanted)} declared, {todo or 'nothing'} to do\n")
    for one in wanted:
        _doubted(one, as_json)
    for action in found:
        _show(action, now, as_json)
    if not change or not todo:
        return
    if not as_json:
        typer.echo("\nApplying.")
    reconciling.apply(api, owner, wanted, lambda: datetime.now(UTC), lambda action: _done(action, as_json))


def _doubted(wanted: "Wanted", as_json: bool) -> None:
    for text in wanted.doubts:
        told = json.dumps({"event": "warning", "name": wanted.name, "text": text})
        typer.echo(told if as_json else f"  note: {wanted.name}: {text}")


def _show(action: "Action", now: datetime, as_json: bool) -> None:
    from trainwright.authoring.schedules.reconciling import fields

    if as_json:
        typer.echo(json.dumps({"event": "planned", **fields(action, now)}))
        return
    wanted = action.wanted
    when = f"every {wanted.schedule.interval_s:,} s" if wanted and wanted.schedule.interval_s else ""
    when = when or (f"{wanted.schedule.cron} {wanted.schedule.zone}" if wanted else "")
    about = "   ".join(part for part in (when, action.why) if part)
    typer.echo(f"  {action.do:<8} {action.name}   {about}".rstrip())
    for time in action.times(now):
        typer.echo(f"             {time:%a %Y-%m-%d %H:%M:%S %Z}")


def _done(action: "Action", as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"event": "done", "do": action.do, "name": action.name}))
    else:
        words = {"make": "made", "enable": "switched on", "disable": "switched off"}
        typer.echo(f"  {words[action.do]:<12} {action.name}")

"""The commands ``triggers plan`` and ``triggers run``."""

import json
import shlex
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import typer

from trainwright.authoring.submission.commands import Json
from trainwright.authoring.terminal import reported, short_path
from trainwright.errors import InputError

app = typer.Typer(no_args_is_help=True, help="Triggers of a file of schedules, evaluated on this machine.")
File = Annotated[Path, typer.Argument(help="The file of schedules.")]
Date = Annotated[str, typer.Option(help="Date to decide for; absent: today, in UTC.")]
Runs = Annotated[Path, typer.Option(help="Folder of the runs: earlier starts are found there.")]


@app.command()
def plan(file: File, date: Date = "", runs: Runs = Path("runs"), as_json: Json = False) -> None:
    """Say what would start and why. Start nothing."""
    _evaluate(file, date, runs, start=False, as_json=as_json)


@app.command()
def run(file: File, date: Date = "", runs: Runs = Path("runs"), as_json: Json = False) -> None:
    """Run the pipelines that plan would start. They run on this machine."""
    _evaluate(file, date, runs, start=True, as_json=as_json)


def _evaluate(file: Path, day: str, runs: Path, *, start: bool, as_json: bool) -> None:
    code = 0
    with reported(as_json, stopped="What has run is in the folder of the runs; the same command continues."):
        from trainwright.authoring.schedules import declaration
        from trainwright.local import console, triggers

        _, declared = declaration.read(file)
        for one in triggers.with_triggers(declared, file):
            found = triggers.evaluate(one, _day(day), runs)
            event = {"name": one.name, "headline": found.headline, "run": found.outcome.id}
            by = found.start.model_dump() if found.start else {}
            summary = short_path(Path(found.summary)) if found.summary else ""
            line = f"{one.name}   {found.headline}\n  looked at   {summary or found.outcome.folder}"
            typer.echo(json.dumps({"event": "decided", **event, "start": by}) if as_json else line)
            code = max(code, found.outcome.exit_code)
            if found.start and start:
                resume = ["trainwright", "run", one.schedule.pipeline, "--runs", str(runs)]
                screen = console.Screen(sys.stdout, sys.stderr, shlex.join(resume), "")
                listener = console.Lines(sys.stdout) if as_json else screen
                code = max(code, triggers.run(one, found.start, runs, listener).exit_code)
    raise typer.Exit(code)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text) if text else datetime.now(UTC).date()
    except ValueError:
        raise InputError(
            f"expected a date, found {text!r}", where="--date", hint="Write it as 2026-01-31."
        ) from None

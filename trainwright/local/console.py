"""Print the progress of a run: one line per step, and at the end the next command; or JSON lines."""

import contextlib
import dataclasses
import json
import os
import re
import time
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from trainwright.authoring.terminal import duration, message, short_path
from trainwright.errors import DataRefused, InputError
from trainwright.local.processes import tail
from trainwright.local.run_folder import LOG, Task, newest_progress
from trainwright.local.runner import Listener, Outcome, Plan
from trainwright.redaction import printable

_TRIAL = re.compile(r"trial (\d+) +\w+ ")
"""A line of ``trainwright.tune.tracking.TrialLines``."""

_TRIALS, _LOG_BYTES = 10, 65_536
"""Trials that the screen shows, and how much of the end of a log it reads for them."""


def fact(task: Task) -> str:
    """Return the text of a step's line."""
    if task.state in {"skipped", "stopped"}:
        return {"skipped": "not run", "stopped": "stopped"}[task.state]
    if task.state == "failed":
        return "failed: " + str(task.error.get("what", "")).split("\n", 1)[0]
    if task.decision not in {"", "PASS"} and not task.headline.startswith(task.decision):
        return f"{task.decision}: {task.headline}"
    return task.headline


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the run continue if nobody reads its output; rich would exit."""
        raise BrokenPipeError


class _Styled:
    """A stream that lets the styles of rich pass."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.write = getattr(stream, "write_styled", stream.write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Screen(Listener):
    """Print a run for a person. A terminal also shows the running steps with their progress, and colour.

    Args:
        stream: Where progress goes.
        errors: Where the error of a failed run goes.
        resume: The command that resumes a run, without ``--run ID``; empty to print none.
        restart: The command that starts it again with its experiment file; empty if it has none.
    """

    def __init__(self, stream: TextIO, errors: TextIO, resume: str, restart: str = "") -> None:
        self._errors, self._resume, self._restart = errors, resume, restart
        self._widths = (0, 0)
        self._folder = Path()
        self._running: dict[str, tuple[str, float]] = {}
        self._console = _Console(
            file=cast("TextIO", _Styled(stream)),
            force_terminal=stream.isatty(),
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=True,
        )
        self._live = Live(
            get_renderable=self._render,
            console=self._console,
            refresh_per_second=2,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def started(self, plan: Plan) -> None:
        """Print the headline of the run."""
        self._folder = plan.folder
        self._widths = max(map(len, plan.steps)), max(map(len, plan.steps.values()))
        count = "1 step" if len(plan.steps) == 1 else f"{len(plan.steps)} steps"
        continues = f"   continues run {plan.continues}" if plan.continues else ""
        self._line(f"{plan.pipeline}   {count}   {short_path(plan.folder)}{continues}\n")

    def task_started(self, name: str, environment: str) -> None:
        """Show the step as running, on a terminal."""
        if self._console.is_terminal:
            self._running[name] = (self._columns(name, environment, ""), time.monotonic())
            self._live.start()

    def task_ended(self, task: Task) -> None:
        """Print the step's line."""
        if self._running.pop(task.step, None):
            self._live.refresh()
        when = {"cached": "cached", "skipped": "-"}.get(task.state, duration(task.seconds))
        line = f"{self._columns(task.step, task.environment, when)}   {fact(task)}".rstrip()
        doubtful = task.decision not in {"", "PASS"}
        self._line(line, "red" if task.state == "failed" else "yellow" if doubtful else "")

    def warned(self, text: str) -> None:
        """Print a warning."""
        self._line(f"  note: {text}", "yellow")

    def ended(self, outcome: Outcome) -> None:
        """Print the steps that did not run, and the next command."""
        for task in outcome.tasks:
            if task.state == "skipped":
                self.task_ended(task)
        self._live.stop()
        again = f"{self._resume} --run {outcome.id}"
        held = next((task for task in outcome.tasks if task.step == outcome.held_by), None)
        if outcome.state == "failed":
            by_user = outcome.exit_code in {InputError.code, DataRefused.code}
            mended = self._restart if by_user else ""
            self._failed(outcome, mended or again)
        elif outcome.state == "cancelled":
            done = sum(task.finished for task in outcome.tasks)
            self._line(f"\nStopped; {done} of {len(outcome.tasks)} steps are finished and kept.")
            self._next(again)
        elif held:
            self._line(f"\n{'Refused' if held.decision == 'FAIL' else 'Held'} by {held.step}.")
            for page in held.pages():
                self._line(f"  report   {short_path(page)}")
            self._next(self._restart or f"{again} --from {held.step}")
        else:
            self._line(f"\nDone in {duration(outcome.seconds)}.")
            for task in outcome.tasks:
                for page in task.pages():
                    self._line(f"  {task.step:<{self._widths[0]}}  {short_path(page)}")

    def _failed(self, outcome: Outcome, again: str) -> None:
        failed = next((task for task in outcome.tasks if task.state == "failed"), None)
        lines = ["", message(outcome.error)]
        if failed:
            lines.append(f"  log   {short_path(outcome.folder / failed.step / 'log.txt')}")
        print(printable("\n".join([*lines, f"  again {again}"])), file=self._errors, flush=True)

    def _next(self, command: str) -> None:
        if self._resume:
            self._line(f"  again    {command}")

    def _columns(self, step: str, environment: str, when: str) -> str:
        return f"  {step:<{self._widths[0]}}  {environment:<{self._widths[1]}}  {when:>9}"

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(printable(text), style=style or None)

    def _render(self) -> RenderableType:
        now, lines = time.monotonic(), []
        for name, (columns, start) in list(self._running.items()):
            when = duration(now - start)
            trials = _trials(self._folder / name / LOG)
            progress = "" if trials else _progress(self._folder / name)
            text = f"{columns[: -len(when)]}{when}   {progress}"
            lines += [text.rstrip(), *(f"    {line}" for line in trials)]
        return Group(*(Text(printable(line), no_wrap=True, overflow="ellipsis") for line in lines))


def _trials(log: Path) -> list[str]:
    """Return the newest line of each trial that `tune` wrote into its log, the last ones of many."""
    lines: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in tail(log, _LOG_BYTES).splitlines():
            if found := _TRIAL.match(line):
                lines.pop(found[1], None)
                lines[found[1]] = line
    return list(lines.values())[-_TRIALS:]


def _progress(folder: Path) -> str:
    """Return a training's progress, read from the file beside its artifacts."""
    at = newest_progress(folder)
    if at is None:
        return ""
    return (
        f"step {at.step:,} of {at.total:,}, loss {at.loss:.4f}, "
        f"{at.samples_per_s:,.0f} rows/s, {duration(at.eta_s)} left"
    )


class Lines(Listener):
    """Print one JSON line per event, for a program."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def event(self, name: str, **fields: Any) -> None:
        """Print one event."""
        text = json.dumps({"event": name, **fields}, default=os.fspath)
        print(text, file=self._stream, flush=True)

    def started(self, plan: Plan) -> None:
        """Print the steps of the run."""
        self.event("run_started", **(dataclasses.asdict(plan) | {"steps": list(plan.steps)}))

    def task_ended(self, task: Task) -> None:
        """Print the result of a step."""
        self.event("task_finished", **dataclasses.asdict(task))

    def warned(self, text: str) -> None:
        """Print a warning."""
        self.event("warning", text=text)

    def ended(self, outcome: Outcome) -> None:
        """Print the result of the run."""
        fields = dataclasses.asdict(outcome)
        fields["tasks"] = {task.step: task.state for task in outcome.tasks}
        self.event("run_finished", **fields)

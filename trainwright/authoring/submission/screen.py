"""Print a run on a cluster: one line per step, as ``trainwright run`` does, or JSON lines."""

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from trainwright.authoring.pipeline_spec import Pipeline
from trainwright.authoring.submission import failures
from trainwright.authoring.submission.follow import RunObserver, RunResult
from trainwright.authoring.submission.progress import RETRYABLE, RUNNING, WAITING, StepNow, word
from trainwright.authoring.terminal import duration, message

COMMAND = "trainwright"


@dataclass(frozen=True, kw_only=True)
class SubmittedRun:
    """A run that is there now.

    Attributes:
        pipeline: Name of its pipeline.
        run_id: Its id.
        key: The key it is found by; empty if it was not submitted here.
        link: Its page.
        fresh: It was submitted, or started again, just now.
        found: Why it was not, in words.
        uploaded: The version of its pipeline was uploaded just now.
        labels: Where it comes from.
    """

    pipeline: str
    run_id: str
    link: str
    key: str = ""
    fresh: bool = True
    found: str = ""
    uploaded: bool = False
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


class ClusterScreen(RunObserver):
    """Writes lines for a person: no banner, no colour, nothing that a log of CI cannot show.

    Args:
        stream: Where the lines go.
        errors: Where the message of a failed run goes.
        pipeline: What the run is of, for the widths of the columns; None if that is not known.
        reach: The options that reach the API, for the commands that are shown.
    """

    def __init__(
        self, stream: TextIO, errors: TextIO, pipeline: Pipeline | None, reach: Sequence[str] = ()
    ) -> None:
        self.stream, self._errors, self._reach = stream, errors, reach
        steps = pipeline.steps if pipeline else ()
        self._count = len(steps)
        self._names = max((len(step.name) for step in steps), default=12)
        self._environments = max((len(step.toolchain) for step in steps), default=0)

    def begun(self, run: SubmittedRun) -> None:
        """Write the headline of the run, and where its page is."""
        count = f"   {self._count} steps" if self._count else ""
        found = f"   {run.found}" if run.found else ""
        self._line(f"{run.pipeline}{count}   run {run.run_id}{found}")
        self._line(f"  {run.link}\n")

    def step(self, step: StepNow) -> None:
        """Write the line of a step that has changed."""
        if step.state in WAITING:
            return
        limit = f", at most {duration(step.limit_s)}" if step.limit_s and step.state in RUNNING else ""
        when = "-" if step.state in RUNNING or step.cached else duration(step.seconds)
        columns = f"  {step.name:<{self._names}}  {step.environment:<{self._environments}}  {when:>9}"
        self._line(f"{columns}   {'cached' if step.cached else word(step.state)}{limit}".rstrip())

    def blocked(self, step: str, message: str) -> None:
        """Write why the pod of a step cannot start, and what to do about it."""
        self._line(f"  {step:<{self._names}}  cannot start: {message}")
        if cause := failures.explained(message):
            self._line(f"    next  {cause.hint}")

    def state(self, state: str) -> None:
        """Write that the run waits, or is being stopped; that it runs is seen of its steps."""
        if state not in RUNNING:
            self._line(f"  the run is {word(state)}")

    def warned(self, text: str) -> None:
        """Write a warning between the lines."""
        self._line(f"  note: {text}")

    def ended(self, ending: RunResult, link: str) -> None:
        """Write what came of the run, and what comes next."""
        if ending.error:
            lines = ["", message(ending.error), f"  page  {link}"]
            again = ending.state in {word(state) for state in RETRYABLE}
            lines += [f"  again {self._command('retry', ending.run_id, '--wait')}"] if again else []
            print(_plain("\n".join(lines)), file=self._errors, flush=True)
        elif ending.held_by:
            self._line(f"\nHeld by {ending.held_by}.\n  report   {link}")
        else:
            after = f" in {duration(ending.seconds)}" if ending.seconds else ""
            self._line(f"\nDone{after}.\n  page   {link}")

    def left(self, run_id: str) -> None:
        """Write that the run goes on without anybody looking, and how to look again."""
        self._line(f"\nNobody looks on; run {run_id} goes on.")
        self._line(f"  look   {self._command('status', run_id, '--wait')}")
        self._line(f"  stop   {self._command('terminate', run_id)}")

    def _command(self, *words: str) -> str:
        return shlex.join([COMMAND, *words, *self._reach])

    def _line(self, text: str) -> None:
        print(_plain(text), file=self.stream, flush=True)


def _plain(text: str) -> str:
    """Leave out what moves a terminal's cursor or changes its colours: names and logs come from elsewhere."""
    return "".join(letter for letter in text if letter.isprintable() or letter == "\n")


class ClusterLines(ClusterScreen):
    """Writes one JSON line an event, for a program."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def event(self, name: str, /, **fields: Any) -> None:
        """Write one event."""
        print(json.dumps({"event": name, **fields}, ensure_ascii=False), file=self.stream, flush=True)

    def begun(self, run: SubmittedRun) -> None:
        """Write what was submitted, or found."""
        self.event("run_submitted", **dataclasses.asdict(run))

    def step(self, step: StepNow) -> None:
        """Write the state of a step."""
        self.event("step_changed", **dataclasses.asdict(step))

    def blocked(self, step: str, message: str) -> None:
        """Write why the pod of a step cannot start."""
        self.event("step_blocked", step=step, message=message)

    def state(self, state: str) -> None:
        """Write the state of the run."""
        self.event("run_changed", state=state)

    def warned(self, text: str) -> None:
        """Write a warning."""
        self.event("warning", text=text)

    def ended(self, ending: RunResult, link: str) -> None:
        """Write what came of the run."""
        self.event("run_finished", link=link, **dataclasses.asdict(ending))

    def left(self, run_id: str) -> None:
        """Write that nobody looks on."""
        self.event("left", run_id=run_id)

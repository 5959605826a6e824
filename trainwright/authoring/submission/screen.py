"""Print a run on a cluster: one line per step, as ``trainwright run`` does, or JSON lines."""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from typing import Any, TextIO

from trainwright.authoring.pipeline_spec import Pipeline
from trainwright.authoring.submission import failures
from trainwright.authoring.submission.follow import RunObserver, RunResult
from trainwright.authoring.submission.progress import RETRYABLE, RUNNING, WAITING, StepNow, word
from trainwright.authoring.submission.runs import SubmittedRun
from trainwright.authoring.terminal import duration, message
from trainwright.redaction import printable


class ClusterScreen(RunObserver):
    """Print lines for a person: nothing that a log of CI cannot show.

    Args:
        stream: Standard output.
        errors: Stream for the message of a failed run.
        pipeline: The run's, for the widths of the columns; None if that is not known.
        reach: Options that reach the API, for the commands that are shown.
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
        """Print the headline of the run, and its page."""
        count = f"   {self._count} steps" if self._count else ""
        found = f"   {run.found}" if run.found else ""
        self._line(f"{run.pipeline}{count}   run {run.run_id}{found}\n  {run.link}\n")

    def step(self, step: StepNow) -> None:
        """Print the line of a step that has changed."""
        if step.state in WAITING:
            return
        running = step.state in RUNNING
        limit = f", at most {duration(step.limit_s)}" if step.limit_s and running else ""
        when = "-" if running or step.cached else duration(step.seconds)
        columns = f"  {step.name:<{self._names}}  {step.environment:<{self._environments}}  {when:>9}"
        self._line(f"{columns}   {'cached' if step.cached else word(step.state)}{limit}".rstrip())

    def blocked(self, step: str, message: str) -> None:
        """Print why the pod of a step cannot start, and the next step."""
        self._line(f"  {step:<{self._names}}  cannot start: {message}")
        if cause := failures.explained(message):
            self._line(f"    next  {cause.hint}")

    def state(self, state: str) -> None:
        """Print that the run waits, or is being stopped; its steps show that it runs."""
        if state not in RUNNING:
            self._line(f"  the run is {word(state)}")

    def warned(self, text: str) -> None:
        """Print a warning."""
        self._line(f"  note: {text}")

    def ended(self, result: RunResult, link: str) -> None:
        """Print the result, and the next command."""
        if result.error:
            lines = ["", message(result.error), f"  page  {link}"]
            again = result.state in {word(state) for state in RETRYABLE}
            lines += [f"  again {self._command('retry', result.run_id, '--wait')}"] if again else []
            print(printable("\n".join(lines)), file=self._errors, flush=True)
        elif result.held_by:
            self._line(f"\nHeld by {result.held_by}.\n  report   {link}")
        else:
            after = f" in {duration(result.seconds)}" if result.seconds else ""
            self._line(f"\nDone{after}.\n  page   {link}")

    def left(self, run_id: str) -> None:
        """Print that the run continues without an observer, and how to follow it again."""
        self._line(f"\nNobody looks on; run {run_id} goes on.")
        self._line(f"  look   {self._command('status', run_id, '--wait')}")
        self._line(f"  stop   {self._command('terminate', run_id)}")

    def _command(self, *words: str) -> str:
        return shlex.join(["trainwright", *words, *self._reach])

    def _line(self, text: str) -> None:
        print(printable(text), file=self.stream, flush=True)


class ClusterLines(ClusterScreen):
    """Print one JSON line per event, for a program."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def event(self, name: str, /, **fields: Any) -> None:
        """Print one event."""
        print(json.dumps({"event": name, **fields}), file=self.stream, flush=True)

    def begun(self, run: SubmittedRun) -> None:
        """Print the submitted or found run."""
        self.event("run_submitted", **dataclasses.asdict(run))

    def step(self, step: StepNow) -> None:
        """Print the state of a step."""
        self.event("step_changed", **dataclasses.asdict(step))

    def blocked(self, step: str, message: str) -> None:
        """Print why the pod of a step cannot start."""
        self.event("step_blocked", step=step, message=message)

    def state(self, state: str) -> None:
        """Print the state of the run."""
        self.event("run_changed", state=state)

    def warned(self, text: str) -> None:
        """Print a warning."""
        self.event("warning", text=text)

    def ended(self, result: RunResult, link: str) -> None:
        """Print the result of the run."""
        self.event("run_finished", link=link, **dataclasses.asdict(result))

    def left(self, run_id: str) -> None:
        """Print that nobody follows the run any more."""
        self.event("left", run_id=run_id)

"""Run a compiled pipeline on this machine, each step in the environment of its image.

:func:`run` prints nothing. Events go to a listener; the result is in the run's folder and the
:class:`Outcome`. kfp.local decides the order of steps; processes, folders, cache and retries are ours.
"""

import contextlib
import dataclasses
import difflib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainwright import credentials
from trainwright.authoring import pipeline_spec
from trainwright.errors import (
    DataRefused,
    InputError,
    InternalError,
    ModelRefused,
    Preempted,
    TrainwrightError,
    as_record,
)
from trainwright.local import invocation, kfp_local, kfp_spec, run_folder
from trainwright.local.containers import Engine
from trainwright.local.execution import Environments, Execution, Here, require
from trainwright.local.processes import GRACE_S, Processes
from trainwright.local.run_folder import Task, store_changes
from trainwright.local.run_index import RunSummary

Execute = Callable[[kfp_local.Call], bool]
"""Runs one task and returns whether it succeeded."""

DATA_GATES = frozenset({"validate"})
"""Verbs that judge data; every other gate judges a model."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The steps of a run in order, each with the short name of its image.

    ``continues`` is the earlier run whose arguments it changed; empty if there is none.
    """

    id: str
    folder: Path
    pipeline: str
    steps: Mapping[str, str]
    continues: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a run.

    Attributes:
        id: Its short name.
        folder: Its folder.
        pipeline: Name of the pipeline.
        state: ``done``, ``held`` by a gate, ``failed`` or ``cancelled``.
        exit_code: The documented exit code.
        tasks: The result of each step; those not reached are last.
        held_by: Step whose decision stopped the run; empty if none did.
        seconds: Wall time.
        error: The error that ended it, as :func:`trainwright.errors.as_record` returns it; empty if none.
    """

    id: str
    folder: Path
    pipeline: str
    state: str
    exit_code: int
    tasks: tuple[Task, ...]
    seconds: float
    held_by: str
    error: Mapping[str, Any]


class Listener:
    """Receives the events of a run; this base class ignores them.

    Two threads call it in a loop, one at a time. During a run ``sys.stdout`` belongs to kfp's log, so a
    listener that prints keeps its own stream.
    """

    def started(self, plan: Plan) -> None:
        """The run begins."""

    def task_started(self, name: str, environment: str) -> None:
        """A step begins; a reused one too."""

    def task_ended(self, task: Task) -> None:
        """A step has ended."""

    def warned(self, text: str) -> None:
        """A problem that does not stop the run."""

    def ended(self, outcome: Outcome) -> None:
        """The run has ended."""


def run(
    compiled: Path,
    arguments: Mapping[str, Any],
    *,
    runs_folder: Path,
    run_id: str = "",
    again_from: str = "",
    use_cache: bool = True,
    listener: Listener | None = None,
    machine: Environments | None = None,
    engine: Engine | None = None,
    source: Path | None = None,
    grace_s: float = GRACE_S,
) -> Outcome:
    """Run a compiled pipeline on this machine.

    A failed step or a gate's decision is not an exception.

    Args:
        compiled: The compiled YAML.
        arguments: Arguments of the pipeline; those with defaults are optional.
        runs_folder: Folder of the runs; their shared cache is its ``.cache``.
        run_id: Resume this run with its arguments. Finished steps are not repeated, not even those that are
            never cached. ``arguments`` that differ from its own start a new run, with the others of that run.
        again_from: Repeat this step and its dependents whatever the cache holds.
        use_cache: False repeats every step; results are stored all the same.
        listener: Receives the events.
        machine: The environments; this library's when None.
        engine: Runs each step in a container of its image instead.
        source: Folder of the experiment; its changes since the commit are stored beside the run.
        grace_s: Seconds between asking a step to stop and killing it.

    Raises:
        InputError: The pipeline, an argument, the run or the first step is invalid, or an argument contains a
            secret. Nothing is run or written.
        DependencyError: An environment or an image is missing or stale. Nothing is run.
    """
    machine = machine or Environments()
    pipeline, name = pipeline_spec.read(compiled), compiled.stem
    resumed = False
    if run_id:
        folder, request = run_folder.read_request(runs_folder, run_id, name)
        arguments = request.arguments | dict(arguments)
        resumed = arguments == request.arguments
    reusable = frozenset(step.name for step in pipeline.steps if use_cache) - _forced(pipeline, again_from)
    credentials.require_none(arguments, where="an argument", plain=True)
    kfp_spec.check(pipeline, arguments, machine.names)
    engine.require(pipeline.steps) if engine else require(machine, pipeline.steps)
    if not resumed:
        folder, request = run_folder.create(runs_folder, name, dict(arguments), continues=run_id)

    if source:
        store_changes(source, folder)

    def conduct(execute: Execute, own: Path) -> None:
        document = kfp_spec.for_local_run(pipeline, request.run, request.created, str(folder))
        kfp_local.run(document, request.arguments, execute, own)

    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(run_folder.held(folder))
        processes = Processes(grace_s, lock)
        going = _Run(pipeline, request, folder, listener or Listener(), processes)
        execution = Execution(
            folder,
            place=stack.enter_context(engine.started(folder, request.arguments, processes))
            if engine
            else Here(machine, processes),
            processes=processes,
            library=machine.library_digest(),
            reusable=reusable,
            warn=going.warn,
        )
        return going.go(execution, conduct)


def run_component(
    compiled: Path,
    inputs: Mapping[str, Any],
    *,
    runs_folder: Path,
    listener: Listener | None = None,
    machine: Environments | None = None,
) -> Outcome:
    """Run one compiled component on this machine, as a run of one step; it is never reused.

    kfp.local starts from parameters alone, so this calls the component itself. A failed step or a gate's
    decision is not an exception.

    Args:
        compiled: The compiled YAML.
        inputs: Its parameters, and the paths of its artifacts; those with defaults are optional.
        runs_folder: Folder of the runs.
        listener: Receives the events.
        machine: The environments; this library's when None.

    Raises:
        InputError: An input is missing, unknown or of another type, or contains a secret. Nothing is run.
        DependencyError: The environment is missing or stale. Nothing is run.
    """
    machine, pipeline = machine or Environments(), pipeline_spec.read(compiled)
    credentials.require_none(inputs, where="an input", plain=True)
    parameters, artifacts = kfp_spec.component_inputs(pipeline, inputs)
    require(machine, pipeline.steps)
    recorded = parameters | {name: str(path) for name, path in artifacts.items()}
    folder, request = run_folder.create(runs_folder, compiled.stem, recorded)
    with run_folder.held(folder) as lock:
        processes = Processes(lock=lock)
        going = _Run(pipeline, request, folder, listener or Listener(), processes)
        execution = Execution(
            folder,
            place=Here(machine, processes),
            processes=processes,
            library=machine.library_digest(),
            reusable=frozenset(),
            warn=going.warn,
        )

        def conduct(execute: Execute, own: Path) -> None:
            execute(invocation.component_call(pipeline, parameters, artifacts, own))

        return going.go(execution, conduct)


def _forced(pipeline: pipeline_spec.Pipeline, again_from: str) -> frozenset[str]:
    """Return the step to repeat and its dependents; empty if no step is named."""
    if not again_from:
        return frozenset()
    names = [step.name for step in pipeline.steps]
    if again_from not in names:
        close = difflib.get_close_matches(again_from, names, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"Its steps are {', '.join(names)}."
        raise InputError(f"{pipeline.name} has no step {again_from!r}", hint=hint)
    return pipeline.downstream(again_from)


class _Run:
    """One run in progress."""

    def __init__(
        self,
        pipeline: pipeline_spec.Pipeline,
        request: run_folder.Request,
        folder: Path,
        listener: Listener,
        processes: Processes,
    ) -> None:
        self._pipeline, self._request, self._folder = pipeline, request, folder
        self._listener, self._processes = listener, processes
        self._tasks: dict[str, Task] = {}
        self._lock = threading.Lock()

    def go(self, execution: Execution, conduct: Callable[[Execute, Path], None]) -> Outcome:
        """Let ``conduct`` call the steps, with its own files in the folder passed; return the result."""
        start, request, own = time.monotonic(), self._request, self._folder / run_folder.OWN
        steps = {step.name: step.toolchain for step in self._pipeline.steps}
        plan = Plan(
            id=request.run,
            folder=self._folder,
            pipeline=request.pipeline,
            steps=steps,
            continues=request.continues,
        )
        self._notify(self._listener.started, plan)
        (self._folder / RunSummary.FILE).unlink(missing_ok=True)  # of an earlier start
        self._write("running")

        def execute(call: kfp_local.Call) -> bool:
            return self._execute(execution, invocation.invocation(call, self._pipeline, self._folder, own))

        error: dict[str, Any] = {}
        try:
            with self._processes.listening():
                conduct(execute, own)
        except kfp_local.Failed as failed:
            error = as_record(InternalError(str(failed), where=str(own / "kfp.log")), "kfp")
        except TrainwrightError as failed:
            error = as_record(failed, "kfp")
        outcome = self._outcome(plan, error, time.monotonic() - start)
        RunSummary.of(request, self._write(outcome.state)).write(self._folder)
        self._notify(self._listener.ended, outcome)
        return outcome

    def warn(self, text: str) -> None:
        """Report a problem that does not stop the run."""
        self._notify(self._listener.warned, text)

    def _execute(self, execution: Execution, call: invocation.Invocation) -> bool:
        """Run one task for kfp.local; never raises, so that an exit handler still runs."""
        if self._processes.must_stop(closing=call.step.closing):
            return False
        if self._processes.cancelled.is_set():
            self._write("cancelled")  # for the exit handler
        began, start = datetime.now(UTC), time.monotonic()
        self._notify(self._listener.task_started, call.name, call.step.toolchain)
        task = execution.run(call)
        state = "stopped" if task.error and self._processes.cancelled.is_set() else task.state
        seconds = round(time.monotonic() - start, 3)
        task = dataclasses.replace(task, state=state, started=began.isoformat(), seconds=seconds)
        with self._lock:
            self._tasks[task.step] = task
            self._write("running")
        self._notify(self._listener.task_ended, task)
        return task.finished

    def _notify(self, receive: Callable[..., None], *event: object) -> None:
        """Call the listener, one thread at a time. The run continues if nobody reads its output."""
        with self._lock, contextlib.suppress(BrokenPipeError):
            receive(*event)

    def _write(self, state: str) -> run_folder.Tasks:
        tasks = run_folder.Tasks(
            run=self._folder.name,
            state=state,
            tasks=tuple(self._tasks.values()),
            steps={step.name: tuple(sorted(step.upstream)) for step in self._pipeline.steps},
        )
        tasks.write(self._folder)
        return tasks

    def _outcome(self, plan: Plan, error: Mapping[str, Any], seconds: float) -> Outcome:
        reached = {name.split(".")[0] for name in self._tasks}
        for step in self._pipeline.steps:
            if step.name not in reached and not step.explains:
                self._tasks[step.name] = Task(step=step.name, state="skipped", environment=step.toolchain)
        tasks = tuple(self._tasks.values())
        failed = next((task for task in tasks if task.state == "failed"), None)
        held = self._held_by(tasks)
        state, code = "done", 0
        if self._processes.cancelled.is_set():
            state, code, error = "cancelled", Preempted.code, {}
        elif failed or error:
            error = failed.error if failed else error
            state, code = "failed", error["code"]
        elif held:
            state, code = "held", DataRefused.code if held.verb in DATA_GATES else ModelRefused.code
        return Outcome(
            id=plan.id,
            folder=plan.folder,
            pipeline=plan.pipeline,
            state=state,
            exit_code=code,
            tasks=tasks,
            seconds=round(seconds, 3),
            held_by=held.step if held and state == "held" else "",
            error=error,
        )

    def _held_by(self, tasks: Sequence[Task]) -> Task | None:
        """Return the gate that stopped the run: its decision is not PASS and its dependents did not run.

        A gate without dependents stops the run, too. A HOLD that the pipeline accepts does not.
        """
        closing = {step.name for step in self._pipeline.steps if step.closing or step.explains}
        skipped = {task.step for task in tasks if task.state == "skipped"}
        for task in reversed(tasks):
            if task.decision not in {"", "PASS"}:
                step = task.step.split(".")[0]
                following = self._pipeline.downstream(step) - {step} - closing
                if not following or following & skipped:
                    return task
        return None

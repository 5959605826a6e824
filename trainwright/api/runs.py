"""Run a pipeline or a single component on this machine, and read an earlier run."""

import html
import io
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.api.prediction import is_table, write_rows
from trainwright.authoring.terminal import duration
from trainwright.errors import ERRORS, InputError, InternalError, Preempted
from trainwright.local.run_folder import LOG, Request, Task, Tasks
from trainwright.redaction import printable
from trainwright.verdicts import Verdict

if TYPE_CHECKING:
    from trainwright.local.runner import Listener, Outcome

_FRAME = '<iframe srcdoc="{}" style="width: 100%; height: 40em; border: 0" sandbox></iframe>'


@dataclass(frozen=True)
class StepOutputs:
    """The result of one step: ``result["model"]`` is an output, the path of an artifact or a value.

    Attributes:
        task: Its name, state, headline, decision, seconds and error, as the run's folder has them.
        folder: Its folder, with ``log.txt``.
    """

    task: Task
    folder: Path

    @property
    def outputs(self) -> Mapping[str, Any]:
        """Paths of artifacts and values of parameters by name; a single return value is ``Output``."""
        return {name: Path(one.uri) for name, one in self.task.outputs.items()} | self.task.parameters

    def __getitem__(self, name: str) -> Any:
        """Return one output; raise InputError if there is none of that name."""
        if name not in self.outputs:
            raise InputError(
                f"step {self.task.step} has no output {name!r}",
                where=str(self.folder),
                hint=f"It has {', '.join(self.outputs) or 'none: it did not finish'}.",
            )
        return self.outputs[name]

    @property
    def state(self) -> str:
        """Return ``done``, ``cached``, ``failed``, ``stopped`` or ``skipped``."""
        return self.task.state

    @property
    def decision(self) -> str:
        """The decision of a gate; empty for other steps."""
        return self.task.decision

    @property
    def headline(self) -> str:
        """The result in one line; of a failed step, its error."""
        return self.task.headline or str(self.task.error.get("what", ""))

    @property
    def metrics(self) -> Mapping[str, float]:
        """The figures of its output ``metrics``, such as ``auc``; empty if it has none."""
        output = self.task.outputs.get("metrics")
        known = output.metadata if output else {}
        return {name: value for name, value in known.items() if not isinstance(value, str)}

    @property
    def page(self) -> Path | None:
        """The report as an HTML file, if the step wrote one."""
        return next(iter(self.task.pages()), None)

    @property
    def log(self) -> Path:
        """The file with its output."""
        return self.folder / LOG

    def __repr__(self) -> str:
        """Return its name, state and headline."""
        return f"<{self.task.step} {self.state}: {self.headline}>"

    def _repr_html_(self) -> str:
        return _shown(self.page) or _table([self])


@dataclass(frozen=True)
class LocalRun:
    """A run on this machine, read from its folder.

    Attributes:
        folder: Its folder.
        pipeline: Name of the pipeline; of a single step, of the component.
        state: ``running``, ``done``, ``held`` by a gate, ``failed`` or ``cancelled``.
        steps: The result of each step by name, in the order of their end.
    """

    folder: Path
    pipeline: str
    state: str
    steps: Mapping[str, StepOutputs]

    @classmethod
    def read(cls, folder: Path) -> "LocalRun":
        """Read a run; raise InputError if the folder has none."""
        request, tasks = Request.read(folder), Tasks.read(folder)
        steps = {task.step: StepOutputs(task, folder / task.step) for task in tasks.tasks}
        return cls(folder, request.pipeline, tasks.state, steps)

    @property
    def id(self) -> str:
        """Its short name."""
        return self.folder.name

    @cached_property
    def verdict(self) -> Verdict | None:
        """The decision of ``evaluate`` with every rule; None if it was not reached."""
        return self._verdict("evaluate")

    @cached_property
    def data_verdict(self) -> Verdict | None:
        """The decision of ``validate`` with every rule; None if it was not reached."""
        return self._verdict("validate")

    @property
    def metrics(self) -> Mapping[str, float]:
        """The figures of ``evaluate``, such as ``auc``; empty if it was not reached."""
        evaluated = self._by_verb("evaluate")
        return evaluated.metrics if evaluated else {}

    @property
    def model(self) -> Path | None:
        """The folder of the trained model; None if there is none."""
        found: Path | None = self._output("train", "model")
        return found

    @property
    def version(self) -> str:
        """The number under which the model is registered; empty if it is not."""
        return str(self._output("register", "Output") or "")

    def predictions(self) -> Path:
        """Return the folder of the scored evaluation rows, a snapshot of Parquet files.

        Raises:
            InputError: The run trained no model.
        """
        found = self._output("train", "predictions")
        if found is None:
            raise InputError(
                f"run {self.id} has no predictions: train did not finish", where=str(self.folder)
            )
        return Path(found)

    @property
    def page(self) -> Path | None:
        """The page of the run, an HTML file with links to every report; None if there is none."""
        found = self._by_verb("summarize")
        return found.page if found else None

    def _by_verb(self, verb: str) -> StepOutputs | None:
        finished = (step for step in self.steps.values() if step.task.verb == verb and step.task.finished)
        return next(finished, None)

    def _output(self, verb: str, name: str) -> Any:
        step = self._by_verb(verb)
        return step.outputs.get(name) if step else None

    def _verdict(self, verb: str) -> Verdict | None:
        folder = self._output(verb, "verdict")
        return Verdict.read(folder) if folder else None

    def __repr__(self) -> str:
        """Return its pipeline, name and state, and the headline of each step."""
        lines = [f"<{self.pipeline} {self.id}: {self.state}>"]
        lines += [f"  {step.task.step:<20} {step.headline}".rstrip() for step in self.steps.values()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return _shown(self.page) or _table(list(self.steps.values()))


def _shown(page: Path | None) -> str:
    """Return a report in a frame of its own, so that its style does not reach the notebook; empty if none."""
    if page is None or not page.is_file():
        return ""
    return _FRAME.format(html.escape(page.read_text(), quote=True))


def _table(steps: list[StepOutputs]) -> str:
    """Return one row per step: name, state, time, result."""
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td style='text-align: left'>{html.escape(text)}</td>"
            for text in (step.task.step, step.state, duration(step.task.seconds), step.headline)
        )
        + "</tr>"
        for step in steps
    )
    return f"<table>{rows}</table>"


TRAIN = "train_and_register"


def init(
    data: Any,
    *,
    output: str | os.PathLike[str] = ".",
    quiet: bool = False,
    **options: str,
) -> Path:
    """Write the first experiment file and schema of a table, and print each choice with its reason.

    Args:
        data: Parquet, CSV or JSONL file, folder or glob of these, a URI, or the URL of a database. Or a
            pandas data frame, an Arrow table, or arrays by name, which are written to ``rows`` in ``output``.
        output: Folder for the two files; nothing in it is overwritten.
        quiet: Print nothing.
        options: ``label``, ``key``, ``time``, ``group``, ``kind``, ``text`` and ``query`` of the command.

    Returns:
        The experiment file, for :func:`run`.

    Raises:
        TrainwrightError: The source cannot be read, a choice is ambiguous, or a file is there already.
    """
    from trainwright.local.initialization import initialize

    source = write_rows(data, Path(output), "rows") if is_table(data) else data
    written = initialize(os.fspath(source), output=Path(output), **options)
    if not quiet:
        sys.stdout.writelines(f"{printable(line)}\n" for line in written.findings)
    return written.experiment


def run(
    config: str | os.PathLike[str] | Mapping[str, Any],
    *,
    pipeline: str = TRAIN,
    runs: str | os.PathLike[str] = "runs",
    use_cache: bool = True,
    quiet: bool = False,
    **changes: Any,
) -> LocalRun:
    """Run a pipeline on this machine, each step in the environment of its image, and print its progress.

    ::

        run = trainwright.run("experiment.yaml", training={"epochs": 2})
        run.verdict.decision, run.metrics["auc"]

    Args:
        config: The experiment file, or its content as a dictionary, whose relative paths start from the
            working directory.
        pipeline: Name of the pipeline, or the path of a compiled one.
        runs: Folder of the runs and their cache.
        use_cache: False repeats every step.
        quiet: Print nothing.
        changes: Sections or keys of the experiment file, merged over ``config``.

    Returns:
        The run. Its ``state`` is ``held`` if a gate held the model or rejected the data.

    Raises:
        TrainwrightError: The configuration is invalid, an environment is missing, or a step failed: the error
            of that step. ``open_run`` reads the failed run.
    """
    from trainwright.authoring import arguments, catalog
    from trainwright.local import runner

    compiled = catalog.pipeline(pipeline)
    experiment = config if isinstance(config, Mapping) else Path(config)
    values = arguments.of_pipeline(compiled, experiment, [], changes=changes)
    command = ["trainwright", "run", pipeline, *(["--runs", str(runs)] if Path(runs) != Path("runs") else [])]
    listener = _listener(quiet, shlex.join(command))
    source = experiment.resolve().parent if isinstance(experiment, Path) else Path.cwd()
    done = runner.run(
        compiled, values, runs_folder=Path(runs), use_cache=use_cache, listener=listener, source=source
    )
    return _finished(done)


def step(
    component: str, *, runs: str | os.PathLike[str] = "runs", quiet: bool = False, **inputs: Any
) -> StepOutputs:
    """Run one component in the environment of its image. It is never reused.

    ::

        rows = trainwright.step("resolve", source="rows.csv")
        trainwright.step("ingest", source=rows["source"], source_version=rows["version"], data={...})

    Args:
        component: Its name, such as ``evaluate``.
        runs: Folder of the runs; the result is a run of one step.
        quiet: Print nothing.
        inputs: Its inputs as on its page: a path for an artifact, a value for a parameter.

    Returns:
        Its outputs by name: ``rows["version"]``.

    Raises:
        TrainwrightError: An input is missing or invalid, the environment is missing, or the step failed.
    """
    from trainwright.authoring import catalog
    from trainwright.local import runner

    listener = _listener(quiet)
    compiled = catalog.component(component)
    [made] = _finished(
        runner.run_component(compiled, inputs, runs_folder=Path(runs), listener=listener)
    ).steps.values()
    return made


def open_run(run: str | os.PathLike[str], runs: str | os.PathLike[str] = "runs") -> LocalRun:
    """Read a run on this machine.

    Args:
        run: Its folder, or its short name below ``runs``.
        runs: Folder of the runs.

    Raises:
        InputError: There is no such run.
    """
    from trainwright.local import run_folder

    folder = Path(run)
    if not (folder / run_folder.Request.FILE).exists():
        folder = run_folder.require_run(Path(runs), os.fspath(run))
    return LocalRun.read(folder)


def _listener(quiet: bool, again: str = "") -> "Listener | None":
    """Return the printer of progress; an error is not printed, since it is raised."""
    if quiet:
        return None
    from trainwright.local import console

    return console.Screen(sys.stdout, io.StringIO(), again)


def _finished(outcome: "Outcome") -> LocalRun:
    """Return the run; raise the error of its failed step."""
    if outcome.state == "failed":
        error = outcome.error
        failed = next((task.step for task in outcome.tasks if task.state == "failed"), "")
        log = outcome.folder / failed / "log.txt" if failed else outcome.folder
        kind = ERRORS.get(outcome.exit_code, InternalError)
        raise kind(error["what"], where=error["where"], hint=f"{error['hint']}\n  log   {log}".lstrip())
    if outcome.state == "cancelled":
        hint = f"Resume it: trainwright run {outcome.pipeline} --run {outcome.id}"
        raise Preempted(f"run {outcome.id} was stopped", where=str(outcome.folder), hint=hint)
    return LocalRun.read(outcome.folder)

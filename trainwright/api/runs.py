"""Run a pipeline or a single component on this machine, and read an earlier run."""

import io
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.api.results import LocalRun, StepOutputs
from trainwright.api.tables import is_table, write_rows
from trainwright.errors import ERRORS, InternalError, Preempted
from trainwright.redaction import printable

if TYPE_CHECKING:
    from trainwright.local.runner import Listener, Outcome

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

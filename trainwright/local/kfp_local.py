"""The one file that touches kfp.local: it runs a pipeline spec, and hands every task to us.

kfp.local offers no way to say how a task is run. It looks its task handler up by name each time, so one
public class is replaced for the time of a run, and for steps in containers one public function, by which its
DockerRunner starts them. tests/authoring/test_kfp.py holds every behaviour relied on.
"""

import contextlib
import logging
import re
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from trainwright.errors import DependencyError, InternalError

VERSIONS = ("2.17.",)
"""Versions of kfp that the contract tests have been run with."""

ALONE = threading.Lock()
"""kfp.local keeps its configuration and its logging in globals: one run at a time in a process."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_UNSURE = ("Condition evaluation failed", "Could not resolve", "Unknown items type", "Failed to get artifact")
"""What kfp.local logs when it skips a branch or a loop because it could not work out what was asked."""


@dataclass(frozen=True, kw_only=True)
class Container:
    """What kfp's DockerRunner has put together for a container: volumes, and options as it was given them."""

    volumes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One task, as kfp.local hands it over: every placeholder is filled in."""

    image: str
    command: tuple[str, ...]
    variables: Mapping[str, str]
    container: Container = field(default_factory=Container)


class Failed(Exception):
    """kfp.local ended the pipeline because a task failed."""


def run(
    document: Mapping[str, Any],
    arguments: Mapping[str, Any],
    execute: Callable[[Call], bool],
    root: Path,
    containers: Mapping[str, Any] | None = None,
) -> None:
    """Run a pipeline spec with kfp.local.

    Args:
        document: The pipeline spec, as plain data.
        arguments: Its arguments.
        execute: Runs one task, and says whether it succeeded; it must not raise. In a loop it is called
            from two threads.
        root: Folder for kfp's own files; ``kfp.log`` in it gets everything that kfp says.
        containers: Run with kfp's DockerRunner and these options for every container; without when None.

    Raises:
        Failed: A task did not succeed.
        InternalError: kfp.local could not go on, or left something out without saying so.
        DependencyError: This is a version of kfp that has not been tried.
    """
    kfp = _kfp()
    from google.protobuf import json_format
    from kfp import local
    from kfp.local import pipeline_orchestrator
    from kfp.pipeline_spec import pipeline_spec_pb2

    spec = json_format.ParseDict(dict(document), pipeline_spec_pb2.PipelineSpec())
    log = root / "kfp.log"
    with ALONE, log.open("a") as stream, _replaced(execute), _quiet(stream) as unsure:
        workspace = tempfile.mkdtemp(prefix="workspace-", dir=root)  # kfp.local deletes it
        plain = local.SubprocessRunner(use_venv=False)
        runner = plain if containers is None else local.DockerRunner(**containers)
        local.init(runner, str(root), workspace, raise_on_error=True)
        try:
            pipeline_orchestrator.run_local_pipeline(pipeline_spec=spec, arguments=dict(arguments))
        except Exception as error:
            if isinstance(error, RuntimeError) and "finished with status" in str(error):
                raise Failed(_COLOUR.sub("", str(error))) from None
            raise InternalError(
                f"kfp {kfp} could not run the pipeline: {type(error).__name__}: {error}", where=str(log)
            ) from error
    if unsure:
        raise InternalError(f"kfp {kfp} left a part of the pipeline out: {unsure[0]}", where=str(log))


def _kfp() -> str:
    try:
        import kfp
    except ImportError as error:
        raise DependencyError(
            f"kfp is not there: {error}", hint="Install the library with its extra: trainwright[authoring]."
        ) from None
    version = str(kfp.__version__)
    if not version.startswith(VERSIONS):
        raise DependencyError(
            f"kfp {version} has not been tried; the local runner knows {', '.join(VERSIONS)}x",
            hint="Install kfp>=2.17,<2.18.",
        )
    return version


@contextlib.contextmanager
def _replaced(execute: Callable[[Call], bool]) -> Iterator[None]:
    """Replace kfp's task handler, and put it and kfp's configuration back afterwards."""
    from kfp.local import config, status, subprocess_task_handler, task_handler_interface

    class Handler(task_handler_interface.ITaskHandler):  # type: ignore[misc]
        """Hands a task over instead of running it."""

        def __init__(
            self,
            image: str,
            full_command: list[str],
            pipeline_root: str,  # noqa: ARG002 - kfp names its arguments
            runner: object,  # noqa: ARG002
            env_vars: dict[str, str] | None = None,
        ) -> None:
            self._call = Call(image=image, command=tuple(full_command), variables=env_vars or {})

        def run(self) -> Any:
            """Run the task."""
            return status.Status.SUCCESS if execute(self._call) else status.Status.FAILURE

    before = subprocess_task_handler.SubprocessTaskHandler, config.LocalExecutionConfig.instance
    subprocess_task_handler.SubprocessTaskHandler = Handler
    try:
        with _containers_replaced(execute):
            yield
    finally:
        subprocess_task_handler.SubprocessTaskHandler, config.LocalExecutionConfig.instance = before


@contextlib.contextmanager
def _containers_replaced(execute: Callable[[Call], bool]) -> Iterator[None]:
    """Replace the function by which kfp's DockerRunner starts a container, if docker's package is there."""
    try:
        from kfp.local import docker_task_handler
    except ImportError:
        yield
        return

    def run_docker_container(
        client: object,  # noqa: ARG001 - kfp names its arguments
        image: str,
        command: list[str],
        volumes: Mapping[str, Mapping[str, str]],
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> int:
        container = Container(volumes=volumes, options=options)
        call = Call(image=image, command=tuple(command), variables=environment or {}, container=container)
        return 0 if execute(call) else 1

    before = docker_task_handler.run_docker_container
    docker_task_handler.run_docker_container = run_docker_container
    try:
        yield
    finally:
        docker_task_handler.run_docker_container = before


@contextlib.contextmanager
def _quiet(stream: TextIO) -> Iterator[list[str]]:
    """Send what kfp prints and logs to ``stream``; yield what it says when it leaves something out.

    kfp.local swaps the handlers of the root logger, and does not always put them back. A filter of the logger
    itself sees every record all the same.
    """
    import builtins

    unsure: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        text = _COLOUR.sub("", record.getMessage())
        if record.levelno >= logging.WARNING and text.startswith(_UNSURE):
            unsure.append(text)
        stream.write(f"{record.levelname} {text}\n")
        return False

    root, plain_print = logging.getLogger(), builtins.print
    handlers, level = root.handlers[:], root.level
    root.addFilter(keep)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(stream):
            warnings.simplefilter("ignore")
            yield unsure
    finally:
        root.removeFilter(keep)
        root.handlers[:] = handlers
        root.setLevel(level)
        builtins.print = plain_print

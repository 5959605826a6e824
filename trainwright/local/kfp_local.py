"""The adapter to kfp.local, the only module that touches its internals.

kfp.local has no interface for executing tasks differently. It looks up its task handler by name for each
task, so this module replaces one public class during a run, and for containers one public function of its
DockerRunner. tests/authoring/test_kfp.py pins every behaviour that it relies on.
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
"""Versions of kfp that passed the contract tests."""

ALONE = threading.Lock()
"""kfp.local keeps configuration and logging in globals: one run at a time per process."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_UNSURE = ("Condition evaluation failed", "Could not resolve", "Unknown items type", "Failed to get artifact")
"""Prefixes of log lines by which kfp.local skips a branch or loop that it could not evaluate."""


@dataclass(frozen=True, kw_only=True)
class Container:
    """Volumes and options of a container, as kfp's DockerRunner passes them."""

    volumes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One task from kfp.local, with all placeholders filled in."""

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
        execute: Runs one task and returns whether it succeeded; it must not raise. Loops call it from two
            threads.
        root: Folder for kfp's files; ``kfp.log`` in it gets all output of kfp.
        containers: Options of kfp's DockerRunner; None to run without containers.

    Raises:
        Failed: A task failed.
        InternalError: kfp.local failed, or skipped a part without an error.
        DependencyError: This version of kfp is untested.
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
    """Replace kfp's task handler, and restore it and kfp's configuration afterwards."""
    from kfp.local import config, status, subprocess_task_handler, task_handler_interface

    class Handler(task_handler_interface.ITaskHandler):  # type: ignore[misc]
        """Pass a task on instead of running it."""

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
    """Replace the function by which kfp's DockerRunner starts a container, if docker is installed."""
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
    """Redirect the output and log of kfp to ``stream``; yield the lines about skipped parts.

    kfp.local replaces the handlers of the root logger and does not always restore them. A filter on the
    logger sees every record in any case.
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

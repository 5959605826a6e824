"""The adapter to kfp.local, the only module that touches its internals.

kfp.local has no interface for executing tasks differently. It looks up its task handler by name for each
task, so this module replaces one public class during a run. tests/authoring/test_kfp.py pins every behaviour
that it relies on.
"""

import builtins
import contextlib
import logging
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from trainwright.errors import DependencyError, InternalError
from trainwright.redaction import ESCAPE

VERSIONS = ("2.17.",)
"""Versions of kfp that passed the contract tests."""

ALONE = threading.Lock()
"""kfp.local keeps configuration and logging in globals: one run at a time per process."""

_UNSURE = ("Condition evaluation failed", "Could not resolve", "Unknown items type", "Failed to get artifact")
"""Prefixes of log lines by which kfp.local skips a branch or loop that it could not evaluate."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One task from kfp.local, with all placeholders filled in."""

    command: tuple[str, ...]
    variables: Mapping[str, str]


class Failed(Exception):
    """kfp.local ended the pipeline because a task failed."""


def run(
    document: Mapping[str, Any], arguments: Mapping[str, Any], execute: Callable[[Call], bool], root: Path
) -> None:
    """Run a pipeline spec with kfp.local, whose files and log are in ``root``.

    ``execute`` runs one task and returns whether it succeeded; it must not raise. Loops call it from two
    threads.

    Raises:
        Failed: A task failed.
        InternalError: kfp.local failed, or skipped a part without an error.
        DependencyError: This version of kfp is untested.
    """
    import kfp
    from google.protobuf import json_format
    from kfp import local
    from kfp.local import pipeline_orchestrator
    from kfp.pipeline_spec import pipeline_spec_pb2

    if not kfp.__version__.startswith(VERSIONS):
        raise DependencyError(
            f"kfp {kfp.__version__} has not been tried; the local runner knows {', '.join(VERSIONS)}x",
            hint="Install kfp>=2.17,<2.18.",
        )
    spec = json_format.ParseDict(dict(document), pipeline_spec_pb2.PipelineSpec())
    log = root / "kfp.log"
    with ALONE, log.open("a") as stream, _replaced(execute), _quiet(stream) as unsure:
        workspace = tempfile.mkdtemp(prefix="workspace-", dir=root)  # kfp.local deletes it
        local.init(local.SubprocessRunner(use_venv=False), str(root), workspace, raise_on_error=True)
        try:
            pipeline_orchestrator.run_local_pipeline(pipeline_spec=spec, arguments=dict(arguments))
        except Exception as error:
            if isinstance(error, RuntimeError) and "finished with status" in str(error):
                raise Failed(ESCAPE.sub("", str(error))) from None
            raise InternalError(
                f"kfp could not run the pipeline: {type(error).__name__}: {error}", where=str(log)
            ) from error
    if unsure:
        raise InternalError(f"kfp left a part of the pipeline out: {unsure[0]}", where=str(log))


@contextlib.contextmanager
def _replaced(execute: Callable[[Call], bool]) -> Iterator[None]:
    """Replace kfp's task handler, and restore it and kfp's configuration afterwards."""
    from kfp.local import config, status, subprocess_task_handler, task_handler_interface

    class Handler(task_handler_interface.ITaskHandler):  # type: ignore[misc]
        """Pass a task on instead of running it."""

        def __init__(
            self,
            image: str,  # noqa: ARG002 - kfp names its arguments
            full_command: list[str],
            pipeline_root: str,  # noqa: ARG002
            runner: object,  # noqa: ARG002
            env_vars: dict[str, str] | None = None,
        ) -> None:
            self._call = Call(command=tuple(full_command), variables=env_vars or {})

        def run(self) -> Any:
            """Run the task."""
            return status.Status.SUCCESS if execute(self._call) else status.Status.FAILURE

    before = subprocess_task_handler.SubprocessTaskHandler, config.LocalExecutionConfig.instance
    subprocess_task_handler.SubprocessTaskHandler = Handler
    try:
        yield
    finally:
        subprocess_task_handler.SubprocessTaskHandler, config.LocalExecutionConfig.instance = before


@contextlib.contextmanager
def _quiet(stream: TextIO) -> Iterator[list[str]]:
    """Redirect the output and log of kfp to ``stream``; yield the lines about skipped parts.

    kfp.local replaces the handlers of the root logger and does not always restore them. A filter on the
    logger sees every record in any case.
    """
    unsure: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        text = ESCAPE.sub("", record.getMessage())
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

"""Start a run on this machine: a process of its own, once for an idempotency key."""

import fcntl
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainwright import credentials
from trainwright.documents import canonical, digest_text
from trainwright.errors import ERRORS, InputError, InternalError
from trainwright.local.run_folder import OWN, Request, Tasks, create, is_held
from trainwright.service.settings import Settings

KEYS = ".keys"
"""Folder, below the runs, of one file per idempotency key: the run that was started with it."""

LOG = "serve.log"
_POLL_S = 0.05


def start_run(settings: Settings, pipeline: str, arguments: Mapping[str, Any], key: str) -> tuple[str, bool]:
    """Start a run, and wait until its process has begun or rejected it.

    Args:
        settings: The folder of the runs, and the command line.
        pipeline: Name of the pipeline.
        arguments: Its arguments.
        key: A second call with it returns the run of the first; empty for a new run.

    Returns:
        The run, and True if this call started it.

    Raises:
        InputError: The arguments are invalid, or the key is that of a run with others.
        DependencyError: An environment is missing.
    """
    credentials.require_none(arguments, where="an argument", plain=True)
    runs = settings.runs_folder
    if not key:
        folder, _ = create(runs, pipeline, dict(arguments))
        _launch(settings, folder, pipeline)
        return folder.name, True
    with _locked(runs / KEYS / digest_text(key)) as file:
        known = runs / file.read_text()
        if file.read_text() and (known / Request.FILE).exists():
            _require_same(Request.read(known), pipeline, arguments)
            begun = (known / Tasks.FILE).exists() or is_held(known)
            if not begun:  # an earlier call was killed in between
                _launch(settings, known, pipeline)
            return known.name, not begun
        folder, _ = create(runs, pipeline, dict(arguments))
        file.write_text(folder.name)
        _launch(settings, folder, pipeline)
        return folder.name, True


@contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Hold the lock on a key's file; a second call with the key waits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield path
    finally:
        os.close(descriptor)


def _require_same(request: Request, pipeline: str, arguments: Mapping[str, Any]) -> None:
    if request.pipeline != pipeline or canonical(request.arguments) != canonical(dict(arguments)):
        raise InputError(
            f"this key started run {request.run} of {request.pipeline}, with other arguments",
            where="Idempotency-Key",
            hint="Send a new key for another run.",
        )


def _launch(settings: Settings, folder: Path, pipeline: str) -> None:
    """Start the process of a run; it outlives the service.

    Raises:
        TrainwrightError: It rejected the run; nothing was run, and the run's folder is removed.
    """
    (folder / OWN).mkdir(exist_ok=True)
    command = [
        *settings.command,
        "run",
        pipeline,
        "--run",
        folder.name,
        "--runs",
        str(folder.parent),
        "--json",
    ]
    with (folder / OWN / LOG).open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own command line
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    threading.Thread(target=process.wait, daemon=True).start()  # so that it does not stay as a zombie
    while process.poll() is None and not is_held(folder):
        time.sleep(_POLL_S)
    if process.returncode and not (folder / Tasks.FILE).exists():
        record = _last_error(folder / OWN / LOG)
        shutil.rmtree(folder)
        raise ERRORS.get(process.returncode, InternalError)(
            str(record.get("what", f"the run's process ended with {process.returncode}")),
            where=str(record.get("where", "")),
            hint=str(record.get("hint", "")),
        )


def _last_error(log: Path) -> dict[str, Any]:
    """Return the error that the command line printed as its last line; empty if it printed none."""
    for line in reversed(log.read_text(errors="replace").splitlines()):
        if line.startswith('{"event": "error"'):
            found: dict[str, Any] = json.loads(line)
            return found
    return {}

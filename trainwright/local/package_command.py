"""Run the command line of a package in an environment, and raise its error as our own."""

import json
import subprocess
import sys
from pathlib import Path

from trainwright import errors
from trainwright.errors import MARK, InternalError


def run_package(interpreter: Path, *command: str) -> str:
    """Run a command of a package in an environment; return its output, or raise its error as our own."""
    words = [str(interpreter), "-m", "trainwright.command", *command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - our own interpreter
    if not done.returncode:
        return done.stdout
    records = [line.removeprefix(MARK) for line in done.stderr.splitlines() if line.startswith(MARK)]
    if not records:
        sys.stderr.write(done.stderr)
        raise InternalError(f"trainwright.{command[0]} ended with {done.returncode}")
    record = json.loads(records[-1])
    kind = getattr(errors, record["error"], None)
    if kind is None:  # an exception of another library: its traceback says where
        sys.stderr.write(done.stderr)
        kind = InternalError
    raise kind(record["what"], where=record["where"], hint=record["hint"])

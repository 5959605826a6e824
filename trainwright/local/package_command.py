"""Run the command line of a package in an environment, and raise its error as our own."""

import subprocess
import sys
from pathlib import Path

from trainwright.errors import ERRORS, InternalError, last_record
from trainwright.redaction import printable


def run_package(interpreter: Path, *command: str) -> str:
    """Run a command of a package in an environment; return its output, or raise its error as our own."""
    words = [str(interpreter), "-m", "trainwright.command", *command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - our own interpreter
    if not done.returncode:
        return done.stdout
    record = last_record(done.stderr, done.returncode)
    if record is None or record["code"] == InternalError.code:  # the traceback says where
        sys.stderr.write(printable(done.stderr))
    if record is None:
        raise InternalError(f"trainwright.{command[0]} ended with {done.returncode}")
    raise ERRORS[record["code"]](record["what"], where=record["where"], hint=record["hint"])

"""Run the command line of a step: argument errors, Ctrl-C, and a closed standard output.

``python -m trainwright.command VERB …`` runs ``python -m trainwright.VERB …`` so.
"""

import argparse
import contextlib
import io
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Never, TextIO

from trainwright.errors import ERRORS, InputError, InternalError, Preempted, last_record
from trainwright.imports import collect_rarely
from trainwright.redaction import printable

STOPPING = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask a command to stop."""


class Parser(argparse.ArgumentParser):
    """Raises for a wrong argument, where ``argparse`` would write its own lines and exit with 2."""

    def error(self, message: str) -> Never:
        """Report a wrong argument."""
        raise InputError(message, where="command line", hint=self.format_usage().strip())


class _Pipe(io.FileIO):
    """A stream that ignores a closed reader."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


class Stream(io.TextIOWrapper):
    """An output stream that removes what steers a terminal from every text: names and logs are not ours."""

    def write(self, text: str, /) -> int:
        """Write a text without escape sequences and control characters."""
        super().write(printable(text))
        return len(text)

    def write_styled(self, text: str, /) -> int:
        """Write a text with the styles of the caller."""
        return super().write(text)


def go_on_unheard() -> None:
    """Let a command finish its work, with the exit code of the work, when its output is no longer read.

    ``| head -1`` must neither leave a change half done nor turn a rejection into success.
    """
    for name in ("stdout", "stderr"):
        stream: TextIO = getattr(sys, name)
        try:
            pipe = _Pipe(stream.fileno(), "w", closefd=False)
        except (OSError, ValueError, AttributeError):  # closed, or a test's
            continue
        buffered = stream.isatty() or name == "stderr"
        writer = io.BufferedWriter(pipe)
        text = Stream(writer, encoding=stream.encoding, errors=stream.errors, line_buffering=buffered)
        setattr(sys, name, text)


@contextlib.contextmanager
def stopped_together(process: "subprocess.Popen[Any]") -> Iterator[list[int]]:
    """Forward signals to a process so that it ends by itself, and yield the signals received.

    A terminal sends Ctrl-C to both processes; CI cancels only this one. A signal that our parent made us
    ignore, as a shell does with Ctrl-C in the background, stays ignored.
    """
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        received.append(number)
        if number == signal.SIGTERM:
            process.send_signal(number)

    before = {
        number: signal.signal(number, forward)
        for number in STOPPING
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> None:
    """Run the command line of a verb; end with its exit code, or after Ctrl-C or SIGTERM silently with 40."""
    collect_rarely()
    go_on_unheard()
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    verb = sys.argv.pop(1)
    try:
        runpy.run_module(f"trainwright.{verb}", run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:  # whoever started this says what that means
        sys.exit(Preempted.code)


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


if __name__ == "__main__":
    main()

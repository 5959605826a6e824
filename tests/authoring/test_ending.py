"""How a command ends when nobody reads what it says, or somebody stops it: as what it did asks for."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.authoring.test_cli import START, pipeline
from trainwright.authoring import catalog


@pytest.fixture
def compiled(compile_pipeline: Callable[..., Path]) -> str:
    return str(compile_pipeline(pipeline))


UNHEARD = {
    "a run that fails": (("run", "PIPELINE", "--param", "text=", "--json"), 10),
    "a list": (("list", "--json"), 0),
    "help": (("--help",), 0),
    "a wrong command": (("rnu",), 10),
    "a pipeline that is none": (("run", "train_and_regster"), 10),
    "an interface that changed more than its version": (("interface-diff", "OLD"), 10),
}


@pytest.mark.parametrize("both", [False, True], ids=["output", "output and errors"])
@pytest.mark.parametrize("case", UNHEARD)
def test_a_reader_that_has_gone_changes_neither_what_is_done_nor_the_exit_code(
    compiled: str, tmp_path: Path, case: str, both: bool
) -> None:
    arguments, code = UNHEARD[case]
    index = json.loads((catalog.folder() / "index.json").read_text())
    del index["components"]["ingest"]["inputs"]["source"]
    (tmp_path / "old.json").write_text(json.dumps(index))
    places = {"PIPELINE": compiled, "OLD": "old.json"}
    command = [sys.executable, "-c", START, *(places.get(part, part) for part in arguments)]
    ours, theirs = os.pipe()
    os.close(ours)
    errors = theirs if both else subprocess.PIPE
    done = subprocess.run(command, cwd=tmp_path, stdout=theirs, stderr=errors, text=True, check=False)
    os.close(theirs)
    assert done.returncode == code, done.stderr
    assert "BrokenPipe" not in (done.stderr or "")
    assert len(list((tmp_path / "runs").glob("*/tasks.json"))) == (code == 10 and "text=" in arguments)


INTERRUPTED = """
import signal, sys
import trainwright.{module} as interrupted
def stop(*_, **__): signal.raise_signal(signal.SIGINT)
interrupted.{function} = stop
from trainwright.cli.app import main
main()
"""


@pytest.mark.parametrize(
    ("where", "arguments", "said"),
    [
        (("local.doctor", "look"), ("doctor",), "Nothing was changed."),
        (("authoring.catalog", "pipeline"), ("run", "PIPELINE"), "Nothing was run."),
        (("authoring.compile", "run"), ("compile",), "Files may be missing or old: compile again."),
        (("authoring.scaffold", "component"), ("new", "component", "x"), "Some of its files may be there"),
        (("authoring.environments", "make"), ("setup",), "What was not finished is made anew"),
    ],
    ids=["doctor", "run", "compile", "new", "setup"],
)
def test_who_presses_ctrl_c_is_told_what_is_true_of_the_command(
    compiled: str, tmp_path: Path, where: tuple[str, str], arguments: tuple[str, ...], said: str
) -> None:
    code = INTERRUPTED.format(module=where[0], function=where[1])
    words = [compiled if part == "PIPELINE" else part for part in arguments]
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 40
    assert done.stderr.startswith(f"\nStopped. {said}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "cancelled"])
def test_a_command_of_a_verb_is_stopped_with_the_one_that_started_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    """It reads a plan that nobody writes."""
    os.mkfifo(tmp_path / "plan.json")
    command = [sys.executable, "-c", START, "features", "apply", "."]
    with started(command, tmp_path) as process:
        plan = opened_with_its_reader(tmp_path / "plan.json", process)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=120)
        os.close(plan)
    assert (process.returncode, out) == (40, "")
    assert err == "\nStopped. It may be done already: look before you repeat it.\n"


def test_a_command_in_the_background_is_stopped_by_sigterm_though_ctrl_c_is_ignored(tmp_path: Path) -> None:
    """A shell has what it starts with ``&`` ignore Ctrl-C, and so its children."""
    os.mkfifo(tmp_path / "plan.json")
    shell = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    with started([*shell, sys.executable, "-c", START, "features", "apply", "."], tmp_path) as process:
        plan = opened_with_its_reader(tmp_path / "plan.json", process)
        os.killpg(process.pid, signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
        os.close(plan)
    assert process.returncode == 40
    assert err == "\nStopped. It may be done already: look before you repeat it.\n"


@contextlib.contextmanager
def started(command: list[str], folder: Path) -> "Iterator[subprocess.Popen[str]]":
    """Start a command as a group of its own, which ends with the context."""
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def opened_with_its_reader(path: Path, process: "subprocess.Popen[str]") -> int:
    """Open a pipe to a process that waits for more than the byte it has read.

    A signal that Python receives just before a read blocks is seen only when the read returns.
    """
    while process.poll() is None:
        with contextlib.suppress(OSError):  # ENXIO: nobody reads yet
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            break
        time.sleep(0.05)
    else:
        raise AssertionError(process.communicate())
    os.write(pipe, b"{")
    while int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    time.sleep(0.1)
    return pipe

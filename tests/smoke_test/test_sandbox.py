"""A process that reads a model has no network, no other files, and an end, whatever the model makes it do."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainwright import sandbox
from trainwright.errors import InternalError, ModelRefused
from trainwright.sandbox import Limits, SandboxResult

SUPPORTED = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
pytestmark = pytest.mark.skipif(not SUPPORTED, reason="Landlock and seccomp are Linux's, on x86-64 and ARM")
TRY = {
    "reads a secret": "open({secret!r}).read()",
    "reads a secret by a link": "open({link!r}).read()",
    "lists a folder": "import os; os.listdir({home!r})",
    "overwrites a file": "open({secret!r}, 'w')",
    "truncates a file": "import os; os.truncate({secret!r}, 0)",
    "appends to its model": "open({model!r}, 'a')",
    "makes a file": "open({home!r} + '/new', 'w')",
    "removes a file": "import os; os.unlink({secret!r})",
    "moves a file": "import os; os.rename({secret!r}, 'taken')",
    "reads the environment of its parent": "open('/proc/{parent}/environ').read()",
    "kills its parent": "import os; os.kill({parent}, 0)",
    "connects": "import socket; socket.create_connection(('127.0.0.1', 9))",
    "opens a datagram socket": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "opens a local socket": "import socket; socket.socket(socket.AF_UNIX)",
    "leaves a link for those who read its output": "import os; os.symlink('{secret}', '{out}/link')",
    "starts a program": "import os; os.execv('/bin/sh', ['sh', '-c', 'true'])",
}


LAST = "import atexit; atexit.register(print, '{text}')"


def attempt(folder: Path, code: str, *, seconds: float = 60, memory: int = 1 << 30) -> SandboxResult:
    """Run a statement in the sandbox: ``timeit`` is a module that does so."""
    limits = Limits((str(folder / "model"),), (str(folder / "out"),), memory, seconds)
    return sandbox.run("timeit", ["-n1", "-r1", code], limits)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("model", "out", "home"):
        (tmp_path / name).mkdir()
    (tmp_path / "model" / "program.pt2").write_text("a program")
    (tmp_path / "home" / "secret").write_text("a secret")
    (tmp_path / "model" / "link").symlink_to(tmp_path / "home" / "secret")
    return tmp_path


def test_a_process_reads_its_model_writes_its_output_and_says_what_protects_it(folder: Path) -> None:
    model, scores = (str(folder / name) for name in ("model/program.pt2", "out/scores"))
    code = f"open({scores!r}, 'w').write(open({model!r}).read()); {LAST.format(text='{}')}"
    found = attempt(folder, code)
    assert (found.error, found.answer) == (None, {})
    assert (folder / "out" / "scores").read_text() == "a program"
    time, memory, files, network = found.protections
    assert (time, memory, network) == ("time limit 60 s", "memory limit 1.0 GiB", "network denied by seccomp")
    assert files.startswith("files limited by Landlock ")


@pytest.mark.covers("A20")
@pytest.mark.parametrize("text", ["done", "[]", "1", '{"a": 1e999}', "{", '{"a": ' * 500 + "1" + "}" * 500])
def test_answer_that_is_no_json_object_is_an_error(folder: Path, text: str) -> None:
    found = attempt(folder, LAST.format(text=text))
    assert isinstance(found.error, ModelRefused)
    assert "its process answered with what is no JSON object" in found.error.what


@pytest.mark.covers("A2")
@pytest.mark.parametrize("attack", TRY)
def test_an_attack_is_denied(folder: Path, attack: str) -> None:
    home = folder / "home"
    model = folder / "model" / "program.pt2"
    names = {"secret": home / "secret", "home": home, "model": model, "link": folder / "model" / "link"}
    names["out"] = folder / "out"
    code = TRY[attack].format(parent=os.getpid(), **{name: str(path) for name, path in names.items()})
    found = attempt(folder, code)
    assert isinstance(found.error, InternalError)
    assert "PermissionError: [Errno" in found.error.what
    assert [path.name for path in home.iterdir()] == ["secret"]
    assert ((home / "secret").read_text(), model.read_text()) == ("a secret", "a program")


def test_a_secret_in_the_environment_is_not_passed_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "a secret")
    found = attempt(folder, "import os; os.environ['MLFLOW_TRACKING_TOKEN']")
    assert found.error is not None
    assert "KeyError" in found.error.what


@pytest.mark.covers("A2")
def test_an_endless_loop_ends_at_the_limit_of_time(folder: Path) -> None:
    found = attempt(folder, "while True: pass", seconds=3)
    assert isinstance(found.error, ModelRefused)
    assert (found.error.code, found.error.what) == (12, "no answer within 3 s")
    assert "time limit 3 s" in found.protections


@pytest.mark.covers("A2")
def test_a_huge_allocation_ends_at_the_limit_of_memory(folder: Path) -> None:
    found = attempt(folder, "bytearray(2 << 30)")
    assert isinstance(found.error, ModelRefused)
    assert (found.error.code, found.error.what) == (12, "it needs more memory than its limit of 1.0 GiB")


def test_a_process_that_crashes_is_refused(folder: Path) -> None:
    found = attempt(folder, "import ctypes; ctypes.string_at(0)")
    assert isinstance(found.error, ModelRefused)
    assert found.error.what == "the process was killed by signal 11"


def test_a_process_ends_with_the_step_that_started_it(folder: Path) -> None:
    limits = f"sandbox.Limits((), ({str(folder / 'out')!r},), 1 << 30, 600)"
    path = str(folder / "out" / "pid")
    code = f"import os, time; open({path!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    step = f"from trainwright import sandbox; sandbox.run('timeit', ['-n1', '-r1', {code!r}], {limits})"
    process = subprocess.Popen([sys.executable, "-c", step])
    pid = wait_for(lambda: (folder / "out" / "pid").exists() and (folder / "out" / "pid").read_text())
    process.kill()
    process.wait()
    assert wait_for(lambda: not Path(f"/proc/{pid}").exists())


WITHOUT_LANDLOCK = """
import ctypes, struct
from trainwright import sandbox
lines = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (0x06, 0, 0, 0x00050026), (0x06, 0, 0, 0x7FFF0000)]  # 38, ENOSYS
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("@HP", len(lines), ctypes.addressof(code)), 0, 0) == 0
print(sandbox.run("timeit", ["-n1", "-r1", "1"], sandbox.Limits((), (), 1 << 30, 60)).protections)
"""


def test_a_kernel_without_landlock_runs_the_module_and_the_record_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LANDLOCK], capture_output=True, text=True, check=True
    )
    assert "files are not limited" in done.stdout
    assert "network denied by seccomp" in done.stdout


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Return what a condition gives as soon as it is true."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return found

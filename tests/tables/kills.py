"""A process that is killed before each of its changes of files in turn, until one run is whole.

Before it only reads it is not killed: that would leave what the kill before the next change leaves.
"""

import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, signal, sys
from pathlib import Path

ROOT, *ARGUMENTS = sys.argv[1:]
EVENTS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link"}
CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def kill_at(limit):
    calls = 0

    def count(event, arguments):
        nonlocal calls
        opens = event == "open" and arguments[2] & CHANGES and str(arguments[0]).startswith(ROOT)
        if event in EVENTS or opens:
            calls += 1
            if calls == limit:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


for limit in range(1, 500):
    folder = Path(ROOT) / f"{limit:03d}"
    folder.mkdir()
    before(folder)
    child = os.fork()
    if child == 0:
        kill_at(limit)
        act(folder)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code, flush=True)
    if code == 0:
        break
"""


def kill_everywhere(code: str, root: Path, *arguments: str) -> list[Path]:
    """Run some code in fresh folders, killed before its first change of files, its second, and so on.

    Args:
        code: Defines ``before(folder)`` and ``act(folder)``; finds ``arguments`` in ``ARGUMENTS``.
        root: An empty folder for the folders.
        arguments: What the code is given.

    Returns:
        The folders in that order. All but the last were left by a killed process; the last is whole.
    """
    root.mkdir()
    command = [sys.executable, "-c", code + PROGRAM, str(root), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *killed, whole = map(int, done.stdout.split())
    assert set(killed) == {-signal.SIGKILL}, done.stderr
    assert whole == 0
    return sorted(root.iterdir())

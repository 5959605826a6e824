"""No task outlives its run, however the run ends; and a run that was killed goes on where it stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from trainwright.errors import InputError
from trainwright.local import run_folder
from trainwright.local.processes import Ended, Processes

red = dsl.component(base_image="trainwright/red:0.1.0", install_kfp_package=False)

RUNNER = """
import sys
from pathlib import Path

from trainwright.local import runner


class Machine:
    names = ("red", "blue")

    def python(self, toolchain):
        return Path(sys.argv[2]) / toolchain / "bin" / "python"

    def lock_digest(self, toolchain):
        return toolchain

    def library_digest(self):
        return "the library"


class RecordedEvents(runner.Listener):
    def task_ended(self, task):
        print(task.step, task.state, file=sys.stderr, flush=True)


outcome = runner.run(
    Path(sys.argv[1]), {"marks": sys.argv[3]}, runs_folder=Path(sys.argv[4]), run_id=sys.argv[5],
    machine=Machine(), listener=RecordedEvents(), grace_s=float(sys.argv[6]),
)
sys.exit(outcome.exit_code)
"""


@red
def first(marks: str) -> str:
    with open(marks, "a") as stream:
        stream.write("first ")
    return "ok"


@red
def slow(text: str, marks: str) -> str:
    import os
    import signal
    import subprocess
    import sys
    import time

    from trainwright.errors import Preempted, reported

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    with reported("slow"):
        try:
            with open(marks, "a") as stream:
                stream.write(f"slow:{os.getpid()}:{child.pid} ")
            while not os.path.exists(marks + ".go"):
                time.sleep(0.02)
        except KeyboardInterrupt:
            time.sleep(1.4)  # longer than the run waits for what a task that has ended left behind
            with open(marks, "a") as stream:
                stream.write("saved ")
            raise Preempted("stopped, state saved") from None
    child.kill()
    child.wait()
    return "ok"


@red
def stubborn(marks: str) -> str:
    import os
    import signal
    import time

    def note(*_):
        with open(marks, "a") as stream:
            stream.write("told ")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, note)
    with open(marks, "a") as stream:
        stream.write(f"slow:{os.getpid()}:{os.getpid()} ")
    time.sleep(120)
    return ""


@red
def last(text: str, marks: str) -> str:
    with open(marks, "a") as stream:
        stream.write("last ")
    return "ok"


@red
def report(marks: str, status: dsl.PipelineTaskFinalStatus) -> None:
    with open(marks, "a") as stream:
        stream.write("reported ")


def explained(marks: str) -> None:
    with dsl.ExitHandler(report(marks=marks)):
        slow(text="", marks=marks)


def hard_and_explained(marks: str) -> None:
    with dsl.ExitHandler(report(marks=marks)):
        stubborn(marks=marks)


def three(marks: str) -> None:
    begun = first(marks=marks)
    waited = slow(text=begun.output, marks=marks)
    last(text=waited.output, marks=marks)


def hard(marks: str) -> None:
    stubborn(marks=marks)


def loop(marks: str) -> None:
    with dsl.ParallelFor(["a", "b", "c", "d"]) as item:
        slow(text=item, marks=marks)


class Started:
    """A run in a process of its own."""

    def __init__(self, compiled: Path, venvs: Path, folder: Path) -> None:
        self.marks, self.runs = folder / "marks", folder / "runs"
        self._command = [
            sys.executable,
            "-c",
            RUNNER,
            str(compiled),
            str(venvs),
            str(self.marks),
            str(self.runs),
        ]
        self.process: subprocess.Popen[str] | None = None

    def start(self, run_id: str = "", grace_s: float = 120) -> subprocess.Popen[str]:
        temporary = self.runs.parent / "temporary"
        temporary.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [*self._command, run_id, str(grace_s)],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"TMPDIR": str(temporary)},
        )
        return self.process

    def wait_for_slow(self, count: int = 1) -> list[int]:
        """Wait until the slow steps run, and return the ids of them and their children."""
        wait(lambda: self.text().count("slow:") >= count)
        words = [word for word in self.text().split() if word.startswith("slow:")]
        return [int(number) for word in words for number in word.split(":")[1:]]

    def text(self) -> str:
        return self.marks.read_text() if self.marks.exists() else ""

    @property
    def id(self) -> str:
        (folder,) = [path.parent for path in self.runs.glob("*/run.json")]
        return folder.name


def wait(condition: Callable[[], bool], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def started(tmp_path: Path, venvs: Path, compile_pipeline: Callable[..., Path]) -> Any:
    made: list[Started] = []

    def start(pipeline: Callable[..., Any]) -> Started:
        made.append(Started(compile_pipeline(pipeline), venvs, tmp_path))
        return made[-1]

    yield start
    for run in made:
        if run.process and not run.process.stderr.closed:
            run.process.kill()
            run.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_run_lets_its_step_save_and_leaves_no_process(started: Any, number: int) -> None:
    run = started(three)
    process = run.start()
    pids = run.wait_for_slow()
    process.send_signal(number)
    assert process.wait(120) == 40
    assert not any(alive(pid) for pid in pids)
    assert run.text().endswith("saved "), "the shell around the step waited for it"
    state = json.loads((run.runs / run.id / "tasks.json").read_text())
    assert state["state"] == "cancelled"
    assert [task["state"] for task in state["tasks"]] == ["done", "stopped", "skipped"]
    assert state["tasks"][1]["error"]["what"] == "stopped, state saved"


def test_stopped_run_still_runs_its_exit_handler(started: Any) -> None:
    run = started(explained)
    process = run.start()
    run.wait_for_slow()
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 40
    assert run.text().endswith("saved reported ")
    state = json.loads((run.runs / run.id / "tasks.json").read_text())
    assert (state["state"], [task["state"] for task in state["tasks"]]) == ("cancelled", ["stopped", "done"])


def test_second_signal_leaves_the_exit_handler_out(started: Any) -> None:
    run = started(hard_and_explained)
    process = run.start()
    run.wait_for_slow()
    process.send_signal(signal.SIGINT)
    wait(lambda: "told" in run.text())
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 40
    assert "reported" not in run.text()


def test_stopped_loop_leaves_no_process_and_starts_no_other_turn(started: Any) -> None:
    run = started(loop)
    process = run.start()
    pids = run.wait_for_slow(2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 40
    assert not any(alive(pid) for pid in pids)
    assert run.text().count("slow:") == 2


def test_second_signal_kills_a_step_that_does_not_listen(started: Any) -> None:
    run = started(hard)
    process = run.start()
    (pid, _) = run.wait_for_slow()
    process.send_signal(signal.SIGINT)
    wait(lambda: "told" in run.text())
    assert alive(pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 40
    assert not alive(pid)


def test_step_that_does_not_listen_is_killed_after_the_grace(started: Any) -> None:
    run = started(hard)
    process = run.start(grace_s=0.3)
    (pid, _) = run.wait_for_slow()
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 40
    assert not alive(pid)


def test_killed_run_leaves_no_process_and_goes_on_where_it_stopped(started: Any) -> None:
    run = started(three)
    process = run.start(grace_s=1)
    pids = run.wait_for_slow()
    process.kill()
    process.communicate()
    wait(lambda: not any(alive(pid) for pid in pids))
    wait(lambda: not list((run.runs.parent / "temporary").iterdir()))
    Path(str(run.marks) + ".go").touch()
    process = run.start(run_id=run.id)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0
    assert said.split("\n")[:3] == ["first cached", "slow done", "last done"]
    assert run.text().count("first") == 1


def test_run_that_is_running_cannot_be_run_twice(started: Any) -> None:
    run = started(three)
    run.start()
    run.wait_for_slow()
    message = f"is running already, in process {run.process.pid}"
    with pytest.raises(InputError, match=message), run_folder.held(run.runs / run.id):
        pass
    os.killpg(run.process.pid, signal.SIGTERM)


def test_folder_of_a_killed_run_is_free_when_its_last_process_is_gone(started: Any) -> None:
    run = started(hard)
    process = run.start(grace_s=1)
    (pid, _) = run.wait_for_slow()
    process.kill()
    process.communicate()
    assert alive(pid)
    with run_folder.held(run.runs / run.id):
        assert not alive(pid)


def test_what_a_step_leaves_running_ends_with_it(tmp_path: Path) -> None:
    command = ["sh", "-c", "sleep 60 & echo $! > pid; exit 3"]
    processes = Processes()
    with processes.listening():
        folder = os.getcwd()
        os.chdir(tmp_path)
        try:
            ended = processes.run(command, dict(os.environ), tmp_path / "log")
        finally:
            os.chdir(folder)
    assert ended == Ended(3, late=False)
    assert not alive(int((tmp_path / "pid").read_text()))


def test_output_and_errors_stay_in_their_order(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo one; echo two >&2; echo three"]
    processes = Processes()
    with processes.listening():
        processes.run(command, dict(os.environ), tmp_path / "log")
    assert (tmp_path / "log").read_text() == "one\ntwo\nthree\n"

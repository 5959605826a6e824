"""Steps in containers of a real engine: what they may do, what they leave, and that none outlives its run."""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from kfp import dsl

from tests.authoring import engine as engines
from trainwright.authoring import images
from trainwright.errors import TrainwrightError
from trainwright.local import containers, run_folder, runner
from trainwright.local.runner import Outcome

small = dsl.component(base_image=images.LAUNCHER, install_kfp_package=False)
Compile = Callable[..., Path]
Start = Callable[..., Outcome]

RUNNER = """
import sys
from pathlib import Path

from trainwright.local import runner
from trainwright.local.containers import Engine

outcome = runner.run(
    Path(sys.argv[1]), {"marks": sys.argv[2]}, runs_folder=Path(sys.argv[3]), engine=Engine(), grace_s=20.0
)
sys.exit(outcome.exit_code)
"""


@small
def look(source: str, here: dsl.Output[dsl.Dataset]) -> dict:
    import getpass
    import os
    import pathlib
    import tempfile

    def refused(path: str) -> bool:
        try:
            pathlib.Path(path, "written").touch()
        except OSError:
            return True
        return False

    pathlib.Path(here.path).mkdir(parents=True)
    pathlib.Path(here.path, "rows").write_text("1")
    tempfile.NamedTemporaryFile().close()
    pathlib.Path.home().joinpath("cache").mkdir()
    return {
        "uid": os.getuid(),
        "rows": pathlib.Path(source, "rows.csv").read_text(),
        "source_refused": refused(source),
        "image_refused": refused("/opt") and refused("/usr"),
        "raised": open("/proc/self/status").read().split("CapEff:")[1].split()[0],
        "user": bool(getpass.getuser()),
        "colour": os.environ.get("COLOUR", ""),
        "ours": "OURS" in os.environ,
        "proxy": os.environ.get("HTTPS_PROXY", ""),
    }


@small
def refuse(marks: str) -> str:
    from trainwright.errors import InputError, reported

    with reported("refuse"):
        raise InputError("this will not do")


@small
def slow(marks: str) -> str:
    import signal
    import sys
    import time

    folder = marks.removeprefix("sqlite:///").removesuffix("/x.db")

    def save(number: int, _: object) -> None:
        with open(folder + "/saved", "w") as stream:
            stream.write(str(number))
        sys.exit(40)

    signal.signal(signal.SIGTERM, save)
    open(folder + "/started", "w").close()
    while True:
        time.sleep(0.05)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with engines.running(tmp_path_factory.mktemp("engine")):
        engines.require("launcher")
        yield


@pytest.fixture
def start(engine: None, tmp_path: Path, compile_pipeline: Compile, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.test:3128")

    def run(function: Callable[..., Any], **arguments: Any) -> Outcome:
        own = containers.Engine(variables=containers.variables(["HTTPS_PROXY"]))
        given = {"runs_folder": tmp_path / "two words, and more", "engine": own, "grace_s": 20.0}
        return runner.run(compile_pipeline(function), arguments, **given)

    return run


def labelled(folder: Path) -> list[Any]:
    with contextlib.closing(docker.from_env()) as client:
        found = client.containers.list(all=True, sparse=True)  # others come and go while it looks
        return [
            one
            for one in found
            if (one.attrs["Labels"] or {}).get(containers.LABEL, "").startswith(str(folder))
        ]


def free(folder: Path) -> bool:
    try:
        with run_folder.held(folder):
            return True
    except TrainwrightError:
        return False


def until(fact: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := fact()) and time.monotonic() < end:
        time.sleep(0.05)
    assert found
    return found


def test_a_step_may_write_to_its_run_alone_and_what_it_writes_is_its_callers(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looks(source: str) -> None:
        look(source=source).set_env_variable("COLOUR", "red")

    monkeypatch.setenv("OURS", "1")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.csv").write_text("a,b")
    outcome = start(looks, source=str(tmp_path / "in"))
    assert outcome.state == "done", outcome.error
    (task,) = outcome.tasks
    assert task.parameters["Output"] == {
        "uid": os.getuid(),
        "rows": "a,b",
        "source_refused": True,
        "image_refused": True,
        "raised": "0000000000000000",
        "user": True,
        "colour": "red",
        "ours": False,
        "proxy": "http://proxy.test:3128",
    }
    written = Path(task.outputs["here"].uri, "rows")
    assert written.read_text() == "1"
    assert written.stat().st_uid == os.getuid()
    assert not labelled(tmp_path)


def test_the_exit_code_of_the_step_is_the_runs_and_its_log_is_kept(start: Start, tmp_path: Path) -> None:
    def refuses(marks: str) -> None:
        refuse(marks=marks).set_retry(2, backoff_duration="0s")

    outcome = start(refuses, marks=str(tmp_path))
    assert (outcome.exit_code, outcome.error["what"]) == (10, "this will not do")
    assert outcome.tasks[0].attempts == 1
    assert "this will not do" in (outcome.folder / "refuse" / run_folder.LOG).read_text()
    assert not labelled(tmp_path)


def test_a_step_is_stopped_after_its_compiled_limit(start: Start, tmp_path: Path) -> None:
    from kfp import kubernetes

    def stops(marks: str) -> None:
        kubernetes.set_timeout(slow(marks=marks), 1)

    outcome = start(stops, marks=f"sqlite:///{tmp_path}/marks/x.db")
    assert outcome.exit_code == 31
    assert not labelled(tmp_path)


def waits(marks: str) -> None:
    slow(marks=marks)


@contextlib.contextmanager
def background(compiled: Path, tmp_path: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run in a process of its own, whose step has started."""
    marks = tmp_path / "marks"
    marks.mkdir(parents=True)
    command = [sys.executable, "-c", RUNNER, str(compiled), f"sqlite:///{marks}/x.db", str(tmp_path / "runs")]
    process = subprocess.Popen(command, env={**os.environ, **variables})
    try:
        until(lambda: (marks / "started").exists() or process.poll() is not None)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_lets_its_step_save_and_leaves_no_container(
    engine: None, tmp_path: Path, compile_pipeline: Compile, number: signal.Signals
) -> None:
    with background(compile_pipeline(waits), tmp_path) as process:
        process.send_signal(number)
        assert process.wait(60) == 40
    assert (tmp_path / "marks" / "saved").read_text() == str(int(signal.SIGTERM))
    assert not labelled(tmp_path)


def test_a_run_that_is_killed_leaves_no_container_and_its_step_could_save(
    engine: None, tmp_path: Path, compile_pipeline: Compile
) -> None:
    (tmp_path / "scratch").mkdir()
    with background(compile_pipeline(waits), tmp_path, TMPDIR=str(tmp_path / "scratch")) as process:
        assert len(labelled(tmp_path)) == 1
        process.kill()
    until(lambda: not labelled(tmp_path), 120)
    assert (tmp_path / "marks" / "saved").exists()
    until(lambda: not list((tmp_path / "scratch").iterdir()))


def test_a_container_that_somebody_removes_did_not_succeed(
    engine: None, tmp_path: Path, compile_pipeline: Compile
) -> None:
    with background(compile_pipeline(waits), tmp_path) as process:
        (container,) = labelled(tmp_path)
        container.remove(force=True)
        assert process.wait(60) == 41


def test_of_two_runs_at_once_each_ends_its_own_containers(
    engine: None, tmp_path: Path, compile_pipeline: Compile
) -> None:
    compiled = compile_pipeline(waits)
    with background(compiled, tmp_path / "a") as first, background(compiled, tmp_path / "b") as second:
        first.send_signal(signal.SIGTERM)
        assert first.wait(90) == 40
        assert not labelled(tmp_path / "a")
        assert [one.status for one in labelled(tmp_path / "b")] == ["running"]
        assert second.poll() is None


def test_an_engine_that_dies_ends_the_run_and_the_container_goes_when_it_is_back(
    engine: None, tmp_path: Path, compile_pipeline: Compile
) -> None:
    podman = shutil.which("podman")
    if not podman:
        pytest.skip("podman's service is what a test can end; an engine that others use, it cannot")
    socket = f"unix://{tmp_path}/own.sock"

    @contextlib.contextmanager
    def service() -> Iterator[subprocess.Popen[bytes]]:
        (tmp_path / "own.sock").unlink(missing_ok=True)
        process = subprocess.Popen([podman, "system", "service", "--time", "0", socket])
        try:
            until((tmp_path / "own.sock").exists)
            yield process
        finally:
            process.kill()
            process.wait()

    with service() as own, background(compile_pipeline(waits), tmp_path, DOCKER_HOST=socket) as process:
        own.kill()
        own.wait()
        assert process.wait(90) == 21
    assert labelled(tmp_path), "it runs on without the engine's service"
    with service():
        until(lambda: not labelled(tmp_path), 120)
        (folder,) = (tmp_path / "runs").glob("[!.]*")
        until(lambda: free(folder))  # what ended it has ended, too
    assert (tmp_path / "marks" / "saved").exists(), "it could save"


def test_an_image_for_another_processor_is_named_as_that(
    engine: None, tmp_path: Path, compile_pipeline: Compile, machine: Any
) -> None:
    """Its shell is a program for a processor that there is none of."""
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xf4\xff\x01" + bytes(43)
    with tarfile.open(tmp_path / "image.tar", "w") as made:
        entry = tarfile.TarInfo("bin/sh")
        entry.mode, entry.size = 0o755, len(header)
        made.addfile(entry, io.BytesIO(header))
    with contextlib.closing(docker.from_env()) as client:
        client.api.import_image(
            str(tmp_path / "image.tar"), repository="localhost/trainwright-test/red", tag="latest"
        )
        foreign = dsl.component(
            base_image="localhost/trainwright-test/red:latest", install_kfp_package=False
        )(refuse.python_func)

        def runs_it(marks: str) -> None:
            foreign(marks=marks)

        try:
            outcome = runner.run(
                compile_pipeline(runs_it),
                {"marks": "x"},
                runs_folder=tmp_path / "runs",
                machine=machine,
                engine=containers.Engine(),
            )
        finally:
            client.images.remove("localhost/trainwright-test/red:latest", force=True)
    assert outcome.exit_code == 21
    assert "another processor" in outcome.error["what"]
    assert not labelled(tmp_path)

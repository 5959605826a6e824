"""The command line, as a person starts it: in a process of its own, with the real environments."""

import itertools
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from kfp import dsl

from trainwright import __version__ as version
from trainwright.authoring import images
from trainwright.authoring.environments import TOOLCHAINS
from trainwright.cli import app
from trainwright.errors import DependencyError
from trainwright.local import doctor

ROOT = Path(__file__).resolve().parents[2]
START = "from trainwright.cli.app import main; main()"
Compile = Callable[..., Path]


@dsl.component(base_image=images.TABULAR, install_kfp_package=False)
def measure(text: str, limit: int, record: dsl.Output[dsl.Artifact], report: dsl.Output[dsl.HTML]) -> str:
    from pathlib import Path

    from trainwright.errors import InputError, reported
    from trainwright.tracking import Stopwatch

    with reported("measure"):
        if not text:
            raise InputError("the text is empty", where="parameter text", hint="Pass one.")
        Path(record.path).mkdir()
        decision = "PASS" if len(text) <= limit else "HOLD"
        headline = f"length {len(text)} of {limit}"
        Stopwatch().record(Path(record.path), "measure", headline, decision=decision)
        Path(report.path).write_text("<p>")
    return decision


@dsl.component(base_image=images.TABULAR, install_kfp_package=False)
def finish() -> str:
    return "ok"


def pipeline(text: str = "four", limit: int = 4) -> None:
    measured = measure(text=text, limit=limit)
    with dsl.If(measured.outputs["Output"] == "PASS"):
        finish()


@pytest.fixture
def compiled(compile_pipeline: Compile) -> str:
    return str(compile_pipeline(pipeline))


@pytest.fixture
def trainwright(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", START, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return call


Call = Callable[..., subprocess.CompletedProcess[str]]


def test_a_run_shows_one_line_a_step_and_ends_with_zero(trainwright: Call, compiled: str) -> None:
    done = trainwright("run", compiled)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"pipeline   2 steps   runs/[0-9a-z]{6}", lines[0])
    assert re.fullmatch(r"  measure  tabular {4,}\d+\.\d s   length 4 of 4", lines[2])
    assert re.fullmatch(r"  finish   tabular {4,}\d+\.\d s", lines[3])
    assert re.fullmatch(r"  measure  runs/[0-9a-z]{6}/measure/report\.html", lines[6])


def test_a_gate_ends_with_its_code_and_the_command_it_shows_goes_on(trainwright: Call, compiled: str) -> None:
    held = trainwright("run", compiled, "--param", "text=too long")
    assert held.returncode == 12
    assert "HOLD: length 8 of 4" in held.stdout
    (again,) = re.findall(r"  again    trainwright (run .*)", held.stdout)
    done = trainwright(*again.split(), "--param", "limit=8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"continues run {again.split()[3]}" in done.stdout
    repeated = trainwright("run", compiled, "--run", again.split()[3])
    assert (repeated.returncode, "cached   HOLD: length 8 of 4" in repeated.stdout) == (12, True)


def test_bad_input_of_a_step_is_one_message_and_its_exit_code(trainwright: Call, compiled: str) -> None:
    done = trainwright("run", compiled, "--param", "text=")
    assert done.returncode == 10
    assert done.stderr.startswith(
        "\nInputError: the text is empty\n  at    parameter text\n  next  Pass one.\n"
    )
    assert "Traceback" not in done.stdout + done.stderr


def test_json_is_all_that_stands_on_standard_output(trainwright: Call, compiled: str) -> None:
    done = trainwright("run", compiled, "--json", "--param", "text=")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["run_started", "task_finished", "run_finished"]
    assert events[1]["error"]["what"] == "the text is empty"
    assert events[2]["exit_code"] == done.returncode == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "train_and_regster"), "there is no pipeline 'train_and_regster'"),
        (("run", "PIPELINE", "--param", "limit=four"), "'four' is no NUMBER_INTEGER"),
        (("run", "PIPELINE", "--param", "limit"), "--param 'limit' is not NAME=VALUE"),
        (("run", "PIPELINE", "--param", "lmit=4"), "argument lmit: unknown; did you mean limit?"),
        (("run", "PIPELINE", "--run", "0000"), "there is no run '0000'"),
        (("run", "PIPELINE", "--from", "measrue"), "has no step 'measrue'"),
        (("run", "PIPELINE", "--config", "none.yaml"), "cannot read the experiment file"),
        (("run", "nothing.yaml"), "no such compiled pipeline"),
        (("rnu",), "No such command 'rnu'"),
        (("new", "component", "Ingest"), "not a Python name in lower case"),
    ],
)
def test_wrong_input_is_one_clear_error_and_ends_with_ten(
    trainwright: Call, compiled: str, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = trainwright(*(compiled if part == "PIPELINE" else part for part in arguments))
    assert done.returncode == 10
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_an_error_before_the_run_is_a_json_line_too(trainwright: Call) -> None:
    done = trainwright("run", "train_and_regster", "--json")
    (event,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (event["event"], event["code"], done.returncode) == ("error", 10, 10)
    assert event["hint"] == "Did you mean train_and_register?"


def test_a_bug_shows_its_traceback_and_ends_with_seventy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, app._reported(as_json=True):
        raise ValueError("boom")
    assert caught.value.exit_code == 70
    said = capsys.readouterr()
    assert "Traceback" in said.err
    assert json.loads(said.out)["what"] == "ValueError: boom"


def test_what_the_system_says_of_a_path_is_no_bug(trainwright: Call, compiled: str, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    done = trainwright("run", compiled)
    assert done.returncode == 21
    assert done.stderr.startswith("DependencyError: ")
    assert "Traceback" not in done.stderr


def test_the_command_it_shows_can_be_pasted_whatever_the_path(
    trainwright: Call, compiled: str, tmp_path: Path
) -> None:
    odd = tmp_path / "it's a path.yaml"
    odd.write_text(Path(compiled).read_text())
    held = trainwright("run", str(odd), "--runs", "my runs", "--param", "text=too long")
    (again,) = re.findall(r"  again    trainwright (run .*)", held.stdout)
    done = trainwright(*shlex.split(again), "--param", "limit=8")
    assert done.returncode == 0, done.stderr


def test_a_terminal_sees_the_same_lines(compiled: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", START, "run", compiled],
        cwd=tmp_path,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "40"},
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:
            break
        if not piece:
            break
        said += piece
    os.close(ours)
    assert process.wait() == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())
    assert re.search(r"  measure  tabular {4,}\d+\.\d s   length 4 of 4\r?\n", plain)
    assert "Done in" in plain


def test_the_version_is_told(trainwright: Call) -> None:
    done = trainwright("--version")
    assert (done.returncode, done.stdout) == (0, f"{version}\n")


def test_help_loads_nothing_heavy_so_that_it_comes_at_once() -> None:
    """A clock would tell of the machine; this is what half a second on an idle one was."""
    counted = "import sys, {0}; print(*{{name.partition('.')[0] for name in sys.modules}}, len(sys.modules))"

    def loaded(module: str) -> tuple[set[str], int]:
        code = counted.format(module)
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        *names, count = said.split()
        return set(names), int(count)

    (ours, count), (bare, least) = loaded("trainwright.cli.app"), loaded("typer")
    assert ours - bare - sys.stdlib_module_names == {"trainwright"}
    assert count - least < 60


def test_the_list_names_every_pipeline_and_component(trainwright: Call) -> None:
    plain, lines = trainwright("list").stdout, trainwright("list", "--json").stdout
    found = {(entry["kind"], entry["name"]) for entry in map(json.loads, lines.splitlines())}
    assert {("pipeline", "train_and_register"), ("component", "validate")} <= found
    assert re.search(r"\n  validate +\w.+\n", plain)


def diagnosed(done: "subprocess.CompletedProcess[str]") -> dict[str, dict[str, str]]:
    lines = map(json.loads, done.stdout.splitlines())
    return {entry["name"]: entry for entry in lines if "name" in entry}


def test_doctor_finds_what_is_there(trainwright: Call) -> None:
    done = trainwright("doctor", "--json")
    findings = diagnosed(done)
    expected = {
        "python",
        "tabular",
        "tfdv",
        "torch",
        "feast",
        "mlflow",
        "launcher",
        "tune",
        "disk",
        "memory",
        "git",
    }
    assert expected <= set(findings)
    assert findings["tabular"]["state"] == "ok"
    assert done.returncode == 0, done.stderr


def test_doctor_in_a_checkout_without_environments_and_engine_is_ready_to_submit(tmp_path: Path) -> None:
    for name in ("trainwright", "images", "compiled"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    variables = {"PYTHONPATH": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/nobody.sock"}
    done = subprocess.run(
        [sys.executable, "-c", START, "doctor", "--json"],
        cwd=tmp_path,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    findings = diagnosed(done)
    assert done.returncode == 0, done.stderr
    states = {use: (findings[use]["state"], findings[use]["text"].partition(": ")[2]) for use in doctor.USES}
    assert states["submit"] == ("ok", "ready")
    assert states["containers"] == ("note", "not ready: engine")
    assert states["run"] == ("note", f"not ready: {', '.join(TOOLCHAINS)}")
    assert "no container engine answers" in findings["engine"]["text"]
    assert "docker" not in findings


def test_doctor_that_finds_no_use_ready_ends_with_21() -> None:
    missing = [doctor.Diagnostic(use, "note", "not ready: something") for use in doctor.USES]
    with pytest.raises(DependencyError, match="not ready for run, containers, submit"):
        doctor.require(missing)
    doctor.require([*missing[:2], doctor.Diagnostic("submit", "ok", "ready")])


def dated(date: str = "today") -> None:
    measure(text=date, limit=10)


def test_a_date_is_passed_on_to_a_pipeline_that_takes_one(
    trainwright: Call, compile_pipeline: Compile, compiled: str
) -> None:
    path = str(compile_pipeline(dated))
    done = trainwright("run", path, "--date", "2013-05-01", "--json")
    assert done.returncode == 0, done.stderr
    (told,) = (json.loads(line) for line in done.stdout.splitlines() if '"task_finished"' in line)
    assert told["headline"] == "length 10 of 10"
    wrong = trainwright("run", path, "--date", "1 May 2013")
    assert wrong.returncode == 10
    assert "expected a date, found '1 May 2013'" in wrong.stderr
    none = trainwright("run", compiled, "--date", "2013-05-01")
    assert none.returncode == 10
    assert "pipeline has no parameter date" in none.stderr


SECRETS = (
    "hf_" + "xQwErTyUiOpAsDfGhJkLzXcVbNmQwErTyU",
    "https://" + "t0ken-PLANTED" + "@github.com/team/rows.git",
    "https://store.example/a.csv?AccessToken=PLANTED",
    "key -----BEGIN PRIVATE KEY-----MIIEvQ",
)


@pytest.mark.covers("A7")
@pytest.mark.parametrize("secret", SECRETS[:2])
@pytest.mark.parametrize(
    "command",
    [
        ("submit", "flights", "--host", "https://kubeflow.example", "--timeout", "SECRET"),
        ("SECRET",),
    ],
    ids=" ".join,
)
def test_secret_in_a_usage_error_is_not_printed(
    trainwright: Call, command: tuple[str, ...], secret: str
) -> None:
    done = trainwright(*(word.replace("SECRET", secret) for word in command))
    assert done.returncode == 10
    assert done.stderr.startswith("Usage: ")
    assert secret not in done.stdout + done.stderr
    assert "PLANTED" not in done.stdout + done.stderr


WITH_SECRET = (
    ("run", "COMPILED", "--param", "text=SECRET", "--json"),
    ("run", "COMPILED", "--param", "count=SECRET"),
    ("run", "COMPILED", "--param", "SECRET"),
    ("run", "COMPILED", "--config", "experiment.yaml"),
    ("submit", "COMPILED", "--param", "text=SECRET", "--host", "http://127.0.0.1:1", "--json"),
    ("submit", "COMPILED", "--param", "text=a", "--host", "http://127.0.0.1:1", "--label", "team=SECRET"),
    ("submit", "COMPILED", "--param", "text=a", "--host", "http://127.0.0.1:1", "--name", "SECRET"),
    ("init", "SECRET"),
    ("baseline", "accept", "run", "--to", "baseline.json", "--reason", "SECRET"),
    ("curves", "run", "--to", "SECRET"),
    ("init", "sqlite:///rows.db", "--query", "SELECT 'SECRET'"),
)


@pytest.mark.covers("A7")
@pytest.mark.parametrize(
    ("command", "secret"),
    list(zip(WITH_SECRET, itertools.cycle(SECRETS), strict=False)),  # test_credentials.py has every kind
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_secret_in_any_parameter_is_rejected_before_anything_is_written_or_shown(
    trainwright: Call, compiled: str, tmp_path: Path, command: tuple[str, ...], secret: str
) -> None:
    (tmp_path / "experiment.yaml").write_text(json.dumps({"data": {"source": secret}}))
    before = sorted(tmp_path.rglob("*"))
    done = trainwright(*(word.replace("SECRET", secret).replace("COMPILED", compiled) for word in command))
    assert done.returncode == 10
    assert "a parameter must not be written like this" in done.stderr
    assert secret not in done.stdout + done.stderr
    assert "PLANTED" not in done.stdout + done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_secret_on_the_command_line_is_refused_and_repeated_nowhere(
    trainwright: Call, compiled: str, tmp_path: Path
) -> None:
    done = trainwright("run", compiled, "--param", "text=s3://AKIA:hunter2-PLANTED@bucket/rows", "--json")
    assert done.returncode == 10
    assert "PLANTED" not in done.stdout + done.stderr
    assert not (tmp_path / "runs").exists()

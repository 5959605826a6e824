"""The commands for a cluster, each in a process of its own: stopped, unheard, out of time."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.authoring.api import packages
from tests.authoring.api.client import command
from tests.authoring.api.server import Api
from tests.authoring.api.store import Frame

FAILED = Frame("FAILED", {"ingest": "SUCCEEDED", "validate": "FAILED"})


@pytest.fixture
def gated(tmp_path: Path) -> Path:
    return packages.gated(tmp_path)


def unheard(process: "subprocess.Popen[str]") -> int:
    """Wait for a command that nobody listens to, and return its exit code."""
    assert process.stdout
    process.stdout.close()
    assert process.stderr
    with process.stderr:
        code = process.wait()
        assert process.stderr.read() == ""
    return code


def test_the_commands_submit_follow_stop_and_try_again(server: Api, tmp_path: Path, gated: Path) -> None:
    server.store.script = [FAILED]
    reach = ("--host", server.url)
    submitting = command(
        tmp_path, "submit", str(gated), "--param", "source=gs://a", "--wait", "--json", *reach
    )
    out, err = submitting.communicate()
    assert submitting.returncode == 70, err
    begun, *_, finished = (json.loads(line) for line in out.splitlines())
    assert (begun["event"], finished["exit_code"]) == ("run_submitted", 70)

    server.store.script = [Frame("RUNNING", {"ingest": "RUNNING"})]
    retrying = command(tmp_path, "retry", begun["run_id"], "--wait", *reach)
    assert retrying.stdout
    lines = []
    while "running" not in "".join(lines):
        lines.append(retrying.stdout.readline())
        assert lines[-1] or retrying.poll() is None, lines
    assert lines[0] == f"gated   3 steps   run {begun['run_id']}\n", "the pipeline is read from the API"
    retrying.send_signal(signal.SIGTERM)
    out, err = retrying.communicate()
    assert retrying.returncode == 40, err
    assert f"stop   trainwright terminate {begun['run_id']} --host {server.url}" in out

    stopping = command(tmp_path, "terminate", begun["run_id"], *reach)
    assert f"run {begun['run_id']} is stop" in stopping.communicate()[0]
    looking = command(tmp_path, "status", begun["run_id"], *reach)
    looking.communicate()
    assert looking.returncode == 41


def test_a_command_that_may_wait_no_longer_ends_with_40_and_the_run_goes_on(
    server: Api, tmp_path: Path, gated: Path
) -> None:
    server.store.script = [Frame("RUNNING")]
    words = ("submit", str(gated), "--param", "source=a", "--wait", "--timeout", "1", "--host", server.url)
    asked = command(tmp_path, *words)
    out, err = asked.communicate()
    assert (asked.returncode, err) == (40, "")
    assert f"run {server.store.runs[0].run_id} goes on" in out
    asked = command(tmp_path, *(word for word in words if word != "--wait"))
    assert "Add --wait." in asked.communicate()[1]
    assert asked.returncode == 10


def test_nobody_who_reads_leaves_no_submission_undone(server: Api, tmp_path: Path, gated: Path) -> None:
    """It has something to say before it submits: that the path lies on this machine."""
    words = ("submit", str(gated), "--param", f"source={tmp_path}", "--host", server.url)
    assert unheard(command(tmp_path, *words)) == 0
    assert len(server.store.runs) == 1


def test_nobody_who_reads_leaves_no_schedule_half_applied(server: Api, tmp_path: Path, gated: Path) -> None:
    one = {"pipeline": str(gated), "params": {"source": "gs://rows"}, "interval_s": 3600}
    file = {"schema_version": 1, "owner": "team-a", "schedules": {"one": one, "two": one}}
    (tmp_path / "schedules.yaml").write_text(json.dumps(file))
    assert unheard(command(tmp_path, "schedules", "apply", "schedules.yaml", "--host", server.url)) == 0
    assert [run.status for run in server.store.recurring_runs] == ["ENABLED", "ENABLED"]


def test_who_stops_a_submission_is_told_that_the_run_may_be_there(
    server: Api, tmp_path: Path, gated: Path
) -> None:
    asked: list[subprocess.Popen[str]] = []
    stop = lambda: asked[0].send_signal(signal.SIGTERM)  # noqa: E731
    server.fail("POST", "/runs$", meanwhile=stop, after=True, drop=True)
    asked.append(command(tmp_path, "submit", str(gated), "--param", "source=a", "--host", server.url))
    _, err = asked[0].communicate()
    assert (asked[0].returncode, len(server.store.runs)) == (40, 1)
    assert "The run may be there already" in err


def test_nobody_who_reads_on_is_no_success_of_the_run(server: Api, tmp_path: Path, gated: Path) -> None:
    words = ("submit", str(gated), "--param", "source=a", "--wait", "--host", server.url)
    assert unheard(command(tmp_path, *words)) == 40
    assert len(server.store.runs) == 1

"""A run on a cluster is followed to its end: outages are sat out, and the exit code is that of the step."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.authoring.api import packages
from tests.authoring.api.server import Api, serving
from tests.authoring.api.store import Frame
from trainwright.authoring import spec
from trainwright.authoring.submission import connection, following, runs, states
from trainwright.authoring.submission.connection import Connection, Place
from trainwright.authoring.submission.following import Ending, Pace
from trainwright.authoring.submission.screen import Lines, Screen
from trainwright.authoring.submission.troubles import Patience
from trainwright.errors import DependencyError, InputError, PermissionRefused

QUICK = Patience(budget_s=5.0, first_s=0.001, longest_s=0.01)
TASKS = {"root-driver": "SUCCEEDED", "ingest-driver": "SUCCEEDED", "ingest": "SUCCEEDED"}
PASSED = TASKS | {"validate": "SUCCEEDED", "condition-1": "SUCCEEDED", "train": "SUCCEEDED"}
HELD = TASKS | {"validate": "SUCCEEDED", "condition-1-driver": "SUCCEEDED", "condition-1": "SKIPPED"}
START = "from trainwright.authoring.cli import main; main()"


@pytest.fixture
def server() -> Iterator[Api]:
    with serving() as api:
        yield api


@pytest.fixture
def api(server: Api) -> Connection:
    return connection.connect(Place(host=server.url), QUICK)


@pytest.fixture
def gated(tmp_path: Path) -> Path:
    return packages.gated(tmp_path)


class Seen(Screen):
    """Keeps what is shown."""

    def __init__(self, pipeline: Any) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        super().__init__(self.out, self.err, pipeline)

    @property
    def lines(self) -> list[str]:
        return [" ".join(line.split()) for line in self.out.getvalue().splitlines() if line.strip()]


Follow = Callable[..., tuple[Ending, Seen]]


@pytest.fixture
def follow(server: Api, api: Connection, gated: Path) -> Follow:
    def call(*frames: Frame, pace: Pace | None = None, known: bool = True) -> tuple[Ending, Seen]:
        server.store.script = list(frames)
        run = started(server)
        pipeline = spec.read(gated) if known else None
        seen = Seen(pipeline)
        ending = following.follow(api, run, pipeline, seen, pace or paced())
        seen.ended(ending, "https://link")
        return ending, seen

    return call


def paced(outage: Patience = QUICK) -> Pace:
    return Pace(every_s=0.0, outage=outage, sleep=lambda _: None)


def started(server: Api) -> str:
    """Make a run without a client."""
    experiment = server.store.make_experiment({"display_name": f"e{len(server.store.experiments)}"})
    body = {"display_name": "gated", "experiment_id": experiment.experiment_id, "pipeline_spec": {}}
    return str(server.store.make_run(body).run_id)


def test_each_change_of_a_step_is_one_line_and_drivers_are_none(follow: Follow) -> None:
    ending, seen = follow(
        Frame("PENDING"),
        Frame("RUNNING", {"root-driver": "SUCCEEDED", "ingest": "RUNNING"}),
        Frame("RUNNING", {"root-driver": "SUCCEEDED", "ingest": "RUNNING", "executor": "RUNNING"}),
        Frame("SUCCEEDED", PASSED),
    )
    assert (ending.state, ending.exit_code, ending.seconds) == ("done", 0, 90.0)
    assert ending.steps == {"ingest": "SUCCEEDED", "validate": "SUCCEEDED", "train": "SUCCEEDED"}
    assert seen.lines == [
        "the run is waiting",
        "ingest ingest - running, at most 1 h 00 m",
        "ingest ingest 1.0 s done",
        "validate tfdv 1.0 s done",
        "train launcher 1.0 s done",
        "Done in 1 m 30 s.",
        "page https://link",
    ]


def test_a_failed_step_ends_with_the_code_that_it_said_itself(server: Api, follow: Follow) -> None:
    line = {"error": "Diverged", "code": 30, "component": "train", "what": "the loss is nan", "where": "",
            "hint": "Lower the rate.", "retryable": False}  # fmt: skip
    server.logs["gated-x-retry-system-container-impl-22"] = f"epoch 1\ntrainwright-error {json.dumps(line)}\n"
    server.logs["gated-x-retry-system-container-impl-11"] = "trainwright-error not JSON\n"
    tasks = PASSED | {"train": "FAILED", "executor": "FAILED", "condition-1": "FAILED"}
    children = {"executor": ["gated-x-11", "gated-x-22"], "train": ["gated-x-9"]}
    ending, seen = follow(Frame("RUNNING"), Frame("FAILED", tasks, children))
    assert (ending.state, ending.exit_code, ending.failed_step) == ("failed", 30, "train")
    assert ending.error == line
    assert "train launcher 1.0 s failed" in seen.lines
    assert seen.err.getvalue().startswith("\nDiverged: the loss is nan\n  next  Lower the rate.\n")
    assert "again trainwright retry" in seen.err.getvalue()


def test_a_failure_of_which_nothing_is_known_is_none_that_passes(follow: Follow) -> None:
    for state in ("FAILED", "ERROR"):
        ending, seen = follow(Frame(state, TASKS | {"validate": "FAILED"}, {"validate": ["gated-x-1"]}))
        assert (ending.exit_code, ending.failed_step, ending.error["retryable"]) == (70, "validate", False)
        assert "validate failed: the API does not say why" in seen.err.getvalue()


def test_a_run_that_was_stopped_ends_with_41(follow: Follow) -> None:
    ending, _ = follow(Frame("RUNNING"), Frame("CANCELING"), Frame("CANCELED", TASKS))
    assert (ending.state, ending.exit_code) == ("stopped", 41)


def test_a_gate_that_held_is_found_though_the_run_has_succeeded(follow: Follow) -> None:
    ending, seen = follow(Frame("SUCCEEDED", HELD))
    assert (ending.state, ending.exit_code, ending.held_by) == ("held", 11, "validate")
    assert "Held by validate." in seen.lines
    ending, _ = follow(
        Frame("SUCCEEDED", {key: state for key, state in HELD.items() if "condition" not in key})
    )
    assert ending.held_by == "validate", "a group that is not listed was not taken"


def test_a_gate_of_which_nothing_is_known_is_no_pass(follow: Follow) -> None:
    ending, _ = follow(Frame("SUCCEEDED"))
    assert (ending.state, ending.exit_code) == ("unknown", 21)
    assert "is not known" in ending.error["what"]
    ending, _ = follow(Frame("SUCCEEDED", PASSED), known=False)
    assert (ending.state, ending.exit_code) == ("unknown", 21)
    assert "its pipeline cannot be read" in ending.error["what"]


def test_an_outage_is_told_once_and_sat_out(server: Api, follow: Follow) -> None:
    server.fail("GET", "/runs/", drop=True, times=4, skip=1)
    server.fail("GET", "/runs/", status=503, times=2)
    ending, seen = follow(Frame("RUNNING"), Frame("SUCCEEDED", PASSED))
    assert ending.exit_code == 0
    notes = [line for line in seen.lines if line.startswith("note")]
    assert len(notes) == 2 * (len(notes) // 2) >= 2
    assert "asking again for up to 5 s" in notes[0]
    assert "answers again" in notes[-1]


def test_an_outage_beyond_the_budget_ends_with_21_and_says_how_to_go_on(server: Api, follow: Follow) -> None:
    now = [0.0]
    sleep = lambda seconds: now.__setitem__(0, now[0] + seconds)  # noqa: E731
    outage = Patience(budget_s=900.0, first_s=2.0, now=lambda: now[0], sleep=sleep)
    server.fail("GET", "/runs/", drop=True, times=10_000, skip=1)
    with pytest.raises(DependencyError) as refused:
        follow(Frame("RUNNING"), pace=paced(outage))
    assert 600 < now[0] <= 900
    assert "The run goes on: trainwright status" in refused.value.hint


def test_each_outage_has_the_whole_budget(server: Api, follow: Follow) -> None:
    now = [0.0]
    sleep = lambda seconds: now.__setitem__(0, now[0] + seconds)  # noqa: E731
    outage = Patience(budget_s=30.0, first_s=20.0, longest_s=20.0, now=lambda: now[0], sleep=sleep)
    for _ in range(20):
        server.fail("GET", "/runs/", drop=True, skip=1)
    frames = [Frame("RUNNING")] * 60
    assert follow(*frames, Frame("SUCCEEDED", PASSED), pace=paced(outage))[0].exit_code == 0
    assert now[0] > 30


def test_a_token_that_is_replaced_meanwhile_is_no_end(server: Api, follow: Follow) -> None:
    server.fail("GET", "/runs/", status=401, times=2, skip=1)
    assert follow(Frame("RUNNING"), Frame("SUCCEEDED", PASSED))[0].exit_code == 0
    server.fail("GET", "/runs/", status=401)
    with pytest.raises(PermissionRefused):
        follow(Frame("RUNNING"))


def test_a_run_that_is_gone_is_said_to_be_gone(server: Api, api: Connection) -> None:
    with pytest.raises(InputError, match="there is no run nothing"):
        following.follow(api, "nothing", None, Screen(io.StringIO(), io.StringIO(), None), paced())


def test_a_state_that_is_new_to_us_is_told_and_followed(follow: Follow) -> None:
    ending, seen = follow(Frame("DREAMING"), Frame("DREAMING"), Frame("SUCCEEDED", PASSED))
    assert ending.exit_code == 0
    assert [line for line in seen.lines if "DREAMING" in line] == [
        "note: the API says 'DREAMING', which is new to us; following on"
    ]


def test_every_state_of_the_description_is_known() -> None:
    import kfp_server_api

    described = {value for key, value in vars(kfp_server_api.V2beta1RuntimeState).items() if key.isupper()}
    assert described | {"ERROR"} == states.KNOWN == states.WORDS.keys()
    assert states.CODES.keys() == states.ENDED


@pytest.mark.parametrize(
    "how", [{"drop": True}, {"after": True, "drop": True}, {"after": True, "status": 504}]
)
def test_stopping_and_trying_again_survive_a_lost_answer(
    server: Api, api: Connection, how: dict[str, Any]
) -> None:
    run = started(server)
    server.fail("POST", ":terminate", **how)
    assert runs.terminate(api, run).state == "CANCELED"
    assert runs.terminate(api, run).state == "CANCELED"
    server.store.script = [Frame("RUNNING")]
    server.fail("POST", ":retry", **how)
    again, fresh = runs.retry(api, run)
    assert (again.state, fresh) == ("RUNNING", True)
    assert runs.retry(api, run)[1] is False, "a run that goes on is left alone"


def test_a_run_that_has_succeeded_is_not_tried_again(server: Api, api: Connection) -> None:
    server.store.script = [Frame("SUCCEEDED", PASSED)]
    run = started(server)
    with pytest.raises(InputError, match="has ended with SUCCEEDED"):
        runs.retry(api, run)
    assert server.made("POST", ":retry") == 0


def test_json_lines_say_the_same(server: Api, api: Connection, gated: Path) -> None:
    server.store.script = [Frame("RUNNING", {"ingest": "RUNNING"}), Frame("SUCCEEDED", HELD)]
    stream = io.StringIO()
    lines = Lines(stream)
    ending = following.follow(api, started(server), spec.read(gated), lines, paced())
    lines.ended(ending, "link")
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    told = [(event["event"], event.get("name", event.get("state"))) for event in events]
    assert told == [
        ("step_changed", "ingest"),
        ("run_changed", "RUNNING"),
        ("step_changed", "ingest"),
        ("step_changed", "validate"),
        ("run_finished", "held"),
    ]
    assert events[0]["limit_s"] == 3600.0
    assert events[-1]["exit_code"] == 11


def call(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", START, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_commands_submit_follow_stop_and_try_again(server: Api, tmp_path: Path, gated: Path) -> None:
    server.store.script = [Frame("FAILED", TASKS | {"validate": "FAILED"})]
    reach = ("--host", server.url)
    submitting = call(tmp_path, "submit", str(gated), "--param", "source=gs://a", "--wait", "--json", *reach)
    out, err = submitting.communicate()
    assert submitting.returncode == 70, err
    begun, *_, finished = (json.loads(line) for line in out.splitlines())
    assert (begun["event"], finished["exit_code"]) == ("run_submitted", 70)

    server.store.script = [Frame("RUNNING", {"ingest": "RUNNING"})]
    retrying = call(tmp_path, "retry", begun["run_id"], "--wait", *reach)
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

    stopping = call(tmp_path, "terminate", begun["run_id"], *reach)
    assert f"run {begun['run_id']} is stop" in stopping.communicate()[0]
    looking = call(tmp_path, "status", begun["run_id"], *reach)
    looking.communicate()
    assert looking.returncode == 41

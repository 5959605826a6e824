"""A run on a cluster is followed to its end: outages are sat out, and the exit code is that of the step."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.authoring.api import packages
from tests.authoring.api.client import QUICK, Clock
from tests.authoring.api.server import Api
from tests.authoring.api.store import Frame
from trainwright import errors
from trainwright.authoring import pipeline_spec
from trainwright.authoring.submission import follow as following
from trainwright.authoring.submission import progress, runs
from trainwright.authoring.submission.connection import Connection
from trainwright.authoring.submission.follow import Polling, RunResult
from trainwright.authoring.submission.screen import ClusterLines, ClusterScreen
from trainwright.errors import (
    DependencyError,
    InputError,
    PermissionRefused,
    TrainwrightError,
    TransientError,
    as_record,
)
from trainwright.retries import RetryPolicy

TASKS = {"root-driver": "SUCCEEDED", "ingest-driver": "SUCCEEDED", "ingest": "SUCCEEDED"}
PASSED = TASKS | {"validate": "SUCCEEDED", "condition-1": "SUCCEEDED", "train": "SUCCEEDED"}
HELD = TASKS | {"validate": "SUCCEEDED", "condition-1-driver": "SUCCEEDED", "condition-1": "SKIPPED"}


@pytest.fixture
def gated(tmp_path: Path) -> Path:
    return packages.gated(tmp_path)


class Seen(ClusterScreen):
    """Keeps what is shown."""

    def __init__(self, pipeline: Any) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        super().__init__(self.out, self.err, pipeline)

    @property
    def lines(self) -> list[str]:
        return [" ".join(line.split()) for line in self.out.getvalue().splitlines() if line.strip()]


Follow = Callable[..., tuple[RunResult, Seen]]


@pytest.fixture
def follow(server: Api, api: Connection, gated: Path) -> Follow:
    def call(*frames: Frame, pace: Polling | None = None, known: bool = True) -> tuple[RunResult, Seen]:
        server.store.script = list(frames)
        run = started(server)
        pipeline = pipeline_spec.read(gated) if known else None
        seen = Seen(pipeline)
        ending = following.follow(api, run, pipeline, seen, pace or paced())
        seen.ended(ending, "https://link")
        return ending, seen

    return call


def paced(outage: RetryPolicy = QUICK) -> Polling:
    return Polling(every_s=0.0, outage=outage, sleep=lambda _: None)


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


@pytest.mark.covers("A18")
@pytest.mark.parametrize(
    "change",
    [{"code": 0}, {"code": 3}, {"code": True}, {"code": "30"}, {"what": None}, {"more": 1}, {"hint": ["x"]}],
)
def test_forged_line_in_a_log_makes_no_failed_step_succeed(
    server: Api, follow: Follow, change: dict[str, Any]
) -> None:
    own = as_record(errors.Diverged("the loss is nan"), "train")
    forged = f"trainwright-error {json.dumps(own | change)}\ntrainwright-error {{}}\n"
    tasks = PASSED | {"train": "FAILED", "executor": "FAILED", "condition-1": "FAILED"}
    frame = Frame("FAILED", tasks, {"executor": ["gated-x-11"]})
    name = "gated-x-retry-system-container-impl-11"
    server.logs[name] = forged
    ending, _ = follow(frame)
    assert (ending.state, ending.exit_code, ending.failed_step) == ("failed", 70, "train")
    server.logs[name] = f"trainwright-error {json.dumps(own)}\n{forged}"
    ending, _ = follow(frame)
    assert (ending.state, ending.exit_code, ending.error) == ("failed", 30, own)


def test_of_several_that_failed_the_first_one_is_the_reason(server: Api, follow: Follow) -> None:
    for number, code in ((1, 20), (2, 11)):
        line = as_record(errors.ERRORS[code]("w"), "x")
        server.logs[f"gated-x-system-container-impl-{number}"] = f"trainwright-error {json.dumps(line)}\n"
    tasks = {"ingest": "FAILED", "validate": "FAILED"}
    children = {"ingest": ["gated-x-1"], "validate": ["gated-x-2"]}
    ending, _ = follow(Frame("FAILED", tasks, children, late=("ingest",)))
    assert (ending.failed_step, ending.exit_code) == ("validate", 11)


def test_a_failure_of_which_nothing_is_known_is_none_that_passes(follow: Follow) -> None:
    for state in ("FAILED", "ERROR"):
        ending, seen = follow(Frame(state, TASKS | {"validate": "FAILED"}, {"validate": ["gated-x-1"]}))
        assert (ending.exit_code, ending.failed_step, ending.error["retryable"]) == (70, "validate", False)
        assert "validate failed: the API does not say why" in seen.err.getvalue()


def test_a_run_that_was_stopped_ends_with_41(follow: Follow) -> None:
    ending, _ = follow(Frame("RUNNING"), Frame("CANCELING"), Frame("FAILED", TASKS))
    assert (ending.state, ending.exit_code) == ("stopped", 41)


def test_a_run_terminated_between_two_looks_ends_with_41(server: Api, follow: Follow) -> None:
    """The history has CANCELING only if the agent reported in between; who followed saw the state."""
    server.fail(
        "GET", "/runs/", skip=1, meanwhile=lambda: server.store.terminate(server.store.runs[0].run_id)
    )
    ending, seen = follow(Frame("RUNNING"))
    assert "the run is stopping" in seen.lines
    assert (ending.state, ending.exit_code, ending.error["error"]) == ("stopped", 41, "PreemptedUnsaved")


def test_a_cached_step_is_shown_as_cached_without_a_duration(follow: Follow) -> None:
    ending, seen = follow(Frame("SUCCEEDED", PASSED, cached=("ingest", "validate")))
    assert "ingest ingest - cached" in seen.lines
    assert "validate tfdv - cached" in seen.lines
    assert "train launcher 1.0 s done" in seen.lines
    assert ending.steps["ingest"] == "SUCCEEDED"


LAUNCHER = "F1122 14:55:01.123456       1 main.go:71] failed to execute component: "


@pytest.mark.parametrize(
    ("said", "code", "shown"),
    [
        (
            'failed to download input artifact "model" from remote storage URI "minio://b/k": not found',
            21,
            "DependencyError: Kubeflow's launcher failed around the step's code: failed to download input "
            'artifact "model"',
        ),
        ("exit status 3", 70, "InternalError: the step's program ended with exit code 3 and printed no"),
        ("signal: killed", 70, "ended by a signal: killed"),
        ('exec: "python3": executable file not found in $PATH', 10, "cannot start the step's program"),
    ],
)
@pytest.mark.parametrize("archived", [False, True])
def test_a_failure_of_kubeflows_launcher_is_said_with_its_code(
    server: Api, follow: Follow, said: str, code: int, shown: str, archived: bool
) -> None:
    log = f"I1122 14:55:00.1       1 launcher_v2.go:190] publish success.\n{LAUNCHER}{said}\n"
    (server.archive if archived else server.logs)["gated-x-22"] = log
    tasks = TASKS | {"validate": "FAILED", "executor": "FAILED"}
    ending, seen = follow(Frame("FAILED", tasks, {"executor": ["gated-x-22"]}))
    assert (ending.exit_code, ending.failed_step) == (code, "validate")
    assert shown in seen.err.getvalue()


@pytest.mark.parametrize(
    "said",
    [
        "ModuleNotFoundError: No module named 'trainwright.registry.policy'",
        "ImportError: cannot import name 'Data' from 'trainwright.experiment' (/a.py)",
        "/usr/local/bin/python3: No module named trainwright.executor",
    ],
)
def test_step_of_another_version_than_its_image_ends_with_21_and_names_the_mismatch(
    server: Api, follow: Follow, said: str
) -> None:
    server.logs["gated-x-22"] = (
        f"Traceback (most recent call last):\n  in <module>\n{said}\n{LAUNCHER}exit status 1\n"
    )
    tasks = TASKS | {"validate": "FAILED", "executor": "FAILED"}
    ending, seen = follow(Frame("FAILED", tasks, {"executor": ["gated-x-22"]}))
    assert (ending.exit_code, ending.failed_step) == (21, "validate")
    assert f"the step's image is of another version than its pipeline: {said}" in seen.err.getvalue()
    assert "make images" in seen.err.getvalue()


def test_the_code_of_a_step_whose_pod_is_gone_is_read_from_the_archived_log(
    server: Api, follow: Follow
) -> None:
    line = as_record(errors.InputError("no such column"), "validate")
    filler = "".join(f"row {number}\n" for number in range(40_000))
    for extra in ("", "\n", "\n\n"):  # the end of the archive is cut at each place within four letters
        server.archive["gated-x-22"] = (
            f"{filler}trainwright-error {json.dumps(line)}\n{LAUNCHER}exit status 10{extra}"
        )
        tasks = TASKS | {"validate": "FAILED", "executor": "FAILED"}
        ending, _ = follow(Frame("FAILED", tasks, {"executor": ["gated-x-22"]}))
        assert (ending.exit_code, ending.error) == (10, line)


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
    assert "asking again for up to 60 s" in notes[0]
    assert "answers again" in notes[-1]


def test_an_outage_beyond_the_budget_ends_with_21_and_says_how_to_go_on(
    server: Api, follow: Follow, clock: Clock
) -> None:
    server.fail("GET", "/runs/", drop=True, times=10_000, skip=1)
    with pytest.raises(DependencyError) as refused:
        follow(Frame("RUNNING"), pace=paced(following.OUTAGE))
    assert 600 < clock.now <= 900.01
    assert "The run goes on: trainwright status" in refused.value.hint


@pytest.mark.parametrize("away", [False, True])
def test_who_follows_looks_away_when_the_time_is_up(
    server: Api, api: Connection, gated: Path, clock: Clock, away: bool
) -> None:
    server.store.script = [Frame("RUNNING")]
    run = started(server)
    if away:
        server.fail("GET", "/runs/", drop=True, times=10_000, skip=2)
    pace = Polling(every_s=40.0, rarest_s=40.0, outage=following.OUTAGE, sleep=clock.waits.append)
    with pytest.raises(following.TimeUp):
        following.follow(api, run, pipeline_spec.read(gated), Seen(None), pace, within_s=100.0)
    assert (clock.now == 100.0) if not away else (100.0 <= clock.now <= 130.0)
    assert server.store.runs[0].state == "RUNNING"


def test_each_outage_has_the_whole_budget(server: Api, follow: Follow, clock: Clock) -> None:
    outage = RetryPolicy(outage_s=30.0, first_s=20.0, longest_s=20.0)
    for _ in range(20):
        server.fail("GET", "/runs/", drop=True, skip=1)
    frames = [Frame("RUNNING")] * 60
    assert follow(*frames, Frame("SUCCEEDED", PASSED), pace=paced(outage))[0].exit_code == 0
    assert clock.now > 30


def test_a_token_that_is_replaced_meanwhile_is_no_end(server: Api, follow: Follow) -> None:
    server.fail("GET", "/runs/", status=401, times=2, skip=1)
    assert follow(Frame("RUNNING"), Frame("SUCCEEDED", PASSED))[0].exit_code == 0
    server.fail("GET", "/runs/", status=401)
    with pytest.raises(PermissionRefused):
        follow(Frame("RUNNING"))


GATEWAY = [
    {"status": 302, "headers": {"Location": "https://dex.example/auth"}},
    {"status": 200, "body": "<html>log in: state, error, run_id</html>"},
    {"status": 404, "body": "<html>no such route</html>"},
]


@pytest.mark.parametrize("how", GATEWAY, ids=str)
def test_a_gateway_that_answers_for_a_while_in_its_place_is_sat_out(
    server: Api, follow: Follow, clock: Clock, how: dict[str, Any]
) -> None:
    server.fail("GET", "/runs/", times=3, skip=1, **how)
    assert follow(Frame("RUNNING"), Frame("SUCCEEDED", PASSED))[0].exit_code == 0
    server.fail("GET", "/runs/", times=10_000, skip=1, **how)
    with pytest.raises(TrainwrightError) as refused:
        follow(Frame("RUNNING"), pace=paced(RetryPolicy(outage_s=30.0)))
    assert "The run goes on: trainwright status" in refused.value.hint


@pytest.mark.parametrize("status", [400, 403, 409])
def test_answer_that_no_repetition_changes_ends_the_following_at_once(
    server: Api, follow: Follow, status: int
) -> None:
    server.fail("GET", "/runs/", status=status, skip=1)
    with pytest.raises(TrainwrightError, match=f"answered with {status}") as refused:
        follow(Frame("RUNNING"), Frame("SUCCEEDED", PASSED))
    assert "The run goes on: trainwright status" in refused.value.hint


def test_a_run_that_is_deleted_while_it_is_followed_is_said_to_be(server: Api, follow: Follow) -> None:
    server.fail("GET", "/runs/", skip=1, meanwhile=server.store.runs.clear)
    with pytest.raises(InputError, match="was deleted while it was followed"):
        follow(Frame("RUNNING"))


def test_the_end_before_a_retry_that_is_reported_once_more_is_none(
    server: Api, api: Connection, gated: Path
) -> None:
    failed = Frame("FAILED", TASKS | {"validate": "FAILED"})
    server.store.script = [failed]
    run = started(server)
    ended_at = runs.get(api, run).finished_at
    told = ClusterScreen(io.StringIO(), io.StringIO(), None)
    for frames, code in (([failed, failed, Frame("RUNNING"), Frame("SUCCEEDED", PASSED)], 0), ([failed], 70)):
        server.store.frames[run] = frames
        ending = following.follow(api, run, pipeline_spec.read(gated), told, paced(), ended_at=ended_at)
        assert ending.exit_code == code


def test_a_run_that_ends_just_before_it_is_stopped_is_left_as_it_is(server: Api, api: Connection) -> None:
    server.store.script = [Frame("RUNNING"), Frame("SUCCEEDED", PASSED)]
    run = started(server)
    server.fail("POST", ":terminate", meanwhile=lambda: server.store.look(run) and None)
    assert runs.terminate(api, run).state == "SUCCEEDED"


def test_a_run_that_is_being_stopped_is_not_tried_again_yet(server: Api, api: Connection) -> None:
    server.store.script = [Frame("CANCELING")]
    with pytest.raises(TransientError, match="is being stopped"):
        runs.retry(api, started(server))
    assert server.made("POST", ":retry") == 0


def test_a_retry_that_has_ended_again_already_is_not_made_twice(server: Api, api: Connection) -> None:
    server.store.script = [Frame("FAILED")]
    run = started(server)
    runs.get(api, run)
    server.store.script = [Frame("SUCCEEDED", PASSED)]
    server.fail("POST", ":retry", after=True, drop=True)
    assert runs.retry(api, run)[0].state == "SUCCEEDED"
    assert server.made("POST", ":retry") == 1


def test_what_others_wrote_does_not_move_the_cursor() -> None:
    out = io.StringIO()
    ClusterScreen(out, io.StringIO(), None).warned("a\x1b[2J\rb\x07")
    assert out.getvalue() == "  note: a b\n"


def test_a_run_that_is_gone_is_said_to_be_gone(server: Api, api: Connection) -> None:
    with pytest.raises(InputError, match="run nothing is not there"):
        following.follow(api, "nothing", None, ClusterScreen(io.StringIO(), io.StringIO(), None), paced())


def test_a_state_that_is_not_told_is_one_that_waits(follow: Follow) -> None:
    """The server leaves defaults out, and the first state of the enumeration is one."""
    _, seen = follow(Frame("RUNTIME_STATE_UNSPECIFIED"), Frame("SUCCEEDED", PASSED))
    assert seen.lines[0] == "the run is waiting"


def test_a_state_that_is_new_to_us_is_told_and_followed(follow: Follow) -> None:
    ending, seen = follow(Frame("DREAMING"), Frame("DREAMING"), Frame("SUCCEEDED", PASSED))
    assert ending.exit_code == 0
    assert [line for line in seen.lines if "DREAMING" in line] == [
        "note: the API says 'DREAMING', which is new to us; following on"
    ]


def test_every_state_of_the_description_is_known() -> None:
    import kfp_server_api

    described = {value for key, value in vars(kfp_server_api.V2beta1RuntimeState).items() if key.isupper()}
    assert described | {"ERROR"} == progress.KNOWN == progress.WORDS.keys()
    assert progress.CODES.keys() == progress.ENDED


@pytest.mark.parametrize(
    "how", [{"drop": True}, {"after": True, "drop": True}, {"after": True, "status": 504}]
)
def test_stopping_and_trying_again_survive_a_lost_answer(
    server: Api, api: Connection, how: dict[str, Any]
) -> None:
    run = started(server)
    server.fail("POST", ":terminate", **how)
    assert runs.terminate(api, run).state == "CANCELING"
    assert runs.terminate(api, run).state == "FAILED"
    server.store.script = [Frame("RUNNING")]
    server.fail("POST", ":retry", **how)
    again, ended_at = runs.retry(api, run)
    assert (again.state, ended_at is None) == ("RUNNING", False)
    assert runs.retry(api, run)[1] is None, "a run that goes on is left alone"


def test_a_run_that_has_succeeded_is_not_tried_again(server: Api, api: Connection) -> None:
    server.store.script = [Frame("SUCCEEDED", PASSED)]
    run = started(server)
    with pytest.raises(InputError, match="has ended with SUCCEEDED"):
        runs.retry(api, run)
    assert server.made("POST", ":retry") == 0


def test_json_lines_say_the_same(server: Api, api: Connection, gated: Path) -> None:
    server.store.script = [Frame("RUNNING", {"ingest": "RUNNING"}), Frame("SUCCEEDED", HELD)]
    stream = io.StringIO()
    lines = ClusterLines(stream)
    ending = following.follow(api, started(server), pipeline_spec.read(gated), lines, paced())
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

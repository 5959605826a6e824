"""What KFP 2.17 answered on a real cluster is understood: recorded runs, served by the stand-in."""

import io
import json
from datetime import UTC, datetime

import pytest

from tests.authoring.api.client import QUICK, ROOT
from tests.authoring.api.server import Api
from trainwright.authoring import pipeline_spec
from trainwright.authoring.submission import follow, progress, screen
from trainwright.authoring.submission.connection import Connection
from trainwright.authoring.submission.follow import Polling, RunObserver
from trainwright.errors import MARK, InputError, PermissionRefused, as_record

AGAIN = {"resolve", "locate", "register", "summarize"}
ALL = AGAIN | {"ingest", "validate", "join", "train", "score", "evaluate", "probe"}

CACHED = {
    "success-all-cached": ALL - AGAIN,
    "success-one-limit-changed": {"ingest", "validate", "join", "train"},
    "terminated-then-retried-twice": {"ingest", "validate", "join", "score"},
    "another-team-fails": set(),
    "pods-deleted-retried": {"ingest", "validate"},
}
"""By recording: the steps whose executor the recorded workflow skipped (``when 'true != true'``)."""


@pytest.mark.parametrize("name", CACHED)
def test_a_recorded_cached_step_is_known_to_be_cached_and_no_other(server: Api, name: str) -> None:
    run = server.store.recorded(name)
    now = progress.steps(run, None, datetime.now(UTC))
    assert {step.name for step in now if step.cached} == CACHED[name]


@pytest.mark.parametrize(
    ("name", "state", "code"),
    [
        ("store-unreachable-then-terminated", "stopped", 41),
        ("terminated-then-retried-twice", "failed", 70),  # retried after it was terminated: then it failed
        ("another-team-fails", "failed", 70),
    ],
)
def test_a_recorded_run_ends_as_it_did(
    server: Api, api: Connection, name: str, state: str, code: int
) -> None:
    run = server.store.recorded(name)
    ending = follow.follow(api, run.run_id, None, RunObserver(), Polling(outage=QUICK, sleep=lambda _: None))
    assert (ending.state, ending.exit_code) == (state, code)


def test_the_log_of_a_recorded_failed_step_is_asked_for_by_its_node(server: Api, api: Connection) -> None:
    """The executor of ``resolve`` is node 2358880174, as the recorded workflow has it."""
    line = as_record(PermissionRefused("no key"), "resolve")
    server.archive["another-team-rbfnd-2358880174"] = f"trainwright-error {json.dumps(line)}"
    run = server.store.recorded("another-team-fails")
    ending = follow.follow(api, run.run_id, None, RunObserver(), Polling(outage=QUICK, sleep=lambda _: None))
    assert (ending.failed_step, ending.exit_code) == ("resolve", 50)


def test_the_tasks_of_a_run_whose_nodes_argo_compressed_come_from_its_workflow(
    server: Api, api: Connection
) -> None:
    """The API lists ``train`` as running for ever, and neither ``evaluate`` nor ``register``."""
    pipeline = pipeline_spec.read(ROOT / "compiled" / "pipelines" / "train_and_register.yaml")
    run = server.store.recorded("success-compressed")
    ending = follow.follow(
        api, run.run_id, pipeline, RunObserver(), Polling(outage=QUICK, sleep=lambda _: None)
    )
    assert (ending.state, ending.exit_code, ending.held_by) == ("done", 0, "")
    assert ending.steps["train"] == ending.steps["register"] == "SUCCEEDED"


def test_a_run_whose_tasks_are_out_of_date_is_not_known_to_have_been_held(
    server: Api, api: Connection
) -> None:
    pipeline = pipeline_spec.read(ROOT / "compiled" / "pipelines" / "train_and_register.yaml")
    run = server.store.recorded("success-compressed")
    server.store.first.clear()
    ending = follow.follow(
        api, run.run_id, pipeline, RunObserver(), Polling(outage=QUICK, sleep=lambda _: None)
    )
    assert (ending.state, ending.exit_code, ending.held_by) == ("unknown", 21, "")
    assert "does not list how its steps ended" in ending.error["what"]


def test_a_run_that_goes_on_shows_its_steps_though_argo_compressed_its_nodes(
    server: Api, api: Connection
) -> None:
    told: list[tuple[str, str, str]] = []

    class Seen(RunObserver):
        def step(self, step: progress.StepNow) -> None:
            told.append((step.name, step.state, str(run.state)))

    def sleep(_: float) -> None:
        looks.append(1)
        if len(looks) > 2 * follow.STILL:
            run.state = "SUCCEEDED"

    looks: list[int] = []
    run = server.store.recorded("success-compressed")
    run.state = "RUNNING"
    follow.follow(api, run.run_id, None, Seen(), Polling(outage=QUICK, sleep=sleep))
    assert ("train", "RUNNING", "RUNNING") in told
    assert ("register", "SUCCEEDED", "RUNNING") in told


LINE = MARK + json.dumps(as_record(InputError("no column 'a' before the deadline"), "register"))


class Blocked(RunObserver):
    """Notes what cannot start."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str]] = []

    def blocked(self, step: str, message: str) -> None:
        self.messages.append((step, message))


def test_pods_that_cannot_start_are_reported_once_each_while_the_run_goes_on(
    server: Api, api: Connection
) -> None:
    told, looks = Blocked(), []

    def sleep(_: float) -> None:
        looks.append(1)
        if len(looks) > 5 * follow.STILL:
            run.state = "SUCCEEDED"

    run = server.store.recorded("cannot-start")
    follow.follow(api, run.run_id, None, told, Polling(outage=QUICK, sleep=sleep))
    assert {step: message.split(":")[0] for step, message in told.messages} == {
        "wait": "ImagePullBackOff",
        "wait-2": "Unschedulable",
        "wait-3": "Unschedulable",
        "wait-4": "CreateContainerConfigError",
    }
    assert len(told.messages) == 4
    assert 'persistentvolumeclaim "nothere" not found' in dict(told.messages)["wait-3"]


def test_the_screen_says_why_a_pod_cannot_start_and_what_to_do(server: Api, api: Connection) -> None:
    run, lines, looks = server.store.recorded("cannot-start"), io.StringIO(), []

    def sleep(_: float) -> None:
        looks.append(1)
        if len(looks) > 5 * follow.STILL:
            run.state = "SUCCEEDED"

    shown = screen.ClusterScreen(lines, lines, None)
    follow.follow(api, run.run_id, None, shown, Polling(outage=QUICK, sleep=sleep))
    text = lines.getvalue()
    assert (
        '  cannot start: ImagePullBackOff: Back-off pulling image "docker.io/trainwright/nothere:0"' in text
    )
    assert "    next  Look at the image's name, at --registry, and at the pull secrets" in text


def test_a_pod_that_never_started_fails_for_that_reason_and_not_for_its_time_limit(
    server: Api, api: Connection
) -> None:
    """Argo then keeps ``Step exceeded its deadline``, as the recorded run did when it was stopped."""
    run = server.store.recorded("cannot-start")
    first = server.store.first[run.run_id]["pipeline_runtime"]
    body = json.loads(first["workflow_manifest"])

    def sleep(_: float) -> None:
        looks.append(1)
        if len(looks) == 5 * follow.STILL:
            run.state = "FAILED"
            for node in body["status"]["nodes"].values():
                if node.get("message"):
                    failed = "Step exceeded its deadline" if "wait(0)" in node["name"] else ""
                    node |= {"phase": "Failed", "message": failed, "finishedAt": "2026-11-22T19:36:55Z"}
            first["workflow_manifest"] = json.dumps(body)

    looks: list[int] = []
    ending = follow.follow(api, run.run_id, None, RunObserver(), Polling(outage=QUICK, sleep=sleep))
    assert (ending.failed_step, ending.exit_code) == ("wait", 21)
    assert ending.error["what"].startswith("the image cannot be pulled: ImagePullBackOff: ")


def test_a_pod_deleted_with_its_grace_period_that_argo_saw_end_is_a_run_stopped_from_outside(
    server: Api, api: Connection
) -> None:
    """Argo says ``main: Error (exit code 143)``: the step failed, and ``OnError`` does not retry it."""
    run = server.store.recorded("pod-deleted-gracefully")
    ending = follow.follow(api, run.run_id, None, RunObserver(), Polling(outage=QUICK, sleep=lambda _: None))
    assert (ending.failed_step, ending.exit_code) == ("sample", 41)
    assert ending.error["what"].startswith("the pod was stopped from outside")
    assert ending.error["retryable"] is True


@pytest.mark.parametrize(
    ("message", "code", "says"),
    [
        (None, 21, "Argo could not save or load what belongs to the step: wait: Error (exit code 64)"),
        ("main: OOMKilled (exit code 137)", 10, "the step ran out of memory"),
        ('Usage of EmptyDir volume "scratch" exceeds the limit "10Mi". ', 21, "more disk than it may"),
        ("Container main exceeded its local ephemeral storage limit 1Gi. ", 21, "more disk than it may"),
        ("pod deleted", 20, "lost with its node"),
        ("The node was low on resource: ephemeral-storage.", 20, "lost with its node"),
        ("Pod was active on the node longer than the specified deadline", 31, "exceeded its time limit"),
        ("wait: Error (exit code 64): failed to put file: Access Denied.", 50, "rejects Argo's keys"),
        ('pods "a" is forbidden: exceeded quota: compute, requested: cpu=1', 21, "quota is used up"),
        ('pods "a" is forbidden: maximum cpu usage per Container is 100m', 10, "does not allow the pod"),
        (f"main: Error (exit code 1): {LINE}", 10, "no column 'a' before the deadline"),
        (f"main: Error (exit code 1): {LINE[:-9]}", 31, "exceeded its time limit"),
        ("main: Error (exit code 1)", 70, "does not say why"),
        ("something that nobody has seen yet", 70, "does not say why"),
    ],
)
def test_an_error_around_the_step_has_the_code_that_argos_message_stands_for(
    server: Api, api: Connection, message: str | None, code: int, says: str
) -> None:
    """The first message is that of the recorded driver, whose store refused the connection."""
    run = server.store.recorded("store-unreachable-then-terminated")
    run.state_history = run.state_history[:1]  # as if nobody had stopped it
    if message:
        first = server.store.first[run.run_id]["pipeline_runtime"]
        body = json.loads(first["workflow_manifest"])
        for node in body["status"]["nodes"].values():
            node["message"] = message if node["type"] == "Pod" else ""
        first["workflow_manifest"] = json.dumps(body)
    ending = follow.follow(api, run.run_id, None, RunObserver(), Polling(outage=QUICK, sleep=lambda _: None))
    assert ending.exit_code == code
    assert says in ending.error["what"]

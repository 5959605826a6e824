"""What KFP 2.17 answered on a real cluster is understood: recorded runs, served by the stand-in."""

import json
from datetime import UTC, datetime

import pytest

from tests.authoring.api.asking import QUICK, ROOT
from tests.authoring.api.server import Api
from trainwright.authoring import spec
from trainwright.authoring.submission import following, progress, workflow
from trainwright.authoring.submission.connection import Connection
from trainwright.authoring.submission.following import Pace, Told

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
    ending = following.follow(api, run.run_id, None, Told(), Pace(outage=QUICK, sleep=lambda _: None))
    assert (ending.state, ending.exit_code) == (state, code)


def test_the_log_of_a_recorded_failed_step_is_asked_for_by_its_node(server: Api, api: Connection) -> None:
    """The executor of ``resolve`` is node 2358880174, as the recorded workflow has it."""
    line = {"error": "PermissionRefused", "code": 50, "what": "no key", "where": "", "hint": ""}
    server.archive["another-team-rbfnd-2358880174"] = f"trainwright-error {json.dumps(line)}"
    run = server.store.recorded("another-team-fails")
    ending = following.follow(api, run.run_id, None, Told(), Pace(outage=QUICK, sleep=lambda _: None))
    assert (ending.failed_step, ending.exit_code) == ("resolve", 50)


def test_the_tasks_of_a_run_whose_nodes_argo_compressed_come_from_its_workflow(
    server: Api, api: Connection
) -> None:
    """The API lists ``train`` as running for ever, and neither ``evaluate`` nor ``register``."""
    pipeline = spec.read(ROOT / "compiled" / "pipelines" / "train_and_register.yaml")
    run = server.store.recorded("success-compressed")
    ending = following.follow(api, run.run_id, pipeline, Told(), Pace(outage=QUICK, sleep=lambda _: None))
    assert (ending.state, ending.exit_code, ending.held_by) == ("done", 0, "")
    assert ending.steps["train"] == ending.steps["register"] == "SUCCEEDED"


def test_a_run_whose_tasks_are_out_of_date_is_not_known_to_have_been_held(
    server: Api, api: Connection
) -> None:
    pipeline = spec.read(ROOT / "compiled" / "pipelines" / "train_and_register.yaml")
    run = server.store.recorded("success-compressed")
    server.store.first.clear()
    ending = following.follow(api, run.run_id, pipeline, Told(), Pace(outage=QUICK, sleep=lambda _: None))
    assert (ending.state, ending.exit_code, ending.held_by) == ("unknown", 21, "")
    assert "does not list how its steps ended" in ending.error["what"]


def test_a_run_that_goes_on_shows_its_steps_though_argo_compressed_its_nodes(
    server: Api, api: Connection
) -> None:
    told: list[tuple[str, str, str]] = []

    class Seen(Told):
        def step(self, step: progress.StepNow) -> None:
            told.append((step.name, step.state, str(run.state)))

    def sleep(_: float) -> None:
        looks.append(1)
        if len(looks) > 2 * workflow.STILL:
            run.state = "SUCCEEDED"

    looks: list[int] = []
    run = server.store.recorded("success-compressed")
    run.state = "RUNNING"
    following.follow(api, run.run_id, None, Seen(), Pace(outage=QUICK, sleep=sleep))
    assert ("train", "RUNNING", "RUNNING") in told
    assert ("register", "SUCCEEDED", "RUNNING") in told

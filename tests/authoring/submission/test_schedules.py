"""The recurring runs of a cluster become those that a file declares, whatever happens on the way."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.authoring.api import packages
from tests.authoring.api.client import command
from tests.authoring.api.server import Api
from trainwright.authoring.schedules import declaration, reconciling
from trainwright.authoring.schedules.reconciling import Action
from trainwright.authoring.submission import connection
from trainwright.authoring.submission.connection import Connection, Endpoint
from trainwright.errors import DependencyError, InputError, TransientError
from trainwright.retries import RetryPolicy

NIGHTLY = {
    "pipeline": "gated.yaml",
    "params": {"source": "gs://rows/{date}"},
    "cron": "0 30 2 * * *",
    "zone": "UTC",
}


def write(folder: Path, schedules: dict[str, Any], text: str = "", **more: Any) -> Path:
    packages.gated(folder, text)
    path = folder / "schedules.yaml"
    path.write_text(json.dumps({"schema_version": 1, "owner": "team-a", "schedules": schedules} | more))
    return path


Apply = Callable[..., list[str]]


@pytest.fixture
def apply(server: Api, api: Connection, tmp_path: Path) -> Apply:
    """Apply a file, and return the steps that were taken."""

    def call(schedules: dict[str, Any], *, later: timedelta = timedelta(), **more: Any) -> list[str]:
        owner, wanted = declaration.read(write(tmp_path, schedules, **more))
        taken: list[Action] = []
        now = lambda: server.store.now() + later  # noqa: E731
        reconciling.apply(api, owner, wanted, now, taken.append)
        assert {
            action.do for action in reconciling.plan(wanted, reconciling.existing(api, owner), now())
        } <= {"keep"}
        return [f"{action.do} {action.name}" for action in taken]

    return call


def on(server: Api) -> list[str]:
    return [run.display_name for run in server.store.recurring_runs if run.status == "ENABLED"]


@pytest.mark.covers("F35")
def test_what_is_sent_is_safe_unless_the_file_says_otherwise(server: Api, apply: Apply) -> None:
    assert apply({"nightly": NIGHTLY}) == ["make nightly", "enable nightly"]
    (made,) = server.store.recurring_runs
    assert (made.no_catchup, made.max_concurrency) == (True, "1")
    assert made.trigger.cron_schedule.cron == "0 30 2 * * *"
    assert made.runtime_config.parameters == NIGHTLY["params"]
    (version,) = server.store.pipeline_versions
    assert made.pipeline_version_reference.pipeline_version_id == version.pipeline_version_id
    assert on(server) == ["nightly"]
    body = next(body for body in server.bodies if "trigger" in body)
    assert body["mode"] == "DISABLE", "it does not fire before the one that it replaces is off"


def test_namespace_of_an_installation_without_profiles_is_not_sent(server: Api, tmp_path: Path) -> None:
    path = write(tmp_path, {"nightly": NIGHTLY})
    words = ("schedules", "apply", str(path), "--host", server.url, "--namespace", "kubeflow")
    done = command(tmp_path, *words)
    _, said = done.communicate()
    assert done.returncode == 0, said
    assert on(server) == ["nightly"]


def test_applying_again_does_nothing_and_only_looks(server: Api, apply: Apply) -> None:
    apply({"nightly": NIGHTLY})
    before = server.made("POST", "")
    assert apply({"nightly": NIGHTLY}) == []
    assert server.made("POST", "") == before


def test_a_changed_one_is_made_anew_and_the_old_one_is_switched_off_first(server: Api, apply: Apply) -> None:
    apply({"nightly": NIGHTLY})
    for change in ({"cron": "0 0 4 * * *"}, {"params": {"source": "b"}}, {"max_concurrency": 2}):
        changed = NIGHTLY | change
        assert apply({"nightly": changed}) == ["make nightly", "disable nightly", "enable nightly"]
        assert on(server) == ["nightly"]
    assert len(server.store.recurring_runs) == 4, "nothing is deleted"


def test_another_package_is_a_change(server: Api, apply: Apply) -> None:
    apply({"nightly": NIGHTLY})
    assert apply({"nightly": NIGHTLY}, text="changed") == [
        "make nightly",
        "disable nightly",
        "enable nightly",
    ]


def test_one_that_is_no_longer_declared_is_switched_off_and_kept(server: Api, apply: Apply) -> None:
    apply({"nightly": NIGHTLY, "weekly": NIGHTLY | {"cron": "0 0 3 * * 0"}})
    assert apply({"nightly": NIGHTLY}) == ["disable weekly"]
    assert on(server) == ["nightly"]
    assert len(server.store.recurring_runs) == 2
    assert server.made("DELETE", "") == 0


def test_one_that_is_declared_as_off_does_not_fire(server: Api, apply: Apply) -> None:
    assert apply({"nightly": NIGHTLY | {"enabled": False}}) == []
    apply({"nightly": NIGHTLY})
    assert apply({"nightly": NIGHTLY | {"enabled": False}}) == ["disable nightly"]
    assert apply({"nightly": NIGHTLY}) == ["enable nightly"]
    assert len(server.store.recurring_runs) == 1


@pytest.mark.covers("F35")
def test_one_that_was_off_for_a_while_is_made_anew_so_that_no_missed_run_starts(
    server: Api, apply: Apply
) -> None:
    apply({"nightly": NIGHTLY})
    apply({"nightly": NIGHTLY | {"enabled": False}})
    server.store.start += timedelta(days=2)
    assert apply({"nightly": NIGHTLY}) == ["make nightly", "enable nightly"]
    assert len(server.store.recurring_runs) == 2


def test_those_of_others_are_never_touched(
    server: Api, apply: Apply, api: Connection, tmp_path: Path
) -> None:
    owner, wanted = declaration.read(write(tmp_path, {"nightly": NIGHTLY}, owner="team-ab"))
    reconciling.apply(api, owner, wanted, server.store.now, print)
    by_hand = {"display_name": "nightly", "max_concurrency": "1", "mode": "ENABLE", "pipeline_spec": {},
               "trigger": {"cron_schedule": {"cron": "0 0 1 * * *"}}}  # fmt: skip
    server.store.make_recurring(by_hand)
    apply({})
    apply({"nightly": NIGHTLY})
    apply({})
    assert on(server) == ["nightly", "nightly"]


@pytest.mark.parametrize("path", ["/recurringruns$", ":enable", ":disable", "/upload_version"])
@pytest.mark.parametrize(
    "how",
    [
        {"after": True, "drop": True},
        {"after": True, "status": 500},
        {"status": 503, "times": 3},
    ],
    ids=str,
)
def test_a_lost_answer_duplicates_nothing(server: Api, apply: Apply, path: str, how: dict[str, Any]) -> None:
    server.fail("POST", path, **how)
    apply({"nightly": NIGHTLY})
    server.fail("POST", path, **how)
    apply({"nightly": NIGHTLY | {"cron": "0 0 4 * * *"}})
    assert len(server.store.recurring_runs) == 2
    assert on(server) == ["nightly"]
    assert server.store.recurring_runs[1].status == "ENABLED"


def test_two_who_apply_at_the_same_moment_leave_one(
    server: Api, apply: Apply, api: Connection, tmp_path: Path
) -> None:
    owner, wanted = declaration.read(write(tmp_path, {"nightly": NIGHTLY}))

    def other() -> None:
        reconciling.apply(api, owner, wanted, server.store.now, print)

    server.fail("POST", "/recurringruns$", meanwhile=other)
    apply({"nightly": NIGHTLY})
    assert on(server) == ["nightly"]


@pytest.mark.parametrize("path", [":enable", ":disable", "/recurringruns$", "/upload_version"])
def test_an_apply_that_was_cut_off_is_finished_by_the_next(server: Api, apply: Apply, path: str) -> None:
    apply({"nightly": NIGHTLY})
    server.fail("POST", path, status=400)
    changed = {"nightly": NIGHTLY | {"cron": "0 0 4 * * *"}}
    with pytest.raises(InputError):
        apply(changed, text="changed")
    assert len(on(server)) <= 1, "never do both fire"
    apply(changed, text="changed")
    assert on(server) == ["nightly"]
    assert len(server.store.recurring_runs) == 2


def test_an_outage_ends_with_21(server: Api, tmp_path: Path) -> None:
    api = connection.connect(Endpoint(host=server.url), RetryPolicy(outage_s=0.0))
    server.fail("GET", "/recurringruns", drop=True)
    owner, wanted = declaration.read(write(tmp_path, {"nightly": NIGHTLY}))
    with pytest.raises(DependencyError):
        reconciling.apply(api, owner, wanted, server.store.now, print)
    assert server.store.recurring_runs == []


def test_an_interval_is_sent_as_one(server: Api, apply: Apply) -> None:
    hourly = {"pipeline": "gated.yaml", "params": {"source": "a"}, "interval_s": 3600, "catch_up": True}
    apply({"hourly": hourly})
    (made,) = server.store.recurring_runs
    assert (made.trigger.periodic_schedule.interval_second, made.no_catchup) == ("3600", False)
    assert made.trigger.cron_schedule is None


def test_a_copy_that_somebody_made_and_changed_is_not_taken_for_what_is_declared(
    server: Api, apply: Apply
) -> None:
    """The UI copies the description, and with it the key."""
    apply({"nightly": NIGHTLY})
    (ours,) = server.store.recurring_runs
    changes = [
        {"trigger": {"cron_schedule": {"cron": "0 * * * * *"}}},
        {"max_concurrency": "9"},
        {"no_catchup": False},
    ]
    plain = {"display_name": "Clone", "description": ours.description, "mode": "ENABLE", "pipeline_spec": {},
             "max_concurrency": "1", "no_catchup": True,
             "trigger": {"cron_schedule": {"cron": "0 30 2 * * *"}}}  # fmt: skip
    for change in changes:
        ours.status = "DISABLED"
        copy = server.store.make_recurring(plain | change)
        assert apply({"nightly": NIGHTLY}) == ["disable nightly", "enable nightly"]
        assert (ours.status, copy.status) == ("ENABLED", "DISABLED")


def test_one_whose_run_goes_on_for_the_same_date_is_not_replaced_yet(server: Api, apply: Apply) -> None:
    """The controller counts what goes on for each recurring run by itself."""
    dated = NIGHTLY | {"params": {"source": "a", "date": "2026-01-31"}}
    apply({"nightly": dated})
    (old,) = server.store.recurring_runs
    run = server.store.fire(old.recurring_run_id)
    changed = {"nightly": dated | {"cron": "0 0 4 * * *"}}
    with pytest.raises(TransientError, match=f"run {run.run_id} of nightly goes on for 2026-01-31"):
        apply(changed)
    assert server.store.recurring_runs == [old]
    assert old.status == "ENABLED"
    run.state = "SUCCEEDED"
    assert apply(changed) == ["make nightly", "disable nightly", "enable nightly"]


def test_the_run_of_yesterday_is_no_reason_to_wait(server: Api, apply: Apply) -> None:
    apply({"nightly": NIGHTLY})
    server.store.fire(server.store.recurring_runs[0].recurring_run_id).scheduled_at -= timedelta(days=9)
    assert apply({"nightly": NIGHTLY | {"cron": "0 0 4 * * *"}})[0] == "make nightly"


def test_what_is_doubted_of_a_submission_is_doubted_of_a_schedule(tmp_path: Path) -> None:
    local = {"nightly": NIGHTLY | {"params": {"source": str(tmp_path)}}}
    (wanted,) = declaration.read(write(tmp_path, local))[1]
    assert wanted.warnings[0].startswith("source is a path of this machine")


def test_another_commit_alone_changes_nothing(tmp_path: Path) -> None:
    (one,) = declaration.read(write(tmp_path, {"nightly": NIGHTLY}))[1]
    values = vars(one) | {"arguments": one.arguments | {"commit": "b" * 40}}
    assert declaration.DeclaredSchedule(**values).key == one.key
    values = vars(one) | {"arguments": one.arguments | {"source": "b"}}
    assert declaration.DeclaredSchedule(**values).key != one.key


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"interval_s": 60}, "needs either cron or interval_s"),
        ({"cron": "30 2 * * *"}, "5 fields; Kubeflow takes six fields, seconds first"),
        ({"zone": ""}, "cron and zone go together"),
        ({"zone": "Mars/Base"}, "there is no time zone 'Mars/Base'"),
        ({"zone": "Europe/Berlin"}, "the clocks of Europe/Berlin and of the cluster"),
        ({"concurrency": 2}, "concurrency: unknown key; did you mean max_concurrency"),
        ({"max_concurrency": 11}, "less than or equal to 10"),
        ({"params": {}}, "schedule nightly: the arguments do not fit the pipeline\n  missing: source"),
        ({"params": {"source": "a/[[ScheduledTime.2006-01-02]]"}}, "hands to the steps as it is"),
        ({"params": {"source": "a", "date": "{{$.pipeline_job_create_time_utc}}"}}, "hands to the steps"),
        ({"registry": "https://h.io/t"}, "schedule nightly: 'https://h.io/t' is no place of images"),
        ({"params": {"source": "s3://A:hunter2@b"}}, "this contains a password in an address"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_before_the_api_is_asked(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as refused:
        declaration.read(write(tmp_path, {"nightly": NIGHTLY | change}))
    assert message in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_the_next_five_times_are_printed_with_their_zone(server: Api, tmp_path: Path) -> None:
    tokyo = NIGHTLY | {"zone": "Asia/Tokyo", "cron": "0 30 6 * * 1"}
    write(tmp_path, {"weekly": tokyo})
    lines = said(tmp_path, "plan", server)
    assert lines[0] == "schedules.yaml   owner team-a   1 declared, 1 to do"
    assert lines[2] == "  make     weekly   0 30 6 * * 1 Asia/Tokyo   new"
    times = [line.strip() for line in lines[3:]]
    assert len(times) == 5
    assert all(time.startswith("Mon ") and time.endswith(" 06:30:00 JST") for time in times)
    assert server.made("POST", "") == 0
    events = [json.loads(line) for line in said(tmp_path, "apply", server, "--json")]
    assert [(event["event"], event["do"]) for event in events] == [
        ("planned", "make"),
        ("done", "make"),
        ("done", "enable"),
    ]
    assert datetime.fromisoformat(events[0]["next"][0]).astimezone(UTC).weekday() == 6
    (made,) = server.store.recurring_runs
    assert made.trigger.cron_schedule.cron == "0 30 21 * * 0", "Monday morning in Tokyo is Sunday in UTC"


def said(folder: Path, name: str, server: Api, *more: str) -> list[str]:
    done = command(folder, "schedules", name, "schedules.yaml", "--host", server.url, *more)
    out, err = done.communicate()
    assert (done.returncode, err) == (0, "")
    return out.splitlines()


TRIGGERED = NIGHTLY | {
    "params": {"source": "gs://rows", "registry": '{"model": "late"}'},
    "triggers": {"max_age_days": 30},
}


def test_schedule_with_triggers_runs_the_reconciler_with_its_own_pipeline_as_target(
    server: Api, apply: Apply
) -> None:
    assert apply({"nightly": TRIGGERED}) == ["make nightly", "enable nightly"]
    (made,) = server.store.recurring_runs
    arguments = made.runtime_config.parameters
    names = {one.pipeline_id: one.name for one in server.store.pipelines}
    versions = {names[one.pipeline_id]: one for one in server.store.pipeline_versions}
    assert versions.keys() == {"gated", "retrain"}
    reference = made.pipeline_version_reference.pipeline_version_id
    assert reference == versions["retrain"].pipeline_version_id
    assert arguments["triggers"] == {"max_age_days": 30}
    assert arguments["source"] == arguments["data"]["source"] == "gs://rows"
    target = arguments["target"]
    assert (target["trigger"], target["version"]) == ("team-a/nightly", versions["gated"].name)
    assert target["arguments"]["registry"] == {"model": "late"}
    assert apply({"nightly": TRIGGERED}) == []
    changed = TRIGGERED | {"triggers": {"max_age_days": 31}}
    assert apply({"nightly": changed}) == ["make nightly", "disable nightly", "enable nightly"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"triggers": {"new_data": False}}, "no condition: set new_data"),
        ({"triggers": {"metric": {"name": "auc"}}}, "needs either at_least or at_most"),
        ({"triggers": {"drift": True}}, "missing: serving, baseline"),
        ({"params": {"source": "gs://rows"}}, "triggers need registry.model"),
    ],
)
def test_trigger_that_could_not_decide_is_rejected_before_any_call(
    server: Api, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        declaration.read(write(tmp_path, {"nightly": TRIGGERED | change}))
    assert not server.bodies

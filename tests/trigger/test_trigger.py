"""The step against MLflow and a stand-in of Kubeflow's API: it starts one run, and says why."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.authoring.api import packages
from tests.authoring.api.client import QUICK
from tests.authoring.api.server import Api, serving
from trainwright.authoring import pipeline_spec
from trainwright.authoring.submission import connection, runs
from trainwright.authoring.submission.connection import Endpoint
from trainwright.authoring.submission.order import Package
from trainwright.errors import DependencyError, InputError
from trainwright.experiment import Registry, StartedBy, Triggers
from trainwright.registry.names import PRODUCTION
from trainwright.tracking.server import open_client
from trainwright.trigger.cluster import Cluster, TriggerTarget
from trainwright.trigger.decision import START, WAIT, Facts, decide
from trainwright.trigger.trigger import Triggered, TriggerRequest, read_request, start, trigger

DAY = date(2026, 11, 22)
NOW = datetime(2026, 11, 22, 2, 31, tzinfo=UTC)
NEW, OLD = "ab" * 32, "cd" * 32

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated",  # MLflow 3.17's own models, under SQLAlchemy 2.1
    "ignore:unclosed database",  # MLflow leaves its connection pool to the garbage collector
)


@pytest.fixture
def server() -> Iterator[Api]:
    with serving() as api:
        yield api


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """A model whose version 1 is in production, with a metric that a monitor logs."""
    path = tmp_path_factory.mktemp("registry") / "mlflow.db"
    found = Registry(model="late", tracking_uri=f"sqlite:///{path}", retry_s=0)
    client: MlflowClient = open_client(found.tracking_uri)
    client.create_registered_model("late")
    run = client.create_run(client.create_experiment("monitor")).info.run_id
    client.create_model_version(
        "late", "file:///models/1", run_id=run, tags={"trainwright.source_digest": OLD}
    )
    client.set_registered_model_alias("late", PRODUCTION, "1")
    for value, hours in ((0.72, 30), (0.66, 3)):
        moment = datetime.now(UTC) - timedelta(hours=hours)
        client.log_metric(run, "live_auc", value, timestamp=int(moment.timestamp() * 1000))
    return found


@pytest.fixture
def request_of(server: Api, registry: Registry, tmp_path: Path) -> Callable[..., TriggerRequest]:
    """A request of a reconciler whose own run is in the API, beside the pipeline that it starts."""
    api = connection.connect(Endpoint(host=server.url), QUICK)
    path = packages.gated(tmp_path)
    package = Package(pipeline=pipeline_spec.read(path), text=path.read_text())
    version = runs.uploaded(api, package, {})
    experiment = runs.experiment(api, "schedules")
    own = api.runs.run_service_create_run(
        {
            "display_name": "retrain",
            "experiment_id": experiment,
            "pipeline_version_reference": version.reference,
            "service_account": "steps",
        }
    )
    arguments = {"source": "gs://rows", "run": {"owner": "anna"}}
    target = TriggerTarget(
        trigger="team-a/late", pipeline="gated", version=package.digest, arguments=arguments
    )

    def call(keys: dict[str, object], source: str = NEW, day: date = DAY, **more: object) -> TriggerRequest:
        return TriggerRequest(
            rules=Triggers.check(keys, "test"), target=target, registry=registry, source=source, day=day,
            kubeflow=server.url, run_id=own.run_id, **more,
        )  # fmt: skip

    return call


def go(request: TriggerRequest, folder: Path) -> Triggered:
    return trigger(request, folder / "record", folder / "summary.md", datetime.now(UTC))


def begun(server: Api) -> list[dict[str, object]]:
    """Arguments of the runs that were started, without the reconciler's own."""
    return [run.runtime_config.parameters for run in server.store.runs if run.runtime_config]


def test_new_data_starts_one_run_that_carries_the_reason(
    server: Api, request_of: Callable[..., TriggerRequest], tmp_path: Path
) -> None:
    first = go(request_of({}), tmp_path)
    assert (first.decision, first.reason) == (START, f"nothing was trained on source {NEW[:12]}")
    (arguments,) = begun(server)
    by = {"trigger": "team-a/late", "date": "2026-11-22", "source": NEW, "reason": first.reason}
    assert arguments == {
        "source": "gs://rows", "date": "2026-11-22", "run": {"owner": "anna", "started_by": by},
    }  # fmt: skip
    run = server.store.runs[-1]
    assert (run.run_id, run.service_account, run.display_name[:15]) == (first.run, "steps", "late 2026-11-22")
    assert json.loads((tmp_path / "record" / "record.json").read_text())["headline"].endswith(first.run)


def test_repeated_step_starts_nothing_more_and_names_the_run(
    server: Api, request_of: Callable[..., TriggerRequest], tmp_path: Path
) -> None:
    first = go(request_of({}), tmp_path)
    again = go(request_of({}), tmp_path)
    assert (again.decision, again.run, len(begun(server))) == (WAIT, "", 1)
    assert f"run {first.run} was started for 2026-11-22" in (tmp_path / "summary.md").read_text()


def test_dry_run_decides_and_starts_nothing(
    server: Api, request_of: Callable[..., TriggerRequest], tmp_path: Path
) -> None:
    assert go(request_of({}, dry_run=True), tmp_path).decision == START
    assert go(replace(request_of({}), kubeflow=""), tmp_path).decision == START
    assert begun(server) == []


def test_source_of_a_registered_version_waits(
    server: Api, request_of: Callable[..., TriggerRequest], tmp_path: Path
) -> None:
    assert go(request_of({}, source=OLD), tmp_path).decision == WAIT
    assert begun(server) == []


def test_newest_value_of_the_metric_of_production_decides(
    request_of: Callable[..., TriggerRequest], tmp_path: Path
) -> None:
    keys = {"new_data": False, "metric": {"name": "live_auc", "at_least": 0.7}}
    assert go(request_of(keys), tmp_path).reason == "live_auc 0.66, at least 0.7"


def test_check_that_cannot_be_made_is_an_error_after_the_start_for_another_reason(
    server: Api, request_of: Callable[..., TriggerRequest], tmp_path: Path
) -> None:
    keys = {"metric": {"name": "unknown", "at_least": 0.7}}
    with pytest.raises(DependencyError, match="has no metric unknown"):
        go(request_of(keys, source=OLD), tmp_path)
    assert begun(server) == []
    with pytest.raises(DependencyError, match="has no metric unknown"):
        go(request_of(keys), tmp_path)
    assert len(begun(server)) == 1


def test_pipeline_that_is_not_in_the_api_is_an_error(
    request_of: Callable[..., TriggerRequest], tmp_path: Path
) -> None:
    asked = request_of({})
    with pytest.raises(InputError, match="version eeeeeeeeeeee of pipeline gated is not in the API"):
        go(replace(asked, target=replace(asked.target, version="e" * 64)), tmp_path)


@pytest.mark.parametrize("apart", [0, 1], ids=["same-date", "across-midnight"])
def test_reconcilers_that_do_not_see_each_other_leave_one_run(
    server: Api, request_of: Callable[..., TriggerRequest], apart: int
) -> None:
    """All decide before any starts: the worst order. Then they start side by side."""
    facts, asked = Facts(source=NEW), request_of({})
    requests = [replace(asked, day=DAY + timedelta(days=apart * (number % 2))) for number in range(4)]
    clusters = [Cluster.connected(server.url, one.run_id, QUICK) for one in requests]
    made = decide(asked.rules, facts, [], NOW, DAY)
    results: list[Triggered] = []

    def one(number: int) -> None:
        results.append(start(clusters[number], requests[number], made))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    there = [run for run in server.store.runs if run.runtime_config]
    going = [run.run_id for run in there if run.state in {"PENDING", "RUNNING"}]
    assert len(going) == 1
    assert {one.run for one in results if one.decision == START} <= set(going)


def test_repeated_step_withdraws_what_its_crashed_attempt_could_not(
    server: Api, request_of: Callable[..., TriggerRequest], tmp_path: Path
) -> None:
    """The attempt decided before a run of the day before was there, started its own, and was killed."""
    before, asked = request_of({}, day=DAY - timedelta(days=1)), request_of({})
    kept = go(before, tmp_path).run
    by = StartedBy(trigger="team-a/late", date=DAY.isoformat(), source=NEW, reason="age")
    lost = Cluster.connected(server.url, asked.run_id, QUICK).submit(asked.target, by)
    assert go(replace(asked, dry_run=True), tmp_path).run == go(asked, tmp_path).run == ""
    states = {run.run_id: run.state for run in server.store.runs}
    assert states[kept] in {"PENDING", "RUNNING"}
    assert states[lost] in {"CANCELING", "CANCELED"}


def test_date_is_the_schedules_however_late_the_step_runs(registry: Registry) -> None:
    sections = {
        "triggers": {}, "registry": registry.model_dump(mode="json", exclude_none=True),
        "target": {"trigger": "a/b", "pipeline": "p", "version": "v", "arguments": {}},
    }  # fmt: skip
    late = datetime(2026, 11, 23, 0, 10, tzinfo=UTC)
    for day, scheduled, expected in (
        ("", "2026-11-22T23:50:00Z", DAY),
        ("2026-11-21", "2026-11-22T23:50:00Z", date(2026, 11, 21)),
        ("", "{{$.pipeline_job_schedule_time_utc}}", date(2026, 11, 23)),
    ):
        assert read_request(sections, day, scheduled, late, source=NEW).day == expected
    with pytest.raises(InputError, match="expected a day, found 'soon'"):
        read_request(sections, "soon", "", late, source=NEW)

"""A pipeline run in MLflow, and its cost: one run, with a nested run for each step that it executed.

The log is a document: what MLflow did not take stays beside the run, and is sent later. Every run of MLflow
is found again by the tag that it was created with, parameters that are there are not sent again, and a metric
counts once for each time. So sending a log twice, or one of a run that was resumed, changes nothing but what
is new.
"""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from trainwright.artifacts.cost import GROUPS, Spending
from trainwright.documents import Document
from trainwright.tracking.history import HISTORY_KEY, TrackingDestination, run_of
from trainwright.tracking.server import experiment_ids, search_all

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PARENT = "mlflow.parentRunId"
PREFIX = "trainwright."
"""Beginning of our tags."""

_PER_REQUEST, _METRICS = 100, 8
"""Parameters or tags that MLflow takes at once, and metrics for each: of all kinds together 1,000."""

_LONGEST_VALUE, _LONGEST_TAG = 6000, 5000


def mlflow_name(name: str) -> str:
    """Replace characters that MLflow rejects in the name of a parameter or metric."""
    return re.sub(r"[^\w. /:-]", "_", name)[:250]


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """One run as MLflow shows it.

    Attributes:
        key: Tag by which the run is found again.
        name: Its name in the UI.
        status: MLflow's: ``FINISHED``, ``FAILED`` or ``KILLED``.
        started_ms: Milliseconds since 1970.
        ended_ms: Likewise.
    """

    key: str
    name: str
    status: str
    started_ms: int
    ended_ms: int
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunLog(Document):
    """The log of a pipeline run that MLflow has not taken yet.

    Attributes:
        uri: Address of MLflow.
        experiment: Name of the experiment.
        joined: MLflow's run of this step, made by KFP's MLflow plugin; empty: the run is our own.
        run: The run as a whole.
        steps: Those that it executed.
        nested: Keys of runs to nest: of training curves and of a study.
        files: Small files by name, stored with the run.
    """

    FILE: ClassVar[str] = "mlflow-log.json"
    uri: str
    experiment: str
    joined: str
    run: RunEntry
    steps: tuple[RunEntry, ...]
    nested: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SentRun(Document):
    """Key of a run of this machine, and MLflow's run for it once it is there."""

    FILE: ClassVar[str] = "mlflow.json"
    key: str
    uri: str = ""
    experiment: str = ""
    run: str = ""


def write_log(log: RunLog, client: "MlflowClient") -> "Run":
    """Create or update all runs of a log, and return that of the pipeline run; repeating changes nothing."""
    parent = _joined(log, client) if log.joined else _own(log, client)
    parent_id, where = parent.info.run_id, parent.info.experiment_id
    _fill(client, parent, log.run)
    # Our own runs are known by our key; those of KFP's plugin by name, the last attempt of a step at the end.
    known = {
        run.data.tags.get(HISTORY_KEY) or str(run.info.run_name): run for run in nested_in(client, parent)
    }
    for step in log.steps:
        run = known.get(step.key) or known.get(step.name)
        if run is None:
            tags = {HISTORY_KEY: step.key, PARENT: parent_id}
            run = client.create_run(where, start_time=step.started_ms, tags=tags, run_name=step.name)
        _fill(client, run, step)
        _end(client, run, step)
    for key in log.nested:
        for run in _with_key(client, key, where):
            if PARENT not in run.data.tags:
                client.set_tag(run.info.run_id, PARENT, parent_id)
    for name, text in log.files.items():
        client.log_text(parent_id, text, name)
    if not log.joined:  # a run of Kubeflow Pipelines is ended by Kubeflow Pipelines
        _end(client, parent, log.run)
    return parent


def settle_retried(client: "MlflowClient", run_id: str, result: str) -> None:
    """Log a run as done that was logged as failed; ``result`` says what it registered.

    Argo keeps nodes that succeeded, so Kubeflow's Retry repeats no exit handler that logged the failure.
    """
    for run in client.search_runs(experiment_ids(client), f"tags.`{PREFIX}run` = '{run_id}'"):
        if run.data.tags.get(f"{PREFIX}state") not in {"failed", "cancelled"}:
            continue
        for name in run.data.tags:
            if name.startswith(f"{PREFIX}error"):
                client.delete_tag(run.info.run_id, name)
        now = {
            "mlflow.note.content": f"Registered: {result}",
            f"{PREFIX}headline": result,
            f"{PREFIX}registered": result.partition(",")[0].partition(" (")[0],
        }
        for name, value in now.items():
            client.set_tag(run.info.run_id, name, value)
        if run.info.status != "RUNNING":  # KFP's plugin runs it again, and ends it
            client.set_terminated(run.info.run_id)
        client.set_tag(run.info.run_id, f"{PREFIX}state", "done")  # last: until then, a retry repeats all


def _own(log: RunLog, client: "MlflowClient") -> "Run":
    destination = TrackingDestination(log.uri, experiment=log.experiment, name=log.run.name, key=log.run.key)
    return client.get_run(run_of(destination, client, log.run.started_ms))


def _joined(log: RunLog, client: "MlflowClient") -> "Run":
    """Return the run of the pipeline run that KFP's plugin made: the parent of this step's, if it has one."""
    run = client.get_run(log.joined)
    parent = run.data.tags.get(PARENT)
    return client.get_run(parent) if parent else run


def nested_in(client: "MlflowClient", parent: "Run") -> list["Run"]:
    """Return the runs nested in a run, the oldest first.

    KFP's plugin nests the run of a step in those of its exit handler and its conditions.
    """
    query = f"tags.`{PARENT}` = '{parent.info.run_id}'"
    found = client.search_runs([parent.info.experiment_id], query, max_results=1000, order_by=["start_time"])
    groups = [run for run in found if not {HISTORY_KEY, f"{PREFIX}step"} & run.data.tags.keys()]
    return [*found, *(run for group in groups for run in nested_in(client, group))]


def _with_key(client: "MlflowClient", key: str, experiment: str) -> list["Run"]:
    return list(client.search_runs([experiment], f"tags.`{HISTORY_KEY}` = '{key}'"))


def _fill(client: "MlflowClient", run: "Run", entry: RunEntry) -> None:
    """Log what a run does not have yet. MLflow keeps the first value of a parameter, the last of a tag."""
    from mlflow.entities import Metric, Param, RunTag

    run_id, known = run.info.run_id, run.data
    values = {mlflow_name(name): value[:_LONGEST_VALUE] for name, value in entry.params.items()}
    params = [Param(name, value) for name, value in values.items() if name not in known.params]
    tags = [RunTag(name, value[:_LONGEST_TAG]) for name, value in entry.tags.items() if value]
    tags = [tag for tag in tags if known.tags.get(tag.key) != tag.value]
    figures = {mlflow_name(name): value for name, value in entry.metrics.items()}
    figures = {name: value for name, value in figures.items() if known.metrics.get(name) != value}
    metrics = [Metric(name, value, entry.ended_ms, 0) for name, value in figures.items()]
    for start in range(0, max(len(params), len(tags), -(-len(metrics) // _METRICS)), _PER_REQUEST):
        part = slice(start, start + _PER_REQUEST)
        several = slice(_METRICS * start, _METRICS * (start + _PER_REQUEST))
        client.log_batch(run_id, metrics=metrics[several], params=params[part], tags=tags[part])
    for name in known.tags:  # such as the error of a run that was resumed
        if name.startswith(PREFIX) and name != HISTORY_KEY and not entry.tags.get(name):
            client.delete_tag(run_id, name)


def _end(client: "MlflowClient", run: "Run", entry: RunEntry) -> None:
    if (run.info.status, run.info.end_time) != (entry.status, entry.ended_ms):
        client.set_terminated(run.info.run_id, entry.status, entry.ended_ms)


WASTE = "waste/"
"""Beginning of the names of metrics with lost parts of a cost."""


def start_of_month() -> datetime:
    """Return when the month began, in UTC."""
    return datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def read_spending(client: "MlflowClient", since: datetime) -> list[Spending]:
    """Return what each run spent that began at a time or later, over all experiments.

    Raises:
        MlflowException, OSError: The server does not answer.
    """
    query = f"tags.`{PREFIX}currency` != '' AND attributes.start_time >= {int(since.timestamp() * 1000)}"
    found = search_all(client.search_runs, experiment_ids(client), query)
    return [_spending(run) for run in found]


def _spending(run: "Run") -> Spending:
    tags, metrics = run.data.tags, run.data.metrics
    return Spending(
        run=tags.get(f"{PREFIX}run", ""),
        values={name: tags.get(f"{PREFIX}{name}", "") for name in GROUPS},
        currency=tags[f"{PREFIX}currency"],
        cost=metrics.get("cost", 0.0),
        waste={name.removeprefix(WASTE): value for name, value in metrics.items() if name.startswith(WASTE)},
    )

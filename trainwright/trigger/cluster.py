"""The runs that a trigger started on Kubeflow, and the start of one more: exactly one, whoever else tries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from operator import itemgetter
from typing import Any, Literal

from trainwright.authoring.submission import provenance, runs
from trainwright.authoring.submission.connection import Connection, Endpoint, connect, matching
from trainwright.authoring.submission.order import Order, Package
from trainwright.authoring.submission.progress import ENDED, SUCCEEDED
from trainwright.errors import DependencyError, InputError
from trainwright.experiment import StartedBy
from trainwright.retries import RetryPolicy
from trainwright.trigger.decision import Start

LABEL = "trigger"


@dataclass(frozen=True, kw_only=True)
class TriggerTarget:
    """The pipeline that a trigger starts: a version in the API, by names that do not change."""

    trigger: str  # owner and name of the schedule
    pipeline: str
    version: str  # SHA-256 of the package
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Cluster:
    """The API, seen from the run of the reconciler: what it starts is listed beside it."""

    api: Connection
    experiment_id: str
    service_account: str
    began: datetime  # creation of the reconciler's own run

    @classmethod
    def connected(cls, host: str, run_id: str, retries: RetryPolicy | None = None) -> "Cluster":
        """Connect by the token of the pod, and find namespace and experiment of the own run."""
        place = Endpoint(host=host)
        api = connect(place, retries) if retries else connect(place)
        own = runs.get(api, run_id)
        call = api.experiments.experiment_service_get_experiment
        namespace = api.read("reading the experiment", call, own.experiment_id).namespace
        api.scope = {"namespace": namespace} if namespace else {}
        return cls(api, own.experiment_id, own.service_account or "", own.created_at)

    def starts(self, trigger: str) -> list[tuple[Start, tuple[datetime, str]]]:
        """Return the runs that the trigger started, the oldest first, each with its place in that order."""
        found = self.api.pages(
            "looking for earlier starts",
            self.api.runs.run_service_list_runs,
            "runs",
            experiment_id=self.experiment_id,
            filter=matching("description", f"{provenance.MARK}{LABEL}={trigger}", "IS_SUBSTRING"),
        )
        ours = [run for run in found if provenance.read(run.description).get(LABEL) == trigger]
        return sorted(((_start(run), (run.created_at, run.run_id)) for run in ours), key=itemgetter(1))

    def submit(self, target: TriggerTarget, by: StartedBy) -> str:
        """Start a run for a date, unless there is one, and return its id."""
        pipeline, version = self._version(target)
        arguments = with_reason(target.arguments, by, dated="date" in pipeline.parameters)
        key = provenance.digest(f"{target.trigger} {by.date}")
        order = Order(
            package=Package(pipeline=pipeline, text=""),
            arguments=arguments,
            key=key,
            name=f"{target.trigger.rpartition('/')[2]} {by.date} {key[:6]}",
            labels={LABEL: target.trigger},
            experiment="",
            service_account=self.service_account,
        )
        return runs.create(self.api, order, version, self.experiment_id).run_id

    def terminate(self, run_id: str) -> None:
        """Stop a run that was started a moment ago."""
        runs.terminate(self.api, run_id)

    def _version(self, target: TriggerTarget) -> tuple[Any, runs.Version]:
        pipelines = self.api.pipelines
        call = pipelines.pipeline_service_get_pipeline_by_name
        named = self.api.read_if_there("looking for the pipeline", call, target.pipeline, **self.api.scope)
        found: Sequence[Any] = ()
        if named:
            found = self.api.pages(
                "looking for the version of the pipeline",
                pipelines.pipeline_service_list_pipeline_versions,
                "pipeline_versions",
                pipeline_id=named.pipeline_id,
                filter=matching("name", target.version),
            )
        if named is None or not found:
            raise InputError(
                f"version {target.version[:12]} of pipeline {target.pipeline} is not in the API",
                where=self.api.place.host,
                hint="Apply the schedules again: that uploads it.",
            )
        pipeline = runs.pipeline_in(found[0])
        if pipeline is None:
            raise DependencyError("the API's copy of the pipeline cannot be read", where=self.api.place.host)
        return pipeline, runs.Version(
            pipeline_id=named.pipeline_id, version_id=found[0].pipeline_version_id, fresh=False
        )


def with_reason(arguments: Mapping[str, Any], by: StartedBy, *, dated: bool) -> dict[str, Any]:
    """Return a run's arguments with its date and the reason for it."""
    run = {**arguments.get("run", {}), "started_by": by.model_dump()}
    return {**arguments, "run": run} | ({"date": by.date} if dated else {})


def _start(run: Any) -> Start:
    arguments = (run.runtime_config.parameters if run.runtime_config else None) or {}
    by = StartedBy.parse(arguments["run"]["started_by"], f"run {run.run_id}")
    state: Literal["active", "ended", "failed"]
    state = "active" if run.state not in ENDED else "ended" if run.state in SUCCEEDED else "failed"
    return Start(run=run.run_id, day=date.fromisoformat(by.date), source=by.source, state=state)

"""What the API holds, and the rules of KFP 2.17's server for it: unique names, filters, pages, states."""

import datetime
import gzip
import itertools
import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kfp_server_api as models
import yaml

from tests.authoring.api.schema import Refused, parsed

COLUMNS = {
    "runs": {
        "run_id", "display_name", "description", "created_at", "finished_at", "scheduled_at", "state",
        "storage_state", "namespace", "experiment_id", "recurring_run_id",
    },
    "experiments": {"experiment_id", "display_name", "description", "created_at", "storage_state"},
    "pipelines": {"pipeline_id", "name", "display_name", "description", "created_at"},
    "pipeline_versions": {"name", "display_name", "description", "created_at"},
    "recurring_runs": {"recurring_run_id", "display_name", "description", "created_at", "updated_at"},
}  # fmt: skip
"""What the server can filter and sort by: the keys of its ``APIToModelFieldMap``."""

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "kfp-2.17"
LENGTHS = {"pipeline": 128, "version": 127, "experiment": 128}
TERMINAL = {"SUCCEEDED", "FAILED", "SKIPPED", "ERROR"}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass
class Frame:
    """What the API tells of a run at one look: its state, its tasks' states, children of tasks by name.

    Tasks end in their order, but for those in ``late``, which end after all others. Those in ``cached`` end
    in the second in which they start, beside an ``executor`` that is SKIPPED, as the recorded ones do.
    """

    state: str
    tasks: dict[str, str] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)
    late: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()


@dataclass
class Store:
    """Everything that was made."""

    multi_user: bool | None = False
    tag: str = "unknown"
    experiments: list[Any] = field(default_factory=list)
    pipelines: list[Any] = field(default_factory=list)
    pipeline_versions: list[Any] = field(default_factory=list)
    runs: list[Any] = field(default_factory=list)
    recurring_runs: list[Any] = field(default_factory=list)
    script: list[Frame] = field(default_factory=lambda: [Frame("RUNNING")])
    frames: dict[str, list[Frame]] = field(default_factory=dict)
    first: dict[str, Any] = field(default_factory=dict)  # answers of the first version of the API, by run
    start: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.UTC))
    _seconds: Any = field(default_factory=itertools.count)

    def now(self) -> datetime.datetime:
        """A moment that never comes twice."""
        return self.start + datetime.timedelta(seconds=next(self._seconds))

    def health(self) -> dict[str, Any]:
        """What ``/healthz`` answers: the version is that of the image's build, or ``unknown``."""
        if self.multi_user is None:  # not the API
            return {}
        return {"commit_sha": "unknown", "tag_name": self.tag, "multi_user": self.multi_user,
                "pipeline_store": "database"}  # fmt: skip

    def make_experiment(self, body: Any) -> Any:
        made = parsed(body, "V2beta1Experiment")
        self._require_namespace(made.namespace)
        self._require_new("experiment", self.experiments, made.display_name, made.namespace, "display_name")
        made.experiment_id, made.created_at, made.storage_state = _id(), self.now(), "AVAILABLE"
        self.experiments.append(made)
        return made

    def make_pipeline(self, body: Any) -> Any:
        made = parsed(body, "V2beta1Pipeline")
        self._require_namespace(made.namespace)
        self._require_new("pipeline", self.pipelines, made.name, made.namespace)
        made.pipeline_id, made.created_at = _id(), self.now()
        self.pipelines.append(made)
        return made

    def upload_version(self, query: dict[str, str], package: bytes) -> Any:
        documents = [document for document in yaml.safe_load_all(package) if document]
        if not documents or "pipelineInfo" not in documents[0]:
            raise Refused(400, "Failed to create a pipeline version")
        pipeline_id = query.get("pipelineid", "")
        if all(pipeline.pipeline_id != pipeline_id for pipeline in self.pipelines):
            raise Refused(400, "Failed to create a pipeline version")
        mine = [one for one in self.pipeline_versions if one.pipeline_id == pipeline_id]
        self._require_new("version", mine, query["name"], None)
        tags = json.loads(query.get("tags", "{}"))
        if len(tags) > 20 or any(len(text) > 63 for pair in tags.items() for text in pair):
            raise Refused(400, "tags exceed their limits")
        both = dict(zip(("pipeline_spec", "platform_spec"), documents, strict=False))
        spec = both if len(documents) > 1 else documents[0]
        made = models.V2beta1PipelineVersion(
            pipeline_id=pipeline_id,
            pipeline_version_id=_id(),
            name=query["name"],
            display_name=query.get("display_name") or query["name"],
            created_at=self.now(),
            pipeline_spec=spec,
            tags=tags,
        )
        self.pipeline_versions.append(made)
        return made

    def make_run(self, body: Any) -> Any:
        made = parsed(body, "V2beta1Run")
        if not made.display_name:
            raise Refused(400, "The run name is empty. Please specify a valid name")
        if all(one.experiment_id != made.experiment_id for one in self.experiments):
            raise Refused(400, "Failed to create a run due to invalid experimentId and namespace combination")
        self._require_version(made)
        made.run_id, made.created_at, made.finished_at = _id(), self.now(), EPOCH
        made.scheduled_at = made.created_at
        made.state_history = []
        self._enter(made, "PENDING")
        made.storage_state = "AVAILABLE"
        self.runs.append(made)
        self.frames[made.run_id] = list(self.script)
        return made

    def _enter(self, run: Any, state: str) -> None:
        """Set a run's state; its history gets an entry when the state changes, as ``UpdateRun`` does."""
        run.state = state
        if not run.state_history or run.state_history[-1].state != state:
            run.state_history.append(models.V2beta1RuntimeStatus(update_time=self.now(), state=state))

    def look(self, run_id: str) -> Any:
        """Return a run, one frame of its script further on."""
        run = self.run(run_id)
        frames = self.frames[run_id]
        if run.state == "CANCELING" and run.state_history[-1].state == "CANCELING":
            self._end(run, "FAILED")
        elif run.state == "CANCELING":
            self._enter(run, "CANCELING")
        elif frames:
            frame = frames[0] if len(frames) == 1 else frames.pop(0)
            run.run_details = self._details(run_id, frame)
            self._end(run, frame.state) if frame.state in TERMINAL else self._enter(run, frame.state)
        return run

    def _end(self, run: Any, state: str) -> None:
        self._enter(run, state)
        run.finished_at = run.created_at + datetime.timedelta(seconds=90)

    def recorded(self, name: str) -> Any:
        """Add a run that has ended, as a real backend of KFP 2.17 answered it."""
        run = parsed(json.loads(gzip.decompress((RECORDINGS / f"{name}.json.gz").read_bytes())), "V2beta1Run")
        self.runs.append(run)
        self.frames[run.run_id] = []
        if (first := RECORDINGS / f"{name}.v1.json.gz").exists():
            self.first[run.run_id] = json.loads(gzip.decompress(first.read_bytes()))
        return run

    def _details(self, run_id: str, frame: Frame) -> Any:
        details = [
            detail
            for name, state in frame.tasks.items()
            for detail in self._listed(run_id, frame, name, state)
        ]
        return models.V2beta1RunDetails(task_details=details) if details else None

    def _listed(self, run_id: str, frame: Frame, name: str, state: str) -> Iterator[Any]:
        """Yield the entries of a task: itself, and an executor that was skipped if it was cached."""
        start = self.now()
        ended = start if name in frame.cached else self.now()
        end = EPOCH if state in {"RUNNING", "PENDING"} else ended
        yield models.V2beta1PipelineTaskDetail(
            run_id=run_id,
            task_id=_id(),
            display_name=name,
            start_time=start,
            end_time=end + (name in frame.late) * datetime.timedelta(hours=1),
            state=state,
            child_tasks=[
                models.PipelineTaskDetailChildTask(pod_name=pod) for pod in frame.children.get(name, [])
            ],
        )
        if name in frame.cached:
            skipped = {"display_name": "executor", "start_time": start, "end_time": end, "state": "SKIPPED"}
            yield models.V2beta1PipelineTaskDetail(run_id=run_id, task_id=_id(), **skipped)

    def terminate(self, run_id: str) -> dict[str, Any]:
        run = self.run(run_id)
        if run.state not in {"PENDING", "RUNNING", "PAUSED", "RUNTIME_STATE_UNSPECIFIED"}:
            raise Refused(400, f"Failed to terminate a run {run_id}. Row not found")
        self.frames[run_id] = []
        run.state = "CANCELING"  # and no entry in the history before the next report of the agent
        return {}

    def retry(self, run_id: str) -> dict[str, Any]:
        run = self.run(run_id)
        if run.state not in {"FAILED", "ERROR"}:
            raise Refused(500, "Workflow must be Failed/Error to retry")
        self._enter(run, "RUNNING")
        run.finished_at, run.run_details = EPOCH, None
        self.frames[run_id] = list(self.script)
        return {}

    def delete(self, kind: str, key: str, value: str) -> dict[str, Any]:
        entries = getattr(self, kind)
        entries.remove(self.one(entries, key, value))
        return {}

    def delete_pipeline(self, pipeline_id: str) -> dict[str, Any]:
        if any(one.pipeline_id == pipeline_id for one in self.pipeline_versions):
            raise Refused(400, f"Failed to delete pipeline {pipeline_id}: it has pipeline versions")
        return self.delete("pipelines", "pipeline_id", pipeline_id)

    def make_recurring(self, body: Any) -> Any:
        made = parsed(body, "V2beta1RecurringRun")
        if not made.display_name:
            raise Refused(400, "Recurring run's name cannot be empty")
        if not 1 <= int(made.max_concurrency or 0) <= 10:
            raise Refused(400, "Max concurrency of a recurring run must be at least 1 and at most 10.")
        cron, periodic = made.trigger.cron_schedule, made.trigger.periodic_schedule
        if cron and not re.fullmatch(r"[\d*?,/A-Za-z-]+( [\d*?,/A-Za-z-]+){4,5}|@\w+", cron.cron):
            raise Refused(400, "Schedule cron is not a supported format")
        if periodic and int(periodic.interval_second or 0) < 1:
            raise Refused(400, "Found invalid period schedule interval. Set at interval to least 1 second")
        if not self.multi_user and made.namespace:
            said = f"belongs to namespace '' instead of '{made.namespace}'"
            raise Refused(400, f"Experiment {made.experiment_id} {said}")
        made.namespace = made.namespace or self._namespace(made)
        self._require_version(made)
        made.recurring_run_id, made.created_at = _id(), self.now()
        made.status = "ENABLED" if made.mode == "ENABLE" else "DISABLED"
        self.recurring_runs.append(made)
        return made

    def fire(self, recurring_run_id: str) -> Any:
        """What the controller and the agent leave of a time that came: a run without a description."""
        origin = self.recurring(recurring_run_id)
        body = {"display_name": f"{origin.display_name}-1", "experiment_id": origin.experiment_id}
        made = self.make_run(body | {"recurring_run_id": recurring_run_id, "pipeline_spec": {}})
        made.pipeline_version_reference = origin.pipeline_version_reference
        made.runtime_config, made.pipeline_spec = origin.runtime_config, None
        return made

    def switch(self, recurring_run_id: str, on: bool) -> dict[str, Any]:
        one = self.recurring(recurring_run_id)
        one.status, one.mode = ("ENABLED", "ENABLE") if on else ("DISABLED", "DISABLE")
        return {}

    def recurring(self, recurring_run_id: str) -> Any:
        return self.one(self.recurring_runs, "recurring_run_id", recurring_run_id)

    def experiment(self, experiment_id: str) -> Any:
        return self.one(self.experiments, "experiment_id", experiment_id)

    def run(self, run_id: str) -> Any:
        return self.one(self.runs, "run_id", run_id)

    @staticmethod
    def one(entries: list[Any], key: str, value: str) -> Any:
        found = next((entry for entry in entries if getattr(entry, key) == value), None)
        if found is None:
            raise Refused(404, f"{key} {value} not found.")
        return found

    def pipeline_of(self, name: str, namespace: str) -> Any:
        """Return the pipeline of a name: each namespace has its own, and those without one are shared."""
        self._require_namespace(namespace)
        found = [one for one in self.pipelines if (one.namespace or "") == namespace]
        return self.one(found, "name", name)

    def _namespace(self, entry: Any) -> str:
        """Return the namespace of a thing: a run has that of its experiment."""
        if hasattr(entry, "namespace"):
            return entry.namespace or ""
        origin = (one for one in self.experiments if one.experiment_id == entry.experiment_id)
        return next((one.namespace or "" for one in origin), "")

    def listed(self, kind: str, query: dict[str, str], **fixed: str) -> dict[str, Any]:
        """Return one page of a list; the token of the next is how many were given so far."""
        wanted = {**fixed, **{key: query[key] for key in ("experiment_id",) if query.get(key)}}
        everywhere = "experiment_id" in wanted or kind == "pipeline_versions"
        if not everywhere:
            self._require_namespace(query.get("namespace"))
        found = [
            entry
            for entry in getattr(self, kind)
            if all(getattr(entry, key, None) == value for key, value in wanted.items())
            and (everywhere or not self.multi_user or self._namespace(entry) == query["namespace"])
            and _passes(entry, query.get("filter", ""), COLUMNS[kind])
        ]
        column, _, order = query.get("sort_by", "created_at asc").partition(" ")
        if column not in COLUMNS[kind] or order not in {"", "asc", "desc"}:
            raise Refused(400, f"Invalid sorting field: {column!r}")
        found.sort(key=lambda entry: str(getattr(entry, column) or ""), reverse=order == "desc")
        start, size = int(query.get("page_token") or 0), min(int(query.get("page_size") or 20), 200)
        more = str(start + size) if len(found) > start + size else ""
        return {kind: found[start : start + size], "total_size": len(found), "next_page_token": more}

    def _require_namespace(self, namespace: str | None) -> None:
        if self.multi_user and not namespace:
            raise Refused(400, "Namespace cannot be empty in multi-user mode")

    @staticmethod
    def _require_new(
        kind: str, there: list[Any], name: str, namespace: str | None, key: str = "name"
    ) -> None:
        if not name or len(name) > LENGTHS[kind]:
            raise Refused(400, f"{kind}.Name length cannot exceed {LENGTHS[kind]}")
        for one in there:
            if getattr(one, key) == name and getattr(one, "namespace", None) == namespace:
                raise Refused(409, f"The {kind} {name} already exists")

    def _require_version(self, made: Any) -> None:
        reference = made.pipeline_version_reference
        known = {one.pipeline_version_id for one in self.pipeline_versions}
        if made.pipeline_spec is None and (not reference or reference.pipeline_version_id not in known):
            raise Refused(404, "pipeline version not found")


def _id() -> str:
    return str(uuid.uuid4())


def _passes(entry: Any, text: str, columns: set[str]) -> bool:
    wanted = parsed(json.loads(text), "V2beta1Filter", "filter") if text else None
    for predicate in wanted.predicates if wanted else ():
        if predicate.key not in columns:
            raise Refused(400, f'no support for filtering on unrecognized field "{predicate.key}"')
        value = str(getattr(entry, predicate.key) or "").lower()  # the database knows no case
        if predicate.operation == "EQUALS" and value != predicate.string_value.lower():
            return False
        if predicate.operation == "IS_SUBSTRING" and predicate.string_value.lower() not in value:
            return False
        if predicate.operation == "IN" and value not in map(str.lower, predicate.string_values.values):
            return False
        if predicate.operation not in {"EQUALS", "IS_SUBSTRING", "IN"}:
            raise Refused(400, f"invalid predicate operation: {predicate.operation}")
    return True

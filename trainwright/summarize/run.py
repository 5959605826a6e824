"""Collect records, states and errors of a run after its end, and its outcome. Nothing here fails the run."""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, TypeVar
from urllib.parse import urlsplit

from trainwright.artifacts import JobUsage, Record
from trainwright.documents import read_json
from trainwright.errors import (
    DependencyError,
    InputError,
    TrainwrightError,
    TransientError,
    last_record,
    record_in,
)
from trainwright.lineage import ancestors
from trainwright.storage import Access, find, open_file
from trainwright.summarize.workflow import HTML, WorkflowReader, WorkflowTask, read_workflow
from trainwright.tracking.history import HISTORY_FILE, MLFLOW_KEY, history_key

OWN = "summarize"
"""The verb of this step, with which the name of its task begins."""

TASKS = "tasks.json"
"""Written by the local runner beside the steps; on a cluster there is none."""

_LOG, _LOG_BYTES = "executor-logs", 1 << 20
"""KFP 2.17 keeps the log of each attempt of a step beside its artifacts, also of one that failed."""

REQUEST = "run.json"
"""Likewise: pipeline, arguments and time of a run."""

_FIGURES = {"train": "model/model.json", "evaluate": "verdict/measured.json", "tune": "study/study.json"}
"""Documents with metrics, by verb."""

_ATTEMPTS = 6
_PATIENCE_S = 30.0
"""For a call of a store. The page is worth having without records, so it does not wait long for them."""

_LAUNCHER_ERROR = "failed to execute component"
_COUNTED = re.compile(r"-\d+$")
"""What KFP adds to the name of a component that a pipeline uses several times."""

_T = TypeVar("_T")

STATES = {"COMPLETE": "SUCCEEDED", "CACHED": "SUCCEEDED", "CANCELED": "CANCELLED", "RUNNING": ""}
"""What the 2.17 backend calls a state, and what kfp documents. A run that a gate has stopped is RUNNING."""


@dataclass(frozen=True)
class FinalStatus:
    """Kubeflow's status of a run or of one of its tasks.

    ``state`` is ``SUCCEEDED``, ``FAILED`` or ``CANCELLED``; empty if Kubeflow cannot tell.
    """

    state: str
    job: str = ""
    task: str = ""
    error_code: int = 0
    error: str = ""

    def __post_init__(self) -> None:
        """Translate the state to the one that kfp documents."""
        object.__setattr__(self, "state", STATES.get(self.state, self.state))


@dataclass(frozen=True)
class RunStep:
    """One step of the run.

    Attributes:
        state: ``done``, ``cached``, ``failed``, ``skipped`` or ``stopped``.
        error: Of a failed step: ``what``, ``where``, ``hint``, and ``log``, the address of its log.
        origin: The run that produced a cached result; empty if unknown.
        seconds: Of this run, attempts and waits included; None where only the record tells.
        reports: URIs of its pages.
        started: Start in this run, ISO 8601; empty where only the record tells.
        ended: Its end; empty for a local run, which has seconds.
        folder: URI of the folder of its artifacts; empty if unknown.
        image: Its image on a cluster, with the digest where the pipeline names one.
        metrics: Metrics of a training, a search or an evaluation.
        usage: What the job of a training used; None if it is not known.
    """

    name: str
    state: str
    record: Record | None = None
    error: dict[str, Any] = field(default_factory=dict)
    origin: str = ""
    seconds: float | None = None
    reports: tuple[str, ...] = ()
    started: str = ""
    ended: str = ""
    folder: str = ""
    image: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    usage: JobUsage | None = None


@dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        steps: In the order of their start.
        lineage: Records from the result back to the source.
        problems: What could not be read.
        pipeline: Name of the pipeline; empty if unknown.
        arguments: Arguments of the pipeline.
        created: Time of its creation, ISO 8601; empty for a run on a cluster.
        histories: Keys of its training curves and of its study in MLflow.
    """

    name: str
    root: str
    ending: FinalStatus
    steps: Sequence[RunStep]
    lineage: Sequence[Record]
    problems: Sequence[str]
    pipeline: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    created: str = ""
    histories: Sequence[str] = ()

    @property
    def is_local(self) -> bool:
        """True for a run of the local runner, which creates its folder."""
        return bool(self.created)

    @property
    def id(self) -> str:
        """Name of the folder of its artifacts: on a cluster, Kubeflow's id of the run."""
        return self.root.rstrip("/").rpartition("/")[2]

    @property
    def executed(self) -> list[RunStep]:
        """Steps that this run executed itself, also before it was resumed."""
        return [
            step
            for step in self.steps
            if step.state in {"done", "failed", "stopped"}
            or (step.state == "cached" and step.record and "" < self.created <= step.record.started)
        ]

    @property
    def records(self) -> list[Record]:
        """Records of the steps."""
        return [step.record for step in self.steps if step.record]

    @property
    def seconds(self) -> float:
        """Seconds from the first start to the last end, without cached steps."""
        spans = [span(step.record) for step in self.steps if step.record and step.state != "cached"]
        return (
            (max(end for _, end in spans) - min(start for start, _ in spans)).total_seconds()
            if spans
            else 0.0
        )


class _Away(Exception):
    """The store does not answer; the page says so already."""


class _Store:
    """Read the files of a run. A store that did not answer once is not called again: each call waits."""

    def __init__(self, problems: list[str]) -> None:
        self._problems, self._access = problems, Access(retry_s=_PATIENCE_S)
        self._away = set[tuple[str, str]]()

    def find(self, root: str, name: str) -> list[str]:
        """List the files of one name below a folder."""
        return self._ask(root, lambda: list(find(root, name, self._access)))

    def read(self, uri: str, last: int = 0) -> bytes:
        """Read a file, or only its last bytes."""

        def whole() -> bytes:
            with open_file(uri, access=self._access) as stream:
                stream.seek(max(stream.seek(0, io.SEEK_END) - last, 0) if last else 0)
                return stream.read()

        return self._ask(uri, whole)

    def record(self, uri: str) -> Record:
        """Read a record and check its times."""
        record = Record.parse(self.read(uri), uri)
        span(record)
        return record

    def _ask(self, uri: str, call: Callable[[], _T]) -> _T:
        place = urlsplit(uri)
        store = (place.scheme, place.netloc)
        if store in self._away:
            raise _Away
        try:
            return call()
        except (DependencyError, TransientError) as error:
            self._away.add(store)
            missing = "The store was not asked again: records and errors of steps are missing"
            self._problems.append(f"the store: {_line(error)}. {missing}")
            raise _Away from None


def span(record: Record) -> tuple[datetime, datetime]:
    """Return the start and the end of a step; InputError if its record has none."""
    try:
        start = datetime.fromisoformat(record.started)
        end = start + timedelta(seconds=record.seconds)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{record.started!r} and {record.seconds} s are no span of time: {error}") from None
    if start.tzinfo is None:
        raise InputError(f"{record.started!r} has no time zone")
    return start, end


def root_of(uri: str) -> str:
    """Return the root of a run from the URI of one of this step's artifacts, ``<root>/<task>/…``.

    The 2.17 backend does not resolve KFP's placeholder for the root.
    """
    return uri.rpartition(f"/{OWN}")[0]


def read_run(root: str, ending: FinalStatus, cluster: WorkflowReader | None = None) -> Run:
    """Read a run; what cannot be read becomes a problem of the page.

    On a cluster the workflow's tasks name their artifacts, also those of earlier runs that the cache served.
    If it cannot be read, and in a local run (``cluster`` None), the records below ``root`` are read.
    """
    problems: list[str] = []
    unread: list[str] = []
    store = _Store(unread)
    local = _local_tasks(root, store, unread)
    steps, arguments = None, dict[str, Any]()
    if cluster and not local:
        steps, arguments = _cluster_steps(root, ending, cluster, store, problems)
    if steps is None:
        tasks = local.get("tasks", [])
        steps = [_local_step(task, store, problems) for task in tasks]
        if not local:
            steps = [RunStep(record.step, "done", record) for record in _records(root, store, problems)]
    steps = [replace(step, metrics=_metrics(step, store), usage=_usage(step, store)) for step in steps]
    request = _request(root, store) if local else {"arguments": arguments}
    records = [step.record for step in steps if step.record]
    latest = max(records, key=lambda record: (len(ancestors([record])), record.started), default=None)
    name = str(local.get("run", "")) or ending.job.rsplit("/", 1)[-1]
    if local.get("state") == "cancelled":
        ending = replace(ending, state="CANCELLED", error="stopped by a signal")
    return Run(
        name,
        root,
        ending,
        steps,
        ancestors([latest] if latest else []),
        problems + unread,
        pipeline=str(request.get("pipeline") or root.rstrip("/").split("/")[-2:][0]),
        arguments=request.get("arguments", {}),
        created=str(request.get("created", "")),
        histories=_histories(root, steps, store),
    )


def _cluster_steps(
    root: str, ending: FinalStatus, cluster: WorkflowReader, store: _Store, problems: list[str]
) -> tuple[list[RunStep] | None, dict[str, Any]]:
    """Return the steps and the arguments of a run on a cluster; None if its tasks cannot be read."""
    try:
        workflow = read_workflow(cluster, ending.job)
        tasks = [task for task in workflow.tasks if task.name != OWN]
    except TrainwrightError as error:
        reason = f"{_line(error)}. {error.hint}".rstrip(". ")
        missing = "Steps that the cache served, or that failed, may be missing"
        problems.append(f"the run's tasks: {reason}. {missing}")
        return None, {}
    written = {
        task.name: _record_of(f"{task.shown} is done", task.outputs, store, problems)
        for task in tasks
        if task.state == "done"
    }
    reused = dict(_reused(root, tasks, store))
    known = [*filter(None, written.values()), *(record for record, *_ in reused.values())]
    embedded = _embedded(tasks, known)
    steps = []
    for task in tasks:
        record, origin, folder = written.get(task.name), "", next(iter(task.outputs), "").rpartition("/")[0]
        if task.state == "cached":
            record, origin, folder = reused.get(task.name, (embedded.get(task.name), "", ""))
        failure = _failure(task, store) if task.state == "failed" else {}
        steps.append(
            RunStep(
                name=task.shown,
                state=task.state,
                record=record,
                error=failure,
                origin=origin,
                reports=task.reports,
                folder=folder,
                image=task.image,
                started=task.started,
                ended=task.ended,
            )
        )
    return steps, workflow.arguments


def _embedded(tasks: Sequence[WorkflowTask], records: Sequence[Record]) -> dict[str, Record]:
    """Return, by task, the records contained in others, where only one task has the record's verb."""
    verbs = {task.name: _COUNTED.sub("", task.name).replace("-", "_") for task in tasks}
    count, carried = Counter(verbs.values()), ancestors(records)
    found = {
        name: next((record for record in carried if record.step == verb), None)
        for name, verb in verbs.items()
        if count[verb] == 1
    }
    return {name: record for name, record in found.items() if record}


def _record_of(step: str, outputs: Sequence[str], store: _Store, problems: list[str]) -> Record | None:
    """Read the record beside one of a step's artifacts; ``step`` names it in a problem."""
    folders = {uri.rpartition("/")[0]: None for uri in outputs}
    try:
        uris = [uri for folder in folders for uri in store.find(folder, Record.FILE)]
        if uris:
            return store.record(uris[0])
        problems.append(f"{step}, but left no record")
    except _Away:
        return None
    except Exception as error:
        problems.append(f"the record of {step.partition(' is ')[0]} cannot be read: {_line(error)}")
    return None


def _reused(
    root: str, tasks: Sequence[WorkflowTask], store: _Store
) -> Iterator[tuple[str, tuple[Record, str, str]]]:
    """Yield the inputs from earlier runs: name of the task, its record, the run, and the task's folder."""
    uris = {uri for task in tasks for uri in task.inputs if not uri.startswith(f"{root}/")}
    for uri in sorted(uris):
        *_, run, name, _attempt, _artifact = ["", "", "", "", *uri.split("/")]
        try:
            yield name, (store.record(f"{uri}/{Record.FILE}"), run, uri.rpartition("/")[0])
        except _Away:
            return
        except Exception:  # noqa: S112  # nosec B112 - most artifacts have no record beside them
            continue


def _failure(task: WorkflowTask, store: _Store) -> dict[str, Any]:
    """Return the error of a failed task from the log that Kubeflow Pipelines stores."""
    hint = "Its pod's log may say more: trainwright status. A killed process leaves no reason."
    unknown = record_in(task.message) or {"what": task.message or "it left no reason", "hint": hint}
    for folder in sorted({uri.rpartition("/")[0] for uri in task.outputs}):
        for attempt in reversed(range(_ATTEMPTS)):
            log = f"{folder}/{_LOG}-{attempt}"
            try:
                text = store.read(log, _LOG_BYTES).decode(errors="replace")
            except _Away:
                return unknown
            except Exception:  # noqa: S112  # nosec B112 - there was no such attempt, or no log of it
                continue
            return unknown | (last_record(text) or _launcher_error(text)) | {"log": log}
    return unknown


def _launcher_error(log: str) -> dict[str, Any]:
    """Return the reason of KFP's launcher in a step's log; empty without one."""
    reasons = [line for line in log.splitlines() if _LAUNCHER_ERROR in line]
    return {"what": reasons[-1].strip()[:600]} if reasons else {}


def _records(root: str, store: _Store, problems: list[str]) -> list[Record]:
    """Read the records below a root, in the order of their steps' start."""
    found: dict[str, Record] = {}
    try:
        uris = store.find(root, Record.FILE)
    except _Away:
        return []
    except Exception as error:
        problems.append(f"{root} cannot be listed: {_line(error)}")
        return []
    for uri in uris:
        try:
            if (record := store.record(uri)).step != OWN:
                found[record.digest] = record
        except _Away:
            break
        except Exception as error:
            problems.append(f"{uri} cannot be read: {_line(error)}")
    if not uris:
        problems.append(f"no step left a record below {root}")
    return sorted(found.values(), key=lambda record: record.started)


def _local_tasks(root: str, store: _Store, problems: list[str]) -> dict[str, Any]:
    """Read the local runner's list: the run's name, and its tasks except this one."""
    try:
        local = dict(read_json(store.read(f"{root.rstrip('/')}/{TASKS}")))
        local["tasks"] = [task for task in local["tasks"] if task["step"] != OWN and task["state"]]
    except (InputError, _Away):
        return {}
    except Exception as error:
        problems.append(f"{TASKS} cannot be read: {_line(error)}")
        return {}
    return local


def _local_step(task: dict[str, Any], store: _Store, problems: list[str]) -> RunStep:
    """Return a step of the runner's list, with the record beside its artifacts.

    Records elsewhere below the root are of earlier attempts: a resumed run has several of one step.
    """
    name, state = str(task["step"]), str(task["state"])
    outputs = [entry for entry in (task.get("outputs") or {}).values() if entry.get("uri")]
    record = None
    if state in {"done", "cached"}:
        record = _record_of(f"{name} is {state}", [entry["uri"] for entry in outputs], store, problems)
    found = task.get("error") or {}
    return RunStep(
        name=name,
        state=state,
        record=record,
        error=found if isinstance(found, dict) else {"what": str(found)},
        seconds=float(task["seconds"]) if task.get("seconds") else None,
        reports=tuple(str(entry["uri"]) for entry in outputs if entry.get("type") == HTML),
        started=str(task.get("started", "")),
        folder=str(outputs[0]["uri"]).rpartition("/")[0] if outputs else "",
    )


def _request(root: str, store: _Store) -> dict[str, Any]:
    """Read pipeline, arguments and time of a local run; empty if they cannot be read."""
    try:
        return dict(read_json(store.read(f"{root.rstrip('/')}/{REQUEST}")))
    except Exception:
        return {}


def _metrics(step: RunStep, store: _Store) -> dict[str, float]:
    """Read the metrics of a training, a search or an evaluation; empty for others."""
    path = _FIGURES.get(step.record.step if step.record else "")
    if not (path and step.folder):
        return {}
    try:
        found = read_json(store.read(f"{step.folder}/{path}"))
        listed = {entry["name"]: entry["value"] for entry in found.get("measures", ())}
        cost = {}
        if found.get("cost") is not None:  # of a search
            lost = [trial for trial in found["trials"] if trial["state"] in {"pruned", "infeasible"}]
            pruned = sum(trial.get("cost") or 0.0 for trial in lost)
            cost = {"cost": found["cost"], "pruned_cost": pruned}
        return {name: float(value) for name, value in (found.get("metrics", {}) | listed | cost).items()}
    except Exception:
        return {}


def _usage(step: RunStep, store: _Store) -> JobUsage | None:
    """Read what the job of a training used; None for other steps, and of an earlier release."""
    if not (step.record and step.record.step == "train" and step.folder):
        return None
    try:
        return JobUsage.parse(store.read(f"{step.folder}/model/{JobUsage.FILE}"))
    except Exception:
        return None


def _histories(root: str, steps: Sequence[RunStep], store: _Store) -> list[str]:
    """Return the keys under which MLflow has the study and the curves of a run, also of a failed training."""
    found = []
    for step in steps:
        if step.record and step.state == "done" and (key := step.record.config.get(MLFLOW_KEY)):
            found.append(str(key))
        try:
            if step.name == "train" and step.state != "cached":
                uris = store.find(f"{root.rstrip('/')}/{step.name}", HISTORY_FILE)
                found += [history_key(store.read(uri)) for uri in uris]
        except Exception:  # noqa: S112  # nosec B112 - curves are nested where that is possible
            continue
    return found


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def state_of(run: Run) -> str:
    """Return ``done``, ``held`` by a gate, ``failed`` or ``cancelled``."""
    states = {step.state for step in run.steps}
    if "stopped" in states or run.ending.state == "CANCELLED":
        return "cancelled"
    if "failed" in states or run.ending.state not in {"SUCCEEDED", ""}:
        return "failed"
    gates = gates_of(run)
    held = gates and gates[-1].decision != "PASS" and not registration_of(run)
    return "held" if held else "done"


def registration_of(run: Run) -> Record | None:
    """Return the record of the registration; None without one."""
    return next((record for record in reversed(run.records) if record.step == "register"), None)


def outcome(run: Run) -> str:
    """Return in one sentence what the run registered, what held it, or what failed."""
    failed = next((step for step in run.steps if step.state == "failed"), None)
    if failed:
        return f"Failed in {failed.name}: {failed.error.get('what') or run.ending.error or 'see its log'}"
    if stopped := next((step for step in run.steps if step.state == "stopped"), None):
        return f"Cancelled in {stopped.name}"
    if run.ending.state not in {"SUCCEEDED", ""}:
        return f"{run.ending.state.capitalize()}: {run.ending.error or 'Kubeflow gives no reason'}"
    made = registration_of(run)
    if made:
        return f"Registered: {made.headline}"
    gate = gates_of(run)[-1:]
    if gate and gate[0].decision != "PASS":
        how = "Refused" if gate[0].decision == "FAIL" else "Held"
        return f"{how} by {gate[0].step}: {gate[0].headline}"
    return f"Finished: {run.records[-1].headline}" if run.records else "Finished"


def headline(run: Run) -> str:
    """Return in one line where the registered model came from, or how the run ended."""
    entry = registration_of(run)
    if entry is None:
        return "; ".join(line.strip() for line in outcome(run).splitlines())
    name = entry.headline.partition(",")[0].partition(" (")[0]
    made = versions_in(run.lineage)
    came = [f"{what} {made[what][:6]}" for what in ("model", "data", "source") if what in made]
    return f"{name} from {', '.join([*came, f'commit {short_commit(entry)}'])}"


def short_commit(entry: Record) -> str:
    """Shorten a commit as git does; keep the mark of uncommitted changes."""
    sha, dash, dirty = str(entry.config.get("commit") or "none").partition("-")
    return sha[:7] + dash + dirty


def versions_in(lineage: Sequence[Record]) -> dict[str, str]:
    """Return the digests of all inputs and outputs by name; the latest of each."""
    return dict(chain.from_iterable((record.inputs | record.outputs).items() for record in reversed(lineage)))


def gates_of(run: Run) -> list[Record]:
    """Return the records of the steps that decided."""
    return [record for record in run.records if record.decision]


def decision_of(run: Run) -> str:
    """Return the worst decision of all gates; empty if a step failed."""
    if any(step.state == "failed" for step in run.steps) or run.ending.state not in {"SUCCEEDED", ""}:
        return ""
    order = ("FAIL", "INCONCLUSIVE", "HOLD", "PASS")
    found = {gate.decision for gate in gates_of(run)}
    return next((decision for decision in order if decision in found), "")

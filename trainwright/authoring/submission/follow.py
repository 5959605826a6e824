"""Follow a run to its end: report each change once, and wait while the API is away."""

import base64
import dataclasses
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import kfp_server_api

from trainwright.authoring.pipeline_spec import Pipeline
from trainwright.authoring.submission import failures, progress
from trainwright.authoring.submission.connection import FAILURES, CallFailure, Connection, classify, document
from trainwright.authoring.submission.progress import ENDED, RUNNING, WAITING, StepNow, details
from trainwright.documents import read_json
from trainwright.errors import DependencyError, InputError, PreemptedUnsaved, TrainwrightError, as_record
from trainwright.http_limits import MAX_BYTES, inflate
from trainwright.retries import Backoff, RetryPolicy

OUTAGE = RetryPolicy(outage_s=900.0, first_s=2.0, longest_s=30.0)
"""For how long the API may be away; the run itself continues meanwhile."""

SETTLING = 12
"""Looks for which the end before a retry is not believed: a minute."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a run."""

    run_id: str
    state: str  # done, held by a gate, failed, stopped or unknown
    exit_code: int  # the documented code for it
    seconds: float  # from its submission to its end; 0 if the API does not say
    steps: Mapping[str, str]  # state of every step that began
    held_by: str = ""  # the gate that stopped it
    failed_step: str = ""
    error: Mapping[str, Any] = field(default_factory=dict)  # as trainwright.errors.as_record has it


class TimeUp(Exception):
    """The time limit for waiting has passed."""


class RunObserver:
    """Receives the events of a run; this base class ignores them."""

    def step(self, step: StepNow) -> None:
        """A step has changed its state."""

    def state(self, state: str) -> None:
        """The run has changed its state, and has not ended."""

    def blocked(self, step: str, message: str) -> None:
        """The pod of a step cannot start: Kubernetes' own message."""

    def warned(self, text: str) -> None:
        """Something is unusual, and the run is followed on."""


@dataclass(frozen=True, kw_only=True)
class Polling:
    """Polling interval, and how long the API may be away."""

    every_s: float = 5.0  # seconds between two looks at first; they grow in a long run
    rarest_s: float = 30.0  # seconds between two looks at most
    outage: RetryPolicy = OUTAGE  # for how long the API may be away
    sleep: Callable[[float], None] = time.sleep


def follow(
    api: Connection,
    run_id: str,
    pipeline: Pipeline | None,
    observer: RunObserver,
    polling: Polling | None = None,
    *,
    within_s: float | None = None,
    ended_at: datetime | None = None,
) -> RunResult:
    """Follow a run until it ends, and return its result.

    Args:
        api: The API.
        run_id: The run.
        pipeline: Its pipeline; None if that is not known: its gates are not, either.
        observer: Receives changes.
        polling: How often the API is asked.
        within_s: Seconds to wait, give or take one request; None for no limit.
        ended_at: When the run ended before it was retried. A late agent may report that end once more; for a
            while it does not count.

    Raises:
        TimeUp: The run has not ended.
        TrainwrightError: The run is gone, the API refuses the identity or stayed away too long; the run
            continues.
    """
    return _Follower(api, run_id, pipeline, observer, polling or Polling(), within_s).follow(ended_at)


class _Follower:
    def __init__(
        self,
        api: Connection,
        run_id: str,
        pipeline: Pipeline | None,
        observer: RunObserver,
        polling: Polling,
        within_s: float | None,
    ) -> None:
        self._api, self._run_id, self._pipeline, self._observer = api, run_id, pipeline, observer
        self._polling, self._backoff = polling, Backoff(polling.outage)
        self._start, self._within_s = time.monotonic(), math.inf if within_s is None else within_s
        self._listing = TaskListing(api)
        self._known = progress.names(pipeline)
        self._steps: dict[str, str] = {}
        self._blocked: dict[str, str] = {}
        self._state, self._answered, self._away_since = "", False, 0.0

    def follow(self, ended_at: datetime | None) -> RunResult:
        late = SETTLING
        while True:
            run = self._listing.completed(self._look())
            if run.state in progress.ENDED and ended_at and run.finished_at == ended_at and late:
                late -= 1
                self._pause(0.0)
                continue
            before = self._state
            self._report(run)
            if run.state in progress.ENDED:
                return self._result(run, progress.outcome(run, before))
            self._pause(self._waited_s())

    def _waited_s(self) -> float:
        return time.monotonic() - self._start

    def _pause(self, since: float) -> None:
        """Wait for the next look, unless it would come too late."""
        if (left := self._within_s - self._waited_s()) <= 0:
            raise TimeUp
        polling = self._polling
        polling.sleep(min(polling.every_s * (1 + since / 600), polling.rarest_s, left))

    def _look(self) -> Any:
        """Read the run; wait while the API is away."""
        while True:
            try:
                run = self._api.once(self._api.runs.run_service_get_run, self._run_id)
            except FAILURES as failure:
                self._wait(classify(failure, "reading the run", self._api.place.host))
                continue
            if self._away_since:
                away_s = time.monotonic() - self._away_since
                self._observer.warned(f"the API answers again, after {away_s:.0f} s")
            self._backoff.reset()
            self._away_since, self._answered = 0.0, True
            return run

    def _wait(self, failure: CallFailure) -> None:
        if failure.missing:
            deleted = "was deleted while it was followed" if self._answered else "is not there"
            raise InputError(f"run {self._run_id} {deleted}", where=self._api.place.host)
        transient = failure.transient or (failure.gateway and self._answered)
        if not transient and not self._answered:
            raise failure.error
        if transient and not self._away_since:
            self._away_since = time.monotonic()
            budget_s = self._polling.outage.outage_s
            self._observer.warned(f"{failure.error.what}; asking again for up to {budget_s:.0f} s")
        if self._waited_s() >= self._within_s:
            raise TimeUp
        try:
            if not transient:
                raise failure.error
            self._backoff.wait(failure.error, failure.after_s)
        except TrainwrightError as error:
            again = f"The run goes on: trainwright status {self._run_id} --wait, when the API is back."
            why = "" if isinstance(error, DependencyError) else f"{error.hint}\n        "
            raise type(error)(error.what, where=error.where, hint=f"{why}{again}") from None

    def _report(self, run: Any) -> None:
        """Report what has changed since the last look."""
        for step in progress.steps(run, self._pipeline, datetime.now(UTC)):
            if self._steps.get(step.name) != step.state:
                self._steps[step.name] = step.state
                self._observer.step(step)
        for task, message in self._listing.blocked.items():
            # By cause: ErrImagePull and ImagePullBackOff alternate.
            cause = failures.explained(message)
            reason = type(cause).__name__ + cause.hint if cause else message
            if self._blocked.get(task) != reason:
                self._blocked[task] = reason
                self._observer.blocked(self._name(task), message)
        state = run.state or progress.UNSPECIFIED
        if state != self._state:
            self._state = state
            if state not in progress.KNOWN:
                self._observer.warned(f"the API says {state!r}, which is new to us; following on")
            elif state not in progress.ENDED:
                self._observer.state(state)

    def _name(self, task: str) -> str:
        """Return the name of a task's step on the screen."""
        return self._known[task].name if task in self._known else task

    def _result(self, run: Any, outcome: str) -> RunResult:
        timed = run.created_at and run.finished_at and run.finished_at.year >= progress.FIRST_YEAR
        result = RunResult(
            run_id=self._run_id,
            state=progress.word(outcome),
            exit_code=progress.CODES[outcome],
            seconds=round((run.finished_at - run.created_at).total_seconds(), 1) if timed else 0.0,
            steps=dict(self._steps),
        )
        if run.state in progress.SUCCEEDED:
            return self._judged(run, result)
        if outcome == progress.CANCELED:
            stopped = PreemptedUnsaved("the run was stopped from outside", where=self._run_id)
            return dataclasses.replace(result, error=as_record(stopped, "run"))
        step, error = self._reason(run, progress.failed(run, self._pipeline))
        code = int(error["code"]) or progress.CODES["FAILED"]
        return dataclasses.replace(result, failed_step=step, error=error, exit_code=code)

    def _reason(self, run: Any, step: str) -> tuple[str, dict[str, Any]]:
        """Return the step that failed, and why.

        The step's own line tells most. Argo's message comes before what KFP's launcher printed, which of a
        program that was killed knows only the signal.
        """
        found = failures.reason(self._api, run)
        if "error" in found and found.get("component") != failures.PLATFORM:
            return step, found
        if cause := self._listing.failure(run):
            name = self._name(cause[0])
            return name, as_record(cause[1], name)
        if found:
            return step, found
        where = step or "the run"
        said = (run.error.message if run.error else "") or "the API does not say why"
        return step, {
            "error": "Unknown",
            "code": progress.CODES["FAILED"],
            "component": where,
            "what": f"{where} failed: {said}",
            "where": "",
            "hint": "Look into the step's log, on the page of the run.",
            "retryable": False,
        }

    def _judged(self, run: Any, result: RunResult) -> RunResult:
        """Look whether a gate held a run that for the API has succeeded. Not to know is no pass."""
        why = ""
        if self._pipeline is None:
            why = "its pipeline cannot be read"
        elif not any(progress.branches(self._pipeline)):
            return result
        elif not is_complete(run):
            why = "the API does not list how its steps ended"
        elif held := progress.held(run, self._pipeline):
            return dataclasses.replace(result, state="held", exit_code=held.code, held_by=held.step)
        else:
            return result
        unknown = DependencyError(
            f"the run has ended well, and {why}: whether a gate held it is not known",
            where=self._api.place.link(self._run_id),
            hint="Look at the page of the run.",
        )
        error = as_record(unknown, "run")
        return dataclasses.replace(result, state="unknown", exit_code=unknown.code, error=error)


_ATTEMPT = re.compile(r"\(\d+\)$")
"""End of the display name of an attempt at a task."""

STILL = 2
"""Looks at an unchanged list after which the workflow is read: ten seconds at first."""

_STATES = {
    "Pending": "PENDING",
    "Running": "RUNNING",
    "Succeeded": "SUCCEEDED",
    "Failed": "FAILED",
    "Error": "FAILED",
    "Skipped": "SKIPPED",
    "Omitted": None,
}
"""The API server's states by the phase of a node; an omitted node has none."""


def is_complete(run: Any) -> bool:
    """Return whether the list of tasks of a run that has ended is that of its end.

    Attempts do not count: one runs only while its task does, and after a retry of the run, KFP 2.17 lists the
    earlier attempts of the root task as running for ever.
    """
    listed = [detail for detail in details(run) if not _ATTEMPT.search(detail.display_name)]
    return bool(listed) and not any(detail.state in RUNNING | WAITING for detail in listed)


class TaskListing:
    """The tasks of one run, look after look: as its Argo Workflow has them, where the API lists old ones.

    Argo compresses the nodes of a workflow above 1 MB. KFP 2.17's API server stores the state of such a run
    and none of its tasks: it lists what it knew before the workflow grew that large. It keeps the compressed
    nodes, and returns them to a caller who may read the run in the answer of ``/apis/v1beta1``.

    Attributes:
        blocked: Kubernetes' message for pods that cannot start, by task; also of earlier looks.
    """

    def __init__(self, api: Connection) -> None:
        self._api = api
        self.blocked: dict[str, str] = {}
        self._unchanged, self._last = 0, [("", "")]
        self._packed = False
        self._tasks: Sequence[Any] = ()

    def completed(self, run: Any) -> Any:
        """Return a run with its tasks as they are now; as the API lists them, if they cannot be read.

        The workflow is read at the end if the list is not that of the end, once in a while if the list does
        not change, and at every look once its nodes were found compressed.
        """
        listed = [(detail.display_name, detail.state) for detail in details(run)]
        self._unchanged = self._unchanged + 1 if listed == self._last else 0
        self._last = listed
        still = self._unchanged > 0 and self._unchanged % STILL == 0
        if not (self._packed or (not is_complete(run) if run.state in ENDED else still)):
            return run
        nodes, packed = _nodes(self._api, run.run_id)
        self._packed = self._packed or packed
        self.blocked |= failures.blocked(nodes)
        if packed or (nodes and run.state in ENDED):
            self._tasks = [_task(name, node) for name, node in sorted(nodes.items())]
        if self._tasks:
            run.run_details = kfp_server_api.V2beta1RunDetails(task_details=self._tasks)
        return run

    def failure(self, run: Any) -> tuple[str, TrainwrightError] | None:
        """Return the task of a run that failed for a reason that Argo knows, with the error."""
        return failures.failure(_nodes(self._api, run.run_id)[0], self.blocked)


def _nodes(api: Connection, run_id: str) -> tuple[Mapping[str, Any], bool]:
    """Return the nodes of a run's workflow, and whether they are compressed; none if they cannot be read."""
    try:
        answer = document(api.get(f"/apis/v1beta1/runs/{quote(run_id, safe='')}").data)
        status = document(answer["pipeline_runtime"]["workflow_manifest"])["status"]
        if packed := status.get("compressedNodes"):
            return dict(read_json(inflate(base64.b64decode(packed), MAX_BYTES))), True
        return dict(status.get("nodes") or {}), False
    except (*FAILURES, TrainwrightError, EOFError, ValueError, TypeError, KeyError, AttributeError):
        return {}, False


def _task(name: str, node: Mapping[str, Any]) -> Any:
    """Return what the API server would list of a node."""
    begun, ended = (node.get(key) for key in ("startedAt", "finishedAt"))
    children = node.get("children") or []
    return kfp_server_api.V2beta1PipelineTaskDetail(
        task_id=name,
        display_name=node.get("displayName", ""),
        state=_STATES.get(node.get("phase", ""), "PENDING"),
        start_time=datetime.fromisoformat(begun) if begun else None,
        end_time=datetime.fromisoformat(ended) if ended else None,
        child_tasks=[kfp_server_api.PipelineTaskDetailChildTask(pod_name=child) for child in children],
    )

"""Follows a run to its end: reports each change once, and waits while the API is away."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trainwright.authoring.pipeline_spec import Pipeline
from trainwright.authoring.submission import failures, progress, workflow
from trainwright.authoring.submission.connection import (
    FAILURES,
    CallFailure,
    CallRetries,
    Connection,
    classify,
)
from trainwright.authoring.submission.progress import StepNow
from trainwright.errors import DependencyError, InputError, PreemptedUnsaved, TrainwrightError, as_record

OUTAGE_S = 900.0
"""Seconds for which the API may be away; the run itself goes on meanwhile."""

SETTLING = 12
"""Looks for which the end of an earlier try is not believed: a minute."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a run.

    Attributes:
        run_id: Its id.
        state: ``done``, ``held`` by a gate, ``failed`` or ``stopped``.
        exit_code: The documented code for it.
        seconds: From its submission to its end; 0 if the API does not say.
        steps: State of every step that began, by name.
        held_by: The gate that stopped it; empty if none did.
        failed_step: The step that failed; empty if none did.
        error: The error, as :func:`trainwright.errors.as_record` has it; empty if none.
    """

    run_id: str
    state: str
    exit_code: int
    seconds: float
    steps: Mapping[str, str]
    held_by: str = ""
    failed_step: str = ""
    error: Mapping[str, Any] = field(default_factory=dict)


class TimeUp(Exception):
    """The time limit for waiting has passed."""


class RunObserver:
    """Receives the events of a run; this base class ignores them."""

    def step(self, step: StepNow) -> None:
        """A step has changed its state."""

    def state(self, state: str) -> None:
        """The run has changed its state, and goes on."""

    def blocked(self, step: str, message: str) -> None:
        """The pod of a step cannot start: Kubernetes' own message."""

    def warned(self, text: str) -> None:
        """Something is not as it should be, and the run is followed on."""


@dataclass(kw_only=True)
class Polling:
    """Polling interval, and how long the API may be unavailable.

    Attributes:
        every_s: Seconds between two questions at first; they get rarer in a long run.
        rarest_s: Seconds between two questions at most.
        outage: For how long, and how often, it is asked again when it does not answer.
        sleep: Waits for seconds.
    """

    every_s: float = 5.0
    rarest_s: float = 30.0
    outage: CallRetries = field(default_factory=lambda: CallRetries(budget_s=OUTAGE_S, first_s=2.0))
    sleep: Callable[[float], None] = time.sleep

    def wait(self, since: float, most: float = math.inf) -> None:
        """Wait for the next question, a run's seconds after the first; at most so many seconds."""
        self.sleep(min(self.every_s * (1 + since / 600), self.rarest_s, most))


def follow(
    api: Connection,
    run_id: str,
    pipeline: Pipeline | None,
    told: RunObserver,
    pace: Polling | None = None,
    *,
    within_s: float | None = None,
    ended_at: datetime | None = None,
) -> RunResult:
    """Follow a run until it ends, and say what came of it.

    Args:
        api: The API.
        run_id: The run.
        pipeline: What it runs; None if that is not known: its gates are not, either.
        told: Receives changes.
        pace: How often the API is asked.
        within_s: Seconds to wait, give or take one request; None for no limit.
        ended_at: When the run ended before it was tried again. That end may be reported once more, by an
            agent that is late; it is none then, for a while.

    Raises:
        TimeUp: The run goes on.
        TrainwrightError: The run is gone, the identity is refused, or the API stayed away too long; the run
            goes on.
    """
    return _Follower(api, run_id, pipeline, told, pace or Polling(), within_s).to_the_end(ended_at)


class _Follower:
    def __init__(
        self,
        api: Connection,
        run_id: str,
        pipeline: Pipeline | None,
        told: RunObserver,
        pace: Polling,
        within_s: float | None,
    ) -> None:
        self._api, self._run_id, self._pipeline, self._told, self._pace = api, run_id, pipeline, told, pace
        self._start, self._within_s = pace.outage.now(), within_s
        self._listing = workflow.TaskListing(api=api)
        self._steps: dict[str, str] = {}
        self._blocked: dict[str, str] = {}
        self._state, self._answered = "", False

    def to_the_end(self, ended_at: datetime | None) -> RunResult:
        late = SETTLING
        while True:
            run = self._listing.completed(self._look())
            if run.state in progress.ENDED and ended_at and run.finished_at == ended_at and late:
                late -= 1
                self._pause(0.0)
                continue
            now = progress.steps(run, self._pipeline, datetime.now(UTC))
            before = self._state
            self._tell(run, now)
            if run.state in progress.ENDED:
                return self._ending(run, now, progress.outcome(run, before))
            self._pause(self._passed_s())

    def _passed_s(self) -> float:
        return self._pace.outage.now() - self._start

    def _pause(self, since: float) -> None:
        """Wait for the next question, unless it would come too late."""
        left = math.inf if self._within_s is None else self._within_s - self._passed_s()
        if left <= 0:
            raise TimeUp
        self._pace.wait(since, left)

    def _look(self) -> Any:
        """Read the run; wait while the API is away."""
        outage, host = self._pace.outage, self._api.place.host
        while True:
            try:
                run = self._api.once(self._api.runs.run_service_get_run, self._run_id)
            except FAILURES as failure:
                self._wait(classify(failure, "reading the run", host))
                continue
            if outage.failing_s:
                self._told.warned(f"the API answers again, after {outage.failing_s:.0f} s")
            outage.renewed()
            self._answered = True
            return run

    def _wait(self, met: CallFailure) -> None:
        outage = self._pace.outage
        if met.missing:
            deleted = "was deleted while it was followed" if self._answered else "is not there"
            raise InputError(f"run {self._run_id} {deleted}", where=self._api.place.host)
        if met.gateway and self._answered:  # a token is replaced before long, a route comes back
            met = dataclasses.replace(met, passing=True)
        if met.passing and not outage.failing_s:
            self._told.warned(f"{met.error.what}; asking again for up to {outage.budget_s:.0f} s")
        if self._within_s is not None and self._passed_s() >= self._within_s:
            raise TimeUp
        try:
            outage.wait(met)
        except TrainwrightError as error:
            if not self._answered and not met.passing:
                raise
            again = f"The run goes on: trainwright status {self._run_id} --wait, when the API is back."
            why = "" if isinstance(error, DependencyError) else f"{error.hint}\n        "
            raise type(error)(error.what, where=error.where, hint=f"{why}{again}") from None

    def _tell(self, run: Any, now: list[StepNow]) -> None:
        for step in now:
            if self._steps.get(step.name) != step.state:
                self._steps[step.name] = step.state
                self._told.step(step)
        self._tell_blocked()
        state = run.state or progress.UNSPECIFIED
        if state != self._state:
            self._state = state
            if state not in progress.KNOWN:
                self._told.warned(f"the API says {state!r}, which is new to us; following on")
            elif state not in progress.ENDED:
                self._told.state(state)

    def _tell_blocked(self) -> None:
        """Report each reason once: ErrImagePull and ImagePullBackOff alternate."""
        for task, message in self._listing.blocked.items():
            cause = failures.explained(message)
            reason = type(cause).__name__ + cause.hint if cause else message
            if self._blocked.get(task) != reason:
                self._blocked[task] = reason
                self._told.blocked(self._name(task), message)

    def _name(self, task: str) -> str:
        """Return the name of a task's step on the screen."""
        step = progress.names(self._pipeline).get(task) if self._pipeline else None
        return step.name if step else task

    def _ending(self, run: Any, now: list[StepNow], outcome: str) -> RunResult:
        ending = RunResult(
            run_id=self._run_id,
            state=progress.word(outcome),
            exit_code=progress.CODES[outcome],
            seconds=_seconds(run),
            steps=dict(self._steps),
        )
        if run.state in progress.SUCCEEDED:
            return self._judged(run, ending)
        if outcome == progress.CANCELED:
            stopped = PreemptedUnsaved("the run was stopped from outside", where=self._run_id)
            return dataclasses.replace(ending, error=as_record(stopped, "run"))
        step = progress.failed(run, now, self._pipeline)
        name, error = self._reason(run, step.name if step else "")
        return dataclasses.replace(
            ending,
            failed_step=name,
            error=error,
            exit_code=int(error["code"]) or progress.CODES["FAILED"],
        )

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
        return step, found or _unknown(run, step)

    def _judged(self, run: Any, ending: RunResult) -> RunResult:
        """Look whether a gate stopped a run that for the API has succeeded. Not to know is no pass."""
        if self._pipeline is None:
            return self._unjudged(ending, "its pipeline cannot be read")
        if not any(progress.gates(self._pipeline)):
            return ending
        if not workflow.is_complete(run):
            return self._unjudged(ending, "the API does not list how its steps ended")
        held = progress.held(run, self._pipeline)
        if held is None:
            return ending
        return dataclasses.replace(ending, state="held", exit_code=held.code, held_by=held.step)

    def _unjudged(self, ending: RunResult, why: str) -> RunResult:
        unknown = DependencyError(
            f"the run has ended well, and {why}: whether a gate held it is not known",
            where=self._api.place.link(self._run_id),
            hint="Look at the page of the run.",
        )
        error = as_record(unknown, "run")
        return dataclasses.replace(ending, state="unknown", exit_code=unknown.code, error=error)


def _unknown(run: Any, step: str) -> dict[str, Any]:
    """Say of a failure what the API says, which is little."""
    said = (run.error.message if run.error else "") or "the API does not say why"
    where = step or "the run"
    return {
        "error": "Unknown",
        "code": progress.CODES["FAILED"],
        "component": where,
        "what": f"{where} failed: {said}",
        "where": "",
        "hint": "Look into the step's log, on the page of the run.",
        "retryable": False,
    }


def _seconds(run: Any) -> float:
    ends = run.created_at and run.finished_at and run.finished_at.year >= progress.FIRST_YEAR
    return round((run.finished_at - run.created_at).total_seconds(), 1) if ends else 0.0

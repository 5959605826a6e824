"""Run trainings side by side in processes of their own: the trials of a study, or those that confirm it.

Evaluations are reported to the study in their order and up to the first that pauses the trial, whatever the
training has reached meanwhile: so its decisions do not depend on the time at which somebody looked.
"""

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

from trainwright.documents import Document
from trainwright.errors import InputError, InternalError, Preempted
from trainwright.experiment import Resources
from trainwright.launch.launcher import collect_signals
from trainwright.train.config import TrialMetrics
from trainwright.train.submit import TrainRequest
from trainwright.tune import asha
from trainwright.tune.checks import SearchPlan
from trainwright.tune.report import Trial
from trainwright.tune.study import Study
from trainwright.tune.tracking import TrialObserver
from trainwright.tune.trial import TrialFailure, TrialProcess, TrialSpec, remove_checkpoints

ENCODED = "encoded"
"""Folder of encoded samples in the folder of a study."""

TRIALS = "trials"

_POLL_S = 0.05
_CLOCK_S = 5.0
_MARGIN_S = 60.0
"""Time for a stopped launcher beyond the grace of its job."""

_FIRST = 3
"""A study whose first trials are all rejected has a wrong configuration."""

Result: TypeAlias = TrialMetrics | TrialFailure
Destination: TypeAlias = Callable[[str], dict[str, str]]
"""Returns tracking server and run for the curves of a training, by its name; see ``TrackingDestination``."""


class _Stopping(Exception):
    """The search cannot continue; ``failure`` says why."""

    def __init__(self, failure: TrialFailure) -> None:
        self.failure = failure
        super().__init__(failure.sentence)


@dataclass
class _Running:
    """A training that runs.

    Attributes:
        evaluated: Number of its evaluations that were compared with the rungs.
        rungs: Rungs that the study has decided on.
        pausing: Whether the study pauses it.
        waiting: Why its job waits; empty if it does not.
    """

    process: TrialProcess
    evaluated: int = 0
    rungs: int = 0
    pausing: bool = False
    waiting: str = ""


@dataclass
class _Pool:
    """Trainings that run side by side, by name.

    A training that was stopped from outside, or lost, starts again; ``resources.budget`` bounds how often.
    """

    folder: Path
    resources: Resources
    destination: Destination | None = None
    running: dict[str, _Running] = field(default_factory=dict)
    _repeats: Counter[tuple[str, str]] = field(default_factory=Counter)

    def start(self, name: str, request: TrainRequest) -> None:
        """Start or resume a training; its name is that of its folder."""
        folder = self.folder / TRIALS / name
        request = replace(request, run=str(folder.absolute()))
        destination = self.destination(name) if self.destination else {}
        process = TrialProcess(folder, TrialSpec.of(request, self.folder / ENCODED, destination))
        process.start()
        self.running[name] = _Running(process)

    def ended(self) -> Iterator[tuple[str, _Running, Result]]:
        """Yield the trainings that have ended, without those that start again; forget them.

        Raises:
            _Stopping: A training failed in a way that the next one would, too.
        """
        for name, entry in list(self.running.items()):
            if not entry.process.poll():
                continue
            entry.process.curves.read()
            result = entry.process.result() or entry.process.failure()
            if result is None:
                raise InternalError("a training ended without metrics", where=str(entry.process.folder))
            if isinstance(result, TrialFailure) and not result.infeasible and not entry.pausing:
                self._repeat(name, entry, result)
                continue
            del self.running[name]
            yield name, entry, result

    def _repeat(self, name: str, entry: _Running, failure: TrialFailure) -> None:
        budget = self.resources.budget
        limits = {"preemption": budget.preemption, "infrastructure": budget.infrastructure}
        kind = "preemption" if failure.stopped else "infrastructure"
        self._repeats[name, kind] += 1
        if not (failure.stopped or failure.transient) or self._repeats[name, kind] > limits[kind]:
            raise _Stopping(failure)
        entry.process.start()

    def stop(self) -> None:
        """Stop all trainings with a checkpoint, and wait for them."""
        for entry in self.running.values():
            entry.process.stop()
        end = time.monotonic() + self.resources.grace_s + _MARGIN_S
        while self.running:
            self.running = {name: entry for name, entry in self.running.items() if not entry.process.poll()}
            if time.monotonic() > end:
                for entry in self.running.values():
                    entry.process.kill()
            time.sleep(_POLL_S)

    @contextlib.contextmanager
    def stopping(self) -> Iterator[list[int]]:
        """Stop all trainings whatever happens; yield the signals that came."""
        with collect_signals() as received:
            try:
                yield received
            except _Stopping as stopping:
                raise stopping.failure.to_error() from None
            finally:
                self.stop()

    def sleep(self, received: list[int]) -> None:
        """Wait a moment; raise Preempted after a stop signal."""
        time.sleep(_POLL_S)
        if received:
            name, count = signal.Signals(received[0]).name, len(self.running)
            raise Preempted(
                f"stopped by {name}; {count} running trainings were stopped and saved",
                hint="Run the step again: it continues the study.",
            )


def run_all(
    folder: Path,
    requests: Mapping[str, TrainRequest],
    resources: Resources,
    *,
    parallel: int,
    destination: Destination | None = None,
    on_end: Callable[[str, Result], None] | None = None,
) -> dict[str, Result]:
    """Run trainings to their ends; return their metrics or failures by name, in the order of ``requests``.

    Results of an earlier call stay in the folder, and those trainings do not run again.

    Args:
        folder: Folder of the study.
        requests: By name, which is that of a folder; ``run`` is replaced.
        resources: Compute of each.
        parallel: Most trainings at a time.
        destination: Where their curves go; nowhere if absent.
        on_end: Called when one has ended.

    Raises:
        Preempted: This process received a stop signal; all trainings were stopped.
        TrainwrightError: A training failed in a way that is not its own, such as a missing permission.
    """
    waiting, results = dict(requests), dict[str, Result]()
    pool = _Pool(folder, resources, destination)
    with pool.stopping() as received:
        while waiting or pool.running:
            while waiting and len(pool.running) < parallel:
                name = next(iter(waiting))
                pool.start(name, waiting.pop(name))
            for name, _, result in pool.ended():
                results[name] = result
                if on_end:
                    on_end(name, result)
            pool.sleep(received)
    return {name: results[name] for name in requests}


def search(
    study: Study,
    plan: SearchPlan,
    *,
    folder: Path,
    observer: TrialObserver,
    destination: Destination | None = None,
) -> str:
    """Run trials until nothing may start, and return why the search ended.

    Args:
        study: The open study.
        plan: The search. ``network``, ``training`` and ``run`` of its request are replaced in each trial.
        folder: Folder of the study.
        observer: Observes the trials.
        destination: Where the curves of a trial go, by its number; nowhere if absent.

    Raises:
        Preempted: This process received a stop signal; all trials were stopped.
        InputError: The first trials were all rejected.
        TrainwrightError: A trial failed in a way that is not its own, such as a missing permission.
    """
    return _Search(study, plan, _Pool(folder, plan.resources, destination), observer).run()


@dataclass(frozen=True, kw_only=True)
class SearchClock(Document):
    """Seconds that searches of a study have run, in its folder."""

    FILE: ClassVar[str] = "clock.json"
    seconds: float = 0.0

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Read the clock of a study."""
        return cls.read(folder) if (folder / cls.FILE).exists() else cls()


class _Search:
    """A search that runs."""

    def __init__(self, study: Study, plan: SearchPlan, pool: _Pool, observer: TrialObserver) -> None:
        self._study, self._plan, self._tuning = study, plan, plan.tuning
        self._pool, self._observer = pool, observer
        self._adopted = study.running()
        self._before_s = SearchClock.of(pool.folder).seconds
        self._started = self._clock_at = time.monotonic()

    def run(self) -> str:
        """Run trials until nothing may start."""
        pool, study = self._pool, self._study
        with pool.stopping() as received:
            while True:
                why = self._start_more()
                if not pool.running:
                    break
                for name, entry in pool.running.items():
                    self._watch(int(name), entry)
                for name, entry, result in pool.ended():
                    self._end(int(name), entry, result)
                self._tick()
                pool.sleep(received)
        self._tick(now=True)
        paused = [trial.number for trial in study.trials if trial.state == "paused"]
        study.finish()
        for number in paused:
            self._observer.on_end(self._trial(number))
        for trial in study.trials:
            remove_checkpoints(pool.folder / TRIALS / str(trial.number))
        return why

    def _start_more(self) -> str:
        """Start what may start now; return why nothing more may."""
        while len(self._pool.running) < self._tuning.parallel:
            if self._adopted:
                adopted = self._adopted.pop(0)
                # Whether it passed its last rung may not have been decided before the kill.
                self._start(adopted, rungs=max(0, len(adopted.rungs) - 1))
                continue
            if why := self._spent():
                return why
            trial = self._study.next()
            if trial is None:
                return f"{len(self._study.trials):,} trials"
            self._start(trial, rungs=len(trial.rungs))
        return ""

    def _spent(self) -> str:
        """Return which budget is used up; empty if none is."""
        hours, cost = self._tuning.hours, self._tuning.cost
        if hours is not None and self._seconds >= hours * 3600:
            return f"budget of {hours:g} hours"
        if cost is not None and self._cost() >= cost:
            return f"budget of {cost:g} in cost"
        return ""

    @property
    def _seconds(self) -> float:
        return self._before_s + time.monotonic() - self._started

    def _cost(self) -> float:
        hour, pool = self._plan.job_hour or 0.0, self._pool.running
        running = {int(name): entry.process.curves.seconds / 3600 * hour for name, entry in pool.items()}
        return sum(running.get(trial.number, trial.cost or 0.0) for trial in self._study.trials)

    def _start(self, trial: Trial, *, rungs: int) -> None:
        network, training = self._plan.space.sections(trial.params)
        request = replace(self._plan.request, network=network, training=training)
        self._pool.start(str(trial.number), request)
        entry = self._pool.running[str(trial.number)]
        entry.rungs, process = rungs, entry.process
        process.curves.read()
        self._study.note(trial.number, self._figures(process))
        self._observer.on_start(self._trial(trial.number))

    def _watch(self, number: int, entry: _Running) -> None:
        """Report the evaluations of a running trial; stop it where the study says so."""
        entry.process.curves.read()
        sentence, entry.waiting = entry.waiting, entry.process.waiting
        if entry.waiting and entry.waiting != sentence:
            self._observer.on_wait(self._trial(number), entry.waiting)
        self._report(number, entry)
        if entry.pausing:
            entry.process.stop()

    def _report(self, number: int, entry: _Running) -> None:
        total, found = entry.process.curves.total, entry.process.curves.evaluations
        while not entry.pausing and entry.evaluated < len(found):
            entry.evaluated += 1
            until = found[: entry.evaluated]
            rungs = asha.rung_values(self._tuning.pruner, number, total, until)
            if len(rungs) > entry.rungs:
                entry.rungs = len(rungs)
                entry.pausing = not self._study.report(number, total, until)

    def _end(self, number: int, entry: _Running, result: Result) -> None:
        self._report(number, entry)
        figures, metric = self._figures(entry.process), self._tuning.metric
        if entry.pausing:
            self._study.pause(number, figures)
        elif isinstance(result, TrialFailure):
            self._study.infeasible(number, result.sentence, figures)
        elif metric in result.metrics:
            curves = entry.process.curves
            self._study.report(number, curves.total, curves.evaluations, ended=True)
            self._study.complete(number, result.metrics[metric], figures)
        else:
            raise InputError(
                f"the trials do not report {metric}, only {', '.join(result.metrics)}",
                where="tuning.metric",
                hint="Use one of them.",
            )
        if not entry.pausing:
            remove_checkpoints(entry.process.folder)
        self._observer.on_end(self._trial(number))
        if isinstance(result, TrialFailure):
            self._check_first(result)

    def _check_first(self, failure: TrialFailure) -> None:
        """End a study whose first trials were all rejected."""
        done = [trial for trial in self._study.trials if trial.state != "running"]
        rejected = [self._failure(trial.number) for trial in done]
        if len(done) == _FIRST and all(found and found.rejected for found in rejected):
            raise _Stopping(replace(failure, what=f"the first {_FIRST} trials were rejected: {failure.what}"))

    def _failure(self, number: int) -> TrialFailure | None:
        folder = self._pool.folder / TRIALS / str(number)
        return TrialFailure.read(folder) if (folder / TrialFailure.FILE).exists() else None

    def _trial(self, number: int) -> Trial:
        return next(trial for trial in self._study.trials if trial.number == number)

    def _figures(self, process: TrialProcess) -> dict[str, Any]:
        return process.figures(self._plan.job_hour)

    def _tick(self, *, now: bool = False) -> None:
        """Save the run time of the search now and then."""
        if now or time.monotonic() - self._clock_at >= _CLOCK_S:
            self._clock_at = time.monotonic()
            SearchClock(seconds=self._seconds).write(self._pool.folder)

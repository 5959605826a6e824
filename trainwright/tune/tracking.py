"""Observe the trials of a study: lines on the terminal, and runs in MLflow.

The runs of a study in MLflow: one for the study, and one nested in it for each trial.

The trainings send their curves to the runs of their trials themselves (:mod:`trainwright.tracking`). This
module adds parameters, values, cost and states, also of trials that failed. A thread sends them in order and
retries while the server is away, so a slow server costs the search no time. Every run is found again by the
tag that it was created with, and a value that is sent twice counts once.
"""

import queue
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TextIO, TypeAlias

from trainwright.documents import canonical
from trainwright.errors import TrainwrightError
from trainwright.redaction import printable
from trainwright.report.svg import duration
from trainwright.retries import OUTAGE_S
from trainwright.tracking.history import TrackingDestination, run_of
from trainwright.tracking.server import open_client, persist
from trainwright.tune.report import StudyReport, Trial

_PARENT = "mlflow.parentRunId"
_LAST_S = 20.0
"""Seconds for the rest after the study has ended."""

_FIRST_S = 5.0
"""Seconds to wait for the run of the study, so that the runs of its trials are nested from their start."""

_STATUS = {"complete": "FINISHED", "pruned": "KILLED", "infeasible": "FAILED"}
_Action: TypeAlias = "Callable[[MlflowClient], None]"


class TrialObserver:
    """Observes the trials of a search; the methods of this class do nothing."""

    def on_start(self, trial: Trial) -> None:
        """Observe a trial that starts, resumes, or is adopted."""

    def on_wait(self, trial: Trial, sentence: str) -> None:
        """Observe a trial whose job waits, such as for the quota of its queue."""

    def on_end(self, trial: Trial) -> None:
        """Observe a trial that is complete, paused, pruned or infeasible."""


class TrialLines(TrialObserver):
    """Print one line per event; equal lines of a trial that waits once.

    Args:
        stream: Where the lines go: the standard error of the step, so that its log and the screen of a run
            show them.
        direction: ``minimize`` or ``maximize``.
    """

    def __init__(self, stream: TextIO, direction: str) -> None:
        self._stream = stream
        self._pick = min if direction == "minimize" else max
        self._best: float | None = None
        self._waiting: dict[int, str] = {}

    def on_start(self, trial: Trial) -> None:
        """Print the parameters."""
        self._waiting.pop(trial.number, None)
        again = f"start {trial.attempts}: " if trial.attempts > 1 else ""
        self._line(trial, "running", again + _params(trial))

    def on_wait(self, trial: Trial, sentence: str) -> None:
        """Print why it waits, unless the last line says the same."""
        if self._waiting.get(trial.number) != sentence:
            self._waiting[trial.number] = sentence
            self._line(trial, "waiting", sentence)

    def on_end(self, trial: Trial) -> None:
        """Print its value, the best value so far, steps, time and reason."""
        self._waiting.pop(trial.number, None)
        parts = [f"{trial.steps:,} of {trial.total:,} steps", duration(trial.seconds)]
        if trial.value is not None:
            self._best = trial.value if self._best is None else self._pick(self._best, trial.value)
            parts = [f"{trial.value:.5g} (best {self._best:.5g})", *parts]
        self._line(trial, trial.state, ", ".join([*parts, *filter(None, [trial.reason])]))

    def _line(self, trial: Trial, state: str, text: str) -> None:
        print(printable(f"trial {trial.number:<4} {state:<10} {text}"), file=self._stream, flush=True)


def _params(trial: Trial) -> str:
    values = (
        (key, f"{value:.4g}" if isinstance(value, float) else value) for key, value in trial.params.items()
    )
    return ", ".join(f"{key} {value}" for key, value in values)


if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True)
class StudyServer:
    """The server and the run of a study.

    Attributes:
        destination: Where the study's own run is: joined if it names a run, else created.
        key: Tag of the study's run; those of its trials begin with it.
    """

    destination: TrackingDestination
    key: str


class StudyTracking(TrialObserver):
    """Sends the trials of a study to MLflow, from a thread of its own; does nothing without a server.

    A trial that starts is not sent: its training creates its run.
    """

    def __init__(self, server: StudyServer | None) -> None:
        self._server = server
        self._parent = server.destination.run if server else ""
        self._queue: queue.SimpleQueue[_Action | None] = queue.SimpleQueue()
        self._created = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        if server:
            self._thread.start()
            self._queue.put(self._create)
            self._created.wait(_FIRST_S)

    def destination(self, name: str) -> dict[str, str]:
        """Return where a training of the study sends its curves; empty without a server.

        Args:
            name: Number of a trial, or name of a training that confirms one.
        """
        return asdict(self._nested(name)) if self._server else {}

    def on_end(self, trial: Trial) -> None:
        """Send a trial that has ended or paused; returns at once."""
        if self._server:
            self._queue.put(lambda client: self._send(trial, client))

    def finish(self, report: StudyReport) -> None:
        """Send the outcome, and the final state of every trial; returns at once."""
        for trial in report.trials:
            self.on_end(trial)
        if self._server:
            self._queue.put(lambda client: self._conclude(report, client))

    def close(self) -> None:
        """Wait for the server to take the rest, but not for ever."""
        if not self._server:
            return
        self._queue.put(None)
        self._thread.join(_LAST_S)
        if self._thread.is_alive():
            uri = self._server.destination.uri
            sys.stderr.write(f"MLflow at {uri} did not take all trials; study.json has them\n")

    def _nested(self, name: str) -> TrackingDestination:
        assert self._server  # noqa: S101 - callers checked
        key = f"{self._server.key}/{name}"
        title = f"trial {name}" if name.isdigit() else name
        return replace(self._server.destination, run="", name=title, key=key, parent=self._parent)

    def _work(self) -> None:
        assert self._server  # noqa: S101 - the thread is started with a server
        uri = self._server.destination.uri
        while (action := self._queue.get()) is not None:
            try:
                persist(lambda done=action: done(open_client(uri)), uri, OUTAGE_S)  # type: ignore[misc]
            except TrainwrightError as error:  # tracking never stops a study
                sys.stderr.write(f"MLflow did not take a part of the study: {error.what}\n")

    def _create(self, client: "MlflowClient") -> None:
        """Find or create the run of the study."""
        assert self._server  # noqa: S101
        self._parent = self._server.destination.run or run_of(
            replace(self._server.destination, key=self._server.key), client
        )
        self._created.set()

    def _send(self, trial: Trial, client: "MlflowClient") -> None:
        run = run_of(self._nested(str(trial.number)), client)
        figures = {"seconds": trial.seconds, "cost": trial.cost, "value": trial.value}
        began = datetime.fromisoformat(trial.started) if trial.started else datetime.now(UTC)
        tags = {_PARENT: self._parent, "state": trial.state, "reason": trial.reason}
        _log(client, run, trial.params, figures, tags, began + timedelta(seconds=trial.seconds), trial.steps)
        if status := _STATUS.get(trial.state):
            client.set_terminated(run, status)

    def _conclude(self, report: StudyReport, client: "MlflowClient") -> None:
        """Send what the study found; a run of Kubeflow Pipelines is ended by Kubeflow Pipelines."""
        confirmation, tuning = report.confirmation, report.tuning
        values = [trial.value for trial in report.trials if trial.value is not None]
        best = (min if report.direction == "minimize" else max)(values, default=None)
        params = {"metric": report.metric, "sampler": tuning["sampler"], "data_version": report.data_version}
        figures = {"trials": float(len(report.trials)), "cost": report.cost, "best": best}
        tags = {"outcome": confirmation.outcome, "sentence": confirmation.sentence, "ended": report.ended}
        _log(client, self._parent, params, figures, tags, datetime.now(UTC), 0)
        assert self._server  # noqa: S101
        if not self._server.destination.run:
            client.set_terminated(self._parent, "FINISHED")


def _log(
    client: "MlflowClient",
    run: str,
    params: Mapping[str, object],
    figures: Mapping[str, float | None],
    tags: Mapping[str, str],
    time: datetime,
    step: int,
) -> None:
    from mlflow.entities import Metric, Param, RunTag

    time_ms = int(time.timestamp() * 1000)
    client.log_batch(
        run,
        metrics=[Metric(name, value, time_ms, step) for name, value in figures.items() if value is not None],
        params=[
            Param(name, value if isinstance(value, str) else canonical(value))
            for name, value in params.items()
        ],
        tags=[RunTag(name, value[:5000]) for name, value in tags.items() if value],
    )

"""Print the trials of a study while they run: one line each time a trial starts, waits or ends."""

from typing import Protocol, TextIO

from trainwright.redaction import printable
from trainwright.report.svg import duration
from trainwright.tune.report import Trial


class TrialObserver(Protocol):
    """Observe the trials of a search."""

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

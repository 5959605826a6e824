"""What a training tells while it runs: a history for its page and for MLflow, a progress file, a line."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from trainwright.artifacts import Progress
from trainwright.errors import Preempted, PreemptedUnsaved
from trainwright.experiment import Tracking
from trainwright.launch.progress import progress_line
from trainwright.tracking.history import (
    HISTORY_FILE,
    HistoryWriter,
    TrackingDestination,
    TrainingHistory,
    is_uploaded,
)
from trainwright.train.loop import Step
from trainwright.train.page import write_training_page
from trainwright.train.published import publish_page
from trainwright.train.usage import Usage

PAGE = "report.html"
"""The page of a training, in the attempt's folder."""

_PROGRESS_S = 10.0
_DRAIN_S = 15.0
"""Seconds that the server gets for the rest, after all work is done."""

_REST = "trainwright curves sends the rest"
_HOUR_S = 3600
_CALM = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""MLflow takes this from a variable alone: a silent server is given up on after ten seconds."""


class Curves:
    """Takes note of the steps on the process that leads; does nothing on the others.

    Args:
        folder: The attempt's folder, for the progress file.
        home: Folder of all attempts, where the history lies.
        tracking: How often, and what a GPU costs.
        destination: Where the history goes while it grows; None: nowhere yet.
        leads: Whether this process is the one that writes.
        gpus: GPUs of this machine that the training uses.
        world: GPUs of the whole training.
        keep: Where the page goes if the training fails; empty: only into the attempt's folder.
    """

    def __init__(
        self,
        folder: Path,
        home: Path,
        tracking: Tracking,
        destination: TrackingDestination | None,
        *,
        leads: bool,
        gpus: int = 0,
        world: int = 0,
        keep: str = "",
    ) -> None:
        self._folder, self._tracking, self._world, self._leads = folder, tracking, world, leads
        self._started = self._told = time.monotonic()
        self._home, self._last, self._keep = home, 0, keep
        self._base: tuple[int, int] | None = None
        self._incomplete = False
        self.committed: Callable[[], int] = lambda: 0
        """Returns the step of the newest checkpoint."""
        if not leads:
            return
        self._spent_s = _spent_s(home / HISTORY_FILE) if world else 0.0
        self._history = HistoryWriter(home / HISTORY_FILE)
        self._usage = Usage(gpus)
        self._shipper = _start(home / HISTORY_FILE, destination) if destination else None

    def saw(self, step: Step) -> None:
        """Take note of a step."""
        if not self._leads:
            return
        self._last = step.number
        if self._base is None:
            # The first step is left out of the speed: it compiles, or waits for the first samples.
            self._base = (step.number, step.samples)
            self._history.mark("began", step.number - 1, total=step.total)
            self._started = time.monotonic()
        last = step.number == step.total
        if last or step.number % self._tracking.every_steps == 0:
            self._history.add(step.number, self._values(step))
        now = time.monotonic()
        if last or now - self._told >= _PROGRESS_S:
            self._told = now
            self._tell(step)

    def note(self, step: int, **values: float) -> None:
        """Put figures that are not those of a step into the history, such as the loss of another split."""
        if self._leads:
            self._history.add(step, values)

    def close(self, *, ended: str) -> None:
        """End the history and give the server a moment for the rest."""
        if not self._leads:
            return
        self._history.mark("ended", self._last, how=ended)
        self._history.close()
        self._usage.close()
        if self._shipper:
            _finish(self._shipper)
            self._incomplete = not is_uploaded(self._home / HISTORY_FILE)
        if self._incomplete:
            sys.stderr.write(f"the curves at MLflow are incomplete: {_REST}\n")

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        """End the history, however the training ended; one that failed gets its page at once."""
        self.close(ended=kind.__name__ if kind else "done")
        if self._leads and error:
            with contextlib.suppress(Exception):  # the error that is on its way matters more
                self.draw("Ended early", [], trouble=str(error))
                # A preempted training has little time left, and the next attempt resumes it: no page is due.
                if self._keep and not isinstance(error, Preempted | PreemptedUnsaved):
                    publish_page(self._folder / PAGE, self._keep)

    def draw(self, headline: str, facts: Sequence[tuple[str, object]], trouble: str = "") -> None:
        """Draw the page of the training into the attempt's folder."""
        history = TrainingHistory.read(self._home / HISTORY_FILE)
        if self._incomplete:
            facts = [*facts, ("curves at MLflow", f"incomplete: {_REST}")]
        write_training_page(self._folder / PAGE, history, headline, facts, trouble)

    def _speed(self, step: Step) -> float:
        _, samples = self._base or (0, 0)
        return (step.samples - samples) / max(time.monotonic() - self._started, 1e-9)

    def _values(self, step: Step) -> dict[str, float]:
        values = {
            "loss": step.loss,
            "gradient_norm": step.norm,
            "learning_rate": step.rate,
            "samples_per_s": self._speed(step),
            "epoch": float(step.epoch),
            **self._usage.values,
        }
        if self._world:
            gpu_s = self._spent_s + (time.monotonic() - self._started) * self._world
            values["gpu_s"] = gpu_s
            if self._tracking.gpu_hour is not None:
                values["cost"] = gpu_s / _HOUR_S * self._tracking.gpu_hour
        return values

    def _tell(self, step: Step) -> None:
        first, _ = self._base or (0, 0)
        passed = time.monotonic() - self._started
        rest_s = passed / max(step.number - first, 1) * (step.total - step.number)
        progress = Progress(
            step=step.number,
            total=step.total,
            epoch=step.epoch,
            loss=step.loss,
            samples_per_s=round(self._speed(step), 1),
            eta_s=round(rest_s, 1),
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            checkpoint_step=self.committed(),
            metrics=dict(self._usage.values),
        )
        try:
            progress.write(self._folder)
        except OSError as error:  # whether a training on a full disk can go on, its checkpoints say
            sys.stderr.write(f"the progress file could not be written: {error}\n")
        sys.stderr.write(f"{progress_line(progress)}\n")


def _spent_s(history: Path) -> float:
    """Return the GPU seconds of all starts before this one, what had to be done again included."""
    points = TrainingHistory.read(history).points
    return max((point.values["gpu_s"] for point in points if "gpu_s" in point.values), default=0.0)


def _start(history: Path, destination: TrackingDestination) -> subprocess.Popen[bytes]:
    told = json.dumps(dataclasses.asdict(destination))
    command = [sys.executable, "-m", "trainwright.tracking", "ship", str(history), told]
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command, env=os.environ | _CALM, stdin=subprocess.PIPE
    )


def _finish(shipper: subprocess.Popen[bytes]) -> None:
    """Let it send the rest; what it cannot send in time stays in the history."""
    if shipper.stdin:
        shipper.stdin.close()
    try:
        shipper.wait(_DRAIN_S)
    except subprocess.TimeoutExpired:
        shipper.kill()
        shipper.wait()

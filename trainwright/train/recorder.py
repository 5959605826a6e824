"""Records a training while it runs: history for its page and MLflow, progress file, one line of log."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import psutil  # type: ignore[import-untyped]
import torch

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
from trainwright.train.loop import StepReport
from trainwright.train.page import write_training_page
from trainwright.train.page_delivery import PAGE, publish_page

_PROGRESS_S = 10.0
_SAMPLE_S = 5.0
_DRAIN_S = 15.0
"""Limit for sending the rest of the history after the training."""

_REST = "trainwright curves sends the rest"
_HOUR_S = 3600
_SHIPPER_ENVIRONMENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""MLflow reads its timeout from this variable alone: a silent server is given up on after ten seconds."""


class TrainingRecorder:
    """Records the steps on rank 0; does nothing on the other processes.

    Args:
        folder: The attempt's folder, for the progress file and the page.
        job_directory: Folder of all attempts, for the history.
        tracking: Interval, and price of a GPU.
        destination: Tracking server for the history while it grows; None if there is none.
        leads: Whether this process is rank 0.
        gpus: GPUs of this machine that the training uses.
        world: GPUs of the whole training.
        failed_report: Prefix in a store for the page of a failed training; empty if there is none.
    """

    def __init__(
        self,
        folder: Path,
        job_directory: Path,
        tracking: Tracking,
        destination: TrackingDestination | None,
        *,
        leads: bool,
        gpus: int = 0,
        world: int = 0,
        failed_report: str = "",
    ) -> None:
        self._folder, self._tracking, self._world, self._leads = folder, tracking, world, leads
        self._started = self._progress_at = time.monotonic()
        self._history_file, self._last, self._failed_report = job_directory / HISTORY_FILE, 0, failed_report
        self._first: StepReport | None = None
        self._incomplete = False
        self.committed_step: Callable[[], int] = lambda: 0
        """Returns the step of the newest checkpoint."""
        if not leads:
            return
        self._spent_s = _spent_s(self._history_file) if world else 0.0
        self._history = HistoryWriter(self._history_file)
        self._usage = MachineUsage(gpus)
        self._shipper = _start_shipper(self._history_file, destination) if destination else None

    def on_step(self, step: StepReport) -> None:
        """Record a step."""
        if not self._leads:
            return
        self._last = step.number
        if self._first is None:
            # The first step does not count for the speed: it compiles, or waits for the first samples.
            self._first = step
            self._history.mark("began", step.number - 1, total=step.total)
            self._started = time.monotonic()
        last = step.number == step.total
        if last or step.number % self._tracking.every_steps == 0:
            self._history.add(step.number, self._values(step))
        now = time.monotonic()
        if last or now - self._progress_at >= _PROGRESS_S:
            self._progress_at = now
            self._write_progress(step)

    def note(self, step: int, **values: float) -> None:
        """Record further figures, such as the loss of another split."""
        if self._leads:
            self._history.add(step, values)

    def close(self, *, ended: str) -> None:
        """End the history, and give the server a moment for the rest."""
        if not self._leads:
            return
        self._history.mark("ended", self._last, how=ended)
        self._history.close()
        self._usage.close()
        if self._shipper:
            _finish_shipper(self._shipper)
            self._incomplete = not is_uploaded(self._history_file)
        if self._incomplete:
            sys.stderr.write(f"the curves at MLflow are incomplete: {_REST}\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        self.close(ended=kind.__name__ if kind else "done")
        if self._leads and error:
            with contextlib.suppress(Exception):  # the error that is being raised matters more
                self.draw("Ended early", [], trouble=str(error))
                # A preempted training has little time left, and the next attempt resumes it: no page is due.
                if self._failed_report and not isinstance(error, Preempted | PreemptedUnsaved):
                    publish_page(self._folder / PAGE, self._failed_report)

    def draw(self, headline: str, facts: Sequence[tuple[str, object]], trouble: str = "") -> None:
        """Draw the page of the training into the attempt's folder."""
        history = TrainingHistory.read(self._history_file)
        if self._incomplete:
            facts = [*facts, ("curves at MLflow", f"incomplete: {_REST}")]
        write_training_page(self._folder / PAGE, history, headline, facts, trouble)

    def _speed(self, step: StepReport) -> float:
        samples = self._first.samples if self._first else 0
        return (step.samples - samples) / max(time.monotonic() - self._started, 1e-9)

    def _values(self, step: StepReport) -> dict[str, float]:
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

    def _write_progress(self, step: StepReport) -> None:
        first = self._first.number if self._first else 0
        passed = time.monotonic() - self._started
        progress = Progress(
            step=step.number,
            total=step.total,
            epoch=step.epoch,
            loss=step.loss,
            samples_per_s=round(self._speed(step), 1),
            eta_s=round(passed / max(step.number - first, 1) * (step.total - step.number), 1),
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            checkpoint_step=self.committed_step(),
            metrics=dict(self._usage.values),
        )
        try:
            progress.write(self._folder)
        except OSError as error:  # checkpoints decide whether a training continues on a full disk
            sys.stderr.write(f"the progress file could not be written: {error}\n")
        sys.stderr.write(f"{progress_line(progress)}\n")


def _spent_s(history: Path) -> float:
    """Return the GPU seconds of all starts before this one, repeated steps included."""
    points = TrainingHistory.read(history).points
    return max((point.values["gpu_s"] for point in points if "gpu_s" in point.values), default=0.0)


def _start_shipper(history: Path, destination: TrackingDestination) -> subprocess.Popen[bytes]:
    address = json.dumps(dataclasses.asdict(destination))
    command = [sys.executable, "-m", "trainwright.tracking", "ship", str(history), address]
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command, env=os.environ | _SHIPPER_ENVIRONMENT, stdin=subprocess.PIPE
    )


def _finish_shipper(shipper: subprocess.Popen[bytes]) -> None:
    """Let the shipper send the rest; what it cannot send in time stays in the history."""
    if shipper.stdin:
        shipper.stdin.close()
    try:
        shipper.wait(_DRAIN_S)
    except subprocess.TimeoutExpired:
        shipper.kill()
        shipper.wait()


class MachineUsage:
    """Samples CPU, memory and GPUs of this machine in a thread.

    Args:
        gpus: GPUs of this machine that the training uses.
    """

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self._values: Mapping[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="usage", daemon=True)
        self._thread.start()

    @property
    def values(self) -> Mapping[str, float]:
        """The newest sample, by name: shares in [0, 1], memory in GiB."""
        return self._values

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._thread.join(2 * _SAMPLE_S)

    def _sample(self) -> None:
        psutil.cpu_percent()  # the first call of a process returns 0
        handles = _gpu_handles(self._gpus)
        while not self._stop.wait(_SAMPLE_S):
            memory = psutil.virtual_memory()
            self._values = {
                "host_cpu": psutil.cpu_percent() / 100,
                "host_memory_gib": (memory.total - memory.available) / 2**30,
                **_gpu_usage(handles),
            }


def _gpu_handles(count: int) -> list[object]:
    """Return NVML's handles of the GPUs that torch sees; empty without NVML."""
    if not count:
        return []
    import pynvml  # type: ignore[import-untyped]

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        uuids = [str(torch.cuda.get_device_properties(index).uuid) for index in range(count)]
        return [pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") for uuid in uuids]
    return []


def _gpu_usage(handles: list[object]) -> dict[str, float]:
    if not handles:
        return {}
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        used = [pynvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in handles]
        memory = [pynvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles]
        return {"gpu_use": sum(used) / len(used) / 100, "gpu_memory_gib": max(memory) / 2**30}
    return {}

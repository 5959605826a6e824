"""Records a training while it runs: history for its page and MLflow, progress file, one line of log."""

import contextlib
import json
import os
import platform
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
from trainwright.tracking.history import HISTORY_FILE, HistoryWriter, TrainingHistory, is_uploaded
from trainwright.train.config import TrainConfig
from trainwright.train.loop import FitResult, StepReport
from trainwright.train.page import write_training_page
from trainwright.train.page_delivery import PAGE, publish_page
from trainwright.train.process_group import Ranks

_PROGRESS_S = 10.0
_SAMPLE_S = 5.0
_DRAIN_S = 15.0
"""Limit for sending the rest of the history after the training."""

_REST = "trainwright curves sends the rest"
_SHIPPER_ENVIRONMENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""MLflow reads its timeout from this variable alone: it gives up on a silent server after ten seconds."""


class TrainingRecorder:
    """Records the steps on rank 0; does nothing on the other processes.

    Args:
        config: The configuration of the training.
        ranks: The processes.
        folder: The attempt's folder, for the progress file and the page.
    """

    def __init__(self, config: TrainConfig, ranks: Ranks, folder: Path) -> None:
        self._config, self._ranks, self._folder = config, ranks, folder
        self._started = self._progress_at = time.monotonic()
        self._history_file, self._last = config.job_directory / HISTORY_FILE, 0
        self._first: StepReport | None = None
        self._incomplete, self._candidate = False, ""
        self.committed_step: Callable[[], int] = lambda: 0
        """Returns the step of the newest checkpoint."""
        if not ranks.leads:
            return
        # GPU seconds of all starts before this one, repeated steps included.
        earlier = TrainingHistory.read(self._history_file).points if config.gpus else []
        self._spent_s = max((point.values.get("gpu_s", 0.0) for point in earlier), default=0.0)
        self._history = HistoryWriter(self._history_file)
        self._usage = MachineUsage(config.gpus)
        self._shipper: subprocess.Popen[bytes] | None = None
        if config.destination:
            address = json.dumps(config.destination)
            command = [sys.executable, "-m", "trainwright.tracking", "ship", str(self._history_file), address]
            self._shipper = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command, env=os.environ | _SHIPPER_ENVIRONMENT, stdin=subprocess.PIPE
            )

    def begin_candidate(self, kind: str) -> None:
        """Record the following steps as those of one candidate of several: ``loss`` as ``trees/loss``."""
        self._candidate, self._first = kind, None
        if self._ranks.leads:
            sys.stderr.write(f"training candidate {kind}\n")

    def on_step(self, step: StepReport) -> None:
        """Record a step."""
        if not self._ranks.leads:
            return
        self._last = step.number
        if self._first is None:
            # The first step does not count for the speed: it compiles, or waits for the first samples.
            self._first = step
            candidate = {"candidate": self._candidate} if self._candidate else {}
            self._history.mark("began", step.number - 1, total=step.total, unit=step.unit, **candidate)
            self._started = time.monotonic()
        last, now = step.number == step.total, time.monotonic()
        speed = (step.samples - self._first.samples) / max(now - self._started, 1e-9)
        tracking = self._config.settings.tracking
        if last or step.number % tracking.every_steps == 0:
            values = {
                "loss": step.loss,
                "gradient_norm": step.norm,
                "learning_rate": step.rate,
                "samples_per_s": speed,
                "epoch": float(step.epoch),
                **self._usage.values,
            }
            if self._config.gpus:
                values["gpu_s"] = self._spent_s + (now - self._started) * self._ranks.size
                if tracking.gpu_hour is not None:
                    values["cost"] = values["gpu_s"] / 3600 * tracking.gpu_hour
            self.note(step.number, **values)
        if last or now - self._progress_at >= _PROGRESS_S:
            self._progress_at = now
            self._write_progress(
                step, speed, (now - self._started) / max(step.number - self._first.number, 1)
            )

    def _write_progress(self, step: StepReport, speed: float, step_s: float) -> None:
        progress = Progress(
            step=step.number,
            total=step.total,
            epoch=step.epoch,
            loss=step.loss,
            samples_per_s=round(speed, 1),
            eta_s=round(step_s * (step.total - step.number), 1),
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            checkpoint_step=self.committed_step(),
            metrics=dict(self._usage.values),
        )
        try:
            progress.write(self._folder)
        except OSError as error:  # checkpoints decide whether a training continues on a full disk
            sys.stderr.write(f"the progress file could not be written: {error}\n")
        sys.stderr.write(f"{progress!s}\n")

    def note(self, step: int, **values: float) -> None:
        """Record further figures, such as the loss of another split."""
        if self._ranks.leads:
            prefix = f"{self._candidate}/" if self._candidate else ""
            self._history.add(step, {f"{prefix}{name}": value for name, value in values.items()})

    def close(self, *, ended: str) -> None:
        """End the history, and give the server a moment for the rest."""
        if not self._ranks.leads:
            return
        self._history.mark("ended", self._last, how=ended)
        self._history.close()
        self._usage.close()
        if self._shipper and self._shipper.stdin:
            self._shipper.stdin.close()
            try:
                self._shipper.wait(_DRAIN_S)
            except subprocess.TimeoutExpired:
                self._shipper.kill()
                self._shipper.wait()
            self._incomplete = not is_uploaded(self._history_file)
        if self._incomplete:
            sys.stderr.write(f"the curves at MLflow are incomplete: {_REST}\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        self.close(ended=kind.__name__ if kind else "done")
        if self._ranks.leads and error:
            with contextlib.suppress(Exception):  # the error that is being raised matters more
                self.draw("Ended early", [], trouble=str(error))
                # A preempted training has little time left, and the next attempt resumes it: no page is due.
                if self._config.failed_report and not isinstance(error, Preempted | PreemptedUnsaved):
                    publish_page(self._folder / PAGE, self._config.failed_report)

    def draw(
        self,
        headline: str,
        facts: Sequence[tuple[str, object]],
        trouble: str = "",
        result: FitResult | None = None,
    ) -> None:
        """Draw the page of the training into the attempt's folder."""
        history = TrainingHistory.read(self._history_file)
        if self._incomplete:
            facts = [*facts, ("curves at MLflow", f"incomplete: {_REST}")]
        write_training_page(self._folder / PAGE, history, headline, facts, trouble, result)


class MachineUsage:
    """Samples CPU, memory and the training's GPUs of this machine in a thread."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self.values: Mapping[str, float] = {}
        """The newest sample, by name: shares in [0, 1], memory in GiB."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="usage", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._thread.join(2 * _SAMPLE_S)

    def _sample(self) -> None:
        psutil.cpu_percent()  # the first call of a process returns 0
        handles = _gpu_handles(self._gpus)
        while not self._stop.wait(_SAMPLE_S):
            memory = psutil.virtual_memory()
            self.values = {
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


def hardware() -> dict[str, str]:
    """Return the model of the CPU, and model and driver of the GPUs; ``none`` without GPUs."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    count = torch.cuda.device_count()
    found = {
        "cpu": names[0] if names else platform.machine(),
        "cores": str(os.cpu_count()),
        "gpu": f"{count} x {torch.cuda.get_device_name(0)}" if count else "none",
    }
    if _gpu_handles(count):
        import pynvml

        found["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
    return found


def _gpu_usage(handles: list[object]) -> dict[str, float]:
    if not handles:
        return {}
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        used = [pynvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in handles]
        memory = [pynvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles]
        return {"gpu_use": sum(used) / len(used) / 100, "gpu_memory_gib": max(memory) / 2**30}
    return {}

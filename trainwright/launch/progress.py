"""Read and print the progress of a training."""

from pathlib import Path

from trainwright.artifacts import Progress
from trainwright.errors import InputError


def read_progress(folder: Path) -> Progress | None:
    """Return where an attempt stands; nothing if it has not begun, or its file cannot be read now."""
    try:
        return Progress.read(folder)
    except (InputError, OSError):
        return None


def progress_line(progress: Progress) -> str:
    """Say it: step of steps, percent, epoch, loss, speed, use of the GPUs, and the time that is left."""
    gpu = progress.metrics.get("gpu_use")
    return (
        f"step {progress.step:,} of {progress.total:,} ({progress.step / max(progress.total, 1):.0%}), "
        f"epoch {progress.epoch}, loss {progress.loss:.4f}, {progress.samples_per_s:,.0f} samples/s"
        + (f", GPU {gpu:.0%}" if gpu is not None else "")
        + f", {progress.eta_s:,.0f} s left"
    )

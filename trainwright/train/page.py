"""Draws the page of a training: its curves and its job."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwright.launch.job import JobReference
from trainwright.report.charts import Series, lines
from trainwright.report.page import Block, Figure, ReportPage, ReportSection, Table, write_page
from trainwright.tracking.history import TrainingHistory

_POINTS = 600
"""Points of a drawn line: more cannot be distinguished."""

_FEW, _HUGE = 20, 1e300
_LOSSES = {"loss": "training", "watched_loss": "watched split"}


@dataclass(frozen=True)
class _Figure:
    """The chart of one figure of the history: axis label, caption, and factor of its unit."""

    label: str
    caption: str
    scale: float = 1.0


_REST = {
    "gradient_norm": _Figure("norm of the gradient", "Of the global batch, before any clipping."),
    "learning_rate": _Figure("learning rate", "Up in the warm-up, then as the schedule says."),
    "samples_per_s": _Figure("thousand samples a second", "Over all processes, since the start.", 1e-3),
    "host_cpu": _Figure("share of the processors", "Of the whole machine that rank 0 runs on."),
    "host_memory_gib": _Figure("memory of the machine, GiB", "In use on the machine that rank 0 runs on."),
    "gpu_use": _Figure("share of the GPUs' time", "Mean over the GPUs of rank 0's machine."),
    "gpu_memory_gib": _Figure("GPU memory, GiB", "In use on the fullest GPU of rank 0's machine."),
    "cost": _Figure("cost", "GPU hours times the price that was given."),
}


def write_training_page(
    path: Path,
    history: TrainingHistory,
    headline: str,
    facts: Sequence[tuple[str, object]],
    trouble: str = "",
) -> None:
    """Draw the curves of a training as one self-contained page.

    Args:
        path: The HTML file.
        history: TrainingHistory of the training.
        headline: The main result, in one sentence.
        facts: Names and values for the top of the page.
        trouble: Error that ended it early; empty if none did.
    """
    sections = [*_sections(history, trouble), *_job_section(path.parent)]
    write_page(ReportPage(title="Training", subtitle=headline, facts=facts, sections=sections), path)


def _sections(history: TrainingHistory, trouble: str) -> Iterator[ReportSection]:
    if trouble:
        yield ReportSection(
            "Why it ended", [Table(("What", ""), [(line, "") for line in trouble.splitlines()])]
        )
    losses = {label: thinned(*history.curve(name)) for name, label in _LOSSES.items()}
    losses = {label: series for label, series in losses.items() if series[0]}
    if losses:
        dots = any(len(series[0]) < _FEW for series in losses.values())
        chart = lines(losses, x_label="step", y_label="loss", dots=dots, from_zero=False)
        figure = Figure(chart, "Mean loss per sample, at logged steps.")
        yield ReportSection("Loss", [figure])
    if figures := list(_figures(history)):
        yield ReportSection("How it went", figures)
    events = [event for event in history.events if event["event"] == "began"]
    if len(events) > 1:
        yield ReportSection("Starts", [_starts(events)])


def _job_section(folder: Path) -> Iterator[ReportSection]:
    """Yield the cluster's job of an attempt, with the commands that show its pods."""
    if (folder / JobReference.FILE).exists():
        job = JobReference.read(folder)
        rows = [(job.kind, f"{job.namespace}/{job.name}"), *(("see", command) for command in job.commands)]
        yield ReportSection("Job", [Table(("What", ""), rows)])


def _figures(history: TrainingHistory) -> Iterator[Block]:
    for name, figure in _REST.items():
        steps, values = thinned(*history.curve(name))
        if len(steps) > 1:
            series = {figure.label: (steps, [figure.scale * value for value in values])}
            yield Figure(lines(series, x_label="step", y_label=figure.label), figure.caption)


def _starts(events: Sequence[Mapping[str, object]]) -> Table:
    rows = [(index + 1, event["step"]) for index, event in enumerate(events)]
    return Table(("Start", "Steps taken before"), rows, numeric=(0, 1))


def thinned(steps: Sequence[int], values: Sequence[float]) -> Series:
    """Reduce a curve to some hundred points: minimum and maximum of each span, finite values only."""
    points = [(float(step), value) for step, value in zip(steps, values, strict=True) if abs(value) < _HUGE]
    if len(points) > _POINTS:
        width = -(-2 * len(points) // _POINTS)
        spans = [points[start : start + width] for start in range(0, len(points), width)]
        ends = [
            (min(span, key=lambda point: point[1]), max(span, key=lambda point: point[1])) for span in spans
        ]
        points = [point for low, high in ends for point in sorted({low, high})]
    return [step for step, _ in points], [value for _, value in points]

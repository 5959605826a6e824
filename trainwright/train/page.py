"""Draws the page of a training: its curves and its job."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from trainwright.launch.job import JobReference
from trainwright.report.charts import Series, lines
from trainwright.report.page import Figure, ReportPage, ReportSection, Table, write_page
from trainwright.tracking.history import TrainingHistory

_POINTS = 600
"""Points of a drawn line: more cannot be distinguished."""

_FEW, _HUGE = 20, 1e300
_LOSSES = {"loss": "training", "watched_loss": "watched split"}

_FIGURES = {
    "gradient_norm": ("norm of the gradient", "Of the global batch, before any clipping.", 1.0),
    "learning_rate": ("learning rate", "Up in the warm-up, then as the schedule says.", 1.0),
    "samples_per_s": ("thousand samples a second", "Over all processes, since the start.", 1e-3),
    "host_cpu": ("share of the processors", "Of the whole machine that rank 0 runs on.", 1.0),
    "host_memory_gib": ("memory of the machine, GiB", "In use on the machine that rank 0 runs on.", 1.0),
    "gpu_use": ("share of the GPUs' time", "Mean over the GPUs of rank 0's machine.", 1.0),
    "gpu_memory_gib": ("GPU memory, GiB", "In use on the fullest GPU of rank 0's machine.", 1.0),
    "cost": ("cost", "GPU hours times the configured price.", 1.0),
}
"""Axis label, caption and factor of the unit of each figure of the history."""


def write_training_page(
    path: Path,
    history: TrainingHistory,
    headline: str,
    facts: Sequence[tuple[str, object]],
    trouble: str = "",
) -> None:
    """Draw the curves of a training, and the error that ended it early, into the attempt's folder."""
    sections = list(_sections(history, trouble))
    if (path.parent / JobReference.FILE).exists():
        job = JobReference.read(path.parent)
        rows = [(job.kind, f"{job.namespace}/{job.name}"), *(("see", command) for command in job.commands)]
        sections.append(ReportSection("Job", [Table(("What", ""), rows)]))
    write_page(ReportPage(title="Training", subtitle=headline, facts=facts, sections=sections), path)


def _sections(history: TrainingHistory, trouble: str) -> Iterator[ReportSection]:
    if trouble:
        rows = [(line, "") for line in trouble.splitlines()]
        yield ReportSection("Why it ended", [Table(("What", ""), rows)])
    losses = {label: _thin_out(*history.curve(name)) for name, label in _LOSSES.items()}
    losses = {label: series for label, series in losses.items() if series[0]}
    if losses:
        dots = any(len(series[0]) < _FEW for series in losses.values())
        chart = lines(losses, x_label="step", y_label="loss", dots=dots, from_zero=False)
        yield ReportSection("Loss", [Figure(chart, "Mean loss per sample, at logged steps.")])
    figures = []
    for name, (label, caption, scale) in _FIGURES.items():
        steps, values = _thin_out(*history.curve(name))
        if len(steps) > 1:
            series = {label: (steps, [scale * value for value in values])}
            figures.append(Figure(lines(series, x_label="step", y_label=label), caption))
    if figures:
        yield ReportSection("How it went", figures)
    starts = [event["step"] for event in history.events if event["event"] == "began"]
    if len(starts) > 1:
        table = Table(("Start", "Steps taken before"), list(enumerate(starts, 1)), numeric=(0, 1))
        yield ReportSection("Starts", [table])


def _thin_out(steps: Sequence[int], values: Sequence[float]) -> Series:
    """Reduce a curve to some hundred points: minimum and maximum of each span, finite values only."""
    points = [(float(step), value) for step, value in zip(steps, values, strict=True) if abs(value) < _HUGE]
    if len(points) > _POINTS:
        width = -(-2 * len(points) // _POINTS)
        spans = [points[start : start + width] for start in range(0, len(points), width)]
        ends = [
            {min(span, key=lambda point: point[1]), max(span, key=lambda point: point[1])} for span in spans
        ]
        points = [point for both in ends for point in sorted(both)]
    return [step for step, _ in points], [value for _, value in points]

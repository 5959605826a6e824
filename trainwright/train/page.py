"""The page of a training: what was learned, how fast, and what it used, as curves over the steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwright.launch.job import JobReference
from trainwright.report.charts import Series, lines
from trainwright.report.page import Block, Figure, ReportPage, ReportSection, Table, write_page
from trainwright.tracking.history import TrainingHistory

_POINTS = 600
"""Points of a drawn line: more cannot be told apart."""

_LOSSES = {"loss": "training", "watched_loss": "watched split"}


@dataclass(frozen=True)
class _Figure:
    """How one figure of the history is drawn: its name on the axis, what it means, and its unit."""

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
        history: What was noted while it ran.
        headline: The one sentence to read.
        facts: Names and values that belong at the top.
        trouble: Why it ended early; empty if it did not.
    """
    sections = [*_sections(history, trouble), *_job(path.parent)]
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
        figure = Figure(chart, "Mean loss a sample of each batch that was noted.")
        yield ReportSection("Loss", [figure])
    if figures := list(_figures(history)):
        yield ReportSection("How it went", figures)
    events = [event for event in history.events if event["event"] == "began"]
    if len(events) > 1:
        yield ReportSection("Starts", [_starts(events)])


def _job(folder: Path) -> Iterator[ReportSection]:
    """Yield which job of the cluster ran the attempt of a folder, and how to see its pods."""
    if (folder / JobReference.FILE).exists():
        job = JobReference.read(folder)
        rows = [(job.kind, f"{job.namespace}/{job.name}"), *(("see", command) for command in job.commands)]
        yield ReportSection("Job", [Table(("What", ""), rows)])


_FEW = 20


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
    """Return at most some hundred points of a curve: of each span of steps the least and the largest value.

    Values that are not finite are left out.
    """
    points = [(float(step), value) for step, value in zip(steps, values, strict=True) if abs(value) < _HUGE]
    if len(points) > _POINTS:
        width = -(-2 * len(points) // _POINTS)
        spans = [points[start : start + width] for start in range(0, len(points), width)]
        ends = [(min(span, key=_value), max(span, key=_value)) for span in spans]
        points = [point for low, high in ends for point in sorted({low, high})]
    return [step for step, _ in points], [value for _, value in points]


_HUGE = 1e300


def _value(point: tuple[float, float]) -> float:
    return point[1]

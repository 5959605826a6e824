"""Draws the page of a training: its curves and its job."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from trainwright.launch.job import JobReference
from trainwright.report.charts import Series, bars, lines
from trainwright.report.page import Figure, ReportPage, ReportSection, Table, write_page
from trainwright.tracking.history import TrainingHistory
from trainwright.train.loop import FitResult

_POINTS = 600
"""Points of a drawn line: more cannot be distinguished."""

_COLUMNS = 20
"""Columns whose importance is shown."""

_FEW, _HUGE = 20, 1e300
_LOSSES = {"loss": "training", "watched_loss": "held-out rows"}

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


_OF_STEPS = ("gradient_norm", "learning_rate")
"""Figures that rounds of trees do not have, or that never change with them."""


def write_training_page(
    path: Path,
    history: TrainingHistory,
    headline: str,
    facts: Sequence[tuple[str, object]],
    trouble: str = "",
    result: FitResult | None = None,
) -> None:
    """Draw the curves of a training, and its result or the error that ended it early."""
    sections = list(_sections(history, trouble))
    if result:
        sections = [*_comparison(result), *sections, *_importance(result)]
    if (path.parent / JobReference.FILE).exists():
        job = JobReference.read(path.parent)
        rows = [(job.kind, f"{job.namespace}/{job.name}"), *(("see", command) for command in job.commands)]
        sections.append(ReportSection("Job", [Table(("What", ""), rows)]))
    write_page(ReportPage(title="Training", subtitle=headline, facts=facts, sections=sections), path)


def _sections(history: TrainingHistory, trouble: str) -> Iterator[ReportSection]:
    if trouble:
        causes = [(line, "") for line in trouble.splitlines()]
        yield ReportSection("Why it ended", [Table(("What", ""), causes)])
    starts = [event for event in history.events if event["event"] == "began"]
    candidates = {event.get("candidate", ""): event.get("unit", "step") for event in starts}
    for candidate, unit in candidates.items():
        yield from _curves(history, candidate, unit)
    if len(starts) > len(candidates):
        rows = [(at, event["step"], event.get("candidate", "")) for at, event in enumerate(starts, 1)]
        header = ["Start", "Steps taken before"] + (["Candidate"] if any(candidates) else [])
        table = Table(header, [row[: len(header)] for row in rows], numeric=(0, 1))
        yield ReportSection("Starts", [table])


def _curves(history: TrainingHistory, candidate: str, unit: str) -> Iterator[ReportSection]:
    """Draw the curves of a training, or of one of its candidates, by step or by round."""
    prefix, title = (f"{candidate}/", f": {candidate}") if candidate else ("", "")
    losses = {label: _thin_out(*history.curve(prefix + name)) for name, label in _LOSSES.items()}
    losses = {label: series for label, series in losses.items() if series[0]}
    if losses:
        dots = any(len(series[0]) < _FEW for series in losses.values())
        chart = lines(losses, x_label=unit, y_label="loss", dots=dots, from_zero=False)
        yield ReportSection(f"Loss{title}", [Figure(chart, f"Mean loss per sample, at logged {unit}s.")])
    figures = []
    for name, (label, caption, scale) in _FIGURES.items():
        steps, values = _thin_out(*history.curve(prefix + name))
        if len(steps) > 1 and not (unit == "round" and name in _OF_STEPS):
            series = {label: (steps, [scale * value for value in values])}
            figures.append(Figure(lines(series, x_label=unit, y_label=label), caption))
    if figures:
        yield ReportSection(f"How it went{title}", figures)


def _comparison(result: FitResult) -> Iterator[ReportSection]:
    found = result.comparison
    if found is None:
        return
    rows = [
        (kind, f"{loss:.4f}", "kept" if kind == found.kept else "") for kind, loss in found.losses.items()
    ]
    rows.append(("constant prediction", f"{found.constant:.4f}", ""))
    table = Table(("Candidate", "Held-out loss", ""), rows, numeric=(1,))
    intro = f"{found}. Both candidates were trained on the same rows, and neither on these {found.rows:,}."
    yield ReportSection("Candidates", [table], intro=intro)


def _importance(result: FitResult) -> Iterator[ReportSection]:
    """Show the columns that the trees split on."""
    if not result.importance:
        return
    ordered = sorted(result.importance.items(), key=lambda item: (-item[1], item[0]))
    chart = bars(dict(ordered[:_COLUMNS]), axis="share of the gain")
    caption = "XGBoost's total gain by input column: what the training used, not what causes the label."
    if len(ordered) > _COLUMNS:
        caption += f" The first {_COLUMNS} of {len(ordered)} columns."
    yield ReportSection("Feature importance", [Figure(chart, caption)])


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

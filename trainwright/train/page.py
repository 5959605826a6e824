"""The page of a training: what was learned, how fast, and what it used, as curves over the steps."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trainwright.report.charts import Series, lines
from trainwright.report.page import Block, Figure, Page, Section, Table, write_page
from trainwright.tracking.history import History

_POINTS = 600
"""Points of a drawn line: more cannot be told apart."""

_LOSSES = {"loss": "training", "watched_loss": "watched split"}
_REST = {
    "gradient_norm": "norm of the gradient",
    "learning_rate": "learning rate",
    "samples_per_s": "samples a second",
    "host_cpu": "use of the processors",
    "host_memory_gib": "memory of the machine, GiB",
    "gpu_use": "use of the GPUs",
    "gpu_memory_gib": "memory of the fullest GPU, GiB",
    "cost": "cost so far",
}


def write_training_page(
    path: Path, history: History, headline: str, facts: Sequence[tuple[str, object]], trouble: str = ""
) -> None:
    """Draw the curves of a training as one self-contained page.

    Args:
        path: The HTML file.
        history: What was noted while it ran.
        headline: The one sentence to read.
        facts: Names and values that belong at the top.
        trouble: Why it ended early; empty if it did not.
    """
    sections = list(_sections(history, trouble))
    write_page(Page(title="Training", subtitle=headline, facts=facts, sections=sections), path)


def _sections(history: History, trouble: str) -> Iterator[Section]:
    if trouble:
        yield Section("Why it ended", [Table(("What", ""), [(line, "") for line in trouble.splitlines()])])
    losses = {label: thinned(*history.curve(name)) for name, label in _LOSSES.items()}
    losses = {label: series for label, series in losses.items() if series[0]}
    if losses:
        dots = any(len(series[0]) < _FEW for series in losses.values())
        figure = Figure(lines(losses, x_label="step", y_label="loss", dots=dots), "Mean loss a sample.")
        yield Section("Loss", [figure])
    if figures := list(_figures(history)):
        yield Section("How it went", figures)
    if events := [event for event in history.events if event["event"] == "began"]:
        yield Section("Starts", [_starts(events)])


_FEW = 20


def _figures(history: History) -> Iterator[Block]:
    for name, label in _REST.items():
        series = thinned(*history.curve(name))
        if len(series[0]) > 1:
            yield Figure(lines({label: series}, x_label="step", y_label=label), f"{label.capitalize()}.")


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

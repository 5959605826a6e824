"""What was said against what was seen, bin by bin, with the interval of what was seen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from trainwright.errors import InternalError
from trainwright.report.svg import FONT, WIDTH, Scale, drawing, element, label, legend, number

_LEFT, _TOP, _BOTTOM, _EDGE = 48.0, 48.0, 366.0, 14.0


@dataclass(frozen=True)
class Binned:
    """Points with vertical intervals, each of shape (bins,)."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def binned(series: Mapping[str, Binned], *, x_label: str, y_label: str, unit: bool = True) -> Markup:
    """Draw bins as points on a line with vertical whiskers; on the dashed diagonal both agree.

    Args:
        series: By name, at most four; the first in front.
        x_label: What was said.
        y_label: What was seen.
        unit: Over the unit square; otherwise over the span of all values, the same on both axes.
    """
    if not series or not all(len(entry.x) for entry in series.values()):
        raise InternalError("a chart of bins without bins")
    low, high = (0.0, 1.0) if unit else _reach(series)
    x, y = Scale(low, high, _LEFT, WIDTH - _EDGE), Scale(low, high, _BOTTOM, _TOP)
    marks = [label(_LEFT, _TOP - 10, y_label, class_="muted", width=WIDTH - 60)]
    if len(series) > 1:
        marks += legend([(f"line-{index % 4}", name) for index, name in enumerate(series)], x=_LEFT, y=14)
    for value in x.ticks(4):
        marks.append(element("line", x1=_LEFT, x2=WIDTH - _EDGE, y1=y(value), y2=y(value), class_="grid"))
        marks.append(label(_LEFT - 7, y(value) + 4, number(value), text_anchor="end", class_="muted"))
        marks.append(label(x(value), _BOTTOM + FONT + 5, number(value), text_anchor="middle", class_="muted"))
    marks.append(element("line", x1=x(low), y1=y(low), x2=x(high), y2=y(high), class_="reference"))
    for index, (name, entry) in reversed(list(enumerate(series.items()))):
        marks += _points(name, entry, index % 4, x, y)
    marks.append(label((_LEFT + WIDTH) / 2, _BOTTOM + 34, x_label, text_anchor="middle", class_="muted"))
    return drawing(_BOTTOM + 42, f"{y_label} by {x_label}", f"Bins of {', '.join(series)}.", marks)


def _reach(series: Mapping[str, Binned]) -> tuple[float, float]:
    ends = [
        value
        for entry in series.values()
        for values in (entry.x, entry.y, entry.low, entry.high)
        for value in values
        if math.isfinite(value)
    ]
    low, high = min(ends), max(ends)
    air = 0.04 * (high - low) or 0.5
    return low - air, high + air


def _points(name: str, entry: Binned, kind: int, x: Scale, y: Scale) -> list[Markup]:
    places = [(x(a), y(b)) for a, b in zip(entry.x, entry.y, strict=True)]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    marks = [element("polyline", element("title", name), points=path, class_=f"curve stroke-{kind}")]
    for (a, b), low, high in zip(places, entry.low, entry.high, strict=True):
        marks.append(element("line", x1=a, x2=a, y1=y(low), y2=y(high), class_=f"bar stroke-{kind}"))
        marks.append(element("circle", cx=a, cy=b, r=3.0, class_=f"line-{kind}"))
    return marks

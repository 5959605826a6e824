"""Charts as inline SVG: histograms, bars, lines and calibration bins.

Every label is escaped, every chart has a title and a description, and no meaning is carried by colour alone:
the previous span is an outline, a flagged row a bold diamond.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from trainwright.errors import InternalError
from trainwright.report.intervals import (
    Interval,
    IntervalPair,
    LimitRow,
    intervals,
    limits,
    paired_intervals,
)
from trainwright.report.svg import (
    FONT,
    WIDTH,
    AxisScale,
    drawing,
    element,
    extent,
    label,
    legend,
    number,
    percent,
)

__all__ = [
    "Binned", "Interval", "IntervalPair", "LimitRow", "binned", "intervals", "limits", "lines", "paired_bars",
    "paired_histogram", "paired_intervals",
]  # fmt: skip

Names = tuple[str, str]
Series = tuple[Sequence[float], Sequence[float]]

_EDGE = 14.0
_TOP = 34.0


def paired_histogram(
    edges: Sequence[float],
    current: Sequence[float],
    previous: Sequence[float] | None,
    *,
    names: Names = ("current", "previous"),
) -> Markup:
    """Draw two histograms over the same buckets: the current one filled, the previous one as an outline.

    Args:
        edges: Ascending bounds of the buckets, shape (buckets + 1,). The outer ones may be infinite.
        current: Counts or weights, shape (buckets,); drawn as shares of their sum.
        previous: The same of the span that it is compared with; None where there is nothing to compare.
        names: What the two are called.

    Buckets of unequal width are drawn equally wide, with their bounds written below, so that a bucket
    that holds a single value, or a long tail, hides none of the others.
    """
    other = current if previous is None else previous
    if not 1 <= len(edges) - 1 == len(current) == len(other):
        raise InternalError(f"{len(edges)} edges do not bound {len(current)} and {len(other)} buckets")
    now, before = _shares(current), _shares(other)
    even = _even(edges)
    places = list(edges) if even else [float(index) for index in range(len(edges))]
    x = AxisScale(places[0], places[-1], 48, WIDTH - _EDGE)
    y = AxisScale(0, max(*now, *before, 1e-9) * 1.05, 200, _TOP)
    shown = [("current", names[0]), *([] if previous is None else [("outline previous", names[1])])]
    marks = [*legend(shown, x=48, y=18), *_grid(y, 48, percent)]
    for index, (low, high) in enumerate(itertools.pairwise(places)):
        tip = f"{number(edges[index])} to {number(edges[index + 1])}: "
        tip += f"{names[0]} {percent(now[index])}"
        tip += "" if previous is None else f", {names[1]} {percent(before[index])}"
        marks.append(_column(x(low), x(high), y(now[index]), y(0), tip))
    if previous is not None:
        marks.append(_steps([x(place) for place in places], [y(share) for share in before], y(0)))
    marks.append(_base(x, 200))
    marks += _axis(x, 200, x.ticks(5), number) if even else _bounds(x, 200, edges)
    kind = "equal" if even else "unequal"
    title = names[0] if previous is None else f"{names[0]} and {names[1]}"
    return drawing(226, title, f"Histogram of {len(now)} buckets of {kind} width.", marks)


def _even(edges: Sequence[float]) -> bool:
    width = (edges[-1] - edges[0]) / (len(edges) - 1)
    if not (math.isfinite(width) and width > 0):
        return False
    return all(math.isclose(high - low, width, rel_tol=0.01) for low, high in itertools.pairwise(edges))


def _shares(values: Sequence[float]) -> list[float]:
    total = math.fsum(values)
    return [value / total if total > 0 else 0.0 for value in values]


def _column(left: float, right: float, top: float, base: float, tip: str) -> Markup:
    return element(
        "rect",
        element("title", tip),
        x=left + 0.5,
        y=top,
        width=max(0.75, right - left - 1),
        height=max(0.0, base - top),
        class_="current",
    )


def _steps(xs: Sequence[float], ys: Sequence[float], base: float) -> Markup:
    path = [f"M{xs[0]:.1f} {base:.1f}"]
    path += [f"V{y:.1f}H{x:.1f}" for x, y in zip(xs[1:], ys, strict=True)]
    return element("path", d="".join([*path, f"V{base:.1f}"]), class_="outline previous-line")


def _base(x: AxisScale, y: float) -> Markup:
    return element("line", x1=x.start, x2=x.stop, y1=y, y2=y, class_="axis")


def _axis(x: AxisScale, y: float, values: Sequence[float], write: Callable[[float], str]) -> list[Markup]:
    """Name values below a chart; the outermost stay inside the drawing, and none covers another."""
    marks: list[Markup] = []
    free = 0.0
    for value in values:
        text = write(value)
        half = extent(text) / 2
        place = min(max(x(value), half), WIDTH - half)
        if place - half >= free:
            marks.append(label(place, y + FONT + 5, text, text_anchor="middle", class_="muted"))
            free = place + half + 6
    return marks


def _bounds(x: AxisScale, y: float, edges: Sequence[float]) -> list[Markup]:
    """Name the bounds of buckets that are drawn equally wide, as many as there is room for."""
    return _axis(x, y, [float(index) for index in range(len(edges))], lambda index: number(edges[int(index)]))


def _grid(y: AxisScale, left: float, write: Callable[[float], str]) -> list[Markup]:
    marks = []
    for value in y.ticks(4):
        marks.append(element("line", x1=left, x2=WIDTH - _EDGE, y1=y(value), y2=y(value), class_="grid"))
        marks.append(label(left - 7, y(value) + 4, write(value), text_anchor="end", class_="muted"))
    return marks


def paired_bars(
    categories: Sequence[str],
    current: Sequence[float],
    previous: Sequence[float],
    *,
    names: Names = ("current", "previous"),
) -> Markup:
    """Draw two bars a category: the current share filled, the previous one as an outline.

    Args:
        categories: Names, from top to bottom, shape (categories,).
        current: Counts or shares, shape (categories,); drawn as shares of their sum.
        previous: The same of the span that it is compared with.
        names: What the two are called.
    """
    if not len(categories) == len(current) == len(previous):
        raise InternalError(f"{len(categories)} categories, {len(current)} and {len(previous)} bars")
    now, before = _shares(current), _shares(previous)
    left = min(150.0, 14 + max(map(extent, categories), default=1.0))
    x = AxisScale(0, max(*now, *before, 1e-9), left, WIDTH - 52)
    marks = legend([("current", names[0]), ("previous", names[1])], x=_EDGE, y=18)
    for index, name in enumerate(categories):
        top = _TOP + index * 28
        tip = f"{name}: {names[0]} {percent(now[index])}, {names[1]} {percent(before[index])}"
        marks.append(label(left - 8, top + 14, name, width=left - 10, text_anchor="end"))
        for share, y, kind in ((now[index], top, "current"), (before[index], top + 11, "outline previous")):
            width = max(1.0, x(share) - left)
            marks.append(
                element("rect", element("title", tip), x=left, y=y, width=width, height=9, class_=kind)
            )
        place = x(max(now[index], before[index])) + 6
        marks.append(label(place, top + 14, percent(now[index]), class_="muted"))
    height = _TOP + 28 * len(categories)
    description = f"Shares of {len(categories)} categories."
    return drawing(height, f"{names[0]} and {names[1]}", description, marks)


def lines(
    series: Mapping[str, Series],
    *,
    x_label: str,
    y_label: str,
    diagonal: bool = False,
    unit: bool = False,
    dots: bool = False,
    from_zero: bool = True,
) -> Markup:
    """Draw lines over one pair of axes.

    Args:
        series: x and y of each line, by its name; each of shape (points,).
        x_label: What the horizontal axis measures.
        y_label: What the vertical axis measures.
        diagonal: Draw x = y, over the unit square: chance on a ROC curve, truth on a calibration curve.
        unit: Draw over the unit square, as ``diagonal`` does, but without that line.
        dots: Mark every point.
        from_zero: Let the vertical axis begin at 0; otherwise it spans the values.
    """
    xs = [x for values, _ in series.values() for x in values]
    ys = [y for _, values in series.values() for y in values]
    if not xs:
        raise InternalError("a line chart without points")
    square = diagonal or unit
    low, high = (0.0, 1.0) if square else _axis_range(ys) if not from_zero else _axis_range_from_zero(ys)
    bottom = 366.0 if square else 226.0
    x = AxisScale(*((0.0, 1.0) if square else (min(xs), max(xs))), 48, WIDTH - _EDGE)
    y = AxisScale(low, high, bottom, _TOP + 14)
    marks = [label(48, _TOP + 4, y_label, class_="muted", width=WIDTH - 60)]
    if len(series) > 1:
        marks += legend([(f"line-{index % 4}", name) for index, name in enumerate(series)], x=48, y=14)
    marks += [*_grid(y, 48, number), _base(x, bottom), *_axis(x, bottom, x.ticks(5), number)]
    if diagonal:
        marks.append(element("line", x1=x(0), y1=y(0), x2=x(1), y2=y(1), class_="reference"))
    for index, (name, (along, up)) in enumerate(series.items()):
        marks += _line(name, [(x(a), y(b)) for a, b in zip(along, up, strict=True)], index, dots=dots)
    marks.append(label((48 + WIDTH - _EDGE) / 2, bottom + 34, x_label, text_anchor="middle", class_="muted"))
    description = f"{y_label} against {x_label}: {', '.join(series)}."
    return drawing(bottom + 42, f"{y_label} by {x_label}", description, marks)


def _axis_range_from_zero(values: Sequence[float]) -> tuple[float, float]:
    return min(*values, 0.0), 1.05 * max(*values, 0.0) or 1.0


def _axis_range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def _line(name: str, points: Sequence[tuple[float, float]], index: int, *, dots: bool) -> list[Markup]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    kind = f"curve stroke-{index % 4}"
    marks = [element("polyline", element("title", name), points=path, class_=kind)]
    if dots:
        marks += [element("circle", cx=x, cy=y, r=3.5, class_=f"line-{index % 4}") for x, y in points]
    return marks


_LEFT, _BIN_TOP, _BOTTOM = 48.0, 48.0, 366.0


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
    low, high = (0.0, 1.0) if unit else _bin_range(series)
    x, y = AxisScale(low, high, _LEFT, WIDTH - _EDGE), AxisScale(low, high, _BOTTOM, _BIN_TOP)
    marks = [label(_LEFT, _BIN_TOP - 10, y_label, class_="muted", width=WIDTH - 60)]
    if len(series) > 1:
        marks += legend([(f"line-{index % 4}", name) for index, name in enumerate(series)], x=_LEFT, y=14)
    for value in x.ticks(4):
        marks.append(element("line", x1=_LEFT, x2=WIDTH - _EDGE, y1=y(value), y2=y(value), class_="grid"))
        marks.append(label(_LEFT - 7, y(value) + 4, number(value), text_anchor="end", class_="muted"))
        marks.append(label(x(value), _BOTTOM + FONT + 5, number(value), text_anchor="middle", class_="muted"))
    marks.append(element("line", x1=x(low), y1=y(low), x2=x(high), y2=y(high), class_="reference"))
    for index, (name, entry) in reversed(list(enumerate(series.items()))):
        marks += _bin_marks(name, entry, index % 4, x, y)
    marks.append(label((_LEFT + WIDTH) / 2, _BOTTOM + 34, x_label, text_anchor="middle", class_="muted"))
    return drawing(_BOTTOM + 42, f"{y_label} by {x_label}", f"Bins of {', '.join(series)}.", marks)


def _bin_range(series: Mapping[str, Binned]) -> tuple[float, float]:
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


def _bin_marks(name: str, entry: Binned, kind: int, x: AxisScale, y: AxisScale) -> list[Markup]:
    places = [(x(a), y(b)) for a, b in zip(entry.x, entry.y, strict=True)]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    marks = [element("polyline", element("title", name), points=path, class_=f"curve stroke-{kind}")]
    for (a, b), low, high in zip(places, entry.low, entry.high, strict=True):
        marks.append(element("line", x1=a, x2=a, y1=y(low), y2=y(high), class_=f"bar stroke-{kind}"))
        marks.append(element("circle", cx=a, cy=b, r=3.0, class_=f"line-{kind}"))
    return marks

"""Charts as inline SVG: histograms, bars, lines, and one row per item with its interval or its limit.

Every label is escaped, every chart has a title and a description, and no meaning is carried by colour alone:
what is compared with is an outline or a ring, a flagged row a bold diamond.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from trainwright.errors import InternalError
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

Names = tuple[str, str]
Series = tuple[Sequence[float], Sequence[float]]
Point = tuple[float, float]
NAMES: Names = ("current", "previous")

_LEFT, _EDGE, _TOP, _ROW = 48.0, 14.0, 34.0, 22.0


@dataclass(frozen=True)
class Interval:
    """An estimate with the interval around it, as one row of a chart.

    Attributes:
        label: What was estimated.
        value: The estimate; None where it is not defined.
        low: Lower end of the interval.
        high: Upper end of the interval.
        note: A few characters to the right, such as the number of rows.
        flagged: Whether it needs attention: drawn as a bold diamond.
        faint: Whether it is only shown: drawn as a hollow point on a dotted line.
        before: The estimate of the model that it is compared with, drawn below it as a ring.
    """

    label: str
    value: float | None
    low: float
    high: float
    note: str = ""
    flagged: bool = False
    faint: bool = False
    before: "Interval | None" = None


@dataclass(frozen=True)
class Trace:
    """An item of a chart: its points, joined by a line, with a mark at the last one.

    Attributes:
        name: Text that shows when it is pointed at.
        points: Places on both axes; nothing is drawn to or from None.
        mark: One of :data:`MARKS`.
    """

    name: str
    points: Sequence[Point | None]
    mark: str = "dot"


MARKS = {"dot": "current", "ring": "faint", "cross": "flagged", "diamond": "previous", "none": "current"}
"""Color of each mark; its line has the same. ``none`` marks nothing: a line alone."""


@dataclass(frozen=True)
class LevelAxis:
    """One of several axes below each other: its name, and its ticks as places from 0 to 1 with their text."""

    name: str
    ticks: Sequence[tuple[float, str]]


@dataclass(frozen=True)
class LimitRow:
    """A number and the largest that is accepted."""

    label: str
    value: float
    limit: float


def paired_histogram(
    edges: Sequence[float],
    current: Sequence[float],
    previous: Sequence[float] | None,
    *,
    names: Names = NAMES,
) -> Markup:
    """Draw two histograms over the same buckets as shares: one filled, the other as an outline.

    Buckets of unequal width are drawn equally wide, with their bounds written below, so that a bucket
    that holds a single value, or a long tail, hides none of the others.

    Args:
        edges: Ascending bounds of the buckets, shape (buckets + 1,). The outer ones may be infinite.
        current: Counts or weights, shape (buckets,).
        previous: The same of what it is compared with, or None.
        names: Names of the two.
    """
    other = current if previous is None else previous
    if not 1 <= len(edges) - 1 == len(current) == len(other):
        raise InternalError(f"{len(edges)} edges do not bound {len(current)} and {len(other)} buckets")
    now, before = _shares(current), _shares(other)
    even = _even(edges)
    places = list(edges) if even else [float(index) for index in range(len(edges))]
    y = AxisScale(0, max(*now, *before, 1e-9) * 1.05, 200, _TOP)
    x = AxisScale(places[0], places[-1], _room_for(y, percent), WIDTH - _EDGE)
    shown = [("current", names[0]), *([] if previous is None else [("outline previous", names[1])])]
    marks = [*legend(shown, x=x.start, y=18), *_grid(x, y, percent)]
    for index, (low, high) in enumerate(itertools.pairwise(places)):
        tip = f"{number(edges[index])} to {number(edges[index + 1])}: {names[0]} {percent(now[index])}"
        tip += "" if previous is None else f", {names[1]} {percent(before[index])}"
        marks.append(_column(x(low), x(high), y(now[index]), y(0), tip))
    if previous is not None:
        marks.append(_steps([x(place) for place in places], [y(share) for share in before], y(0)))
    marks.append(_base(x, 200))
    ticks = x.ticks(5) if even else [float(index) for index in range(len(edges))]
    marks += _axis(x, 200, ticks, number if even else lambda index: number(edges[int(index)]))
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
    width, height = max(0.75, right - left - 1), max(0.0, base - top)
    place = {"x": left + 0.5, "y": top, "width": width, "height": height}
    return element("rect", element("title", tip), **place, class_="current")


def _steps(xs: Sequence[float], ys: Sequence[float], base: float) -> Markup:
    path = [f"M{xs[0]:.1f} {base:.1f}", *(f"V{y:.1f}H{x:.1f}" for x, y in zip(xs[1:], ys, strict=True))]
    return element("path", d="".join([*path, f"V{base:.1f}"]), class_="outline previous-line")


def _base(x: AxisScale, y: float) -> Markup:
    return element("line", x1=x.start, x2=x.stop, y1=y, y2=y, class_="axis")


def _axis(x: AxisScale, y: float, values: Sequence[float], write: Callable[[float], str]) -> Iterator[Markup]:
    """Write values below a chart; the outermost stay inside the drawing, and none covers another."""
    free = 0.0
    for value in values:
        text = write(value)
        half = extent(text) / 2
        place = min(max(x(value), half), WIDTH - half)
        if place - half >= free:
            yield label(place, y + FONT + 5, text, text_anchor="middle", class_="muted halo")
            free = place + half + 6


def _room_for(y: AxisScale, write: Callable[[float], str]) -> float:
    """Return where a chart begins, to the right of the values of its vertical axis."""
    return max(_LEFT, *(extent(write(value)) + 9 for value in y.ticks(4)))


def _grid(x: AxisScale, y: AxisScale, write: Callable[[float], str]) -> Iterator[Markup]:
    for value in y.ticks(4):
        yield element("line", x1=x.start, x2=x.stop, y1=y(value), y2=y(value), class_="grid")
        yield label(x.start - 7, y(value) + 4, write(value), text_anchor="end", class_="muted")


def paired_bars(
    categories: Sequence[str],
    current: Sequence[float],
    previous: Sequence[float],
    *,
    names: Names = NAMES,
) -> Markup:
    """Draw two bars a category, as shares: one filled, the other as an outline.

    Args:
        categories: Names, from top to bottom, shape (categories,).
        current: Counts or shares, shape (categories,).
        previous: The same of what it is compared with.
        names: Names of the two.
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
            bar = {"x": left, "y": y, "width": max(1.0, x(share) - left), "height": 9}
            marks.append(element("rect", element("title", tip), **bar, class_=kind))
        place = x(max(now[index], before[index])) + 6
        marks.append(label(place, top + 14, percent(now[index]), class_="muted"))
    height = _TOP + 28 * len(categories)
    return drawing(height, f"{names[0]} and {names[1]}", f"Shares of {len(categories)} categories.", marks)


def bars(shares: Mapping[str, float], *, axis: str) -> Markup:
    """Draw one bar a name, from top to bottom, with its share as a percentage."""
    left = min(150.0, 14 + max(map(extent, shares), default=1.0))
    x = AxisScale(0, max([*shares.values(), 1e-9]), left, WIDTH - 52)
    marks = []
    for index, (name, share) in enumerate(shares.items()):
        top = 8 + index * _ROW
        bar = {"x": left, "y": top + 3, "width": max(1.0, x(share) - left), "height": 12, "rx": 2}
        marks += [
            label(left - 8, top + 13, name, width=left - 10, text_anchor="end"),
            element("rect", element("title", f"{name}: {percent(share)}"), **bar, class_="current"),
            label(x(share) + 6, top + 13, percent(share), class_="muted"),
        ]
    return drawing(8 + _ROW * len(shares) + 8, axis, f"Shares of {len(shares)} names.", marks)


def lines(
    series: Mapping[str, Series],
    *,
    x_label: str,
    y_label: str,
    square: bool = False,
    diagonal: bool = False,
    dots: bool = False,
    from_zero: bool = True,
    bounds: Mapping[str, Series] | None = None,
) -> Markup:
    """Draw lines over one pair of axes, the first in front.

    Args:
        series: x and y of each line, by its name; each of shape (points,).
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
        square: Draw over the unit square: rates, shares, probabilities.
        diagonal: Draw x = y, with the same range on both axes: chance on a ROC curve, truth on a
            calibration curve.
        dots: Mark every point.
        from_zero: Let the vertical axis begin at 0; otherwise it spans the values.
        bounds: Lower and upper ends of whiskers at the points of each line, by its name.
    """
    xs, ys = (
        list(itertools.chain.from_iterable(entry[axis] for entry in series.values())) for axis in (0, 1)
    )
    if not xs:
        raise InternalError("a line chart without points")
    ends = [*ys, *itertools.chain.from_iterable(end for pair in (bounds or {}).values() for end in pair)]
    if square:
        across = up = (0.0, 1.0)
    elif diagonal:
        across = up = _with_air([*xs, *ends], 0.04)
    else:
        across = min(xs), max(xs)
        up = (min(*ys, 0.0), 1.05 * max(*ys, 0.0) or 1.0) if from_zero else _with_air(ends, 0.05)
    bottom = 366.0 if square or diagonal else 226.0
    y = AxisScale(*up, bottom, _TOP + 14)
    x = AxisScale(*across, _room_for(y, number), WIDTH - _EDGE)
    marks = [label(x.start, _TOP + 4, y_label, class_="muted", width=WIDTH - x.start - 12)]
    if len(series) > 1:
        marks += legend([(f"line-{index % 4}", name) for index, name in enumerate(series)], x=x.start, y=14)
    marks += [*_grid(x, y, number), _base(x, bottom), *_axis(x, bottom, x.ticks(5), number)]
    if diagonal:
        low, high = across
        marks.append(element("line", x1=x(low), y1=y(low), x2=x(high), y2=y(high), class_="reference"))
    for index, (name, (along, values)) in reversed(list(enumerate(series.items()))):
        whiskers = [(y(a), y(b)) for a, b in zip(*bounds[name], strict=True)] if bounds else []
        points = [(x(a), y(b)) for a, b in zip(along, values, strict=True)]
        marks += _line(name, points, whiskers, index % 4, dots=dots or bool(bounds))
    marks.append(label((x.start + x.stop) / 2, bottom + 34, x_label, text_anchor="middle", class_="muted"))
    description = f"{y_label} against {x_label}: {', '.join(series)}."
    return drawing(bottom + 42, f"{y_label} by {x_label}", description, marks)


def _with_air(values: Sequence[float], share: float) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    air = share * (high - low) or share * abs(high) or 0.5
    return low - air, high + air


def _line(
    name: str, points: Sequence[Point], whiskers: Sequence[Point], kind: int, *, dots: bool
) -> Iterator[Markup]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield element("polyline", element("title", name), points=path, class_=f"curve stroke-{kind}")
    for (x, _), (low, high) in zip(points, whiskers, strict=False):
        yield element("line", x1=x, x2=x, y1=low, y2=high, class_=f"bar stroke-{kind}")
    for x, y in points if dots else ():
        yield element("circle", cx=x, cy=y, r=3.0 if whiskers else 3.5, class_=f"line-{kind}")


def intervals(
    rows: Sequence[Interval],
    *,
    axis: str,
    limit: float | None = None,
    limit_name: str = "limit",
    names: Names = NAMES,
) -> Markup:
    """Draw estimates as points with whiskers, one below the other, with what each is compared with.

    Args:
        rows: The estimates, from top to bottom.
        axis: Label of the horizontal axis.
        limit: Place of a dashed line; None for no line.
        limit_name: Name of the line.
        names: Names of the estimates and of those that they are compared with.
    """
    both = any(row.before for row in rows)
    top, height = (46.0, 30.0) if both else (26.0, _ROW)
    left, right = _margins([row.label for row in rows], [row.note for row in rows])
    drawn = [*rows, *(row.before for row in rows if row.before)]
    ends = [end for row in drawn if row.value is not None for end in (row.low, row.high, row.value)]
    x = AxisScale(*_with_air([*ends, *([] if limit is None else [limit])], 0.06), left, WIDTH - right)
    bottom = top + height * len(rows)
    marks = legend([("current", names[0]), ("outline previous", names[1])], x=left, y=14) if both else []
    for value in x.ticks(4):
        place = x(value)
        marks.append(element("line", x1=place, x2=place, y1=top, y2=bottom, class_="grid"))
        marks.append(label(place, bottom + FONT + 4, number(value), text_anchor="middle", class_="muted"))
    marks.append(label((x.start + x.stop) / 2, bottom + 34, axis, text_anchor="middle", class_="muted"))
    if limit is not None:
        marks += _limit_line(x(limit), top, bottom, f"{limit_name} {number(round(limit, 3))}")
    for index, row in enumerate(rows):
        marks += _interval_row(row, x, top + height * (index + 0.5), names)
    against = f", {names[0]} above {names[1]}" if both else ""
    return drawing(bottom + 42, axis, f"{len(rows)} estimates with their intervals{against}.", marks)


def _margins(labels: Sequence[str], notes: Sequence[str]) -> tuple[float, float]:
    """Return the room that labels need to the left and notes to the right."""
    left = 14 + max(map(extent, labels), default=1.0)
    right = 12 + max(map(extent, notes), default=0.0)
    return min(150.0, left), min(150.0, right)


def _limit_line(place: float, top: float, bottom: float, text: str) -> list[Markup]:
    half = extent(text) / 2
    middle = min(max(place, half + 2), WIDTH - half - 2)
    line = element("line", x1=place, x2=place, y1=top - 8, y2=bottom, class_="limit")
    return [line, label(middle, top - FONT, text, text_anchor="middle", class_="limit-name")]


def _interval_row(row: Interval, x: AxisScale, y: float, names: Names) -> list[Markup]:
    weight, faint = "bold" if row.flagged else "", "muted " if row.faint else ""
    left, kind = x.start - 10, f"{faint}{weight}"
    marks = [
        label(left, y + 4, row.label, width=left - 2, text_anchor="end", class_=kind),
        label(x.stop + 10, y + 4, row.note, width=WIDTH - x.stop - 11, class_=f"muted {weight}"),
    ]
    kind = "faint" if row.faint else "flagged" if row.flagged else "current"
    if row.before is None:
        return [*marks, *_estimate(row, x, y, kind, "")]
    both = _estimate(row, x, y - 5, kind, f", {names[0]}")
    return [*marks, *both, *_estimate(row.before, x, y + 5, "previous", f", {names[1]}")]


def _estimate(entry: Interval, x: AxisScale, y: float, kind: str, name: str) -> list[Markup]:
    if entry.value is None:
        return [label(x.start + 4, y + 4, "not defined", class_="muted")]
    tip = element("title", f"{entry.label}{name}: {entry.value:.3f}, {entry.low:.3f} to {entry.high:.3f}")
    place, ends = x(entry.value), {"x1": x(entry.low), "x2": x(entry.high), "y1": y, "y2": y}
    if kind == "flagged":
        corners = f"{place - 6:.1f},{y} {place:.1f},{y - 6} {place + 6:.1f},{y} {place:.1f},{y + 6}"
        point = element("polygon", tip, points=corners, class_=kind)
    else:
        hollow = kind in ("faint", "previous")
        shape = {"r": 3.5, "class_": f"hollow {kind}"} if hollow else {"r": 4.5, "class_": kind}
        point = element("circle", tip, cx=place, cy=y, **shape)
    return [element("line", **ends, class_=f"whisker {kind}-line"), point]


def limits(rows: Sequence[LimitRow], *, axis: str) -> Markup:
    """Draw numbers as bars against their own limit, which lies at the same place for all."""
    notes = [f"{number(round(row.value, 4))} of {number(row.limit)}" for row in rows]
    left, right = _margins([row.label for row in rows], notes)
    ratios = [
        max(0.0, row.value / row.limit) if row.limit > 0 else 3.0 if row.value > row.limit else 0.0
        for row in rows
    ]
    x = AxisScale(0, min(3.0, max(1.1, *ratios, 1.1) * 1.02), left, WIDTH - right)
    top, bottom = 26.0, 26.0 + _ROW * len(rows)
    marks = _limit_line(x(1), top, bottom, "limit")
    for index, (row, ratio, note) in enumerate(zip(rows, ratios, notes, strict=True)):
        y = top + _ROW * (index + 0.5)
        weight, kind = ("bold", "flagged") if row.value > row.limit else ("", "current")
        tip = element("title", f"{row.label}: {note}, {percent(ratio)} of the limit")
        bar = {"x": left, "y": y - 6, "width": max(1.5, x(ratio) - left), "height": 12, "rx": 2}
        marks += [
            label(left - 10, y + 4, row.label, width=left - 12, text_anchor="end", class_=weight),
            element("rect", tip, **bar, class_=kind),
            label(WIDTH - right + 10, y + 4, note, class_=f"muted {weight}"),
        ]
    marks.append(label((left + WIDTH - right) / 2, bottom + 18, axis, text_anchor="middle", class_="muted"))
    return drawing(bottom + 26, axis, f"{len(rows)} numbers against their limits.", marks)


def traces(
    items: Sequence[Trace],
    *,
    x_label: str,
    y_label: str,
    names: Mapping[str, str],
    up: Point,
    ticks: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Draw many items over one pair of axes, the last in front.

    Args:
        items: The items; a point above or below the vertical axis is drawn at its end.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
        names: Meaning of each mark.
        up: Ends of the vertical axis.
        ticks: Places and texts on the horizontal axis; empty for round values.
    """
    xs = [point[0] for item in items for point in item.points if point] + [place for place, _ in ticks]
    if not xs:
        raise InternalError("a chart of traces without points")
    bottom = 226.0
    y = AxisScale(*up, bottom, _TOP + 18)
    x = AxisScale(*_with_air(xs, 0.02), _room_for(y, number), WIDTH - _EDGE)
    texts = dict(ticks) or {value: number(value) for value in x.ticks(5)}
    marks = [label(x.start, _TOP + 4, y_label, class_="muted", width=WIDTH - x.start - 12)]
    marks += _mark_legend(names)
    marks += [*_grid(x, y, number), _base(x, bottom), *_axis(x, bottom, list(texts), texts.__getitem__)]
    for item in items:
        marks += _trace(item, lambda point: (x(point[0]), y(point[1])))
    marks.append(label((x.start + x.stop) / 2, bottom + 34, x_label, text_anchor="middle", class_="muted"))
    description = f"{y_label} against {x_label}: {', '.join(names.values())}."
    return drawing(bottom + 42, f"{y_label} by {x_label}", description, marks)


def parallel_coordinates(
    axes: Sequence[LevelAxis], items: Sequence[Trace], *, title: str, names: Mapping[str, str]
) -> Markup:
    """Draw each item as a line from axis to axis. The axes lie below each other, so that any number fits.

    Args:
        axes: The axes, from top to bottom.
        items: The items, the last in front. Their points are places from 0 to 1 on an axis, and its number.
        title: Title of the chart.
        names: Meaning of each mark.
    """
    top, height = 48.0, 58.0
    x = AxisScale(0, 1, 24, WIDTH - 24)
    bottom = top + height * (len(axes) - 1)
    marks = _mark_legend(names)
    for item in items:
        marks += _trace(item, lambda point: (x(point[0]), top + height * point[1]))
    for level, axis in enumerate(axes):
        place = top + height * level
        texts = dict(axis.ticks)
        marks += [_base(x, place), label(4, place - 7, axis.name, class_="bold halo", width=WIDTH - 8)]
        marks += _axis(x, place - 3, list(texts), texts.__getitem__)
    return drawing(bottom + 26, title, f"{len(items)} lines over {len(axes)} axes.", marks)


def _trace(item: Trace, place: Callable[[Point], Point]) -> Iterator[Markup]:
    """Draw the line of an item, interrupted where it has no point, and its mark."""
    commands, pen = [], "M"
    for point in item.points:
        if point is None:
            pen = "M"
            continue
        x, y = place(point)
        commands.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    kind, tip = MARKS[item.mark], element("title", item.name)
    if len(commands) > 1:
        yield element("path", tip, d="".join(commands), class_=f"trace {kind}-line")
    if commands and item.mark != "none":
        yield _mark(item.mark, x, y, tip)


def _mark(mark: str, x: float, y: float, tip: Markup) -> Markup:
    if mark == "cross":
        path = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
        return element("path", tip, d=path, class_=f"cross {MARKS[mark]}-line")
    if mark == "diamond":
        corners = f"{x - 7:.1f},{y:.1f} {x:.1f},{y - 7:.1f} {x + 7:.1f},{y:.1f} {x:.1f},{y + 7:.1f}"
        return element("polygon", tip, points=corners, class_="line-1")
    kind = f"hollow {MARKS[mark]}" if mark == "ring" else MARKS[mark]
    return element("circle", tip, cx=x, cy=y, r=3.5, class_=kind)


def _mark_legend(names: Mapping[str, str]) -> list[Markup]:
    """Name the marks above a chart, in one line."""
    marks: list[Markup] = []
    x = 8.0
    for mark, text in names.items():
        tip = element("title", text)
        line = element("path", d=f"M{x - 6:.1f} 10h12", class_=f"trace {MARKS[mark]}-line")
        marks += [line if mark == "none" else _mark(mark, x, 10, tip), label(x + 11, 14, text)]
        x += 11 + extent(text) + 16
    return marks

"""Charts of one row an item: estimates with their intervals, and numbers against their limits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from trainwright.report.svg import FONT, WIDTH, Scale, drawing, element, extent, label, number, percent

_TOP = 26.0
"""Room above the first row for the name of the limit."""
_ROW = 22.0


@dataclass(frozen=True)
class Interval:
    """An estimate with the interval around it.

    Attributes:
        label: What was estimated.
        value: The estimate; None where it is not defined.
        low: Lower end of the interval.
        high: Upper end of the interval.
        note: A few characters to the right, such as the number of rows.
        flagged: Whether it needs attention: drawn as a bold diamond.
    """

    label: str
    value: float | None
    low: float
    high: float
    note: str = ""
    flagged: bool = False


@dataclass(frozen=True)
class LimitRow:
    """A number and the largest that is accepted."""

    label: str
    value: float
    limit: float


def intervals(
    rows: Sequence[Interval], *, limit: float | None = None, axis: str, limit_name: str = "limit"
) -> Markup:
    """Draw estimates as points with whiskers, one below the other.

    Args:
        rows: The estimates, from top to bottom.
        limit: Where to draw a dashed line; None for no line.
        axis: What the horizontal axis measures.
        limit_name: What the line is called.
    """
    left, right = margins([row.label for row in rows], [row.note for row in rows])
    x = _span(rows, limit, left, WIDTH - right)
    bottom = _TOP + _ROW * len(rows)
    marks = ruler(x, _TOP, bottom, axis)
    if limit is not None:
        marks.append(limit_line(x(limit), _TOP, bottom, limit, limit_name))
    for index, row in enumerate(rows):
        marks += _interval(row, x, _TOP + _ROW * (index + 0.5), left, right)
    return drawing(bottom + 42, axis, f"{len(rows)} estimates with their intervals.", marks)


def margins(labels: Sequence[str], notes: Sequence[str]) -> tuple[float, float]:
    """Return the room that labels need to the left and notes to the right."""
    left = 14 + max(map(extent, labels), default=1.0)
    right = 12 + max(map(extent, notes), default=0.0)
    return min(150.0, left), min(150.0, right)


def _span(rows: Sequence[Interval], limit: float | None, start: float, stop: float) -> Scale:
    ends = [end for row in rows if row.value is not None for end in (row.low, row.high, row.value)]
    ends = [end for end in ends if math.isfinite(end)] + ([] if limit is None else [limit])
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    air = (high - low) * 0.06 or 0.05
    return Scale(low - air, high + air, start, stop)


def ruler(x: Scale, top: float, bottom: float, axis: str) -> list[Markup]:
    """Draw vertical lines at round values, their numbers below, and what they measure."""
    marks = []
    for value in x.ticks(4):
        place = x(value)
        marks.append(element("line", x1=place, x2=place, y1=top, y2=bottom, class_="grid"))
        marks.append(label(place, bottom + FONT + 4, number(value), text_anchor="middle", class_="muted"))
    middle = (x.start + x.stop) / 2
    marks.append(label(middle, bottom + 34, axis, text_anchor="middle", class_="muted"))
    return marks


def limit_line(place: float, top: float, bottom: float, limit: float | None, name: str) -> Markup:
    """Draw a dashed line at a place, with its name above; a limit of None has no number there."""
    text = name if limit is None else f"{name} {number(round(limit, 3))}"
    half = extent(text) / 2
    middle = min(max(place, half + 2), WIDTH - half - 2)
    line = element("line", x1=place, x2=place, y1=top - 8, y2=bottom, class_="limit")
    return line + label(middle, top - FONT, text, text_anchor="middle", class_="limit-name")


def _interval(row: Interval, x: Scale, y: float, left: float, right: float) -> list[Markup]:
    kind = "flagged" if row.flagged else "current"
    weight = "bold" if row.flagged else ""
    marks = [
        label(left - 10, y + 4, row.label, width=left - 12, text_anchor="end", class_=weight),
        label(WIDTH - right + 10, y + 4, row.note, width=right - 12, class_=f"muted {weight}"),
    ]
    if row.value is None:
        return [*marks, label(x.start + 4, y + 4, "not defined", class_="muted")]
    tip = element("title", f"{row.label}: {row.value:.3f}, from {row.low:.3f} to {row.high:.3f}. {row.note}")
    marks.append(
        element("line", tip, x1=x(row.low), x2=x(row.high), y1=y, y2=y, class_=f"whisker {kind}-line")
    )
    place = x(row.value)
    if row.flagged:
        corners = f"{place - 6:.1f},{y} {place:.1f},{y - 6} {place + 6:.1f},{y} {place:.1f},{y + 6}"
        return [*marks, element("polygon", tip, points=corners, class_=kind)]
    return [*marks, element("circle", tip, cx=place, cy=y, r=4.5, class_=kind)]


def limits(rows: Sequence[LimitRow], *, axis: str) -> Markup:
    """Draw numbers as bars against their own limit, which lies at the same place for all.

    Args:
        rows: The numbers with their limits, from top to bottom; one above its limit is drawn as flagged.
        axis: What the numbers measure; the axis shows them as shares of their limit.
    """
    notes = [f"{number(round(row.value, 4))} of {number(row.limit)}" for row in rows]
    left, right = margins([row.label for row in rows], notes)
    ratios = [_ratio(row) for row in rows]
    x = Scale(0, min(3.0, max(1.1, *ratios, 1.1) * 1.02), left, WIDTH - right)
    bottom = _TOP + _ROW * len(rows)
    marks = [limit_line(x(1), _TOP, bottom, None, "limit")]
    for index, (row, ratio, note) in enumerate(zip(rows, ratios, notes, strict=True)):
        y = _TOP + _ROW * (index + 0.5)
        over = row.value > row.limit
        weight = "bold" if over else ""
        kind = "flagged" if over else "current"
        tip = element("title", f"{row.label}: {note}, {percent(ratio)} of the limit")
        width = max(1.5, x(ratio) - left)
        marks += [
            label(left - 10, y + 4, row.label, width=left - 12, text_anchor="end", class_=weight),
            element("rect", tip, x=left, y=y - 6, width=width, height=12, rx=2, class_=kind),
            label(WIDTH - right + 10, y + 4, note, class_=f"muted {weight}"),
        ]
    marks.append(label((left + WIDTH - right) / 2, bottom + 18, axis, text_anchor="middle", class_="muted"))
    return drawing(bottom + 26, axis, f"{len(rows)} numbers against their limits.", marks)


def _ratio(row: LimitRow) -> float:
    if row.limit > 0:
        return max(0.0, row.value / row.limit)
    return 3.0 if row.value > row.limit else 0.0

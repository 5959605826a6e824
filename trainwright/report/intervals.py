"""Charts with one row per item: estimates with intervals, of one model or two, and numbers against limits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

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
    x = _scale(rows, limit, left, WIDTH - right)
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


def _scale(rows: Sequence[Interval], limit: float | None, start: float, stop: float) -> AxisScale:
    ends = [end for row in rows if row.value is not None for end in (row.low, row.high, row.value)]
    ends = [end for end in ends if math.isfinite(end)] + ([] if limit is None else [limit])
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    air = (high - low) * 0.06 or 0.05
    return AxisScale(low - air, high + air, start, stop)


def ruler(x: AxisScale, top: float, bottom: float, axis: str) -> list[Markup]:
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


def _interval(row: Interval, x: AxisScale, y: float, left: float, right: float) -> list[Markup]:
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
    """Draw numbers as bars against their own limit, which lies at the same place for all."""
    notes = [f"{number(round(row.value, 4))} of {number(row.limit)}" for row in rows]
    left, right = margins([row.label for row in rows], notes)
    ratios = [_share_of_limit(row) for row in rows]
    x = AxisScale(0, min(3.0, max(1.1, *ratios, 1.1) * 1.02), left, WIDTH - right)
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


def _share_of_limit(row: LimitRow) -> float:
    if row.limit > 0:
        return max(0.0, row.value / row.limit)
    return 3.0 if row.value > row.limit else 0.0


_PAIR_TOP = 46.0
"""Room above the first row for the legend and the name of the limit."""
_PAIR_ROW, _SINGLE = 30.0, 22.0
_APART = 5.0

Names = tuple[str, str]


@dataclass(frozen=True)
class IntervalPair:
    """One item: what is, and what was before.

    Attributes:
        now: The estimate of the current model; ``note`` and ``flagged`` are the row's.
        before: That of the previous one; None where there is none.
        faint: Whether it is only shown, because nothing was decided on it.
    """

    now: Interval
    before: Interval | None = None
    faint: bool = False


def paired_intervals(
    rows: Sequence[IntervalPair],
    *,
    axis: str,
    limit: float | None = None,
    limit_name: str = "limit",
    names: Names = ("current", "previous"),
) -> Markup:
    """Draw estimates as points with whiskers: the current one filled, the previous one below it as a ring.

    A row that is faint is drawn as a hollow point on a dotted line.

    Args:
        rows: From top to bottom.
        axis: What the horizontal axis measures.
        limit: Where to draw a dashed line; None for no line.
        limit_name: What the line is called.
        names: What the two are called.
    """
    both = any(row.before for row in rows)
    height = _PAIR_ROW if both else _SINGLE
    left, right = margins([row.now.label for row in rows], [row.now.note for row in rows])
    x = _pair_scale(rows, limit, left, WIDTH - right)
    bottom = _PAIR_TOP + height * len(rows)
    marks = legend([("current", names[0]), ("outline previous", names[1])], x=left, y=14) if both else []
    marks += ruler(x, _PAIR_TOP, bottom, axis)
    if limit is not None:
        marks.append(limit_line(x(limit), _PAIR_TOP, bottom, limit, limit_name))
    for index, row in enumerate(rows):
        marks += _pair_row(row, x, _PAIR_TOP + height * (index + 0.5), left, right, names)
    what = f"{len(rows)} estimates with their intervals"
    against = f", {names[0]} above {names[1]}" if both else ""
    return drawing(bottom + 42, axis, f"{what}{against}.", marks)


def _pair_scale(rows: Sequence[IntervalPair], limit: float | None, start: float, stop: float) -> AxisScale:
    drawn = [row.now for row in rows] + [row.before for row in rows if row.before]
    ends = [end for entry in drawn if entry.value is not None for end in (entry.low, entry.high, entry.value)]
    ends = [end for end in ends if math.isfinite(end)] + ([] if limit is None else [limit])
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    air = (high - low) * 0.06 or 0.05
    return AxisScale(low - air, high + air, start, stop)


def _pair_row(
    row: IntervalPair, x: AxisScale, y: float, left: float, right: float, names: Names
) -> list[Markup]:
    now, weight = row.now, "bold" if row.now.flagged else ""
    faint = "muted " if row.faint else ""
    marks = [
        label(left - 10, y + 4, now.label, width=left - 12, text_anchor="end", class_=f"{faint}{weight}"),
        label(WIDTH - right + 10, y + 4, now.note, width=right - 12, class_=f"muted {weight}"),
    ]
    apart = _APART if row.before else 0.0
    kind = "faint" if row.faint else "flagged" if now.flagged else "current"
    marks += _estimate(now, x, y - apart, kind, names[0] if row.before else "")
    if row.before:
        marks += _estimate(row.before, x, y + apart, "previous", names[1])
    return marks


def _estimate(entry: Interval, x: AxisScale, y: float, kind: str, name: str) -> list[Markup]:
    if entry.value is None:
        return [label(x.start + 4, y + 4, "not defined", class_="muted")]
    said = (
        f"{entry.label}{f', {name}' if name else ''}: {entry.value:.3f}, {entry.low:.3f} to {entry.high:.3f}"
    )
    tip = element("title", said)
    place, ends = x(entry.value), {"x1": x(entry.low), "x2": x(entry.high), "y1": y, "y2": y}
    if kind == "flagged":
        corners = f"{place - 6:.1f},{y} {place:.1f},{y - 6} {place + 6:.1f},{y} {place:.1f},{y + 6}"
        point = element("polygon", tip, points=corners, class_=kind)
    else:
        shape = {"faint": "hollow faint", "previous": "hollow previous"}.get(kind, kind)
        point = element("circle", tip, cx=place, cy=y, r=3.5 if shape != kind else 4.5, class_=shape)
    return [element("line", **ends, class_=f"whisker {kind}-line"), point]

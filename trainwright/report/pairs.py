"""Estimates of two models side by side: each with its interval, one item below the other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from trainwright.report.rows import Interval, limit_line, margins, ruler
from trainwright.report.svg import WIDTH, Scale, drawing, element, label, legend

_TOP = 46.0
"""Room above the first row for the legend and the name of the limit."""
_ROW, _SINGLE = 30.0, 22.0
_APART = 5.0

Names = tuple[str, str]


@dataclass(frozen=True)
class Pair:
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
    rows: Sequence[Pair],
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
    height = _ROW if both else _SINGLE
    left, right = margins([row.now.label for row in rows], [row.now.note for row in rows])
    x = _span(rows, limit, left, WIDTH - right)
    bottom = _TOP + height * len(rows)
    marks = legend([("current", names[0]), ("outline previous", names[1])], x=left, y=14) if both else []
    marks += ruler(x, _TOP, bottom, axis)
    if limit is not None:
        marks.append(limit_line(x(limit), _TOP, bottom, limit, limit_name))
    for index, row in enumerate(rows):
        marks += _row(row, x, _TOP + height * (index + 0.5), left, right, names)
    what = f"{len(rows)} estimates with their intervals"
    against = f", {names[0]} above {names[1]}" if both else ""
    return drawing(bottom + 42, axis, f"{what}{against}.", marks)


def _span(rows: Sequence[Pair], limit: float | None, start: float, stop: float) -> Scale:
    drawn = [row.now for row in rows] + [row.before for row in rows if row.before]
    ends = [end for entry in drawn if entry.value is not None for end in (entry.low, entry.high, entry.value)]
    ends = [end for end in ends if math.isfinite(end)] + ([] if limit is None else [limit])
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    air = (high - low) * 0.06 or 0.05
    return Scale(low - air, high + air, start, stop)


def _row(row: Pair, x: Scale, y: float, left: float, right: float, names: Names) -> list[Markup]:
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


def _estimate(entry: Interval, x: Scale, y: float, kind: str, name: str) -> list[Markup]:
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

"""SVG primitives: escaped elements, scales with round ticks, short numbers.

A drawing is as wide as a phone (:data:`WIDTH` units), so its text stays legible when the page shrinks it.
Colours are classes of the page's style sheet, which has a light and a dark theme.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH = 420.0
"""Width of every drawing, in units of its own; one is about a pixel on a phone."""

FONT = 13.0
"""Size of all text in a drawing, in the same units."""

_NARROW, _WIDE = frozenset("iljtfrI.,:;'|!()[] "), frozenset("mwMW@%—…")


def extent(text: str) -> float:
    """Return about how wide a text is, in units; system fonts differ, so a little too much."""
    return FONT * sum(_share(character) for character in text)


def _share(character: str) -> float:
    if character in _NARROW:
        return 0.44
    if character in _WIDE or ord(character) >= 0x2E80:  # noqa: PLR2004 - from here on scripts are square
        return 1.08
    return 0.78 if character.isupper() else 0.67


def element(name: str, *children: str, **attributes: object) -> Markup:
    """Write one element; children and values are escaped unless they are markup already.

    A trailing underscore of a name is dropped (``class_``), others become hyphens (``text_anchor``).
    """
    pairs = [
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _short(value))
        for key, value in attributes.items()
    ]
    return Markup("<{0}{1}>{2}</{0}>").format(name, Markup("").join(pairs), Markup("").join(children))


def _short(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def label(x: float, y: float, text: str, *, width: float = math.inf, **attributes: object) -> Markup:
    """Write text at a place, cut to about ``width`` units; what is cut shows when pointed at.

    It is cut in the middle: names of slices often begin alike and end differently, or the other way round.
    """
    if extent(text) <= width:
        return element("text", text, x=x, y=y, **attributes)
    room = width - extent("…")
    head = _beginning(text, 0.6 * room) or text[:1]
    tail = _beginning(text[::-1], room - extent(head))[::-1]
    cut = f"{head.rstrip()}…{tail.lstrip()}"
    return element("text", element("title", text[:500]), cut, x=x, y=y, **attributes)


def _beginning(text: str, room: float) -> str:
    for index, character in enumerate(text):
        room -= FONT * _share(character)
        if room < 0:
            return text[:index]
    return text


def drawing(height: float, title: str, description: str, marks: Iterable[str]) -> Markup:
    """Close a drawing of ``WIDTH`` by ``height`` units, named for those who cannot see it."""
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        *marks,
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        role="img",
        aria_label=f"{title}. {description}",
    )


def legend(names: Sequence[tuple[str, str]], *, x: float, y: float) -> list[Markup]:
    """Name the marks above a chart, as pairs of a class and a text, in one line."""
    marks: list[Markup] = []
    share = (WIDTH - x) / max(1, len(names))
    for kind, text in names:
        marks.append(element("rect", x=x, y=y - 10, width=10, height=10, rx=2, class_=kind))
        marks.append(label(x + 15, y, text, width=share - 20))
        x += min(share, 15 + extent(text) + 18)
    return marks


@dataclass(frozen=True)
class AxisScale:
    """A straight line from values to places: ``low`` lies at ``start``, ``high`` at ``stop``."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Return the place of a value; one beyond the ends lies at the end."""
        if self.high == self.low:
            return (self.start + self.stop) / 2
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.stop - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        """Return round values between the ends, at most about ``most``."""
        return round_values(self.low, self.high, most)


def round_values(low: float, high: float, most: int = 5) -> list[float]:
    """Return the multiples of 1, 2 or 5 times a power of ten in ``[low, high]``, ascending."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if span / (factor * power) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) + 0.0 for index in range(first, last + 1)]


def number(value: float) -> str:
    """Write a number briefly: ``0.05``, ``12.5``, ``1,200``, ``3.4M``; never ``-0``."""
    value += 0.0
    size = abs(value)
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    if size >= 1e15 or 0 < size < 1e-4:  # noqa: PLR2004
        return f"{value:.2g}"
    for limit, name in ((1e9, "G"), (1e6, "M")):
        if size >= limit:
            return f"{value / limit:.3g}{name}"
    if size >= 1000 or value == int(value):  # noqa: PLR2004
        return f"{value:,.0f}"
    return f"{value:.4g}"


def percent(share: float) -> str:
    """Write a share of one as a percentage, with a decimal where it is small and has one."""
    small = 0 < share < 0.0995  # noqa: PLR2004
    return f"{share:.1%}".replace(".0%", "%") if small else f"{share:.0%}"


def duration(seconds: float) -> str:
    """Write a duration as the console does: ``4.1 s``, ``1 m 12 s``, ``2 h 05 m``."""
    if seconds < 59.95:  # noqa: PLR2004 - what is shown as 60.0 s is a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m" if hours else f"{minutes} m {rest:02d} s"

"""Elements are escaped, scales are straight, ticks are round."""

import math
from xml.etree import ElementTree

import pytest

from trainwright.report.svg import (
    AxisScale,
    drawing,
    duration,
    element,
    extent,
    label,
    number,
    percent,
    round_values,
)

HOSTILE = """<script>alert(1)</script>&"'"""


def parse(mark: str) -> ElementTree.Element:
    """Read our own element back."""
    return ElementTree.fromstring(mark)  # noqa: S314


def test_text_and_attributes_are_escaped() -> None:
    mark = element("text", HOSTILE, aria_label=HOSTILE)
    parsed = parse(mark)
    assert (parsed.text, parsed.get("aria-label")) == (HOSTILE, HOSTILE)
    assert "<script" not in mark


def test_markup_inside_an_element_is_not_escaped_twice() -> None:
    assert element("g", element("text", "a < b")) == "<g><text>a &lt; b</text></g>"


def test_a_label_that_is_too_long_is_cut_and_its_whole_text_kept() -> None:
    parsed = parse(label(0, 0, "x" * 100, width=80))
    title = parsed.find("title")
    assert title is not None
    assert title.text == "x" * 100
    assert title.tail is not None
    assert 2 < len(title.tail) < 15
    assert "…" in title.tail


def test_of_labels_that_are_cut_those_that_begin_or_end_alike_stay_apart() -> None:
    common = "of people who work for the state"
    names = [f"men {common} 1", f"men {common} 2", f"women {common} 1", f"women {common} 2"]
    cut = [parse(label(0, 0, name, width=110)).find("title") for name in names]
    tails = [found.tail for found in cut if found is not None and found.tail]
    assert len(set(tails)) == len(names)
    assert all(extent(tail) <= 110 for tail in tails)


def test_a_drawing_has_a_name_and_scales_with_its_width() -> None:
    parsed = parse(drawing(100, "Recall", "Three slices.", []))
    assert parsed.get("role") == "img"
    assert parsed.get("viewBox") == "0 0 420 100"
    assert [child.text for child in parsed] == ["Recall", "Three slices."]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 0.47, [0, 0.1, 0.2, 0.3, 0.4]),
        (0.812, 0.918, [0.85, 0.9]),
        (-30, 1200, [0, 500, 1000]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round_and_inside(low: float, high: float, expected: list[float]) -> None:
    assert round_values(low, high, 5) == pytest.approx(expected)


def test_a_scale_is_straight_and_keeps_what_is_beyond_at_its_end() -> None:
    scale = AxisScale(10, 20, 100, 0)
    assert [scale(value) for value in (10, 15, 20, 99, -99)] == [100, 50, 0, 0, 100]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.05, "0.05"),
        (12.5, "12.5"),
        (1200.0, "1,200"),
        (3_400_000, "3.4M"),
        (2.5e9, "2.5G"),
        (1e18, "1e+18"),
        (0.0, "0"),
        (1e-7, "1e-07"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
        (math.nan, "not a number"),
    ],
)
def test_numbers_are_written_briefly(value: float, written: str) -> None:
    assert number(value) == written


@pytest.mark.parametrize(
    ("share", "written"), [(0, "0%"), (0.004, "0.4%"), (0.06, "6%"), (0.5, "50%"), (1, "100%")]
)
def test_small_shares_keep_a_decimal(share: float, written: str) -> None:
    assert percent(share) == written


def test_zero_has_no_sign_on_an_axis_that_begins_below_it() -> None:
    assert [number(value) for value in round_values(-0.3, 0.3)] == ["-0.2", "0", "0.2"]
    assert number(-0.0) == "0"


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.06, "4.1 s"), (59.97, "1 m 00 s"), (72, "1 m 12 s"), (7500, "2 h 05 m")]
)
def test_durations_are_written_as_on_the_screen(seconds: float, text: str) -> None:
    assert duration(seconds) == text

"""What a chart shows lies where its numbers say; its labels are escaped; wrong shapes are our bug."""

import math
from xml.etree import ElementTree

import pytest

from trainwright.errors import InternalError
from trainwright.report import charts


def parse(svg: str) -> ElementTree.Element:
    """Read our own drawing back."""
    return ElementTree.fromstring(svg)  # noqa: S314


def marks(svg: str, kind: str) -> list[ElementTree.Element]:
    """All elements of a class."""
    return [node for node in parse(svg).iter() if kind in (node.get("class") or "").split()]


def bars(svg: str, kind: str) -> list[ElementTree.Element]:
    """Rectangles of a class but for the legend's."""
    return [node for node in marks(svg, kind) if node.tag == "rect" and node.find("title") is not None]


def test_columns_are_as_tall_as_their_shares() -> None:
    svg = charts.paired_histogram([0, 1, 2, 3], [10, 30, 60], [1, 1, 2])
    tall = [float(node.get("height", "")) for node in bars(svg, "current")]
    assert tall[1] / tall[0] == pytest.approx(3, rel=0.01)
    assert tall[2] / tall[0] == pytest.approx(6, rel=0.01)


def test_a_histogram_compares_shares_so_a_hundred_times_the_rows_look_the_same() -> None:
    few = charts.paired_histogram([0, 1, 2], [1, 3], [300, 100])
    many = charts.paired_histogram([0, 1, 2], [100, 300], [3, 1])
    assert few == many


def test_unequal_open_and_point_buckets_are_drawn_equally_wide_with_their_bounds() -> None:
    svg = charts.paired_histogram([-math.inf, 0, 1, 5, 5, math.inf], [1, 2, 3, 4, 5], [5, 4, 3, 2, 1])
    widths = {node.get("width") for node in bars(svg, "current")}
    assert len(widths) == 1
    written = [node.text for node in marks(svg, "muted")]
    assert written[-6:] == ["-∞", "0", "1", "5", "5", "∞"]


def test_an_empty_side_draws_nothing_and_divides_by_nothing() -> None:
    svg = charts.paired_histogram([0, 1, 2], [0, 0], [1, 1])
    assert [float(node.get("height", "")) for node in bars(svg, "current")] == [0, 0]


def test_a_category_that_is_new_has_an_empty_outline() -> None:
    svg = charts.paired_bars(["EWR", "new"], [1, 1], [2, 0])
    assert [float(node.get("width", "")) for node in bars(svg, "previous")][1] == 1
    assert "new: current 50%, previous 0%" in svg


def test_labels_of_data_never_become_markup() -> None:
    svg = charts.paired_bars(["<script>alert(1)</script>", 'a"b'], [1, 1], [1, 1], names=("<b>", "&"))
    assert "<script" not in svg
    assert "<b>" not in svg
    parse(svg)


def test_an_interval_lies_between_its_ends_and_a_flagged_one_is_a_diamond() -> None:
    rows = [
        charts.Interval("EWR", 0.83, 0.82, 0.84, "1,203", flagged=True),
        charts.Interval("LGA", 0.91, 0.90, 0.92, "733"),
        charts.Interval("none", None, 0, 1),
    ]
    svg = charts.intervals(rows, limit=0.86, axis="recall")
    whiskers = [(float(node.get("x1", "")), float(node.get("x2", ""))) for node in marks(svg, "whisker")]
    line = next(node for node in marks(svg, "limit"))
    assert whiskers[0][0] < whiskers[0][1] < float(line.get("x1", "")) < whiskers[1][0] < whiskers[1][1]
    assert [node.tag for node in marks(svg, "flagged")] == ["polygon"]
    assert "not defined" in svg


def test_a_number_above_its_limit_reaches_beyond_the_line_and_is_flagged() -> None:
    rows = [charts.LimitRow("carrier", 0.06, 0.05), charts.LimitRow("hour", 0.04, 0.1)]
    svg = charts.limits(rows, axis="distance")
    line = float(marks(svg, "limit")[0].get("x1", ""))
    over, under = (bars(svg, kind)[0] for kind in ("flagged", "current"))
    ends = [float(bar.get("x", "")) + float(bar.get("width", "")) for bar in (over, under)]
    assert ends[1] < line < ends[0]
    assert "0.06 of 0.05" in svg


def test_a_limit_of_zero_can_be_kept_and_broken() -> None:
    svg = charts.limits([charts.LimitRow("a", 0.0, 0.0), charts.LimitRow("b", 0.1, 0.0)], axis="distance")
    assert len(bars(svg, "flagged")) == len(bars(svg, "current")) == 1


def test_a_curve_goes_from_corner_to_corner() -> None:
    svg = charts.lines({"ROC": ([0, 0.5, 1], [0, 0.8, 1])}, x_label="x", y_label="y", diagonal=True)
    points = marks(svg, "curve")[0].get("points", "").split()
    reference = marks(svg, "reference")[0]
    assert points[0] == f"{float(reference.get('x1', '')):.1f},{float(reference.get('y1', '')):.1f}"
    assert points[-1] == f"{float(reference.get('x2', '')):.1f},{float(reference.get('y2', '')):.1f}"


def test_several_lines_have_a_legend_and_differ_in_dashes_not_in_colour_alone() -> None:
    series = {"recall": ([0, 1], [1, 0]), "precision": ([0, 1], [0, 1])}
    svg = charts.lines(series, x_label="threshold", y_label="share")
    assert [node.get("class") for node in marks(svg, "curve")] == ["curve stroke-0", "curve stroke-1"]
    assert ">recall</text>" in svg


@pytest.mark.parametrize(
    "draw",
    [
        lambda: charts.paired_histogram([0, 1], [1, 2], [1, 2]),
        lambda: charts.paired_histogram([0], [], []),
        lambda: charts.paired_bars(["a"], [1, 2], [1, 2]),
        lambda: charts.lines({}, x_label="x", y_label="y"),
    ],
)
def test_shapes_that_do_not_fit_are_our_bug(draw: object) -> None:
    with pytest.raises(InternalError):
        draw()  # type: ignore[operator]

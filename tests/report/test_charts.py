"""What a chart shows lies where its numbers say; its labels are escaped; wrong shapes are our bug."""

import math
import re
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
    svg = charts.lines(
        {"ROC": ([0, 0.5, 1], [0, 0.8, 1])}, x_label="x", y_label="y", square=True, diagonal=True
    )
    points = marks(svg, "curve")[0].get("points", "").split()
    reference = marks(svg, "reference")[0]
    assert points[0] == f"{float(reference.get('x1', '')):.1f},{float(reference.get('y1', '')):.1f}"
    assert points[-1] == f"{float(reference.get('x2', '')):.1f},{float(reference.get('y2', '')):.1f}"


def test_several_lines_have_a_legend_and_differ_in_dashes_not_in_colour_alone() -> None:
    series = {"recall": ([0, 1], [1, 0]), "precision": ([0, 1], [0, 1])}
    svg = charts.lines(series, x_label="threshold", y_label="share")
    assert {node.get("class") for node in marks(svg, "curve")} == {"curve stroke-0", "curve stroke-1"}
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


def row(name: str, now: float, before: float | None = None, *, faint: bool = False) -> charts.Interval:
    baseline = None if before is None else charts.Interval(name, before, before - 0.1, before + 0.1)
    return charts.Interval(name, now, now - 0.1, now + 0.1, "n", faint=faint, before=baseline)


def centre(svg: str, kind: str) -> list[float]:
    return [float(node.get("cx", "")) for node in marks(svg, kind) if node.tag.endswith("circle")]


def test_candidate_and_baseline_lie_on_one_scale_the_baseline_below_as_a_ring() -> None:
    svg = charts.intervals([row("a", 0.6, 0.2), row("b", 0.2, 0.6)], axis="recall")
    now, before = centre(svg, "current"), centre(svg, "previous")
    assert now[0] == pytest.approx(before[1], abs=0.1)
    assert now[1] == pytest.approx(before[0], abs=0.1)
    assert all("hollow" in (node.get("class") or "") for node in marks(svg, "previous") if node.get("cx"))


def test_a_row_that_decided_nothing_is_hollow_on_a_dotted_line() -> None:
    svg = charts.intervals([row("a", 0.6), row("tiny", 0.2, faint=True)], axis="recall")
    assert len(marks(svg, "hollow")) == 1
    assert len(marks(svg, "faint-line")) == 1
    assert len(centre(svg, "current")) == 1


def test_a_single_model_needs_no_legend() -> None:
    both = charts.intervals([row("a", 0.6, 0.2)], axis="recall", names=("mine", "theirs"))
    alone = charts.intervals([row("a", 0.6)], axis="recall", names=("mine", "theirs"))
    assert "theirs" in both
    assert "theirs" not in alone


def test_an_estimate_that_is_not_defined_says_so() -> None:
    assert "not defined" in charts.intervals([charts.Interval("a", None, 0, 1)], axis="recall")


def test_bins_have_whiskers_where_the_intervals_end() -> None:
    series, bounds = ([0.2, 0.8], [0.25, 0.7]), ([0.2, 0.6], [0.3, 0.8])
    svg = charts.lines(
        {"candidate": series, "production": series},
        x_label="said",
        y_label="seen",
        square=True,
        bounds={"candidate": bounds, "production": bounds},
    )
    whiskers = marks(svg, "bar")
    tall = [abs(float(node.get("y1", "")) - float(node.get("y2", ""))) for node in whiskers]
    assert tall[1] / tall[0] == pytest.approx(2, rel=0.01)
    assert len(whiskers) == 4


def test_a_diagonal_outside_the_unit_square_has_one_range_on_both_axes() -> None:
    bounds = {"a": ([9, 19], [11, 21])}
    svg = charts.lines({"a": ([10, 20], [10, 20])}, x_label="x", y_label="y", diagonal=True, bounds=bounds)
    (line,) = marks(svg, "reference")
    for node in marks(svg, "line-0"):
        x, y = float(node.get("cx", "")), float(node.get("cy", ""))
        x1, y1, x2, y2 = (float(line.get(name, "")) for name in ("x1", "y1", "x2", "y2"))
        assert (y - y1) / (y2 - y1) == pytest.approx((x - x1) / (x2 - x1), abs=0.01)


def test_a_histogram_without_a_previous_one_draws_one() -> None:
    svg = charts.paired_histogram([0, 1, 2], [1, 3], None, names=("errors", ""))
    assert "previous-line" not in svg
    assert "errors" in svg


def test_a_unit_square_has_no_diagonal_unless_asked() -> None:
    plain, diagonal = (
        charts.lines(
            {"a": ([0, 1], [1, 0.2])}, x_label="recall", y_label="precision", square=True, diagonal=asked
        )
        for asked in (False, True)
    )
    assert "reference" not in plain
    assert "reference" in diagonal


def test_notes_that_fit_beside_their_rows_are_not_cut() -> None:
    rows = [charts.Interval("EWR", 0.6, 0.5, 0.7, note) for note in ("157 small", "400", "1,203")]
    svg = charts.intervals(rows, axis="recall")
    assert "…" not in svg


def test_traces_end_in_their_mark_and_stay_inside_the_axes() -> None:
    items = [
        charts.Trace("up", [(0, 0.0), (1, 99.0)], "cross"),
        charts.Trace("gap", [(0, 0.2), None, (1, 0.4)], "ring"),
        charts.Trace("alone", [(1, 0.5)], "diamond"),
    ]
    names = {"cross": "a", "ring": "b", "diamond": "c"}
    svg = charts.traces(items, x_label="x", y_label="y", names=names, up=(0.0, 1.0))
    paths = [node.get("d", "") for node in marks(svg, "trace")]
    assert len(paths) == 2
    assert paths[1].count("M") == 2
    heights = [float(number) for path in paths for number in re.findall(r" ([\d.]+)", path)]
    assert min(heights) >= 34
    assert max(heights) <= 226
    assert len(marks(svg, "cross")) == 2, "one in the chart, one in the legend"


def test_parallel_coordinates_draw_an_axis_a_level_with_its_ticks() -> None:
    axes = [charts.LevelAxis("rate", [(0.0, "low"), (1.0, "high")]), charts.LevelAxis("<b>", [(0.5, "one")])]
    items = [charts.Trace("first", [(0.0, 0.0), (0.5, 1.0)])]
    svg = charts.parallel_coordinates(axes, items, title="all", names={"dot": "trial"})
    assert {"low", "high", "one"} <= {node.text for node in marks(svg, "muted")}
    assert len(marks(svg, "axis")) == 2
    assert "<b>" not in svg

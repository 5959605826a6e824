"""Two models side by side: what is drawn lies where its numbers say, and nothing is said by colour alone."""

import pytest

from tests.report.test_charts import marks
from trainwright.errors import InternalError
from trainwright.report import charts


def row(name: str, now: float, before: float | None = None, *, faint: bool = False) -> charts.IntervalPair:
    entries = [
        charts.Interval(name, value, value - 0.1, value + 0.1, "n")
        for value in (now, before)
        if value is not None
    ]
    return charts.IntervalPair(entries[0], entries[1] if len(entries) > 1 else None, faint)


def centre(svg: str, kind: str) -> list[float]:
    return [float(node.get("cx", "")) for node in marks(svg, kind) if node.tag.endswith("circle")]


def test_candidate_and_baseline_lie_on_one_scale_the_baseline_below_as_a_ring() -> None:
    svg = charts.paired_intervals([row("a", 0.6, 0.2), row("b", 0.2, 0.6)], axis="recall")
    now, before = centre(svg, "current"), centre(svg, "previous")
    assert now[0] == pytest.approx(before[1], abs=0.1)
    assert now[1] == pytest.approx(before[0], abs=0.1)
    assert all("hollow" in (node.get("class") or "") for node in marks(svg, "previous") if node.get("cx"))


def test_a_row_that_decided_nothing_is_hollow_on_a_dotted_line() -> None:
    svg = charts.paired_intervals([row("a", 0.6), row("tiny", 0.2, faint=True)], axis="recall")
    assert len(marks(svg, "hollow")) == 1
    assert len(marks(svg, "faint-line")) == 1
    assert len(centre(svg, "current")) == 1


def test_a_single_model_needs_no_legend() -> None:
    both = charts.paired_intervals([row("a", 0.6, 0.2)], axis="recall", names=("mine", "theirs"))
    alone = charts.paired_intervals([row("a", 0.6)], axis="recall", names=("mine", "theirs"))
    assert "theirs" in both
    assert "theirs" not in alone


def test_an_estimate_that_is_not_defined_says_so() -> None:
    undefined = charts.IntervalPair(charts.Interval("a", None, 0, 1))
    assert "not defined" in charts.paired_intervals([undefined], axis="recall")


def test_bins_have_whiskers_where_the_intervals_end() -> None:
    one = charts.Binned([0.2, 0.8], [0.25, 0.7], [0.2, 0.6], [0.3, 0.8])
    svg = charts.binned({"candidate": one, "production": one}, x_label="said", y_label="seen")
    whiskers = marks(svg, "bar")
    tall = [abs(float(node.get("y1", "")) - float(node.get("y2", ""))) for node in whiskers]
    assert tall[1] / tall[0] == pytest.approx(2, rel=0.01)
    assert len(whiskers) == 4


def test_bins_of_a_number_share_one_span_on_both_axes() -> None:
    svg = charts.binned(
        {"a": charts.Binned([10, 20], [10, 20], [9, 19], [11, 21])}, x_label="x", y_label="y", unit=False
    )
    (line,) = marks(svg, "reference")
    for node in marks(svg, "line-0"):
        x, y = float(node.get("cx", "")), float(node.get("cy", ""))
        x1, y1, x2, y2 = (float(line.get(name, "")) for name in ("x1", "y1", "x2", "y2"))
        assert (y - y1) / (y2 - y1) == pytest.approx((x - x1) / (x2 - x1), abs=0.01)


def test_bins_without_bins_are_our_bug() -> None:
    with pytest.raises(InternalError):
        charts.binned({}, x_label="x", y_label="y")


def test_a_histogram_without_a_previous_one_draws_one() -> None:
    svg = charts.paired_histogram([0, 1, 2], [1, 3], None, names=("errors", ""))
    assert "previous-line" not in svg
    assert "errors" in svg


def test_a_unit_square_has_no_diagonal_unless_asked() -> None:
    plain, diagonal = (
        charts.lines(
            {"a": ([0, 1], [1, 0.2])}, x_label="recall", y_label="precision", unit=True, diagonal=asked
        )
        for asked in (False, True)
    )
    assert "reference" not in plain
    assert "reference" in diagonal

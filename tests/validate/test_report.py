"""The report in a real browser: it stands alone, fits a phone, and shows the names it was given as text."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.report.browser import Browser

WIDE = "document.documentElement.scrollWidth > innerWidth"
CHARTS = "document.querySelectorAll('svg').length"
HEADINGS = "[...document.querySelectorAll('h2')].map(x => x.textContent).join('|')"


@pytest.fixture
def moved(judge: Callable[..., Any], rows: Callable[..., pa.Table]) -> Any:
    """A snapshot in which everything is wrong that can be at once."""
    late_hours = pa.array(np.random.default_rng(2).integers(16, 24, 1_000))
    plan = pa.array(["<b>bold & long</b> " + "x" * 80] * 300 + ["team"] * 700)
    current = rows(1_000, 2, hour=late_hours, plan=plan, delay=pa.array([None] * 1_000, pa.float64()))
    entry = {"kind": "FEATURE_TYPE_NOT_PRESENT", "reason": "the gauge is being mended", "until": "2026-06-30"}
    quality, splits = {"time.newest": 1_773_144_000.0}, {"train": rows(4_000, 1), "evaluate": current}
    return judge(splits, quality=quality, suppressions=[entry])


@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_fetches_nothing_and_fits_a_phone_and_a_desk(moved: Any, browser: Browser, width: int) -> None:
    seen = browser.open(moved.folder / "report.html", width=width, ask=(WIDE, CHARTS, HEADINGS))
    assert seen.requests == []
    assert seen.problems == []
    assert seen.shades > 20
    wide, charts, headings = seen.answers
    assert wide is False
    assert charts == 6  # the limits of all columns, three distributions, missing values, new values
    assert headings.split("|") == [
        "Findings",
        "How far each column moved",
        "Closest to their limits",
        "What could not be compared",
        "Rows without a value",
        "Values never seen before",
        "Set aside",
        "Rows, time and label",
        "All comparisons",
    ]


def test_the_name_of_a_value_is_shown_as_it_is_and_not_as_markup(moved: Any, browser: Browser) -> None:
    seen = browser.open(
        moved.folder / "report.html", width=1280, ask=("document.querySelectorAll('b').length",)
    )
    assert seen.answers == [0]
    assert "&lt;b&gt;bold &amp; long" in moved.page


def test_a_page_says_what_moved_where_and_from_what_to_what(moved: Any) -> None:
    assert "hour moved by" in moved.page
    assert "delay" in moved.page
    assert "no numbers of it in split evaluate" in moved.page
    assert len(moved.page.encode()) < 200_000


def test_a_page_shows_every_number_of_rows_and_the_limit_that_was_applied(moved: Any) -> None:
    (rule,) = [rule for rule in moved.verdict.rules if rule.name == "drift/plan"]
    for text in (f"{rule.value:.4f}", f"{rule.limit:.4f}", "1,000", "4,000"):
        assert f">{text}</td>" in moved.page


def test_a_page_says_what_is_set_aside_why_and_until_when(moved: Any) -> None:
    assert "suppressed until 2026-06-30: the gauge is being mended" in moved.page
    assert "set aside" in moved.summary

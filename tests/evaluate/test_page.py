"""The report in a real browser, with names of data that try to break it."""

from collections.abc import Callable

import pytest

from tests.evaluate.conftest import UNFAIR, Group, Step, rows_of
from tests.report.browser import Browser

HOSTILE = Group("<script>document.title='broken'</script>|[x](javascript:alert(1))", 100, 80, 100, 10)


@pytest.mark.parametrize("width", [390, 1200])
def test_the_report_is_readable_and_whole_on_a_phone_and_at_a_desk(
    width: int, browser: Browser, written: Callable[..., Step]
) -> None:
    step = written(rows_of((*UNFAIR, HOSTILE)))
    step.judge(slices=["origin"], max_recall_gap=0.1)
    ask = (
        "document.documentElement.scrollWidth",
        "document.querySelectorAll('figure svg').length",
        "document.title",
        "document.querySelectorAll('tr.flagged th')[1].innerText",
    )
    seen = browser.open(step.folder / "report.html", width=width, ask=ask)
    assert (seen.requests, seen.problems) == ([], [])
    assert seen.shades > 50
    wide, figures, title, flagged = seen.answers
    assert wide <= width
    assert figures == 6
    assert title == "Does the model predict 'late' well enough?: HOLD"
    assert "EWR" in flagged


def test_the_summary_shows_hostile_names_as_text(written: Callable[..., Step]) -> None:
    step = written(rows_of((*UNFAIR, HOSTILE)))
    step.judge(slices=["origin"], max_recall_gap=0.1, min_positives=101)
    summary = (step.folder / "summary.md").read_text()
    assert "<script" not in summary
    assert r"\|[x\](javascript:alert(1))" in summary

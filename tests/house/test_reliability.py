"""Every fault, bad input and attack of the list has a test or the reason why not."""

from tests import reliability

LISTED = reliability.catalogue()
ROWS = {row for rows in LISTED["tables"].values() for row in rows}


def test_every_row_has_a_test_or_a_reason() -> None:
    assert ROWS - set(reliability.covering_tests()) == set(LISTED["untested"])


def test_every_mark_names_a_row() -> None:
    assert set(reliability.covering_tests()) <= ROWS


def test_page_is_what_the_marks_say() -> None:
    assert reliability.PAGE.read_text() == reliability.page()

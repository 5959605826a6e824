"""Values stay values in Markdown."""

import pytest

from trainwright.report import markdown


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("AUC 0.675 [0.667, 0.684] > 0.600", "AUC 0.675 [0.667, 0.684] > 0.600"),
        ("dep_hour | *x*", r"dep\_hour \| \*x\*"),
        ("[click](javascript:alert(1))", r"[click\](javascript:alert(1))"),
        ("<script>&", "&lt;script>&amp;"),
        ("two\nlines", "two lines"),
        ("- a list", r"\- a list"),
        ("1. a list", r"1\. a list"),
        ("> a quote", r"\> a quote"),
        ("-", "-"),
        (0.5, "0.5"),
    ],
)
def test_a_value_is_shown_as_it_is(text: object, written: str) -> None:
    assert markdown.escape(text) == written


def test_a_table_keeps_its_columns_whatever_its_cells_hold() -> None:
    lines = markdown.table(["rule", "value"], [["a|b", 1], ["c\nd", 2]], numeric=(1,)).splitlines()
    assert lines[:2] == ["| rule | value |", "| --- | ---: |"]
    assert lines[2:] == [r"| a\|b | 1 |", "| c d | 2 |"]

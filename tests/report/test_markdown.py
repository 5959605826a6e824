"""Values stay values in Markdown, and the card of a model is made of what two steps wrote."""

import pytest

from trainwright.report import markdown
from trainwright.report.markdown import CardPart, merge_cards, read_card, write_card


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


TRAINED = write_card(
    "Probability of late",
    "A multilayer perceptron.",
    [
        CardPart("Data", "Rows."),
        CardPart("Training", "Steps."),
        CardPart("Limits", "Careful."),
        CardPart("Use", "Load it."),
    ],
)
JUDGED = write_card(
    "Evaluation of the model of late",
    "",
    [CardPart("Evaluation", "**PASS.**"), CardPart("Slices", "a"), CardPart("Limits", "More.")],
)


def test_a_card_is_read_as_it_was_written() -> None:
    title, lead, parts = read_card(TRAINED)
    assert (title, lead) == ("Probability of late", "A multilayer perceptron.")
    assert [part.heading for part in parts] == ["Data", "Training", "Limits", "Use"]
    assert write_card(title, lead, parts) == TRAINED


def test_the_decision_comes_first_and_how_to_load_it_last() -> None:
    title, lead, parts = read_card(merge_cards(TRAINED, JUDGED))
    assert (title, lead) == ("Probability of late", "A multilayer perceptron.")
    assert [part.heading for part in parts] == ["Evaluation", "Data", "Slices", "Training", "Limits", "Use"]


def test_parts_of_one_name_are_put_together() -> None:
    (limits,) = [part for part in read_card(merge_cards(TRAINED, JUDGED))[2] if part.heading == "Limits"]
    assert limits.text == "More.\n\nCareful."


def test_a_part_nobody_knows_is_kept_before_how_to_use_it() -> None:
    card = write_card("t", "", [CardPart("Use", "x"), CardPart("Cost", "y")])
    assert [part.heading for part in read_card(merge_cards(card, JUDGED))[2]][-2:] == ["Cost", "Use"]


def test_a_heading_inside_a_line_is_no_part() -> None:
    assert [part.heading for part in read_card("# t\n\n## A\n\nsee ## not this\n### nor this\n")[2]] == ["A"]

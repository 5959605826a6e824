"""The model card: what two steps wrote becomes one, in the order in which a reader asks."""

from trainwright.report.card import Part, complete, read, write

TRAINED = write(
    "Probability of late",
    "A multilayer perceptron.",
    [Part("Data", "Rows."), Part("Training", "Steps."), Part("Limits", "Careful."), Part("Use", "Load it.")],
)
JUDGED = write(
    "Evaluation of the model of late",
    "",
    [Part("Evaluation", "**PASS.**"), Part("Slices", "a"), Part("Limits", "More.")],
)


def test_a_card_is_read_as_it_was_written() -> None:
    title, lead, parts = read(TRAINED)
    assert (title, lead) == ("Probability of late", "A multilayer perceptron.")
    assert [part.heading for part in parts] == ["Data", "Training", "Limits", "Use"]
    assert write(title, lead, parts) == TRAINED


def test_the_decision_comes_first_and_how_to_load_it_last() -> None:
    title, lead, parts = read(complete(TRAINED, JUDGED))
    assert (title, lead) == ("Probability of late", "A multilayer perceptron.")
    assert [part.heading for part in parts] == ["Evaluation", "Data", "Slices", "Training", "Limits", "Use"]


def test_parts_of_one_name_are_put_together() -> None:
    (limits,) = [part for part in read(complete(TRAINED, JUDGED))[2] if part.heading == "Limits"]
    assert limits.text == "More.\n\nCareful."


def test_a_part_nobody_knows_is_kept_before_how_to_use_it() -> None:
    card = write("t", "", [Part("Use", "x"), Part("Cost", "y")])
    assert [part.heading for part in read(complete(card, JUDGED))[2]][-2:] == ["Cost", "Use"]


def test_a_heading_inside_a_line_is_no_part() -> None:
    assert [part.heading for part in read("# t\n\n## A\n\nsee ## not this\n### nor this\n")[2]] == ["A"]

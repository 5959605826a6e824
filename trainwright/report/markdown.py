"""Markdown: escaped tables for summaries, and the model card that training and evaluation write in parts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_SPECIAL = re.compile(r"([\\`*_{}|#~]|\](?=[(\[:])|^>|^[+-](?= )|(?<=^\d)[.)](?= ))")
"""Characters with a meaning in Markdown: anywhere, at the end of a link's text, at the start of a line."""


def escape(text: object) -> str:
    """Write a value so that Markdown shows it as it is, on one line and without becoming markup."""
    line = " ".join(str(text).split())
    return _SPECIAL.sub(r"\\\1", line.replace("&", "&amp;").replace("<", "&lt;"))


def table(header: Sequence[str], rows: Sequence[Sequence[object]], numeric: Sequence[int] = ()) -> str:
    """Write a table; every cell is escaped, the columns in ``numeric`` are set to the right."""
    rule = ["---:" if index in numeric else "---" for index in range(len(header))]
    body = [[escape(cell) for cell in row] for row in rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in ([escape(name) for name in header], rule, *body))


CARD_FILE = "card.md"

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_ORDER = (
    "Evaluation", "What it is for", "Data", "Evaluation data", "Figures", "Classes", "Slices", "Fairness",
    "Not judged", "Threshold", "Training", "Inputs", "What the trees split on", "Limits", "Use",
)  # fmt: skip
"""The decision first, then what a reader asks; a section that is not named here comes before Use."""


@dataclass(frozen=True)
class CardPart:
    """A heading, and the Markdown below it."""

    heading: str
    text: str


def write_card(title: str, lead: str, parts: Sequence[CardPart]) -> str:
    """Write a card: its title, a sentence, and its parts."""
    blocks = [f"# {title}", lead, *(f"## {part.heading}\n\n{part.text.strip()}" for part in parts)]
    return "\n\n".join(block.strip() for block in blocks if block.strip()) + "\n"


def read_card(card: str) -> tuple[str, str, list[CardPart]]:
    """Return a card's title, what stands below it, and its parts."""
    head, *pieces = _HEADING.split(card)
    title, _, lead = head.strip().partition("\n")
    found = [CardPart(pieces[at].strip(), pieces[at + 1].strip()) for at in range(0, len(pieces), 2)]
    return title.removeprefix("#").strip(), lead.strip(), found


def merge_cards(trained: str, judged: str) -> str:
    """Put the card of a training and that of its evaluation together, as a registry shows it.

    The result has the training's title; parts of one name stand one below the other.
    """
    title, lead, parts = read_card(trained)
    _, said, more = read_card(judged)
    joined: dict[str, str] = {}
    for part in (CardPart("Evaluation", said), *more, *parts) if said else (*more, *parts):
        joined[part.heading] = (
            f"{joined[part.heading]}\n\n{part.text}" if part.heading in joined else part.text
        )
    place = {heading: index for index, heading in enumerate(_ORDER)}
    before_use = place["Use"] - 0.5
    ordered = sorted(joined, key=lambda heading: place.get(heading, before_use))
    return write_card(title, lead, [CardPart(heading, joined[heading]) for heading in ordered])

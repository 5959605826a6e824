"""A model card as Markdown, in parts that two steps write: what was trained, and how good it was found to be.

Headings follow Mitchell et al., Model Cards for Model Reporting (FAT* 2019).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

FILE = "card.md"

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_ORDER = (
    "Evaluation", "What it is for", "Data", "Evaluation data", "Figures", "Slices", "Fairness", "Not judged",
    "Threshold", "Training", "Inputs", "What the trees split on", "Limits", "Use",
)  # fmt: skip
"""The decision first, then what a reader asks; a section that is not named here comes before Use."""


@dataclass(frozen=True)
class Part:
    """A heading, and the Markdown below it."""

    heading: str
    text: str


def write(title: str, lead: str, parts: Sequence[Part]) -> str:
    """Write a card: its title, a sentence, and its parts."""
    blocks = [f"# {title}", lead, *(f"## {part.heading}\n\n{part.text.strip()}" for part in parts)]
    return "\n\n".join(block.strip() for block in blocks if block.strip()) + "\n"


def read(card: str) -> tuple[str, str, list[Part]]:
    """Return a card's title, what stands below it, and its parts."""
    head, *pieces = _HEADING.split(card)
    title, _, lead = head.strip().partition("\n")
    found = [Part(pieces[at].strip(), pieces[at + 1].strip()) for at in range(0, len(pieces), 2)]
    return title.removeprefix("#").strip(), lead.strip(), found


def complete(trained: str, judged: str) -> str:
    """Put the card of a training and that of its evaluation together, as a registry shows it.

    Args:
        trained: ``README.md`` of the model's folder.
        judged: ``card.md`` beside the verdict.

    Returns:
        One card under the training's title; parts of one name stand one below the other.
    """
    title, lead, parts = read(trained)
    _, said, more = read(judged)
    joined: dict[str, str] = {}
    for part in (Part("Evaluation", said), *more, *parts) if said else (*more, *parts):
        joined[part.heading] = (
            f"{joined[part.heading]}\n\n{part.text}" if part.heading in joined else part.text
        )
    place = {heading: index for index, heading in enumerate(_ORDER)}
    before_use = place["Use"] - 0.5
    ordered = sorted(joined, key=lambda heading: place.get(heading, before_use))
    return write(title, lead, [Part(heading, joined[heading]) for heading in ordered])

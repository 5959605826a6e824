"""Draw the lineage of a run: source, snapshot, training set, model and version, and the steps between."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from trainwright.artifacts import Record
from trainwright.lineage import SHOWN
from trainwright.report.svg import WIDTH, drawing, element, label

_LINKS = (
    ("source", "source", "resolve"),
    ("data", "snapshot", "ingest"),
    ("training_set", "training set", "join"),
    ("model", "model", "train"),
    ("registration", "version", "register"),
)
"""Name of each digest in a record, its title, and the step that makes it."""

_HEIGHT, _GAP, _EDGE, _TITLE = 46.0, 24.0, 1.0, 110.0


@dataclass(frozen=True)
class _Node:
    title: str
    name: str
    step: str
    fact: str


def draw_lineage(lineage: Sequence[Record]) -> Markup | None:
    """Draw a box for each known link, the source first; None where fewer than two are known.

    Args:
        lineage: Records from the result back to the source, the latest first.
    """
    nodes = list(_nodes(lineage))
    if len(nodes) < 2:  # noqa: PLR2004 - nothing leads anywhere
        return None
    marks: list[Markup] = []
    for index, node in enumerate(nodes):
        top = _EDGE + index * (_HEIGHT + _GAP)
        if index:
            marks += _arrow(top, node.step)
        box = {"x": _EDGE, "y": top, "width": WIDTH - 2 * _EDGE, "height": _HEIGHT, "rx": 6}
        marks += [
            element("rect", **box, class_="box"),
            label(14, top + 19, node.title, class_="bold", width=_TITLE),
            label(14 + _TITLE, top + 19, node.name, width=WIDTH - _TITLE - 28),
            label(14, top + 37, node.fact, class_="muted", width=WIDTH - 28),
        ]
    names = " to ".join(node.title for node in nodes)
    return drawing(len(nodes) * (_HEIGHT + _GAP) - _GAP + 2 * _EDGE, "Lineage", f"From {names}.", marks)


def _arrow(top: float, step: str) -> list[Markup]:
    middle, start, tip = 34.0, top - _GAP, top - 2
    head = f"M{middle - 4:.0f} {tip - 5:.0f}L{middle:.0f} {tip:.0f}L{middle + 4:.0f} {tip - 5:.0f}"
    return [
        element("path", d=f"M{middle:.0f} {start:.0f}V{tip:.0f}{head}", class_="arrow"),
        label(middle + 12, top - _GAP / 2 + 4, step, class_="muted"),
    ]


def _nodes(lineage: Sequence[Record]) -> list[_Node]:
    found = []
    for name, title, step in _LINKS:
        makers = [record for record in lineage if name in record.outputs]
        users = [record for record in lineage if name in record.inputs]
        if not (makers or users):
            continue
        digest = makers[0].outputs[name] if makers else users[0].inputs[name]
        fact = makers[0].headline if makers else ""
        named = digest[:SHOWN]
        if name == "registration":  # a version has a name, by which it is found
            named, _, fact = fact.partition(", ")
        found.append(_Node(title, named, makers[0].step if makers else step, fact))
    return found

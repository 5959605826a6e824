"""Draw a graph of steps or versions in layers, each box a link."""

import math
import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from markupsafe import Markup

from trainwright.report.svg import element, label

_BOX, _HEIGHT, _GAP, _LAYER, _LANE = 184.0, 42.0, 14.0, 26.0, 8.0
"""Width and height of a box, space between boxes and between layers, and width of a passing edge."""

_SWEEPS, _PULLS = 6, 40
"""Repetitions of the two heuristics: the order of each layer, and the place of each box."""

Place = tuple[str, str, int]
"""A box, ``(key, "", layer)``, or the place where the edge from a box to another passes a layer."""


@dataclass(frozen=True)
class GraphNode:
    """A box: two lines of text, the address it leads to, and the class that colours it."""

    key: str
    title: str
    fact: str
    href: str
    kind: str


def draw_graph(nodes: Sequence[GraphNode], edges: Iterable[tuple[str, str]], title: str) -> Markup:
    """Draw nodes in layers from top to bottom; an edge that others imply is left out."""
    known = {node.key: node for node in nodes}
    parents: dict[str, list[str]] = {key: [] for key in known}
    for first, last in edges:
        if first in known and last in known:
            parents[last].append(first)
    depths, reduced = _depths(parents)
    paths = [_path(first, last, depths) for last in known for first in reduced[last]]
    layers, near = _layers(known, depths, paths)
    centers, width = _centers(layers, near)
    marks = [_edge([centers[place] for place in path], [place[2] for place in path]) for path in paths]
    marks += [_box(node, centers[key, "", depths[key]], _top(depths[key])) for key, node in known.items()]
    height = _top(len(layers)) - _LAYER + 1
    return element(
        "svg",
        *marks,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=width,
        height=height,
        class_="graph",
        role="group",
        aria_label=title,
    )


def _depths(parents: Mapping[str, Sequence[str]]) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return the layer of each node, and its parents without those that another parent descends from."""
    depths: dict[str, int] = {}
    above: dict[str, set[str]] = {}
    reduced: dict[str, list[str]] = {}

    def visit(key: str) -> None:
        above[key] = set()
        for one in parents[key]:
            if one not in above:
                visit(one)
        # A parent without a layer is being visited: this edge closes a circle, such as of two conversions.
        near = [one for one in parents[key] if one in depths]
        depths[key] = max((depths[one] + 1 for one in near), default=0)
        above[key] = set(near).union(*(above[one] for one in near))
        reduced[key] = [one for one in near if not any(one in above[other] for other in near)]

    for key in parents:
        if key not in depths:
            visit(key)
    return depths, reduced


def _path(first: str, last: str, depths: Mapping[str, int]) -> list[Place]:
    between = [(first, last, layer) for layer in range(depths[first] + 1, depths[last])]
    return [(first, "", depths[first]), *between, (last, "", depths[last])]


def _layers(
    keys: Iterable[str], depths: Mapping[str, int], paths: Iterable[Sequence[Place]]
) -> tuple[list[list[Place]], Mapping[Place, set[Place]]]:
    """Return the places of each layer, ordered for few crossings, and what each place is connected to."""
    layers: list[list[Place]] = [[] for _ in range(max(depths.values(), default=-1) + 1)]
    near: defaultdict[Place, set[Place]] = defaultdict(set)
    for key in keys:
        layers[depths[key]].append((key, "", depths[key]))
    for path in paths:
        for place in path[1:-1]:
            layers[place[2]].append(place)
        for first, last in pairwise(path):
            near[first].add(last)
            near[last].add(first)
    for _ in range(_SWEEPS):  # the barycenter heuristic of Sugiyama, Tagawa and Toda (1981)
        for fixed, layer in (*pairwise(layers), *pairwise(reversed(layers))):
            _sort(layer, _ranks(fixed), near)
    return layers, near


def _sort(layer: list[Place], fixed: Mapping[Place, float], near: Mapping[Place, set[Place]]) -> None:
    """Sort a layer by the mean rank of what each place is connected to in a fixed layer."""
    own = _ranks(layer)
    layer.sort(key=lambda place: fmean([fixed[at] for at in near[place] if at in fixed] or [own[place]]))


def _ranks(layer: Sequence[Place]) -> dict[Place, float]:
    return {place: (index + 0.5) / len(layer) for index, place in enumerate(layer)}


def _centers(
    layers: Sequence[Sequence[Place]], near: Mapping[Place, set[Place]]
) -> tuple[dict[Place, float], float]:
    """Return the middle of each place, near the middles of what it is connected to, and the total width."""
    middles: dict[Place, float] = {}
    for _ in range(_PULLS):
        for layer in (*layers, *reversed(layers)):
            wanted = [fmean([middles[at] for at in near[place] if at in middles] or [0.0]) for place in layer]
            placed = [0.0] * len(layer)
            for index, place in enumerate(layer):
                least = placed[index - 1] + _apart(layer[index - 1], place) if index else -math.inf
                placed[index] = max(wanted[index], least)
            shift = fmean(map(operator.sub, wanted, placed))
            middles |= {place: at + shift for place, at in zip(layer, placed, strict=True)}
    left = min((at - _width(place) / 2 for place, at in middles.items()), default=0.0) - 1
    right = max((at + _width(place) / 2 for place, at in middles.items()), default=0.0) + 1
    return {place: at - left for place, at in middles.items()}, right - left


def _width(place: Place) -> float:
    return _LANE if place[1] else _BOX


def _apart(first: Place, last: Place) -> float:
    return (_width(first) + _width(last)) / 2 + _GAP


def _top(layer: int) -> float:
    return 1 + layer * (_HEIGHT + _LAYER)


def _edge(centers: Sequence[float], layers: Sequence[int]) -> Markup:
    """Draw an edge from the lower side of a box to the upper side of another."""
    d = f"M{centers[0]:.1f} {_top(layers[0]) + _HEIGHT:.1f}"
    for layer, (before, x) in zip(layers[1:], pairwise(centers), strict=True):
        y, half = _top(layer), _LAYER / 2
        d += f"C{before:.1f} {y - half:.1f} {x:.1f} {y - half:.1f} {x:.1f} {y:.1f}V{y + _HEIGHT:.1f}"
    d = d[: d.rindex("V")] + "m-4 -6l4 6l4 -6"
    return element("path", d=d, class_="arrow")


def _box(node: GraphNode, center: float, top: float) -> Markup:
    x, width = center - _BOX / 2, _BOX - 24
    return element(
        "a",
        element("title", f"{node.title}: {node.fact}"),
        element("rect", x=x, y=top, width=_BOX, height=_HEIGHT, rx=5, class_="box"),
        element("rect", x=x, y=top, width=5, height=_HEIGHT, rx=2, class_="side"),
        label(x + 14, top + 17, node.title, class_="bold", width=width),
        label(x + 14, top + 34, node.fact, class_="muted", width=width),
        href=node.href,
        class_=node.kind,
    )

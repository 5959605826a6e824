"""Graphs in layers: boxes do not overlap, edges lead down, and what others imply is left out."""

import re
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainwright.service.graph import GraphNode, draw_graph

EDGES = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30)
SLOW = settings(suppress_health_check=[HealthCheck.too_slow])


def draw(count: int, edges: Sequence[tuple[int, int]]) -> str:
    nodes = [GraphNode(str(one), f"<{one}>", "", f"#{one}", "done") for one in range(count)]
    return draw_graph(nodes, [(str(first), str(last)) for first, last in edges], "A graph")


def boxes(svg: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="184"', svg)]


@SLOW
@given(EDGES)
def test_any_graph_is_drawn_without_overlaps_inside_the_picture(edges: list[tuple[int, int]]) -> None:
    svg = draw(12, edges)
    places = boxes(svg)
    width, height = map(float, re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)[0])
    assert len(places) == 12
    for index, (x, y) in enumerate(places):
        assert 0 <= x <= width - 184 + 1
        assert 0 <= y <= height - 42 + 1
        for other_x, other_y in places[:index]:
            assert y != other_y or abs(x - other_x) >= 184 + 13.9


@SLOW
@given(EDGES)
def test_edges_of_a_graph_without_circles_lead_down(edges: list[tuple[int, int]]) -> None:
    down = [(first, last) for first, last in edges if first < last]
    places = boxes(draw(12, down))
    assert all(places[first][1] < places[last][1] for first, last in down)


def test_edge_that_others_imply_is_left_out() -> None:
    assert draw(3, [(0, 1), (1, 2), (0, 2)]).count('class="arrow"') == 2


def test_chain_is_drawn_straight() -> None:
    assert len({x for x, _ in boxes(draw(5, [(0, 1), (1, 2), (2, 3), (3, 4)]))}) == 1


def test_texts_are_escaped() -> None:
    assert "&lt;1&gt;" in draw(2, [])
    assert "<1>" not in draw(2, [])

"""A page is one file that nothing needs to be fetched for, and that a phone can show."""

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.report.browser import Browser
from trainwright.errors import InternalError
from trainwright.report import charts
from trainwright.report.page import (
    MAX_BYTES,
    MEANING,
    DenseTable,
    Figure,
    Paragraph,
    ReportPage,
    ReportSection,
    Table,
    draw_page,
    link,
    write_page,
)
from trainwright.verdicts import DECISIONS

HOSTILE = "<img src=x onerror=alert(1)>"
WIDE = Table(
    ["carrier", *(f"figure {index}" for index in range(20))],
    [[f"carrier {row}", *(f"{row * index:,}" for index in range(20))] for row in range(4)],
    numeric=range(1, 21),
    flagged=(2,),
)

DENSE = DenseTable(
    "All slices", ["slice", "rows", "why"], [[HOSTILE, "1,000", "yes"], ["b", "2", "small"]], noted=True
)
PAIR = charts.Interval("EWR", 0.8, 0.7, 0.9, "1,000", before=charts.Interval("EWR", 0.6, 0.5, 0.7))
BINS, ENDS = {"a": ([0.1, 0.5], [0.2, 0.4])}, {"a": ([0.1, 0.3], [0.3, 0.5])}


def gallery(decision: str = "HOLD") -> ReportPage:
    """A page with one of everything, in every width."""
    figures = [
        Figure(charts.paired_histogram([0, 1, 2], [3, 1], [1, 1]), "Columns."),
        Figure(charts.paired_bars(["a" * 60, HOSTILE], [3, 1], [1, 1]), "Bars."),
        Figure(charts.intervals([charts.Interval("EWR", 0.8, 0.7, 0.9)], limit=0.85, axis="recall"), "Dots."),
        Figure(charts.limits([charts.LimitRow("hour", 0.04, 0.1)], axis="distance"), "Limits."),
        Figure(charts.lines({"a": ([0, 1], [0, 1])}, x_label="x", y_label="y"), "Lines."),
        Figure(charts.intervals([PAIR, PAIR], limit=0.7, axis="recall"), "Pairs."),
        Figure(charts.lines(BINS, x_label="said", y_label="seen", diagonal=True, bounds=ENDS), "Bins."),
    ]
    sections = [
        ReportSection("Charts", figures, "What moved."),
        ReportSection("Rows", [WIDE, DENSE, Paragraph("A word. " * 50)]),
    ]
    facts = [("AUC", "0.741 [0.738, 0.744]"), ("Digest", "3f9a1c" * 11), ("Value", HOSTILE)]
    return ReportPage("A title", "Recall gap 0.081 > 0.050.", decision, facts, sections)


class Outside(HTMLParser):
    """Collects what a page would fetch, run or leave open."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "link"}:
            self.open.append(tag)
        if tag in {"script", "link", "img", "iframe", "object", "image", "use", "form"}:
            self.found.append(tag)
        self.found += [f"{tag} {name}" for name, _ in attrs if name in {"src", "href", "action", "style"}]
        self.found += [f"{tag} {name}" for name, _ in attrs if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.covers("A6")
@pytest.mark.parametrize("decision", ["", *DECISIONS])
def test_a_page_runs_nothing_fetches_nothing_and_closes_every_tag(decision: str) -> None:
    text = draw_page(gallery(decision))
    parser = Outside()
    parser.feed(text)
    parser.close()
    assert (parser.found, parser.open) == ([], [])
    assert not re.search(r"@import|url\(", text)


@pytest.mark.parametrize("decision", DECISIONS)
def test_the_decision_is_a_word_with_its_meaning_not_a_colour_alone(decision: str) -> None:
    text = draw_page(gallery(decision))
    assert f"<strong>{decision}</strong><span>{MEANING[decision]}</span>" in text


@pytest.mark.covers("A6")
def test_values_never_become_markup() -> None:
    text = draw_page(gallery())
    assert HOSTILE not in text
    assert html.escape(HOSTILE) in text


def test_numbers_are_set_to_the_right_and_flagged_rows_say_so_in_words() -> None:
    text = draw_page(gallery())
    assert '<td class="number">38</td>' in text
    assert text.count('<span class="aside">flagged: </span>carrier 2') == 1


def test_the_same_page_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (write_page(gallery(), tmp_path / name) for name in ("a/first.html", "b/second.html"))
    assert first.read_bytes() == second.read_bytes()


def test_a_page_of_two_megabytes_is_refused_and_not_written(tmp_path: Path) -> None:
    page = ReportPage("Much", "", sections=[ReportSection("Text", [Paragraph("x" * MAX_BYTES)])])
    with pytest.raises(InternalError, match=r"2,0\d\d,\d\d\d bytes; a page stays below 2,000,000"):
        write_page(page, tmp_path / "much.html")
    assert not (tmp_path / "much.html").exists()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_a_page_fits_any_screen_and_fetches_nothing(
    width: int, dark: bool, browser: Browser, tmp_path: Path
) -> None:
    page = write_page(gallery(), tmp_path / "page.html")
    ask = ("document.documentElement.scrollWidth", "document.querySelectorAll('svg').length", CONTRAST)
    seen = browser.open(page, width=width, dark=dark, ask=ask)
    assert (seen.requests, seen.problems) == ([], [])
    assert seen.shades > 50
    wide, drawings, contrast = seen.answers
    assert wide <= width
    assert drawings == 7
    assert contrast >= 4.5, "text that is too faint to read (WCAG 2.1, 1.4.3)"


def test_the_browser_would_tell_of_a_request_and_of_an_error(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<img src='http://127.0.0.1:9/pixel.png'><script>console.error('told')</script>")
    seen = browser.open(page, width=390)
    assert seen.requests == ["http://127.0.0.1:9/pixel.png"]
    assert any("told" in problem for problem in seen.problems)


def test_text_in_a_chart_is_at_least_ten_pixels_tall_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    page = write_page(gallery(), tmp_path / "page.html")
    tall = (
        "Math.min(...[...document.querySelectorAll('svg text')].filter(t => t.textContent)"
        ".map(t => t.getBoundingClientRect().height))"
    )
    assert browser.open(page, width=390, ask=(tall,)).answers[0] >= 10


def test_no_label_sticks_out_of_its_chart(browser: Browser, tmp_path: Path) -> None:
    names = ["EWR", "WWWWWWWW", "JFK", "a_column_with_a_very_long_name_indeed"]
    rows = [charts.Interval(name, 0.8, 0.7, 0.9, "1,234,567", flagged=True) for name in names]
    figures = [
        Figure(charts.paired_bars(names, [1, 2, 3, 0], [3, 2, 1, 0], names=("W" * 40, "W" * 40)), "Bars."),
        Figure(charts.intervals(rows, limit=0.65, axis="recall"), "Dots."),
        Figure(charts.limits([charts.LimitRow(name, 0.0412, 0.05) for name in names], axis="d"), "Limits."),
        Figure(charts.paired_histogram([-1e6, 0, 1e6], [1, 2], [2, 1]), "Columns."),
    ]
    page = write_page(ReportPage("t", "s", sections=[ReportSection("h", figures)]), tmp_path / "page.html")
    assert browser.open(page, width=1280, ask=(STICKS_OUT,)).answers[0] == []


def test_a_page_works_in_the_frame_in_which_kubeflow_shows_it(browser: Browser, tmp_path: Path) -> None:
    inner = html.escape(draw_page(gallery()))
    frame = tmp_path / "frame.html"
    frame.write_text(
        f"<!doctype html><style>iframe{{width:800px;height:3000px}}</style>"
        f'<iframe sandbox="allow-scripts" srcdoc="{inner}"></iframe>'
    )
    seen = browser.open(frame, width=900)
    assert (seen.requests, seen.problems) == ([], [])
    assert seen.shades > 50


CONTRAST = """(() => {
  const probe = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const light = (colour) => {
    probe.fillStyle = colour; probe.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...probe.getImageData(0, 0, 1, 1).data].map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const paper = (node) => {
    for (; node; node = node.parentElement) {
      const found = getComputedStyle(node).backgroundColor;
      if (found !== 'rgba(0, 0, 0, 0)') return light(found);
    }
    return light('white');
  };
  const texts = 'p, dt, dd, th, td, strong, span, figcaption, svg text, footer';
  const ratios = [...document.querySelectorAll(texts)]
    .map(node => {
      const style = getComputedStyle(node);
      const ink = light(node.ownerSVGElement ? style.fill : style.color), back = paper(node);
      return Math.max(ink, back) / Math.min(ink, back);
    });
  return Math.min(...ratios);
})()"""
"""The smallest contrast of any text to what lies behind it."""

STICKS_OUT = """[...document.querySelectorAll('svg text')].filter(text => {
  const inner = text.getBoundingClientRect(), outer = text.ownerSVGElement.getBoundingClientRect();
  return text.textContent && (inner.left < outer.left - 1 || inner.right > outer.right + 1);
}).map(text => text.textContent)"""
"""The labels that reach beyond the drawing that they stand in."""


def test_link_is_escaped_and_leads_to_a_relative_path_or_https_only() -> None:
    assert link("a <b>", "../x y/report.html") == '<a href="../x%20y/report.html">a &lt;b&gt;</a>'
    with pytest.raises(InternalError, match="not to javascript"):
        link("x", "javascript:alert(1)")


def test_each_decision_has_a_color_of_its_own_at_the_top_and_in_tables() -> None:
    table = Table(["rule", "result"], [["auc", name] for name in DECISIONS], flagged=[1, 2, 3])
    page = draw_page(ReportPage("t", "s", sections=[ReportSection("Rules", [table])]))
    tones = [re.search(rf"^\.{name} {{ --tone: var\((--\w+)\)", page, re.MULTILINE) for name in DECISIONS]
    assert len({tone[1] for tone in tones if tone}) == len(DECISIONS)
    assert all(f'<span class="result {name}">{name}</span>' in page for name in DECISIONS)
    colors = [re.search(rf"{tone[1]}: (#\w+);", page) for tone in tones if tone]
    assert len({color[1] for color in colors if color}) == len(DECISIONS)

"""Report pages: one HTML file without scripts or requests, light and dark, for phone and desktop."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

import trainwright
from trainwright.errors import InternalError
from trainwright.verdicts import DECISIONS

MAX_BYTES = 2_000_000
"""A page is smaller than this, so that Kubeflow shows it and a phone opens it."""

_MEANINGS = (
    "Every rule holds.",
    "A person decides.",
    "Refused: a rule is broken.",
    "The data cannot tell. This is not a pass.",
)

MEANING = dict(zip(DECISIONS, _MEANINGS, strict=True))
"""Meaning of each decision, as shown on the page."""

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Table:
    """Rows under a header; ``numeric`` columns are set to the right, ``flagged`` rows need attention."""

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    numeric: Sequence[int] = ()
    flagged: Sequence[int] = ()


@dataclass(frozen=True)
class DenseTable:
    """Many rows of numbers in little room, closed until somebody opens it.

    All columns but the first are set to the right; with ``noted`` the last one is words, set to the left.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    noted: bool = False
    opened: bool = False


@dataclass(frozen=True)
class Figure:
    """A chart with what it shows. Figures that follow each other share a line where there is room."""

    svg: Markup
    caption: str


@dataclass(frozen=True)
class Paragraph:
    """A paragraph."""

    text: str


Block = Table | DenseTable | Figure | Paragraph


@dataclass(frozen=True)
class ReportSection:
    """A heading and what stands below it."""

    heading: str
    blocks: Sequence[Block]
    intro: str = ""


@dataclass(frozen=True)
class ReportPage:
    """A report: the one sentence to read, the decision if the step is a gate, facts for the top, sections."""

    title: str
    subtitle: str
    decision: str = ""
    facts: Sequence[tuple[str, object]] = ()
    sections: Sequence[ReportSection] = field(default=())


def link(text: str, href: str) -> Markup:
    """Write a link as a cell of a table; both are escaped. It leads to a relative path or an https address.

    Raises:
        InternalError: The address has another scheme, such as javascript.
    """
    scheme = urlsplit(href).scheme
    if scheme not in ("", "https"):
        raise InternalError(f"a page links to relative paths and https, not to {scheme}", where=href)
    return Markup('<a href="{}">{}</a>').format(quote(href, safe="/.:-_~") if not scheme else href, text)


def groups(blocks: Sequence[Block]) -> Iterator[tuple[str, list[Block]]]:
    """Put neighbours of one kind together: the kind's name in lower case, and its blocks."""
    for kind, members in itertools.groupby(blocks, key=type):
        yield kind.__name__.lower(), list(members)


def shown(cell: object) -> object:
    """Give a decision in a table its color; other cells stay as they are."""
    return Markup('<span class="result {0}">{0}</span>').format(cell) if cell in DECISIONS else cell


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["groups"] = groups
    environment.globals["shown"] = shown
    environment.globals["meaning"] = MEANING
    environment.globals["version"] = trainwright.__version__
    return environment.get_template("page.html")


def draw_page(page: ReportPage) -> str:
    """Return the page as HTML; the same page always gives the same bytes."""
    return _template().render(page=page)


def write_page(page: ReportPage, path: Path, most: int = MAX_BYTES) -> Path:
    """Write a page as one file that needs nothing else.

    Raises:
        InternalError: It has as many or more: show fewer figures, or fewer rows.
    """
    content = draw_page(page).encode()
    if len(content) >= most:
        raise InternalError(
            f"the report {page.title!r} has {len(content):,} bytes; a page stays below {most:,}",
            where=str(path),
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path

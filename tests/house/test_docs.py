"""The pages lead where they say, each has its place, and what is generated is what the sources say."""

import re
from pathlib import Path

import pytest

from docs.site import reference
from trainwright import errors

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("deploy/*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
        *ROOT.glob("components/*/*.md"),
    ]
)
LINK = re.compile(r"\]\((?!\w+:)([^)#]*)(?:#([^)]*))?\)")


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as Markdown makes them."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def linked(page: Path) -> set[Path]:
    return {(page.parent / link).resolve() for link, _ in LINK.findall(page.read_text()) if link}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    links = re.findall(r"\]\((?!\w+:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_heading_leads_to_one(page: Path) -> None:
    found = [(page.parent / link if link else page, name) for link, name in LINK.findall(page.read_text())]
    assert [(path.name, name) for path, name in found if name and name not in anchors(path)] == []


def test_every_page_has_a_place_in_the_navigation() -> None:
    docs = ROOT / "docs"
    listed = set[Path]().union(*(linked(page) for page in [docs / "index.md", *docs.glob("*/README.md")]))
    assert {*docs.rglob("*.md"), *ROOT.glob("components/*/README.md")} - listed == {docs / "index.md"}


def test_the_generated_pages_are_what_the_sources_say() -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == reference.commands_page()
    assert (ROOT / "docs" / "experiment.md").read_text() == reference.experiment_page()


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = set(re.findall(r"\]\(([^)]+)\)", (folder / "README.md").read_text()))
    assert listed == {path.name for path in folder.glob("0*.md")}


def test_the_page_of_the_exit_codes_has_every_error_with_its_code() -> None:
    rows = re.findall(
        r"^\| (\d+) \| `(\w+)`.*\| (yes|no) \|$", (ROOT / "docs" / "exit-codes.md").read_text(), re.M
    )
    kinds = errors.TrainwrightError.__subclasses__()
    assert {(int(code), name, again == "yes") for code, name, again in rows} == {
        (kind.code, kind.__name__, kind.retryable) for kind in kinds
    }

"""The pages lead where they say, and the decisions are all listed."""

import re
from pathlib import Path

import pytest

from trainwright import errors

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("deploy/*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
    ]
)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    links = re.findall(r"\]\((?!\w+:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


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

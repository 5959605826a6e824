"""Build the site of the documentation: ``make docs``. Offline, and strict: what Sphinx doubts is an error.

The pages keep the places that they have in the repository, so that a link leads to the same in both. The
navigation is ``docs/index.md`` itself: each of its headings is a part, and the pages that it links to are the
part's, in that order. A page called ``README.md`` stands for its folder in the same way. A page without a
place in it is an error, and so is a link that leads nowhere.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from sphinx.cmd.build import build_main

ROOT = Path(__file__).resolve().parents[2]
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
EXAMPLES = ("quickstart", "regression", "multiclass", "text", "flights", "own_model")
FOLDERS = ("docs", "deploy", *(f"examples/{name}" for name in EXAMPLES))
FILES = ("CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")
LEFT_OUT = shutil.ignore_patterns("site", "data", "offline", "__pycache__", "requirements.*", "*.py", ".*")
LINK = re.compile(r"\[([^\]]+)\]\(((?!\w+:)[^)#]+\.md)\)")
HOME = (
    '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html"><title>trainwright</title>\n'
)


def stage() -> None:
    """Lay out the pages, with the navigation in them."""
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, PAGES / folder, ignore=LEFT_OUT)
    for name in FILES:
        shutil.copy(ROOT / name, PAGES)
    for path in ROOT.glob("components/*/README.md"):
        (PAGES / path.relative_to(ROOT)).parent.mkdir(parents=True)
        shutil.copy(path, PAGES / path.relative_to(ROOT))
    for path in PAGES.glob("docs/*/README.md"):
        append(path, toctree([link for link in links(path.read_text()) if "../" not in link]))
    for path in PAGES.glob("components/*/README.md"):
        beside_its_page(path)
    modules()
    index = PAGES / "docs" / "index.md"
    for caption, pages in parts(index.read_text()):
        append(index, toctree(pages, caption))


def parts(index: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the parts of the navigation: the caption of each and its pages."""
    for text in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        yield text.split("\n", 1)[0], links(text)


def links(text: str) -> list[str]:
    """List the pages that a text links to, in their order, each with what the link says as its title."""
    return [f"{(said[0].upper() + said[1:]).replace('`', '')} <{page}>" for said, page in LINK.findall(text)]


def toctree(pages: list[str], caption: str = "") -> str:
    """Return what puts pages into the navigation without showing them in the text."""
    head = f":caption: {caption}\n" if caption else ""
    lines = "\n".join(pages)
    return f"\n```{{toctree}}\n:hidden:\n{head}\n{lines}\n```\n"


def beside_its_page(interface: Path) -> None:
    """Put the generated interface of a component below the page that explains it."""
    name = interface.parent.name
    link = f"../../components/{name}/README.md"
    text = f"\n## Interface\n\n[Inputs, outputs, exit codes and rights of `{name}`]({link}).\n"
    append(PAGES / "docs" / "components" / f"{name}.md", text + toctree([f"Interface <{link}>"]))


def modules() -> None:
    """Write a page for each module that ``docs/python.md`` lists, made from its docstrings."""
    page = PAGES / "docs" / "python.md"
    names = re.findall(r"^\| `(trainwright[\w.]*)` \|", page.read_text(), flags=re.MULTILINE)
    for name in names:
        path = PAGES / "docs" / "python" / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {name}\n\n```{{eval-rst}}\n.. automodule:: {name}\n```\n")
    append(page, toctree([f"{name} <python/{name}.md>" for name in names]))


def append(page: Path, text: str) -> None:
    """Add to the end of a page that was laid out."""
    page.write_text(page.read_text() + text)


def main() -> int:
    """Build; 0 when there was nothing to doubt."""
    sys.path.insert(0, str(ROOT))
    stage()
    shutil.rmtree(SITE, ignore_errors=True)
    strict = ["--fail-on-warning", "--keep-going", "--quiet", "--jobs", "2"]
    cache = ["--doctree-dir", str(ROOT / "build" / "doctrees"), "--fresh-env"]
    failed = build_main([*strict, *cache, "--conf-dir", str(ROOT / "docs" / "site"), str(PAGES), str(SITE)])
    (SITE / "index.html").write_text(HOME)
    print(f"  {SITE.relative_to(ROOT)}/index.html" if not failed else "the site is not right")  # noqa: T201
    return failed


if __name__ == "__main__":
    sys.exit(main())

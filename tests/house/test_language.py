"""The standard language of the project: docs/glossary.md has the terms, this test the words they replaced."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = sorted(
    path
    for folder in ("trainwright", "components", "pipelines", "images")
    for path in (ROOT / folder).rglob("*.py")
)
PAGES = sorted(
    {ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")}
    - set((ROOT / "docs" / "decisions").rglob("*.md"))
)

PHRASES = re.compile(
    r"\b(?:"
    r"go(?:es|ne)? on with|stands? on|stood on|standing on|taken up again|takes up again|"
    r"(?:is|are|was|were) (?:only )?told|"
    r"that (?:is|are) none\b(?! of)|is no (?:number|date|text|word|file|folder|reason)\b|as it stands|"
    r"looks? away|sat out|sits? out|knowing nothing|only doubted|what is wrong|of it there is|"
    r"pod story|job story|the house|house style|the road|roads? to|shelf|shelves|warden|referee|"
    r"the dice"
    r")\b",
    re.IGNORECASE,
)
"""Expressions with a standard one in the glossary."""

OPENINGS = re.compile(r"^(?:What|Whether|Where|How|That|Who|Why|When)\b")
"""First words of a docstring that says neither what a thing does nor what it is."""

MODULES = {
    "alone", "asked", "base", "begun", "bridge", "common", "core", "dealing", "drawn", "ending", "ends",
    "enough", "given", "grown", "helpers", "homes", "joining", "kept", "known", "leaving", "looking",
    "measured", "misc", "pace", "patience", "pulse", "refusal", "refusals", "saved", "shelf", "shown",
    "sides", "sight", "standing", "story", "telling", "told", "troubles", "types", "utils", "wanted",
    "warden", "whole", "wording", "words",
}  # fmt: skip
"""Names that do not say what a module holds."""

SAME_NAME = {"Block", "Trial", "Candidate"}  # of two networks, whose exported programs name it; of studies
"""Public classes that may have the same name in two modules."""

LONGEST_FILE, LONGEST_FUNCTION = 600, 40


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function's body without its docstring; a signature may be as long as it needs."""
    body = function.body[1:] if ast.get_docstring(function) and len(function.body) > 1 else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1


@pytest.mark.parametrize("path", [*CODE, *PAGES], ids=relative)
def test_text_uses_the_terms_of_the_glossary(path: Path) -> None:
    lines = enumerate(path.read_text().splitlines(), 1)
    assert [f"{number}: {line.strip()}" for number, line in lines if PHRASES.search(line)] == []


@pytest.mark.parametrize("path", CODE, ids=relative)
def test_docstrings_begin_with_what_a_thing_does_or_is(path: Path) -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [
        ast.get_docstring(node)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, documented)
    ]
    assert [text.splitlines()[0] for text in texts if text and OPENINGS.match(text)] == []


def test_module_names_say_what_a_module_holds() -> None:
    assert [relative(path) for path in CODE if path.stem in MODULES] == []


def test_every_public_class_has_a_name_of_its_own() -> None:
    places = defaultdict(list)
    for path in CODE:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(relative(path))
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in SAME_NAME} == {}


@pytest.mark.parametrize("path", CODE, ids=relative)
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST_FILE
    long = [
        f"{one.name}: {body_lines(one)}"
        for one in functions(ast.parse(text))
        if body_lines(one) > LONGEST_FUNCTION and path.parent.name != "pipelines"  # a list of steps
    ]
    assert long == []

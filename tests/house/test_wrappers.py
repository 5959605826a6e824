"""import-linter cannot tell a module's level from a function's body: this can."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WRAPPERS = sorted((ROOT / "components").glob("*/component.py"))
MAX_STATEMENTS = 12


def problems(source: str, folder: str) -> list[str]:
    """Describe the problems of a component file."""
    tree = ast.parse(source)
    found = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        allowed = ("kfp", "trainwright.authoring", "typing")
        found += [f"imports {name} at module level" for name in names if not name.startswith(allowed)]
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            found.append("from __future__ import annotations breaks kfp")
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if [function.name for function in functions] != [folder]:
        found.append(f"holds {[function.name for function in functions]}, not just {folder}")
    for function in functions:
        body = function.body[1:]
        count = sum(isinstance(node, ast.stmt) for statement in body for node in ast.walk(statement))
        if ast.get_docstring(function) is None:
            found.append(f"{function.name} has no docstring")
        if count > MAX_STATEMENTS:
            found.append(f"{function.name} has {count} statements, at most {MAX_STATEMENTS}")
    return found


@pytest.mark.parametrize("path", WRAPPERS, ids=lambda path: path.parent.name)
def test_a_component_declares_and_calls_and_nothing_more(path: Path) -> None:
    assert problems(path.read_text(), path.parent.name) == []


def test_every_verb_has_a_component_a_library_package_tests_and_a_page() -> None:
    verbs = {path.parent.name for path in WRAPPERS}
    assert {"resolve", "ingest", "validate", "join", "train", "evaluate", "register", "summarize"} <= verbs
    for verb in verbs:
        package = "registry" if verb in {"register", "promote"} else verb
        assert (ROOT / "trainwright" / package / "__init__.py").exists(), verb
        assert list((ROOT / "tests" / package).glob("test_*.py")), verb
        assert (ROOT / "docs" / "components" / f"{verb}.md").exists(), verb
        assert (ROOT / "compiled" / "components" / f"{verb}.yaml").exists(), verb


PLANTED = {
    "a heavy import": ("import numpy\ndef x():\n    '''Doc.'''\n", "imports numpy at module level"),
    "another name": ("def y():\n    '''Doc.'''\n", "holds ['y'], not just x"),
    "a long body": ("def x():\n    '''Doc.'''\n" + "    a = 1\n" * 13, "x has 13 statements, at most 12"),
    "a hidden body": (
        "def x():\n    '''Doc.'''\n    if True:\n" + "        a = 1\n" * 12,
        "x has 13 statements, at most 12",
    ),
    "no docstring": ("def x():\n    return 1\n", "x has no docstring"),
}


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_violation_is_found(case: str) -> None:
    source, message = PLANTED[case]
    assert message in problems(source, "x")

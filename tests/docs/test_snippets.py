"""The Python of the pages: all of it parses, what it imports is there, and what needs no cluster is run."""

import ast
import importlib.util
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.written import ROOT, Block, snippets

HERE = ("kfp", "trainwright.authoring")
"""What a snippet may import to be run in the environment of authors, beside the standard library."""

ALL = snippets()
PACKAGES = "lib/python3.11/site-packages"


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each module that is imported, and the name that is taken from it, if any."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def is_there(module: str, name: str) -> bool:
    """Look for a module of ours in the sources, with the name in it; for another in any environment."""
    top = module.partition(".")[0]
    if top == "trainwright":
        path = ROOT / module.replace(".", "/")
        if name and ((path / name).is_dir() or (path / f"{name}.py").exists()):
            return True
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        return source.exists() and (not name or name in defined(source))
    if importlib.util.find_spec(top):
        return True
    environments = (ROOT / ".environments").glob(f"*/{PACKAGES}")
    return any((folder / top).is_dir() or (folder / f"{top}.py").exists() for folder in environments)


def defined(source: Path) -> set[str]:
    """Return the names that a module has at its top level."""
    found: set[str] = set()
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        else:
            stored = (part for part in ast.walk(node) if isinstance(part, ast.Name))
            found |= {part.id for part in stored if isinstance(part.ctx, ast.Store)}
    return found


def is_for_authors(tree: ast.AST) -> bool:
    modules = {module for module, _ in imported(tree)}
    ours = [name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names]
    return bool(ours) and all(name.startswith(HERE) for name in ours)


@pytest.mark.parametrize("block", ALL, ids=str)
def test_python_of_a_page_parses_and_what_it_imports_is_there(block: Block) -> None:
    missing = [pair for pair in imported(ast.parse(block.text)) if not is_there(*pair)]
    assert missing == []


@pytest.mark.parametrize("block", [block for block in ALL if is_for_authors(ast.parse(block.text))], ids=str)
def test_python_of_a_page_that_needs_no_cluster_runs(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "snippet.py").write_text(block.text)  # kfp reads the source of a component
    runpy.run_path(str(tmp_path / "snippet.py"))


def test_what_is_not_there_is_found() -> None:
    assert not is_there("trainwright.authoring.catalog", "lode")
    assert not is_there("trainwright.no_such_module", "")
    assert not is_there("no_such_package", "")
    assert is_there("trainwright.authoring", "catalog")
    assert is_there("torch", "")
    assert len(ALL) >= 10

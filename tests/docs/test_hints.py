"""Every command of trainwright that a message names exists, with its options."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_commands import leaves
from tests.docs.written import ROOT

COMMAND = re.compile(
    r"(?<![\w./-])trainwright ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)?)((?: [A-Z_…]+| --[a-z-]+)*)"
)
OPTION = re.compile(r"--[a-z][a-z-]*")


def messages(path: Path) -> Iterator[str]:
    """Yield the texts of a module that a person may read; the docstrings are not among them."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, documented) and node.body]
    left_out = {id(body[0].value) for body in bodies if isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.value


NAMED = sorted(
    {
        (str(path.relative_to(ROOT)), *found.groups())
        for path in (ROOT / "trainwright").rglob("*.py")
        for text in messages(path)
        for found in COMMAND.finditer(text)
    }
)


def test_messages_name_commands() -> None:
    assert len(NAMED) > 20


@pytest.mark.parametrize(("path", "words", "options"), NAMED)
def test_command_in_a_message_exists_with_its_options(path: str, words: str, options: str) -> None:
    first, *second = words.split()
    context = leaves().get(("trainwright", first, *second)) or leaves().get(("trainwright", first))
    groups = {name[1] for name in leaves() if len(name) > 2}
    assert context, f"{path}: there is no command trainwright {words}"
    assert first not in groups or second, f"{path}: trainwright {first} needs a command of its own"
    known = {
        name for parameter in context.command.params for name in (*parameter.opts, *parameter.secondary_opts)
    }
    assert not set(OPTION.findall(options)) - known, f"{path}: trainwright {words}{options}"

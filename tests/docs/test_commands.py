"""Every command that a page names exists, with its options; tests/pipelines/test_pages.py runs it."""

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import typer
import yaml

from docs.site import reference
from tests.docs.written import ROOT, Command, commands, inline
from trainwright.authoring import catalog
from trainwright.cli import app

UNCHECKED = {
    "docker": "an engine, whose command line is not ours",
    "podman": "an engine, whose command line is not ours",
    "debootstrap": "a package of Debian, as root",
    "pip": "a package index: tests/api/test_examples.py installs what the page says",
    "ln": "needs nothing of ours but the paths, which are checked",
    "rm": "needs nothing of ours but the paths, which are checked",
}
"""Programs of whose command lines only the paths are checked, each with the reason."""

MADE = {"runs", "build"}
OURS = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."} - MADE
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
SETTINGS = set(re.findall(r"\$\(?([A-Z_]+)\)?", (ROOT / "Makefile").read_text()))
ALL, INLINE = commands(), inline()
NAMED = re.compile(r"(?:\S+:)?([\w.-]+(?:/[\w.*-]+)+)")


@functools.cache
def leaves() -> dict[tuple[str, ...], typer.Context]:
    root = typer.main.get_command(app.app)
    return {tuple(found.command_path.split()): found for found in reference.commands(root, "trainwright")}


def found(words: tuple[str, ...]) -> tuple[typer.Context, list[str]]:
    """Return the command that is called, and what it is given."""
    for length in (3, 2):
        if context := leaves().get(words[:length]):
            return context, list(words[length:])
    raise AssertionError(f"there is no command {' '.join(words[:3])}")


def check_trainwright(words: tuple[str, ...]) -> None:
    context, given = found(words)
    try:
        made = context.command.make_context(context.info_name, given, parent=context.parent)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        raise AssertionError(f"{context.command_path}: {error.format_message()}") from None
    check_values(made.params)


def check_values(params: dict[str, Any]) -> None:
    """The pipeline, and the step, that are named: are there such?"""
    pipeline, step = params.get("pipeline"), params.get("again_from") or params.get("step")
    if pipeline and pipeline not in {"…", "X"} and not pipeline.endswith(".yaml"):
        assert pipeline in catalog.pipelines()
    if step:
        assert step in catalog.names()


def check_make(words: tuple[str, ...]) -> None:
    settings = {word.split("=")[0] for word in words[1:] if "=" in word}
    targets = {word for word in words[1:] if "=" not in word and not word.startswith("-")}
    assert (targets - TARGETS, settings - SETTINGS) == (set(), set())


def check_python(words: tuple[str, ...]) -> None:
    """The module or the script is there; it, or what lies in a folder that is named, knows the options."""
    place = words[2].replace(".", "/") if words[1] == "-m" else words[1]
    places = [path for path in (ROOT / place, ROOT / f"{place}.py") if path.exists()]
    assert places, f"there is no {place}"
    places += [ROOT / word for word in words[2:] if (ROOT / word).exists()]
    files = [file for path in places for file in ([path] if path.is_file() else path.rglob("*.py"))]
    source = "\n".join(file.read_text() for file in files)
    options = [word.split("=")[0] for word in words if word.startswith("--")]
    assert [option for option in options if f'"{option}"' not in source] == []


def check_kubectl(words: tuple[str, ...]) -> None:
    if "-k" in words:
        assert (ROOT / words[words.index("-k") + 1] / "kustomization.yaml").exists()
    if "-f" in words:
        assert list(yaml.safe_load_all((ROOT / words[words.index("-f") + 1]).read_text()))


CHECKS: dict[str, Callable[[tuple[str, ...]], None]] = {
    "trainwright": check_trainwright,
    "make": check_make,
    "python": check_python,
    "kubectl": check_kubectl,
}


@pytest.mark.parametrize("command", ALL, ids=str)
def test_a_command_of_a_page_would_be_understood(command: Command) -> None:
    program = command.words[0]
    if program not in UNCHECKED:
        CHECKS[program](command.words)
    paths = [match[1] for word in command.words if (match := NAMED.fullmatch(word))]
    paths = [path for path in paths if path.split("/")[0] in OURS]
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("command", INLINE, ids=str)
def test_a_command_in_the_text_exists_with_its_options(command: Command) -> None:
    words = tuple(word.strip("[],") for word in command.words)
    if words[0] == "make":
        return check_make(words)
    options = {word.split("=")[0] for word in words if word.startswith("--")}
    if words[1] == "COMMAND":
        return None
    context, _ = found(words)
    known = {name for one in context.command.get_params(context) for name in (*one.opts, *one.secondary_opts)}
    assert options - known == set()
    return None


def test_what_is_collected_is_what_a_reader_sees() -> None:
    assert (len(ALL) > 60, len(INLINE) > 30) == (True, True)
    pages = {command.where.split(":")[0] for command in ALL}
    assert {"README.md", "docs/tutorial.md", "docs/operating.md", "docs/submitting.md"} <= pages
    assert {command.words[0] for command in ALL} <= {*CHECKS, *UNCHECKED}


@pytest.mark.parametrize(
    "words",
    [
        ("trainwright", "run", "train_and_register", "--confg", "x.yaml"),
        ("trainwright", "run", "no_such_pipeline"),
        ("trainwright", "run", "train_and_register", "--from", "no_such_step"),
        ("trainwright", "model", "rollback", "flight_late"),
        ("trainwright", "modle", "history"),
        ("make", "no-such-target"),
        ("make", "images", "COLOUR=red"),
        ("python", "-m", "trainwright.launch.janitor", "--no-such-option"),
        ("python", "-m", "trainwright.no_such_module"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_would_be_found(words: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError):
        CHECKS[words[0]](words)


def test_every_command_has_help() -> None:
    for context in leaves().values():
        said = [context.command.help, *(one.help for one in context.command.params)]
        assert all(said), context.command_path


def test_the_list_of_commands_cuts_no_sentence_short_on_a_narrow_terminal() -> None:
    """Of 80 columns, the longest name leaves 58."""
    said = [context.command.get_short_help_str(58) for context in leaves().values()]
    assert [text for text in said if text.endswith("...")] == []

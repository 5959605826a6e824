"""What the pages tell a reader to type: commands and Python, each with the place where it stands."""

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {ROOT / "docs" / "cli.md"}
PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        *ROOT.glob("deploy/*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/*/*.md"),
        *ROOT.glob("components/*/*.md"),
    }
    - GENERATED
)
SHELL = {"", "console", "bash", "sh"}
PROGRAMS = {"trainwright", "make", "python", "python3", "pip", "uv", "kubectl", "kustomize", "git"}
PROGRAMS |= {"docker", "podman", "debootstrap", "curl", "ln", "rm", "cp"}
"""What the first word of a command line can be: blocks without a language also hold what programs say."""

FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
VARIABLE = re.compile(r"[A-Z_]+=\S*")


@dataclass(frozen=True)
class Block:
    """A fenced or an indented block of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command line, its words as a shell would split them; comments and redirections are left out."""

    where: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.where} {' '.join(self.words)}"


def blocks() -> Iterator[Block]:
    """Yield every block of every page."""
    for page in PAGES:
        text, name = page.read_text(), str(page.relative_to(ROOT))
        for found in FENCE.finditer(text):
            yield Block(name, text[: found.start()].count("\n") + 1, found[1], found[2])
        plain = FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
        for found in re.finditer(r"(?<=\n\n)(?: {4}\S.*\n)+", plain):
            yield Block(name, plain[: found.start()].count("\n") + 1, "", found[0])


def commands() -> list[Command]:
    """List every command line in a block."""
    return [Command(str(block), words) for block in blocks() for words in _of(block)]


def snippets() -> list[Block]:
    """List every block of Python."""
    return [block for block in blocks() if block.language == "python"]


def inline() -> list[Command]:
    """List the commands of ours that stand in the running text, between backticks."""
    found = []
    for page in PAGES:
        for text in re.findall(r"`((?:trainwright|make) [^`]+)`", FENCE.sub("", page.read_text())):
            several = (word.split("|") for word in text.split())  # `schedules plan|apply` is two commands
            found += [Command(str(page.relative_to(ROOT)), words) for words in itertools.product(*several)]
    return found


def _of(block: Block) -> Iterator[tuple[str, ...]]:
    if block.language == "yaml" and "{{" in block.text:
        return  # a template, which is no YAML until somebody fills it in
    if block.language == "yaml":
        lines = list(_strings(yaml.safe_load(block.text)))
    elif block.language in SHELL:
        lines = re.sub(r"\\\n\s*", " ", block.text).splitlines()
        prompted = [line.strip()[2:] for line in lines if line.strip().startswith("$ ")]
        lines = prompted or lines
    else:
        return
    for line in lines:
        if words := _words(line):
            yield words


def _strings(value: Any) -> Iterator[str]:
    """Yield the scripts of a CI file."""
    if isinstance(value, dict):
        for part in value.values():
            yield from _strings(part)
    elif isinstance(value, list):
        yield from (part for part in value if isinstance(part, str))


def _words(line: str) -> tuple[str, ...]:
    """Split a line that begins with a program; what explains it stands three blanks behind it, or after #."""
    text = re.split(r"\s{3,}|\s#\s", line.strip())[0]
    first = next((word for word in text.split() if not VARIABLE.fullmatch(word)), "")
    program = Path(first).name  # also one that is named by its path, such as .venv/bin/python
    if program not in PROGRAMS or re.match(r"\w+ +[─=:|]", text):
        return ()
    words = shlex.split(re.sub(r"\s(>|\||&).*", "", text.replace("[--", "--").replace("]", "")))
    return (program, *words[words.index(first) + 1 :])

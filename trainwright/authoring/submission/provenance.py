"""Provenance of a submission: commit, branch, uncommitted changes, and the data if known.

Pipelines and their versions have tags in the API; a run has none, so there the same stands in its
description, one ``trainwright/NAME=VALUE`` a line.
"""

import hashlib
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright.errors import InputError

MARK = "trainwright/"
KEY_DIGITS = 32
LONGEST_DESCRIPTION = 255
"""Characters: what the oldest databases of installations that are still in use hold."""

SHORTEST_SENTENCE = 20
"""Characters below which the beginning of a sentence says nothing."""

LONGEST_VALUE = 63
"""Characters of a tag's name, and of its value: what the API takes."""

DIRTY = "-dirty"
OUTSIDE_GIT = "none"


def labels(folder: Path, found: str, given: Sequence[str] = (), data_version: str = "") -> dict[str, str]:
    """Return what is known of where a submission comes from.

    Args:
        folder: A folder of the git work tree of the experiment.
        found: Its commit, as :func:`trainwright.authoring.arguments.commit` writes it.
        given: Texts ``NAME=VALUE`` of the author; they win.
        data_version: Digest of the data, if it is known before the run; else empty.

    Raises:
        InputError: A label is not written as one.
    """
    tracked = found != OUTSIDE_GIT
    known = {
        "commit": found.removesuffix(DIRTY) if tracked else "",
        "branch": _branch(folder),
        "dirty": ("yes" if found.endswith(DIRTY) else "no") if tracked else "",
        "data": data_version[:16],
    }
    told = {name: _value(f"--{name}", value) for name, value in known.items() if value}
    return told | dict(_label(text) for text in given)


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[a-z][a-z0-9_-]{0,30}", name) or name == "key":
        hint = "For example --label team=ranking; the name in lower case, and not key."
        raise InputError(f"--label {text!r} is not NAME=VALUE", hint=hint)
    return name, _value(f"--label {name}", value)


def _value(what: str, value: str) -> str:
    if not re.fullmatch(rf"[\w.:/@+-]{{1,{LONGEST_VALUE}}}", value, re.ASCII):
        hint = f"1 to {LONGEST_VALUE} letters without accents, digits and . : / @ + - _"
        raise InputError(f"{what}: the value cannot be used", hint=hint)
    return value


def _branch(folder: Path) -> str:
    """Return the branch of a work tree; empty outside git, and where a commit itself is checked out."""
    command = ["git", "-C", str(folder), "branch", "--show-current"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return ""
    return re.sub(r"[^\w.:/@+-]", "-", found.stdout.strip(), flags=re.ASCII)[:LONGEST_VALUE]


def key_of(package: str, arguments: Mapping[str, Any], place: Sequence[str], commit_id: str) -> str:
    """Return the key of a submission that names none: the same package, arguments, place and commit.

    Args:
        package: SHA-256 of the compiled package.
        arguments: The pipeline's arguments.
        place: Host, namespace and experiment.
        commit_id: The commit, also when something is uncommitted: what runs is in the package.
    """
    return digest(json.dumps([package, dict(arguments), list(place), commit_id], sort_keys=True))


def digest(text: str) -> str:
    """Return the digits by which a key is known."""
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def marker(key: str) -> str:
    """Return the line in a description by which the thing with a key is found again."""
    return f"{MARK}key={key}"


def description(key: str, known: Mapping[str, str], sentence: str = "") -> str:
    """Write the description of a run: a sentence for people, and the labels, one a line.

    The sentence is cut where the labels leave it no room.

    Raises:
        InputError: The labels alone are longer than the API's database may hold.
    """
    text = "\n".join([marker(key), *(f"{MARK}{name}={value}" for name, value in known.items())])
    room = LONGEST_DESCRIPTION - len(text) - 1
    if room < -1:
        raise InputError(
            f"the labels take {len(text)} characters, a run has room for {LONGEST_DESCRIPTION}",
            where="--label",
            hint="Give fewer or shorter ones.",
        )
    if len(sentence) > room:
        sentence = f"{sentence[: room - 1]}…" if room >= SHORTEST_SENTENCE else ""
    return f"{sentence}\n{text}" if sentence else text


def read(text: str | None) -> dict[str, str]:
    """Read the labels out of a description; empty for one that is not ours."""
    lines = [line.removeprefix(MARK) for line in (text or "").splitlines() if line.startswith(MARK)]
    return {name: value for name, equals, value in (line.partition("=") for line in lines) if equals}

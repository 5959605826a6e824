"""Names, descriptions and labels of what a submission creates: commit, branch, changes, data, key.

Pipelines and their versions have tags in the API. A run has none, so the same labels are lines
``trainwright/NAME=VALUE`` of its description, and a run is found again by its line ``trainwright/key=…``.
Nothing is found by a display name, so a person may choose another one.
"""

import hashlib
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from trainwright.errors import InputError

MARK = "trainwright/"
KEY_DIGITS = 32
LONGEST_NAME = 128
LONGEST_DESCRIPTION = 255
"""Characters: the limit of the oldest databases of installations that are still in use."""

SHORTEST_SENTENCE = 20
LONGEST_VALUE = 63
"""Characters of a tag's value that the API takes."""

DIRTY, OUTSIDE_GIT = "-dirty", "none"


def labels(folder: Path, found: str, given: Sequence[str] = (), data_version: str = "") -> dict[str, str]:
    """Return the labels of a submission.

    Args:
        folder: A folder of the git work tree of the experiment.
        found: Its commit, as :func:`trainwright.authoring.arguments.commit` writes it.
        given: Texts ``NAME=VALUE`` of the author; they win.
        data_version: Digest of the data, if it is known before the run.
    """
    known = {}
    if found != OUTSIDE_GIT:
        known = {"commit": found.removesuffix(DIRTY), "branch": _branch(folder)}
        known["dirty"] = "yes" if found.endswith(DIRTY) else "no"
    known["data"] = data_version[:16]
    result = {name: _checked(f"--{name}", value) for name, value in known.items() if value}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[a-z][a-z0-9_-]{0,30}", name) or name == "key":
            hint = "For example --label team=ranking; the name in lower case, and not key."
            raise InputError(f"--label {text!r} is not NAME=VALUE", hint=hint)
        result[name] = _checked(f"--label {name}", value)
    return result


def _checked(option: str, value: str) -> str:
    if not re.fullmatch(rf"[\w.:/@+-]{{1,{LONGEST_VALUE}}}", value, re.ASCII):
        hint = f"1 to {LONGEST_VALUE} letters without accents, digits and . : / @ + - _"
        raise InputError(f"{option}: the value cannot be used", hint=hint)
    return value


def _branch(folder: Path) -> str:
    """Return the branch of a work tree; empty where a commit itself is checked out."""
    command = ["git", "-C", str(folder), "branch", "--show-current"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603
    return re.sub(r"[^\w.:/@+-]", "-", found.strip(), flags=re.ASCII)[:LONGEST_VALUE]


def digest(text: str) -> str:
    """Return the digits of a key."""
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def description(key: str, known: Mapping[str, str], sentence: str) -> str:
    """Return the description of a run: a sentence, cut where the labels leave no room, and the labels."""
    text = "\n".join(f"{MARK}{name}={value}" for name, value in {"key": key, **known}.items())
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
    """Read the labels of a description; empty for a description that is not ours."""
    lines = [line.removeprefix(MARK) for line in (text or "").splitlines() if line.startswith(MARK)]
    return {name: value for name, equals, value in (line.partition("=") for line in lines) if equals}


def run_name(chosen: str, pipeline: str, arguments: Mapping[str, Any], key: str, now: datetime) -> str:
    """Return a run's display name: the chosen one; else its model or pipeline, the time, part of the key."""
    if len(chosen) > LONGEST_NAME or not chosen.isprintable() or chosen != chosen.strip():
        hint = f"1 to {LONGEST_NAME} printable characters, none of them a space at an end."
        raise InputError(f"{chosen[:LONGEST_NAME]!r} cannot be a run's name", where="--name", hint=hint)
    subject = (_model(arguments) or pipeline)[: LONGEST_NAME // 2]
    return chosen or f"{subject} {now:%Y-%m-%d %H:%M} {key[:6]}"


def sentence(pipeline: str, arguments: Mapping[str, Any], known: Mapping[str, str]) -> str:
    """Return the sentence that a run's description begins with."""
    model, source, commit = _model(arguments), arguments.get("source"), known.get("commit", "")[:7]
    parts = [
        pipeline,
        f" for {model}" if model else "",
        f" on {source}" if source and isinstance(source, str) else "",
        f", commit {commit}" if commit else "",
        " with uncommitted changes" if commit and known.get("dirty") == "yes" else "",
    ]
    return " ".join("".join([*parts, "."]).split())


def version_name(package: str, known: Mapping[str, str], now: datetime) -> str:
    """Return the display name of a pipeline's version: digest first, since lists cut the end off."""
    return " ".join(filter(None, (package[:12], known.get("commit", "")[:7], f"{now:%Y-%m-%d}")))


def _model(arguments: Mapping[str, Any]) -> str:
    """Return the registered model's name; empty if the arguments have none."""
    section = arguments.get("registry")
    found = arguments.get("model_name") or (section.get("model") if isinstance(section, Mapping) else "")
    return found if isinstance(found, str) and found.isprintable() else ""


def key_of(package: str, arguments: Mapping[str, Any], place: Sequence[str], commit_id: str) -> str:
    """Return the key of a submission that names none: the same package, arguments, place and commit.

    Args:
        package: SHA-256 of the compiled package.
        arguments: The pipeline's arguments.
        place: Host, namespace and experiment.
        commit_id: The commit, also with uncommitted changes: what runs is in the package.
    """
    return digest(json.dumps([package, dict(arguments), list(place), commit_id], sort_keys=True))

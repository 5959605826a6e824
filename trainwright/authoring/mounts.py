"""Which folders of this machine the containers of a run see, each where it stands here.

The run's own folder can be written to. Every path among the arguments is there too: read-only, but for what a
step keeps from one run to the next. So is the folder of the experiment file, because what lies there names
more: a feature repository its registry. Nothing else of this machine is seen unless it is asked for.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright.errors import InputError

SQLITE = "sqlite:///"
KEPT = frozenset({"store", "remember", "statistics_store", "state", "audit"})
"""Fields of an experiment that name a folder which steps write into, and read again in later runs."""

SYSTEM = frozenset(
    Path("/", name)
    for name in (
        "",
        "bin",
        "dev",
        "etc",
        "home",
        "lib",
        "opt",
        "proc",
        "root",
        "run",
        "sbin",
        "sys",
        "tmp",
        "usr",
        "var",
    )
)
"""Folders that an image has itself: an argument that is just such a name is not taken for data."""

_PATTERN = re.compile(r"[*?\[{]")


def asked(texts: Sequence[str], config: Path | None) -> dict[Path, bool]:
    """Return what containers see besides the arguments' paths, and whether they may write there.

    Args:
        texts: ``PATH``, or ``PATH:rw`` for one that can be written to.
        config: The experiment file, if there is one.

    Raises:
        InputError: There is no such path.
    """
    found = {config.resolve().parent: False} if config else {}
    for text in texts:
        path = Path(text.removesuffix(":rw")).resolve()
        if not path.exists():
            raise InputError(
                "is not there", where=f"--mount {text}", hint="Write PATH, or PATH:rw to write there."
            )
        found[path] = text.endswith(":rw")
    return found


def of(arguments: Mapping[str, Any], folder: Path) -> dict[Path, bool]:
    """Return the folders and files that a run's containers see.

    Args:
        arguments: The pipeline's arguments; texts that are JSON are looked into.
        folder: The run's folder.

    Returns:
        For each path, whether it can be written to. A folder that a step keeps things in is made if it is not
        there, else the engine would make it, as the superuser's.
    """
    found = {folder: True}
    for name, text in _texts(arguments):
        if text.startswith(SQLITE):
            path, kept = Path(text.removeprefix(SQLITE)).parent, True
        else:
            path, kept = Path(_PATTERN.split(text.removeprefix("file://"))[0]), name in KEPT
            path = path if path.exists() or kept else path.parent
        if path.is_absolute() and path not in SYSTEM and not path.is_relative_to(folder):
            if kept:
                path.mkdir(parents=True, exist_ok=True)
            if path.exists():
                found[path] = found.get(path, False) or kept
    return found


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text that may be a path, with the name of its field."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _texts(entry, key)
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry, name)
    elif isinstance(value, str) and value[:1] in {"{", "["}:
        try:
            yield from _texts(json.loads(value), name)
        except ValueError:
            return
    elif isinstance(value, str) and value.startswith(("/", "file:///", SQLITE)) and "\n" not in value:
        yield name, value

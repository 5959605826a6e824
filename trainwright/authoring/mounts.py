"""Which folders of this machine the containers of a run see, each where it stands here.

The run's own folder can be written to. Every path among the arguments is there too: read-only, but for what a
step keeps from one run to the next. So is the folder of the experiment file, because what lies there names
more: a feature repository its registry. Nothing else of this machine is seen unless it is asked for, least of
all a home folder, an engine's socket, or what would hide an image's own programs.
"""

import contextlib
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
        *("", "etc", "etc/ssl", "home", "opt", "root", "run", "tmp"),
        *("usr", "usr/local", "usr/share", "var", "var/lib", "var/tmp"),
    )
)
"""Folders that an image has itself: an argument that is just such a name is not taken for data."""

PROGRAMS = tuple(
    Path("/", name)
    for name in (
        *("bin", "dev", "lib", "lib32", "lib64", "opt/environments", "proc", "sbin", "sys"),
        *("usr/bin", "usr/lib", "usr/local/bin", "usr/local/lib", "usr/sbin"),
    )
)
"""Where nothing is data: it would hide what lies there in an image."""

_PATTERN = re.compile(r"[*?\[{]")


def asked(texts: Sequence[str], config: Path | None) -> dict[Path, bool]:
    """Return what containers see besides the arguments' paths, and whether they may write there.

    Args:
        texts: ``PATH``, or ``PATH:rw`` for one that can be written to.
        config: The experiment file, if there is one.

    Raises:
        InputError: There is no such path, or it has a colon.
    """
    beside = config.resolve().parent if config else None
    found = {beside: False} if beside and is_data(beside) else {}
    for text in texts:
        path = Path(text.removesuffix(":rw")).resolve()
        if not path.exists():
            raise InputError(
                "is not there", where=f"--mount {text}", hint="Write PATH, or PATH:rw to write there."
            )
        found[path] = text.endswith(":rw")
    return _written(found)


def is_data(path: Path) -> bool:
    """Say whether a path may be seen without being asked for: no home, no folder of the system, no socket."""
    try:
        places = {path, path.resolve()}
        there = path.is_dir() or path.is_file()
    except OSError:  # a text that is no path, and too long for one
        return False
    system = any(place.is_relative_to(own) for place in places for own in PROGRAMS)
    return there and not system and not places & (SYSTEM | {Path.home()})


def _written(found: dict[Path, bool]) -> dict[Path, bool]:
    """Refuse a path that cannot be written down for an engine, which separates with colons."""
    for path in found:
        if ":" in str(path):
            raise InputError("containers cannot see a path with a colon", where=str(path), hint="Rename it.")
    return found


def of(arguments: Mapping[str, Any], folder: Path) -> dict[Path, bool]:
    """Return the folders and files that a run's containers see.

    Args:
        arguments: The pipeline's arguments; texts that are JSON are looked into.
        folder: The run's folder.

    Returns:
        For each path, whether it can be written to. A folder that a step keeps things in is made if it is not
        there, else the engine would make it, as the superuser's.

    Raises:
        InputError: A step would keep things in a folder of the system, or a path has a colon.
    """
    found = {folder: True}
    for name, text in _texts(arguments):
        kept = text.startswith(SQLITE) or name in KEPT
        path = _kept(text, name) if kept else _data(text)
        if path.is_absolute() and not path.is_relative_to(folder) and is_data(path):
            found[path] = found.get(path, False) or kept
    return _written(found)


def _kept(text: str, name: str) -> Path:
    """Return the folder that a step keeps things in, made if it was not there."""
    path = Path(text.removeprefix("file://"))
    if text.startswith(SQLITE):
        path = Path(text.removeprefix(SQLITE)).parent
    if path.is_absolute():
        path.mkdir(parents=True, exist_ok=True)
        if not is_data(path):
            raise InputError(
                "containers cannot keep anything here", where=f"{name} {path}", hint="Name a folder below it."
            )
    return path


def _data(text: str) -> Path:
    """Return what is looked at for a text that may be a path, or a pattern of paths."""
    path = Path(_PATTERN.split(text.removeprefix("file://"))[0])
    with contextlib.suppress(OSError):
        return path if path.exists() else path.parent
    return path


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

"""What is said when nothing was found: where it was looked, and what lies nearest."""

import difflib
import os
from pathlib import Path

from trainwright.errors import InputError, TrainwrightError
from trainwright.storage.access import Access
from trainwright.storage.globs import wild
from trainwright.storage.retries import retrying
from trainwright.storage.store import Absent, store_of
from trainwright.storage.uris import Remote, redacted

_NEAR, _SHOWN = 3, 8
_HINT_PATIENCE_S = 10.0


def nothing_local(source: str, path: Path, suffixes: tuple[str, ...]) -> InputError:
    """Say that a local source holds nothing."""
    if path.is_dir():
        return InputError(
            f"no file ending in {', '.join(suffixes) or 'anything'} below this folder",
            where=str(path),
            hint=_seen("", _names(path), ""),
        )
    nearest = next(parent for parent in path.parents if parent.is_dir())
    wanted = path.relative_to(nearest).parts[0]
    return InputError(_looked_for(source), where=str(path), hint=_seen(str(nearest), _names(nearest), wanted))


def nothing_remote(place: Remote, suffixes: tuple[str, ...], access: Access) -> InputError:
    """Say that a remote source holds nothing; what is near is looked up, where that is allowed."""
    if place.scheme == "https":
        return InputError("there is no such page", where=redacted(place.uri), hint="Check the path.")
    what, names = _looked_for(place.uri.rstrip("/")), place.name.strip("/").split("/")
    if below := _children(place, "".join(f"{name}/" for name in names if name), access):
        what = f"no file ending in {', '.join(suffixes) or 'anything'} below this folder"
        return InputError(what, where=place.uri, hint=_seen("", below, ""))
    for depth in reversed(range(len(names))):
        folder = "".join(f"{name}/" for name in names[:depth])
        if not wild(folder) and (found := _children(place, folder, access)):
            return InputError(
                what,
                where=place.uri,
                hint=_seen(f"{place.scheme}://{place.bucket}/{folder}", found, names[depth]),
            )
    return InputError(what, where=place.uri, hint=f"The bucket {place.bucket} has nothing of that kind.")


def _looked_for(source: str) -> str:
    return f"no file matches {source!r}" if wild(source) else f"no such file or folder: {source!r}"


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:  # it may be passed through, and not be looked into
        return []


def _children(place: Remote, folder: str, access: Access) -> list[str]:
    store = store_of(place, access)
    try:
        return sorted(retrying(lambda: store.children(folder), "listing", place.uri, _HINT_PATIENCE_S))
    except (Absent, TrainwrightError):
        return []


def _seen(folder: str, names: list[str], wanted: str) -> str:
    near = difflib.get_close_matches(wanted, names, n=_NEAR) or names
    shown = ", ".join(near[:_SHOWN]) + (", …" if len(names) > len(near[:_SHOWN]) else "")
    said = f"it holds {shown}." if names else "it is empty."
    return f"The nearest that exists is {folder}: {said}" if folder else said

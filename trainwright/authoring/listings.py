"""Which files of a source differ between two runs: what a changed content digest does not tell."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from trainwright.artifacts import Listing, SourceFile
from trainwright.errors import InputError

SHOWN = 20
"""Files that are named; the others are counted."""

DIGITS = 12
"""Digits of a checksum that are shown."""


def of_run(folder: Path) -> dict[str, Listing]:
    """Return every listing that the steps of a run have written, by its content digest."""
    found: dict[str, Listing] = {}
    for path in sorted(folder.glob(f"*/*/{Listing.FILE}")):
        with contextlib.suppress(InputError):
            listing = Listing.read(path)
            found.setdefault(listing.content_digest, listing)
    return found


def changes(before: Listing, after: Listing) -> Iterator[str]:
    """Yield one line a file that was changed, renamed, added or removed, and count those that were not.

    A file that is gone and one of the same size and checksum that is new are one that was renamed.
    """
    old, new = dict(before.by_name), dict(after.by_name)
    lines = [
        *(_changed(name, old[name], new[name]) for name in sorted(old.keys() & new.keys())),
        *_moved(old, new),
    ]
    found = [line for line in lines if line]
    yield from found[:SHOWN]
    if len(found) > SHOWN:
        yield f"and {len(found) - SHOWN:,} more"
    same = len(old.keys() & new.keys()) - sum(line.startswith("changed") for line in found)
    yield f"the same are {same:,} of {len(new):,} files"


def _changed(name: str, old: SourceFile, new: SourceFile) -> str:
    if (old.size, old.checksum) == (new.size, new.checksum):
        return ""
    return f"changed  {name}  {_what(old)}  to  {_what(new)}"


def _moved(old: dict[str, SourceFile], new: dict[str, SourceFile]) -> Iterator[str]:
    gone = {name: old[name] for name in sorted(old.keys() - new.keys())}
    for name in sorted(new.keys() - old.keys()):
        mark = (new[name].size, new[name].checksum)
        before = next((other for other, file in gone.items() if (file.size, file.checksum) == mark), None)
        if before is None:
            yield f"added    {name}  {_what(new[name])}"
        else:
            del gone[before]
            yield f"renamed  {before}  to  {name}  {_what(new[name])}"
    yield from (f"removed  {name}  {_what(file)}" for name, file in gone.items())


def _what(file: SourceFile) -> str:
    kind, _, digits = file.checksum.partition(":")
    shown = f"{digits[:DIGITS]}…" if len(digits) > DIGITS else digits
    return f"{file.size:,} bytes, {kind} {shown}"

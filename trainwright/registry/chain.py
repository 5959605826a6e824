"""The audit of one model, in a folder or a bucket: numbered files that are only ever created.

``AUDIT/<model>/00000001.json`` and so on. Two writers that want the same number cannot both get it: that is
what makes a change one at a time, whatever MLflow does with an alias that two set at once.
"""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC
from typing import Any

from trainwright.errors import InputError, TransientError
from trainwright.registry.entries import Entry, State, following, verify
from trainwright.registry.names import folder_of
from trainwright.storage import create, join, list_files, read_bytes

_READERS = 16
"""How many entries are read at a time: of a bucket, each is a request."""


class Chain:
    """The audit of one model.

    Attributes:
        model: Its name.
        place: Its folder or URI.
        leases: Where the lease of whoever changes it lies.
    """

    def __init__(self, root: str, model: str) -> None:
        self.model = model
        self.place = join(root, folder_of(model))
        self.leases = join(self.place, "lease")
        self._known: tuple[Entry, ...] = ()

    def read(self) -> State:
        """Read what there is, and check that it is a chain.

        Raises:
            Broken: It is not.
            InputError: A file is no entry.
            DependencyError, TransientError, PermissionRefused: The store cannot be read.
        """
        known = {entry.seq: entry for entry in self._known}
        numbers = self._numbers()
        unread = [number for number in numbers if number not in known]
        with ThreadPoolExecutor(_READERS) as pool:
            known |= zip(unread, pool.map(self._entry, unread), strict=True)
        entries = [known[number] for number in numbers]
        verify(entries, self.model, self.place, known=len(self._known))
        self._known = tuple(entries)
        return State.of(entries)

    def append(self, entry: Entry) -> Entry:
        """Add the next entry, with number and link filled in from what was last read.

        Raises:
            AlreadyExists: Another has written that number meanwhile: read again, and decide again.
        """
        numbered = replace(entry, seq=len(self._known) + 1, previous=following(self._known))
        last = self._known[-1:]
        if last and numbered.moment < last[0].moment:
            numbered = replace(numbered, time=last[0].time)
        verify([*self._known, numbered], self.model, self.place, known=len(self._known))
        text = json.dumps(numbered.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        create(join(self.place, _name(numbered.seq)), text.encode())
        self._known = (*self._known, numbered)
        return numbered

    def _numbers(self) -> list[int]:
        try:
            found = list_files(join(self.place, "[0-9]*.json"))
        except InputError:
            return []
        names = sorted(file.uri.rsplit("/", 1)[-1] for file in found)
        if odd := [name for name in names if not re.fullmatch(r"[0-9]{8}\.json", name)]:
            raise InputError(
                f"this is no entry of an audit: those are called {_name(1)} and so on",
                where=join(self.place, odd[0]),
                hint="Nothing of this library wrote it: take it out of the folder.",
            )
        return [int(name[:8]) for name in names]

    def _entry(self, number: int) -> Entry:
        uri = join(self.place, _name(number))
        content = read_bytes(uri)
        if not content:  # a file system without links claims a name before it fills it
            raise TransientError("an entry is being written", where=uri, hint="Run it again.")
        try:
            data = json.loads(content, object_pairs_hook=_once)
            json.dumps(data, ensure_ascii=False).encode()  # half a surrogate pair has no digest
            entry = Entry.from_json(data, where=uri)
            entry.moment.astimezone(UTC)
        except (ValueError, RecursionError):
            raise InputError("this is no entry of an audit", where=uri) from None
        return entry


def _name(number: int) -> str:
    return f"{number:08d}.json"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a field that stands there twice: a person reads the first, and a program the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field stands there twice")
    return found

"""The audit of one model, in a folder or a bucket: numbered files that are only ever created.

``AUDIT/<model>/00000001.json`` and so on. Two writers that want the same number cannot both get it: that is
what makes a change one at a time, whatever MLflow does with an alias that two set at once.
"""

import json
from dataclasses import replace
from datetime import UTC

from trainwright.errors import InputError, TransientError
from trainwright.registry.entries import Entry, State, following, verify
from trainwright.registry.names import folder_of
from trainwright.storage import create, join, list_files, read_bytes


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
        names = self._names()
        entries = [known.get(int(name[:8])) or self._entry(name) for name in names]
        verify(entries, self.model, self.place, known=len(self._known))
        self._known = tuple(entries)
        return State.of(entries)

    def append(self, entry: Entry) -> Entry:
        """Add the next entry, with number and link filled in from what was last read.

        Raises:
            AlreadyThere: Another has written that number meanwhile: read again, and decide again.
        """
        numbered = replace(entry, seq=len(self._known) + 1, previous=following(self._known))
        last = self._known[-1:]
        if last and numbered.moment < last[0].moment:
            numbered = replace(numbered, time=last[0].time)
        verify([*self._known, numbered], self.model, self.place, known=len(self._known))
        text = json.dumps(numbered.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        create(join(self.place, f"{numbered.seq:08d}.json"), text.encode())
        self._known = (*self._known, numbered)
        return numbered

    def _names(self) -> list[str]:
        try:
            found = list_files(join(self.place, "[0-9]*.json"))
        except InputError:
            return []
        return sorted(file.uri.rsplit("/", 1)[-1] for file in found)

    def _entry(self, name: str) -> Entry:
        uri = join(self.place, name)
        content = read_bytes(uri)
        if not content:  # a file system without links claims a name before it fills it
            raise TransientError("an entry is being written", where=uri, hint="Run it again.")
        try:
            entry = Entry.from_json(json.loads(content), where=uri)
            entry.moment.astimezone(UTC)
        except ValueError:
            raise InputError("this is no entry of an audit", where=uri) from None
        return entry

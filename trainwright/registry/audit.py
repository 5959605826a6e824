"""The audit of a model: a hash chain of entries that are only ever created, and notes of registrations.

Entries are ``AUDIT/<model>/00000001.json`` and so on; two writers cannot create the same number, which
serializes changes whatever MLflow does with an alias. A note, ``AUDIT/<model>/registered/<key>.json``, is
created by the identity that registers: whoever may write MLflow can forge a version, but not its note.
"""

import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, ClassVar

from trainwright.documents import Document, canonical, digest_text
from trainwright.errors import InputError, TransientError
from trainwright.registry.names import PRODUCTION, folder_of
from trainwright.storage import AlreadyExists, create, join, list_files, read_bytes

INTENT, COMMIT, ABORT = "intent", "commit", "abort"
"""Kinds of entries: a change is intended, committed, or aborted."""

PROMOTE, ROLLBACK, RESTORE = "promote", "rollback", "restore"
"""Actions of an intent: promote a version, roll back, or restore aliases."""

_START = "0" * 64


@dataclass(frozen=True, kw_only=True)
class AuditEntry(Document):
    """One line of the audit. It is written once and never changed.

    Attributes:
        seq: Number of the entry, from 1.
        previous: Digest of the entry before; zeros for the first.
        time: When it was written, by the clock of the store that holds it; ISO 8601 in UTC.
        token: Number of the lease under which it was written; it never falls.
        model: Name of the registered model.
        kind: ``intent``, ``commit`` or ``abort``.
        change: What the change is known by: one intent and its end have the same.
        action: ``promote``, ``rollback`` or ``restore``.
        version: The version that is moved.
        model_digest: Digest of its files' manifest, as it was registered.
        origin: The stage that it comes from.
        target: The stage that it is brought to.
        expected: The version in production when this was evaluated; empty for none.
        before: Version by alias, before; an alias that is absent points nowhere.
        after: Version by alias, after.
        stages: Stage by version, for every version whose stage changes.
        who: ``by``, ``approver``, ``author`` as they were given; ``account`` and ``host`` as the system says.
        reason: Why, as it was given.
        evidence: Digests of what it was decided on, by name.
        facts: What else was decided, such as the share of a canary.
    """

    FILE: ClassVar[str] = "entry.json"
    seq: int
    previous: str
    time: str
    token: int
    model: str
    kind: str
    change: str
    action: str = ""
    version: str = ""
    model_digest: str = ""
    origin: str = ""
    target: str = ""
    expected: str = ""
    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)
    stages: dict[str, str] = field(default_factory=dict)
    who: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    evidence: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def moment(self) -> datetime:
        """Time of writing; UTC if it has no zone."""
        time = datetime.fromisoformat(self.time)
        return time if time.tzinfo else time.replace(tzinfo=UTC)


class BrokenAuditError(InputError):
    """An audit whose entries do not follow from each other: one was changed, removed or added by hand."""


def next_link(entries: Sequence[AuditEntry]) -> str:
    """Return what the next entry must hold as ``previous``."""
    return entries[-1].digest if entries else _START


def verify_chain(entries: Sequence[AuditEntry], model: str, where: str = "", *, known: int = 0) -> None:
    """Check that every entry follows from the one before it.

    Raises:
        Broken: One does not; names the entry and the problem.
    """
    for index, entry in enumerate(entries[known:], start=known):
        wrong = _chain_error(entry, index + 1, entries[index - 1] if index else None, model)
        if wrong:
            raise BrokenAuditError(
                f"the audit of {model!r} is broken at entry {entry.seq}: {wrong}",
                where=where,
                hint="Do not promote. Compare the folder with its backup or its object versions: entries are "
                "only ever created, so this was done by hand.",
            )


def _chain_error(entry: AuditEntry, number: int, before: AuditEntry | None, model: str) -> str:
    opened = before if before and before.kind == INTENT else None
    apart = entry.kind == INTENT if opened else entry.kind != INTENT
    problems = {
        f"entry {number} is missing": entry.seq != number,
        "it does not follow from the one before, which was changed or replaced": entry.previous
        != (before.digest if before else _START),
        f"it is about {entry.model!r}": entry.model != model,
        "it is older than the one before": before is not None
        and (entry.moment < before.moment or entry.token < before.token),
        f"nothing is known of its kind {entry.kind!r}": entry.kind not in (INTENT, COMMIT, ABORT),
        "an intent and its end do not belong together": apart
        or (opened is not None and opened.change != entry.change),
    }
    return next((what for what, wrong in problems.items() if wrong), "")


@dataclass(frozen=True)
class AuditEvent:
    """A change that was carried through.

    Attributes:
        intent: What was to be done, by whom and why.
        commit: That it was done.
    """

    intent: AuditEntry
    commit: AuditEntry

    @property
    def production(self) -> str:
        """The version in production from then on; empty for none."""
        return self.intent.after.get(PRODUCTION, "")


@dataclass(frozen=True)
class AuditState:
    """The state of a model's versions according to the audit.

    Attributes:
        entries: All of it.
        events: The changes that were carried through, oldest first.
        open: The intent that nobody has ended yet, if there is one.
    """

    entries: tuple[AuditEntry, ...]
    events: tuple[AuditEvent, ...]
    open: AuditEntry | None

    @classmethod
    def of(cls, entries: Sequence[AuditEntry]) -> "AuditState":
        """Fold entries that were verified."""
        pairs = pairwise(entries)
        events = tuple(AuditEvent(first, last) for first, last in pairs if last.kind == COMMIT)
        last = entries[-1] if entries else None
        return cls(tuple(entries), events, last if last and last.kind == INTENT else None)

    @property
    def aliases(self) -> dict[str, str] | None:
        """Version by alias as the last change left them; None if there was none: then nothing is known."""
        return dict(self.events[-1].intent.after) if self.events else None

    @property
    def succession(self) -> list[str]:
        """Versions in production one after the other, those rolled back left out; the present one is last."""
        line: list[str] = []
        for event in self.events:
            if not line and (found := event.intent.before.get(PRODUCTION)):
                line.append(found)
            if event.intent.action == ROLLBACK:
                line = _cut_succession(event.production, line)
            elif event.production and line[-1:] != [event.production]:
                line.append(event.production)
        return line

    def last_move(self, version: str) -> AuditEvent | None:
        """Return the last change that moved a version from stage to stage, its own or another's."""
        return next((event for event in reversed(self.events) if version in event.intent.stages), None)

    def stage(self, version: str) -> str | None:
        """Return where a version stands; None if the audit has not met it."""
        event = self.last_move(version)
        return event.intent.stages[version] if event else None


def _cut_succession(version: str, line: list[str]) -> list[str]:
    """Cut a succession at the version that is back; one that was deleted in between may have been passed."""
    places = [place for place, earlier in enumerate(line[:-1]) if earlier == version]
    return line[: places[-1] + 1] if places else [version]


_PARALLEL_READS = 16
"""Entries read in parallel; each is one request to a bucket."""


class AuditLog:
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
        self._known: tuple[AuditEntry, ...] = ()

    def read(self) -> AuditState:
        """Read what there is, and check that it is a chain.

        Raises:
            Broken: It is not.
            InputError: A file is no entry.
            DependencyError, TransientError, PermissionRefused: The store cannot be read.
        """
        known = {entry.seq: entry for entry in self._known}
        numbers = self._numbers()
        unread = [number for number in numbers if number not in known]
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            known |= zip(unread, pool.map(self._entry, unread), strict=True)
        entries = [known[number] for number in numbers]
        verify_chain(entries, self.model, self.place, known=len(self._known))
        self._known = tuple(entries)
        return AuditState.of(entries)

    def append(self, entry: AuditEntry) -> AuditEntry:
        """Add the next entry, with number and link filled in from what was last read.

        Raises:
            AlreadyExists: Another has written that number meanwhile: read again, and decide again.
        """
        numbered = replace(entry, seq=len(self._known) + 1, previous=next_link(self._known))
        last = self._known[-1:]
        if last and numbered.moment < last[0].moment:
            numbered = replace(numbered, time=last[0].time)
        verify_chain([*self._known, numbered], self.model, self.place, known=len(self._known))
        text = json.dumps(numbered.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        create(join(self.place, _entry_name(numbered.seq)), text.encode())
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
                f"this is no entry of an audit: those are called {_entry_name(1)} and so on",
                where=join(self.place, odd[0]),
                hint="Nothing of this library wrote it: take it out of the folder.",
            )
        return [int(name[:8]) for name in names]

    def _entry(self, number: int) -> AuditEntry:
        uri = join(self.place, _entry_name(number))
        content = read_bytes(uri)
        if not content:  # a file system without links claims a name before it fills it
            raise TransientError("an entry is being written", where=uri, hint="Run it again.")
        try:
            data = json.loads(content, object_pairs_hook=_unique_fields)
            json.dumps(data, ensure_ascii=False).encode()  # half a surrogate pair has no digest
            entry = AuditEntry.from_json(data, where=uri)
            entry.moment.astimezone(UTC)
        except (ValueError, RecursionError):
            raise InputError("this is no entry of an audit", where=uri) from None
        return entry


def _entry_name(number: int) -> str:
    return f"{number:08d}.json"


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a field that stands there twice: a person reads the first, and a program the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field stands there twice")
    return found


NOTES_FOLDER = "registered"


@dataclass(frozen=True, kw_only=True)
class RegistrationNote(Document):
    """A note of one registration. It is created once; it names neither a time nor a version.

    Attributes:
        model: Name of the registered model.
        key: What makes two registrations the same: :func:`registration_key`.
        model_digest: Digest of the model's manifest.
        model_verdict: Digest of the verdict about the model.
        data_verdict: Digest of the verdict about its data.
        trial: Digest of the trial.
        author: Who answers for the training; empty if nobody was named.
        override: A person's word in place of a PASS, as JSON; empty where it passed.
    """

    FILE: ClassVar[str] = "note.json"
    model: str
    key: str
    model_digest: str
    model_verdict: str
    data_verdict: str
    trial: str
    author: str = ""
    override: str = ""


def registration_key(model: str, model_digest: str, model_verdict: str, data_verdict: str) -> str:
    """Return what makes two registrations the same: the name, the model and what was decided about it."""
    return digest_text(canonical([model, model_digest, model_verdict, data_verdict]))


def write_note(audit: str, note: RegistrationNote) -> None:
    """Note a registration, unless it is noted: the first note stands.

    Raises:
        DependencyError, TransientError, PermissionRefused: The store cannot be written.
    """
    text = json.dumps(note.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with suppress(AlreadyExists):
        create(_note_uri(audit, note.model, note.key), text.encode())


def read_note(audit: str, model: str, key: str) -> RegistrationNote | None:
    """Read the note of a registration; None if there is none.

    Raises:
        InputError: What lies there is no note, or one of another registration.
        DependencyError, TransientError, PermissionRefused: The store cannot be read.
    """
    place = _note_uri(audit, model, key)
    if not _exists(place):
        return None
    try:
        note = RegistrationNote.from_json(json.loads(read_bytes(place)), place)
    except ValueError:
        raise InputError("this is no note of a registration", where=place) from None
    if (note.model, note.key) != (model, key):
        raise InputError(f"this is the note of another registration, {note.key[:12]}", where=place)
    return note


def _exists(place: str) -> bool:
    try:
        return bool(list_files(place))
    except InputError:
        return False


def _note_uri(audit: str, model: str, key: str) -> str:
    return join(audit, folder_of(model), NOTES_FOLDER, f"{key}.json")

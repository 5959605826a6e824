"""The audit of a model: a chain of signed entries that are only ever created, and notes of registrations.

Entries are ``AUDIT/<model>/00000001.json`` and so on; two writers cannot create the same number, which
serializes changes whatever MLflow does with an alias. A note, ``registered/<key>.<signer>.json`` beside them,
is signed by the identity that registers: whoever may write MLflow or the audit's folder cannot forge it.
"""

import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import ClassVar

from trainwright.documents import Document, canonical, digest_text, read_json
from trainwright.errors import InputError, TransientError
from trainwright.registry.names import PRODUCTION, folder_of
from trainwright.registry.signing import ENTRY, NOTE, ForgedError, Keyring, Signed
from trainwright.storage import AlreadyExists, create, join, list_files, read_bytes

INTENT, COMMIT, ABORT = "intent", "commit", "abort"
"""Kinds of entries: a change is intended, committed, or aborted."""

PROMOTE, ROLLBACK, RESTORE = "promote", "rollback", "restore"
"""Actions of an intent: promote a version, roll back, or restore aliases."""

ADOPTED = "adopted"
"""Fact of the entry after the last one without a signature: a person accepted those before it."""

NOTES_FOLDER = "registered"

_START = "0" * 64


@dataclass(frozen=True, kw_only=True)
class AuditEntry(Document):
    """An immutable entry of the audit.

    Attributes:
        seq: Number of the entry, from 1.
        previous: Digest of the previous entry; zeros for the first.
        time: Time of writing by the store's clock; ISO 8601 in UTC.
        token: Number of the lease under which it was written; it never decreases.
        kind: ``intent``, ``commit`` or ``abort``.
        change: Identifies a change: an intent and its end have the same.
        action: ``promote``, ``rollback`` or ``restore``.
        model_digest: Digest of the version's manifest, as registered.
        origin: Stage before the change.
        target: Stage after it.
        expected: Version in production when the request was evaluated; empty for none.
        before: Version by alias, before; an absent alias does not exist.
        after: Version by alias, after.
        stages: Stage by version, for every version whose stage changes.
        who: ``by``, ``approver``, ``author`` as requested; ``account`` and ``host`` as the system says.
        evidence: Digests of the documents that the decision used, by name.
        facts: Other decisions, such as the share of a canary.
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
    """Entries of an audit that do not form a chain: one was changed, removed or added by hand."""


def verify_chain(entries: Sequence[AuditEntry], model: str, where: str = "", *, known: int = 0) -> None:
    """Raise BrokenAuditError unless each entry from index ``known`` on follows from the previous one."""
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
    """A committed change: its intent and its commit."""

    intent: AuditEntry
    commit: AuditEntry

    @property
    def production(self) -> str:
        """The version in production from then on; empty for none."""
        return self.intent.after.get(PRODUCTION, "")


@dataclass(frozen=True)
class AuditState:
    """The audit of a model: its entries, the committed changes, and the open intent if there is one."""

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
        """Version by alias after the last change; None before the first, when nothing is known."""
        return dict(self.events[-1].intent.after) if self.events else None

    @property
    def succession(self) -> list[str]:
        """Versions in production, oldest first, without those rolled back."""
        line: list[str] = []
        for event in self.events:
            if not line and (found := event.intent.before.get(PRODUCTION)):
                line.append(found)
            if event.intent.action == ROLLBACK:
                # Cut at the version that is back; a version deleted since may have been passed over.
                places = [place for place, earlier in enumerate(line[:-1]) if earlier == event.production]
                line = line[: places[-1] + 1] if places else [event.production]
            elif event.production and line[-1:] != [event.production]:
                line.append(event.production)
        return line

    def last_move(self, version: str) -> AuditEvent | None:
        """Return the last change of a version's stage, by its own promotion or another's."""
        return next((event for event in reversed(self.events) if version in event.intent.stages), None)

    def stage(self, version: str) -> str | None:
        """Return the stage of a version; None if the audit does not mention it."""
        event = self.last_move(version)
        return event.intent.stages[version] if event else None


_PARALLEL_READS = 16
"""Entries read in parallel; each is one request to a bucket."""


class AuditLog:
    """The audit of one model: its folder or URI is ``place``; ``leases`` holds the lease of its writer.

    Args:
        keys: Keys to sign and verify with; by default the local key.
        adopt: Accept entries without a signature, which the next entry then adopts.
    """

    def __init__(self, root: str, model: str, keys: Keyring | None = None, *, adopt: bool = False) -> None:
        self.model, self.adopt = model, adopt
        self.place = join(root, folder_of(model))
        self.leases = join(self.place, "lease")
        self._keys = keys or Keyring(root)
        self._known: tuple[AuditEntry, ...] = ()
        self._unsigned = 0

    def read(self) -> AuditState:
        """Read all entries; verify their signatures and the chain.

        Raises:
            BrokenAuditError: The entries do not form a chain, or one has no signature by a trusted key.
            InputError: A file is not an entry.
            DependencyError, TransientError, PermissionRefused: The store cannot be read.
        """
        known = {entry.seq: entry for entry in self._known}
        numbers = self._numbers()
        unread = [number for number in numbers if number not in known]
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            found = dict(zip(unread, pool.map(self._entry, unread), strict=True))
        entries = [known[number] if number in known else found[number][0] for number in numbers]
        verify_chain(entries, self.model, self.place, known=len(self._known))
        unsigned = self._unsigned + sum(not signed for _, signed in found.values())
        self._require_signed(entries, unsigned, [number for number in found if not found[number][1]])
        self._known, self._unsigned = tuple(entries), unsigned
        return AuditState.of(entries)

    def _require_signed(self, entries: Sequence[AuditEntry], unsigned: int, new: Sequence[int]) -> None:
        """Accept entries without a signature only at the beginning, before an entry that adopts them."""
        if any(number > unsigned for number in new):
            raise BrokenAuditError(
                f"entry {max(new)} of the audit of {self.model!r} has no signature, earlier ones have",
                where=self.place,
                hint="This library did not write it. Find who did, and remove the file.",
            )
        adopted = len(entries) > unsigned and entries[unsigned].facts.get(ADOPTED)
        if unsigned and not adopted and not self.adopt:
            raise BrokenAuditError(
                f"{unsigned} entries of the audit of {self.model!r} have no signature",
                where=self.place,
                hint="If they are older than signatures, compare them with a backup, then: "
                "trainwright model restore --adopt.",
            )

    def registrations(self) -> int:
        """Count the notes of registrations."""
        try:
            return len(list_files(join(self.place, NOTES_FOLDER, "*.json")))
        except InputError:
            return 0

    @property
    def unadopted(self) -> bool:
        """True while the entries have no signature, and no entry adopts them."""
        return 0 < self._unsigned == len(self._known)

    def append(self, entry: AuditEntry) -> AuditEntry:
        """Append an entry; its number and link follow from the last read.

        Raises:
            AlreadyExists: Another process wrote that number meanwhile: read and decide again.
        """
        last = self._known[-1] if self._known else None
        link = last.digest if last else _START
        numbered = replace(entry, seq=len(self._known) + 1, previous=link)
        if last and numbered.moment < last.moment:
            numbered = replace(numbered, time=last.time)
        if self.unadopted and last:
            adopted = f"{last.seq} entries without a signature; the last has digest {last.digest}"
            numbered = replace(numbered, facts=numbered.facts | {ADOPTED: adopted})
        verify_chain([*self._known, numbered], self.model, self.place, known=len(self._known))
        signed = self._keys.sign(ENTRY, numbered)
        self._keys.verify(ENTRY, signed, self.place)  # an entry that nobody trusts would stop the audit
        create(join(self.place, _entry_name(numbered.seq)), _pretty(signed))
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

    def _entry(self, number: int) -> tuple[AuditEntry, bool]:
        """Read an entry; return it and whether it has a signature, which was verified."""
        uri = join(self.place, _entry_name(number))
        content = read_bytes(uri)
        if not content:  # a file system without links claims a name before it fills it
            raise TransientError("an entry is being written", where=uri, hint="Run it again.")
        try:
            body, signed = _unpack(content)
            entry = AuditEntry.from_json(body)
            entry.moment.astimezone(UTC)
        except (InputError, ValueError) as error:
            raise InputError(f"this is no entry of an audit: {error}", where=uri) from None
        if signed:
            try:
                self._keys.verify(ENTRY, signed, uri)
            except ForgedError as error:
                raise BrokenAuditError(
                    f"entry {number} of the audit of {self.model!r}: {error.what}", where=uri, hint=error.hint
                ) from None
        return entry, signed is not None


def _entry_name(number: int) -> str:
    return f"{number:08d}.json"


def _unpack(content: bytes) -> tuple[object, Signed | None]:
    """Return the body of a file of the audit, and its signature; None if it has none."""
    data = read_json(content)
    if not (isinstance(data, dict) and "signature" in data):
        return data, None
    signed = Signed.from_json(data)
    return signed.body, signed


def _pretty(document: Document) -> bytes:
    text = json.dumps(document.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode()


@dataclass(frozen=True, kw_only=True)
class RegistrationNote(Document):
    """A note of one registration, created once; it names neither a time nor a version.

    Attributes:
        key: :func:`registration_key`.
        author: Person responsible for the training; empty if not configured.
        override: Override of the verdict as JSON; empty for a PASS.
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
    """Return the idempotency key of a registration: a digest of name, model and verdicts."""
    return digest_text(canonical([model, model_digest, model_verdict, data_verdict]))


def write_note(audit: str, note: RegistrationNote, keys: Keyring) -> None:
    """Create the signed note of a registration; an existing note of the same signer stays."""
    signed = keys.sign(NOTE, note)
    with suppress(AlreadyExists):
        create(join(_notes(audit, note.model), f"{note.key}.{signed.key[:12]}.json"), _pretty(signed))


def read_note(audit: str, model: str, key: str, keys: Keyring) -> RegistrationNote | None:
    """Read the note of a registration; None if there is none with a signature.

    Raises:
        ForgedError: No trusted key signed it.
        InputError: The file is not a note, or the note of another registration.
    """
    try:
        found = list_files(join(_notes(audit, model), f"{key}.*.json"))
    except InputError:
        return None
    for number, file in enumerate(found, start=1):
        try:
            return _verified_note(file.uri, model, key, keys)
        except InputError:  # anybody may have put a file there
            if number == len(found):
                raise
    return None


def _verified_note(place: str, model: str, key: str, keys: Keyring) -> RegistrationNote:
    body, signed = _unpack(read_bytes(place))
    if signed is None:
        raise ForgedError("this note of a registration has no signature", where=place)
    keys.verify(NOTE, signed, place)
    note = RegistrationNote.from_json(body, place)
    if (note.model, note.key) != (model, key):
        raise InputError(f"this is the note of another registration, {note.key[:12]}", where=place)
    return note


def _notes(audit: str, model: str) -> str:
    return join(audit, folder_of(model), NOTES_FOLDER)

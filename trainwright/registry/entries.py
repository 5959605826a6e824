"""The entries of an audit, and what makes them a chain: each holds the digest of the one before."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import ClassVar

from trainwright.documents import Document
from trainwright.errors import InputError
from trainwright.registry.names import PRODUCTION

INTENT, COMMIT, ABORT = "intent", "commit", "abort"
"""What an entry is: what is about to be done, that it was done, that it could not be done."""

PROMOTE, ROLLBACK, RESTORE = "promote", "rollback", "restore"
"""What an intent does: moves a version on, brings the one before back, or sets aliases as they should be."""

_START = "0" * 64


@dataclass(frozen=True, kw_only=True)
class Entry(Document):
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
        """When it was written; in UTC where no zone is named."""
        time = datetime.fromisoformat(self.time)
        return time if time.tzinfo else time.replace(tzinfo=UTC)


class Broken(InputError):
    """An audit whose entries do not follow from each other: one was changed, removed or added by hand."""


def following(entries: Sequence[Entry]) -> str:
    """Return what the next entry must hold as ``previous``."""
    return entries[-1].digest if entries else _START


def verify(entries: Sequence[Entry], model: str, where: str = "", *, known: int = 0) -> None:
    """Check that every entry follows from the one before it.

    Args:
        entries: All of them.
        model: Whose they must be.
        where: Their folder, for the error.
        known: How many of the first were looked at before.

    Raises:
        Broken: One does not; names it, and what is wrong with it.
    """
    for index, entry in enumerate(entries[known:], start=known):
        wrong = _wrong(entry, index + 1, entries[index - 1] if index else None, model)
        if wrong:
            raise Broken(
                f"the audit of {model!r} is broken at entry {entry.seq}: {wrong}",
                where=where,
                hint="Do not promote. Compare the folder with its backup or its object versions: entries are "
                "only ever created, so this was done by hand.",
            )


def _wrong(entry: Entry, number: int, before: Entry | None, model: str) -> str:
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
class Event:
    """A change that was carried through.

    Attributes:
        intent: What was to be done, by whom and why.
        commit: That it was done.
    """

    intent: Entry
    commit: Entry

    @property
    def production(self) -> str:
        """The version in production from then on; empty for none."""
        return self.intent.after.get(PRODUCTION, "")


@dataclass(frozen=True)
class State:
    """What an audit says.

    Attributes:
        entries: All of it.
        events: The changes that were carried through, oldest first.
        open: The intent that nobody has ended yet, if there is one.
    """

    entries: tuple[Entry, ...]
    events: tuple[Event, ...]
    open: Entry | None

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> "State":
        """Fold entries that were verified."""
        pairs = pairwise(entries)
        events = tuple(Event(first, last) for first, last in pairs if last.kind == COMMIT)
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
                line = _back_to(event.production, line)
            elif event.production and line[-1:] != [event.production]:
                line.append(event.production)
        return line

    def last_move(self, version: str) -> Event | None:
        """Return the last change that moved a version from stage to stage, its own or another's."""
        return next((event for event in reversed(self.events) if version in event.intent.stages), None)

    def stage(self, version: str) -> str | None:
        """Return where a version stands; None if the audit has not met it."""
        event = self.last_move(version)
        return event.intent.stages[version] if event else None


def _back_to(version: str, line: list[str]) -> list[str]:
    """Cut a succession at the version that is back; one that was deleted in between may have been passed."""
    places = [place for place, earlier in enumerate(line[:-1]) if earlier == version]
    return line[: places[-1] + 1] if places else [version]

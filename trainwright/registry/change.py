"""One change at a time to where a model's versions stand, which a kill at any point leaves safe to repeat.

MLflow's aliases overwrite each other silently, so they are not what decides. The audit is: whoever holds the
lease writes an *intent*, which only one can create under its number, lets the aliases follow, reads them
back, and writes the *commit*. An open intent is carried through by the next one, before it looks at anything.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar, cast

from trainwright.documents import canonical, digest_text
from trainwright.errors import InputError, TrainwrightError, TransientError
from trainwright.registry.account import account
from trainwright.registry.chain import Chain
from trainwright.registry.entries import ABORT, COMMIT, INTENT, RESTORE, Broken, Entry, Event, State
from trainwright.registry.names import HEAD, PRODUCTION
from trainwright.registry.versions import missing, point, read_aliases, read_head
from trainwright.storage import AlreadyExists
from trainwright.storage.lease import Lease, hold_lease
from trainwright.tracking.server import persist

if TYPE_CHECKING:
    from mlflow import MlflowClient

_T = TypeVar("_T")

_TAKEN_UP = "Look at the server. When it answers, run the same promotion again: it continues from there."

_TRIES = 3
"""How often aliases that another writer moves are set again before it is told."""


@dataclass(frozen=True)
class Place:
    """Where a model's versions are kept.

    Attributes:
        client: MLflow's client.
        uri: MLflow's address.
        chain: The audit.
        retry_s: How long an MLflow that does not answer is waited for.
        lease_s: After so long without a sign of life, another that changes the model counts as dead.
        wait_s: How long to wait for another that lives.
    """

    client: "MlflowClient"
    uri: str
    chain: Chain
    retry_s: float
    lease_s: float = 30.0
    wait_s: float = 300.0


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is to become of a model's versions; the fields are those of :class:`Entry`."""

    action: str
    version: str
    target: str
    after: Mapping[str, str]
    stages: Mapping[str, str] = field(default_factory=dict)
    model_digest: str = ""
    origin: str = ""
    expected: str = ""
    who: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    evidence: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


class Present:
    """How things are while nobody else may change them.

    Attributes:
        state: What the audit says.
        aliases: Version by alias: what the audit says, or what MLflow has where the audit is empty.
        found: Version by alias, as MLflow has them.
        wrote: Whether aliases may have been moved.
        finished: What another had begun and not ended, and was carried through now; None if there was none.
    """

    def __init__(self, place: Place, lease: Lease) -> None:
        self._place, self._lease, self._started = place, lease, time.monotonic()
        self.wrote, self.finished = False, cast(Event | None, None)
        self.state = place.chain.read()
        # Lease files may have been cleared away, and its numbers begun again; the audit's never fall.
        self._token = max([lease.number, *(entry.token for entry in self.state.entries[-1:])])
        head = _asked(place, lambda: read_head(place.client, place.chain.model))
        require_end(self.state, head, place.chain)
        if self.state.entries and not head.startswith(f"{len(self.state.entries)} "):
            self._anchor(self.state.entries[-1])  # its writer died first
        if self.state.open:
            last = self._end(self.state.open)
            self.finished = Event(self.state.open, last) if last.kind == COMMIT else None
            self.state = place.chain.read()
        self.found = _asked(place, lambda: read_aliases(place.client, place.chain.model))
        known = self.state.aliases
        self.aliases = dict(self.found) if known is None else known

    @property
    def now(self) -> datetime:
        """The time by the store's clock: what machines think of the time does not matter."""
        return self._lease.began + timedelta(seconds=time.monotonic() - self._started)

    @property
    def disagreement(self) -> str:
        """Say where MLflow's aliases differ from the audit; empty if they do not."""
        return disagreement(self.found, self.aliases)

    def missing(self, versions: Iterable[str]) -> set[str]:
        """Return those of some versions that were deleted in MLflow: no alias can point at them again."""
        place = self._place
        return _asked(place, lambda: missing(place.client, place.chain.model, versions))

    def perform(self, change: Change) -> Event:
        """Carry a change through.

        Raises:
            TransientError: The lease was lost, or another writer keeps moving the aliases.
            InputError: MLflow refuses it; then the aliases are as before, and the audit says so.
        """
        intent = self._append(self._intent(change))
        last = self._end(intent)
        if last.kind == ABORT:
            raise InputError(f"MLflow refused the change: {last.reason}", where=self._place.uri)
        return Event(intent, last)

    def _intent(self, change: Change) -> Entry:
        known = [change.action, change.version, change.target, change.expected, dict(change.evidence)]
        return Entry(
            seq=0,
            previous="",
            time=self._stamp(),
            token=self._token,
            model=self._place.chain.model,
            kind=INTENT,
            change=digest_text(canonical([*known, len(self.state.entries)])),
            action=change.action,
            version=change.version,
            model_digest=change.model_digest,
            origin=change.origin,
            target=change.target,
            expected=change.expected,
            before=dict(self.aliases),
            after=dict(change.after),
            stages=dict(change.stages),
            who=dict(change.who) | account(),
            reason=change.reason,
            evidence=dict(change.evidence),
            facts=dict(change.facts),
        )

    def _end(self, intent: Entry) -> Entry:
        """Let the aliases follow an intent, and write down that they did, or that they cannot."""
        try:
            self._follow(intent.after, intent.stages)
        except InputError as refused:
            gone = self.missing(intent.before.values())
            self._follow({alias: it for alias, it in intent.before.items() if it not in gone}, {})
            return self._append(self._last(intent, ABORT, refused.what))
        return self._append(self._last(intent, COMMIT))

    def _last(self, intent: Entry, kind: str, reason: str = "") -> Entry:
        return Entry(
            seq=0,
            previous="",
            time=self._stamp(),
            token=self._token,
            model=intent.model,
            kind=kind,
            change=intent.change,
            reason=reason,
            who=account(),
        )

    def _follow(self, aliases: Mapping[str, str], stages: Mapping[str, str]) -> None:
        """Set aliases and stages, and set them again when they are not read back as they were set."""
        place = self._place

        def once() -> bool:
            self._lease.require()
            self.wrote = True
            return point(place.client, place.chain.model, aliases, stages)

        for _ in range(_TRIES):
            if _asked(place, once):
                return
        raise TransientError(
            f"the aliases of {place.chain.model!r} are moved by something else at this moment",
            where=place.uri,
            hint="Only promote and rollback may move them. Find what does, and run this again.",
        )

    def _append(self, entry: Entry) -> Entry:
        self._lease.require()
        try:
            written = self._place.chain.append(entry)
        except AlreadyExists:
            raise TransientError(
                "another wrote the next entry of the audit: the lease was lost on the way",
                where=self._place.chain.place,
                hint="Nothing is lost: run it again.",
            ) from None
        self._anchor(written)
        return written

    def _anchor(self, last: Entry) -> None:
        """Note the end of the audit in MLflow: the audit cannot show it, and a cut intent hides a try."""
        name, client, text = self._place.chain.model, self._place.client, f"{last.seq} {last.digest}"
        _asked(self._place, lambda: client.set_registered_model_tag(name, HEAD, text))

    def _stamp(self) -> str:
        return self.now.isoformat(timespec="microseconds")


def changed(place: Place, decide: Callable[[Present], Change | None]) -> Event | None:
    """Decide on a change and carry it through, with nobody else at it.

    Args:
        place: Where the model's versions are kept.
        decide: Gets how things are, and returns what is to be done; None for nothing.

    Returns:
        What was done; None if it was nothing.

    Raises:
        Broken: The audit is not a chain.
        TransientError: Another held the lease all the time, or this one lost it.
        DependencyError: MLflow or the store was away; an intent that is open by then is carried through by
            whoever comes next.
    """
    present = None
    try:
        with hold_lease(place.chain.leases, lease_s=place.lease_s, wait_s=place.wait_s) as lease:
            present = Present(place, lease)
            change = decide(present)
            return present.perform(change) if change else None
    except TransientError:
        if present is not None and present.wrote:
            with suppress(TrainwrightError):
                restored(place, {}, "an alias may have been moved after the lease was lost")
        raise


def restored(place: Place, who: Mapping[str, str], reason: str) -> Event | None:
    """Set the aliases to what the audit says, if they are not; return what was done.

    An alias whose version was deleted in MLflow is taken away, and the audit says so. A process that
    was paused moves an alias when it goes on, though another took over; it comes here then, or a person.
    """
    with hold_lease(place.chain.leases, lease_s=place.lease_s, wait_s=place.wait_s) as lease:
        present = Present(place, lease)
        if not present.disagreement:
            return None
        version = present.aliases.get(PRODUCTION, "")
        gone = present.missing(present.aliases.values())
        facts = {"found": present.disagreement} | ({"gone": ", ".join(sorted(gone))} if gone else {})
        change = Change(
            action=RESTORE,
            version=version,
            target="",
            after={alias: number for alias, number in present.aliases.items() if number not in gone},
            who=who,
            reason=reason,
            facts=facts,
        )
        return present.perform(change)


def require_end(state: State, head: str, chain: Chain) -> None:
    """Check that the audit has the entry that MLflow has noted as its last one.

    Raises:
        Broken: It has not: its end was cut off, or this is not the folder that was used before.
    """
    number, _, digest = head.partition(" ")
    there = state.entries[int(number) - 1 : int(number)] if number.isdecimal() else ()
    if head and not (there and there[0].digest == digest):
        raise Broken(
            f"the audit of {chain.model!r} ends at entry {len(state.entries)}, "
            f"MLflow knows of entry {number} with digest {digest[:12]}, which is not there",
            where=chain.place,
            hint="Its end was cut off, or registry.audit names another place than before.",
        )


def disagreement(found: Mapping[str, str], said: Mapping[str, str]) -> str:
    """Say where aliases differ from the audit; empty if they do not."""
    names = [alias for alias in sorted({*found, *said}) if found.get(alias) != said.get(alias)]
    return "; ".join(
        f"{alias} points at {found.get(alias) or 'nothing'}, the audit says {said.get(alias) or 'nothing'}"
        for alias in names
    )


def _asked(place: Place, action: Callable[[], _T]) -> _T:
    return persist(action, place.uri, place.retry_s, hint=_TAKEN_UP)

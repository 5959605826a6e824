"""Change aliases and stages, one change at a time, safe to repeat after a kill at any point.

MLflow's aliases overwrite each other silently, so the audit decides: the holder of the lease writes an
*intent*, moves the aliases, reads them back, and writes the *commit*. The next change first judges an intent
that has no commit again, and completes or aborts it.
"""

import os
import pwd
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from trainwright.documents import canonical, digest_text
from trainwright.errors import InputError, TrainwrightError, TransientError
from trainwright.experiment import Registry
from trainwright.registry.audit import (
    ABORT,
    COMMIT,
    INTENT,
    RESTORE,
    AuditEntry,
    AuditEvent,
    AuditLog,
    AuditState,
    BrokenAuditError,
)
from trainwright.registry.names import ARCHIVED, HEAD, PREVIOUS, PRODUCTION, audit_location
from trainwright.registry.signing import Keyring
from trainwright.registry.versions import missing_versions, point_aliases, read_aliases, read_head
from trainwright.storage import AlreadyExists
from trainwright.storage.lease import Lease, hold_lease
from trainwright.tracking.server import open_client, persist

if TYPE_CHECKING:
    from mlflow import MlflowClient


def account() -> dict[str, str]:
    """Return the account and host (in a pod, its name) as the system reports them, which is no proof."""
    number = os.getuid()
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:  # an image with a numeric user
        name = f"uid {number}"
    return {"account": name, "host": socket.gethostname()}


AliasTargets = tuple[dict[str, str], dict[str, str]]
"""Version by alias after a change, and stage by version for those that move."""


def after_promotion(aliases: Mapping[str, str], version: str, to: str) -> AliasTargets:
    """Move a version to a stage; the version displaced from it is archived, and can be rolled back to."""
    after = {alias: number for alias, number in aliases.items() if number != version}
    stages = {version: to}
    if to == ARCHIVED:
        return after, stages
    if displaced := after.get(to):
        stages[displaced] = ARCHIVED
    if to == PRODUCTION and displaced:
        after[PREVIOUS] = displaced
    after[to] = version
    return after, stages


def after_rollback(aliases: Mapping[str, str], state: AuditState, gone: Collection[str] = ()) -> AliasTargets:
    """Restore the previous version in production, ``gone`` (deleted) ones passed over.

    Raises:
        InputError: No version was in production before.
    """
    line = state.succession
    if not line:  # aliases older than the audit
        line = [aliases[alias] for alias in (PREVIOUS, PRODUCTION) if alias in aliases]
    out = aliases.get(PRODUCTION)
    earlier = line[:-1] if out and line[-1:] == [out] else line if not out else []
    earlier = [version for version in earlier if version not in gone]
    if not earlier:
        raise InputError(
            f"nothing was in production before version {out or 'none'}",
            where="rollback",
            hint="Promote another version instead.",
        )
    *before, back = earlier
    after = {alias: number for alias, number in aliases.items() if number != back and number not in gone}
    after |= {PRODUCTION: back}
    after.pop(PREVIOUS, None)
    if before:
        after[PREVIOUS] = before[-1]
    archived = {out: ARCHIVED} if out and out not in gone else {}
    return after, {back: PRODUCTION} | archived


_T = TypeVar("_T")

_RESUME_HINT = "Look at the server. When it answers, run the same promotion again: it continues from there."

_POINT_ATTEMPTS = 3
"""Attempts to set aliases that another writer moves."""


@dataclass(frozen=True)
class RegistryConnection:
    """Connection to MLflow and to the audit of one model.

    Attributes:
        judge: Says why an open intent must not be completed; empty if it may.
        retry_s: Seconds for which calls to MLflow are retried.
        lease_s: Seconds after which a lease without heartbeat has expired.
        wait_s: Seconds to wait for a lease that another process holds.
    """

    client: "MlflowClient"
    uri: str
    chain: AuditLog
    judge: Callable[["RegistryState", AuditEntry], str]
    retry_s: float
    lease_s: float
    wait_s: float


class RegistryState:
    """The state of a model's versions while the lease is held.

    Attributes:
        aliases: Version by alias according to the audit, or to MLflow while the audit is empty.
        found: Version by alias according to MLflow.
        wrote: Whether aliases may have been moved.
        finished: The open intent of an earlier process that was completed now; None if there was none.
    """

    def __init__(self, place: RegistryConnection, lease: Lease) -> None:
        self._place, self._lease, self._started = place, lease, time.monotonic()
        self.wrote, self.finished = False, cast(AuditEvent | None, None)
        self.state = place.chain.read()
        # Lease files may have been cleared away, and its numbers begun again; the audit's never fall.
        self._token = max([lease.number, *(entry.token for entry in self.state.entries[-1:])])
        head = _with_retries(place, lambda: read_head(place.client, place.chain.model))
        require_audit_head(self.state, head, place.chain)
        if self.state.entries and not head.startswith(f"{len(self.state.entries)} "):
            self._anchor(self.state.entries[-1])  # its writer died first
        self._read_aliases()
        if self.state.open:
            self._finish(self.state.open)

    def _read_aliases(self) -> None:
        place = self._place
        self.found = _with_retries(place, lambda: read_aliases(place.client, place.chain.model))
        known, opened = self.state.aliases, self.state.open
        if opened:  # its writer may have moved some aliases already, which is no disagreement
            known = opened.before if known is None else known
            moved = {alias for alias in self.found if self.found[alias] == opened.after.get(alias)}
            moved |= opened.before.keys() - opened.after.keys() - self.found.keys()
            kept = {alias: version for alias, version in self.found.items() if alias not in moved}
            self.found = kept | {alias: known[alias] for alias in moved if alias in known}
        self.aliases = dict(self.found) if known is None else dict(known)

    def _finish(self, opened: AuditEntry) -> None:
        """Judge an open intent again; complete it, or abort it and restore the aliases."""
        unsigned = self._place.chain.unadopted
        objection = "it has no signature" if unsigned else self._place.judge(self, opened)
        last = self._abort(opened, objection) if objection else self._end(opened)
        self.finished = AuditEvent(opened, last) if last.kind == COMMIT else None
        self.state = self._place.chain.read()
        self._read_aliases()

    @property
    def now(self) -> datetime:
        """Current time by the store's clock, which all machines share."""
        return self._lease.began + timedelta(seconds=time.monotonic() - self._started)

    @property
    def disagreement(self) -> str:
        """The aliases that differ between MLflow and the audit, as text; empty if none."""
        return disagreement(self.found, self.aliases)

    def missing(self, versions: Iterable[str]) -> set[str]:
        """Return the versions that were deleted in MLflow: no alias can point at them again."""
        place = self._place
        return _with_retries(place, lambda: missing_versions(place.client, place.chain.model, versions))

    def intent(self, action: str, version: str, target: str, **fields: Any) -> AuditEntry:
        """Return the intent of a change; ``fields`` are those of :class:`AuditEntry`."""
        known = [action, version, target, fields.get("expected", ""), fields.get("evidence", {})]
        return AuditEntry(
            seq=0,
            previous="",
            time=self._stamp(),
            token=self._token,
            model=self._place.chain.model,
            kind=INTENT,
            change=digest_text(canonical([*known, len(self.state.entries)])),
            action=action,
            version=version,
            target=target,
            before=dict(self.aliases),
            **fields | {"who": fields["who"] | account()},
        )

    def perform(self, change: AuditEntry) -> AuditEvent:
        """Carry out an intent.

        Raises:
            TransientError: The lease was lost, or another writer keeps moving the aliases.
            InputError: MLflow rejects it; the aliases are as before, and the audit says so.
        """
        intent = self._append(change)
        last = self._end(intent)
        if last.kind == ABORT:
            raise InputError(f"MLflow refused the change: {last.reason}", where=self._place.uri)
        return AuditEvent(intent, last)

    def _end(self, intent: AuditEntry) -> AuditEntry:
        """Move the aliases as an intent says and append its commit, or its abort if MLflow rejects it."""
        try:
            self._follow(intent.after, intent.stages)
        except InputError as refused:
            return self._abort(intent, refused.what)
        return self._append(self._last(intent, COMMIT))

    def _abort(self, intent: AuditEntry, reason: str) -> AuditEntry:
        """Restore the aliases and stages from before an intent and append its abort."""
        gone = self.missing([*intent.before.values(), *intent.stages])
        known = {version: self.state.stage(version) for version in intent.stages}
        known[intent.version] = known.get(intent.version) or intent.origin
        stages = {version: stage for version, stage in known.items() if stage and version not in gone}
        self._follow({alias: it for alias, it in intent.before.items() if it not in gone}, stages)
        return self._append(self._last(intent, ABORT, reason))

    def _last(self, intent: AuditEntry, kind: str, reason: str = "") -> AuditEntry:
        return AuditEntry(
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
        """Set aliases and stages, again if they do not read back as set."""
        place = self._place

        def once() -> bool:
            self._lease.require()
            self.wrote = True
            return point_aliases(place.client, place.chain.model, aliases, stages)

        for _ in range(_POINT_ATTEMPTS):
            if _with_retries(place, once):
                return
        raise TransientError(
            f"the aliases of {place.chain.model!r} are moved by something else at this moment",
            where=place.uri,
            hint="Only promote and rollback may move them. Find what does, and run this again.",
        )

    def _append(self, entry: AuditEntry) -> AuditEntry:
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

    def _anchor(self, last: AuditEntry) -> None:
        """Note the last entry in MLflow: the audit itself cannot show that its end was cut off."""
        name, client, text = self._place.chain.model, self._place.client, f"{last.seq} {last.digest}"
        _with_retries(self._place, lambda: client.set_registered_model_tag(name, HEAD, text))

    def _stamp(self) -> str:
        return self.now.isoformat(timespec="microseconds")


def apply_change(
    place: RegistryConnection, decide: Callable[[RegistryState], AuditEntry | None]
) -> AuditEvent | None:
    """Carry out the intent that ``decide`` returns, under the lease; None if it returns none.

    Raises:
        BrokenAuditError: The audit is not a chain.
        TransientError: Another process holds the lease, or this one lost it.
        DependencyError: MLflow or the store was away; the next change completes an open intent.
    """
    present = None
    try:
        with hold_lease(place.chain.leases, lease_s=place.lease_s, wait_s=place.wait_s) as lease:
            present = RegistryState(place, lease)
            change = decide(present)
            return present.perform(change) if change else None
    except TransientError:
        if present is not None and present.wrote:
            with suppress(TrainwrightError):
                restore_aliases(place, {}, "an alias may have been moved after the lease was lost")
        raise


def restore_aliases(place: RegistryConnection, who: Mapping[str, str], reason: str) -> AuditEvent | None:
    """Set the aliases to what the audit says; return the change, None if nothing differed.

    An alias whose version was deleted in MLflow is removed. A process that was paused may move an alias
    after another took over; it then calls this, or a person does.
    """
    with hold_lease(place.chain.leases, lease_s=place.lease_s, wait_s=place.wait_s) as lease:
        present = RegistryState(place, lease)
        if not (present.disagreement or place.chain.unadopted):
            return None
        version = present.aliases.get(PRODUCTION, "")
        gone = present.missing(present.aliases.values())
        facts = {"found": present.disagreement} if present.disagreement else {}
        facts |= {"gone": ", ".join(sorted(gone))} if gone else {}
        after = {alias: number for alias, number in present.aliases.items() if number not in gone}
        return present.perform(
            present.intent(RESTORE, version, "", after=after, who=dict(who), reason=reason, facts=facts)
        )


def require_audit_head(state: AuditState, head: str, chain: AuditLog) -> None:
    """Raise BrokenAuditError unless the audit has the entry that MLflow notes as last, and at most one more.

    A writer notes each entry right after it wrote it, so only the last one can lack its note.
    """
    number, _, digest = head.partition(" ")
    there = state.entries[int(number) - 1 : int(number)] if number.isdecimal() else ()
    if head and not (there and there[0].digest == digest):
        raise BrokenAuditError(
            f"the audit of {chain.model!r} ends at entry {len(state.entries)}, "
            f"MLflow knows of entry {number} with digest {digest[:12]}, which is not there",
            where=chain.place,
            hint="Its end was cut off, or registry.audit names another place than before.",
        )
    beyond = len(state.entries) - int(number or 0)
    if beyond > 1 and not chain.adopt:
        raise BrokenAuditError(
            f"the audit of {chain.model!r} has {beyond} entries beyond entry {number or 0}, "
            "the last that MLflow knows; expected at most 1",
            where=chain.place,
            hint="If MLflow was restored from an older backup: trainwright model restore --adopt. "
            "Otherwise find who wrote them.",
        )


def disagreement(found: Mapping[str, str], said: Mapping[str, str]) -> str:
    """Return the aliases that differ from the audit as text; empty if none."""
    names = [alias for alias in sorted({*found, *said}) if found.get(alias) != said.get(alias)]
    return "; ".join(
        f"{alias} points at {found.get(alias) or 'nothing'}, the audit says {said.get(alias) or 'nothing'}"
        for alias in names
    )


def _with_retries(place: RegistryConnection, action: Callable[[], _T]) -> _T:
    return persist(action, place.uri, place.retry_s, hint=_RESUME_HINT)


def require_audit(registry: Registry) -> str:
    """Return the location of the audit, configured or beside an SQLite file; InputError if neither."""
    if place := audit_location(registry.audit, registry.tracking_uri):
        return place
    raise InputError(
        "registry.audit is not set, and promotions are decided by the audit",
        where="registry.audit",
        hint="Name a folder of a shared volume, or gs://BUCKET/audit with a retention policy.",
    )


def open_registry(
    registry: Registry,
    judge: Callable[[RegistryState, AuditEntry], str],
    lease_s: float,
    wait_s: float,
    *,
    adopt: bool,
) -> RegistryConnection:
    """Open MLflow and the audit.

    Raises:
        InputError: An address is invalid.
        DependencyError: MLflow's file stayed locked for ``registry.retry_s``.
    """
    chain = AuditLog(require_audit(registry), registry.model, Keyring.of(registry), adopt=adopt)
    uri, retry_s = registry.tracking_uri, float(registry.retry_s)
    client = persist(lambda: open_client(uri), uri, retry_s)
    return RegistryConnection(client, uri, chain, judge, retry_s, lease_s, wait_s)

"""Report which version was in production, when and why, from the audit alone."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainwright.errors import DependencyError, InputError
from trainwright.experiment import Registry
from trainwright.registry.audit import AuditEvent, AuditLog, AuditState
from trainwright.registry.changes import disagreement, require_audit, require_audit_head
from trainwright.registry.names import PRODUCTION
from trainwright.registry.promote import event_facts
from trainwright.registry.signing import Keyring
from trainwright.registry.versions import read_aliases, read_head
from trainwright.tracking.server import open_client, persist


@dataclass(frozen=True)
class AuditHistory:
    """An audit whose chain was verified.

    Attributes:
        place: Its folder or URI.
        warning: Differences between it and MLflow; empty if none.
        unknown: Why MLflow's aliases were not compared; empty if they were.
    """

    model: str
    place: str
    state: AuditState
    warning: str
    unknown: str


def read_history(registry: Registry, *, compare: bool = True) -> AuditHistory:
    """Read and verify a model's audit, and compare MLflow's aliases with it.

    Raises:
        BrokenAuditError: The entries do not form a chain, or the last ones are missing.
        InputError: Nothing was promoted.
    """
    chain = AuditLog(require_audit(registry), registry.model, Keyring.of(registry))
    state = chain.read()
    if not state.entries:
        noted = chain.registrations()
        raise InputError(
            f"no promotion of {registry.model!r} yet, registrations noted: {noted}"
            if noted
            else f"there is no audit of {registry.model!r}",
            where=chain.place,
            hint="Promote a version: trainwright submit promote_model, or trainwright run promote_model."
            if noted
            else "Nothing was registered or promoted, or it lies elsewhere: registry.audit.",
        )
    warnings = []
    if state.open:
        warnings.append(
            f"entry {state.open.seq} was begun at {state.open.time} and not ended: promote again, or "
            "trainwright model restore"
        )
    unknown = "MLflow was not asked" if not compare else ""
    if compare:
        try:
            warnings += _differences(registry, state, chain)
        except DependencyError as error:
            unknown = f"MLflow did not answer: {error.what.splitlines()[0]}"
    return AuditHistory(registry.model, chain.place, state, "; ".join(warnings), unknown)


def _differences(registry: Registry, state: AuditState, chain: AuditLog) -> list[str]:
    uri, name = registry.tracking_uri, registry.model
    client = persist(lambda: open_client(uri), uri, 0)
    head = persist(lambda: read_head(client, name), uri, 0)
    require_audit_head(state, head, chain)
    found = persist(lambda: read_aliases(client, name), uri, 0)
    text = disagreement(found, state.aliases or {}) if state.events and not state.open else ""
    return [text] if text else []


def history_lines(history: AuditHistory) -> Iterator[str]:
    """Yield a history, one line per change, oldest first."""
    state = history.state
    count = len(state.entries)
    yield f"{history.model}   {count} entries, signed, each follows from the one before   {history.place}"
    for event in state.events:
        intent = event.intent
        by = ", ".join(f"{name} {intent.who[name]}" for name in ("by", "approver") if intent.who.get(name))
        yield f"  {_written(event.commit.moment)}  {_moved(event):<44} {by}: {intent.reason}"
    line = state.succession
    if line:
        yield f"  production is {line[-1]}" + (
            f", before it {', '.join(reversed(line[:-1]))}" if line[1:] else ""
        )
    yield from _warnings(history)


def _written(moment: datetime) -> str:
    """Format a time in full: a query for it then returns this change, not the previous one."""
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _moved(event: AuditEvent) -> str:
    intent = event.intent
    if intent.action == "promote":
        return f"{intent.version} from {intent.origin or 'nowhere'} to {intent.target}"
    if intent.action == "rollback":
        return f"{intent.version} back in production, {intent.expected} out"
    return "aliases restored"


def _warnings(history: AuditHistory) -> Iterator[str]:
    if history.unknown:
        yield f"  not compared with MLflow's aliases: {history.unknown}"
    if history.warning:
        yield f"  DISAGREEMENT: {history.warning}"


def production_at(
    history: AuditHistory, moment: datetime
) -> tuple[str, AuditEvent | None, AuditEvent | None]:
    """Return the version in production at a time, and the changes that began and ended it.

    The version is empty for none; the first change is None if it precedes the audit, the second None if the
    version is still in production.
    """
    version, since, until = "", None, None
    for event in history.state.events:
        if since is None and not version:
            version = event.intent.before.get(PRODUCTION, "")
        if event.commit.moment > moment:
            if event.production != version:
                until = event
                break
            continue
        if event.production != version:
            version, since = event.production, event
    return version, since, until


def moment_lines(history: AuditHistory, moment: datetime, now: datetime) -> Iterator[str]:
    """Yield which version was in production at a time, and why."""
    version, since, until = production_at(history, moment)
    yield f"{history.model} at {_written(moment)}: version {version or 'none'}"
    if moment > now:
        yield f"  this time has not come yet: it is what stands now, {_written(now)}"
    if since:
        yield f"  since    {since.commit.time}   ({_moved(since)})"
        yield from (f"  {name:<8} {value}" for name, value in event_facts(since))
    elif version:
        yield "  since    before the audit began; by whom and why is not recorded"
    if until:
        yield f"  until    {until.commit.time}   ({_moved(until)}: {until.intent.reason})"
    for event in history.state.events:
        if event.intent.moment <= moment < event.commit.moment:
            yield f"  it was being changed just then: {_moved(event)}"
    yield from _warnings(history)


def parse_moment(text: str) -> datetime:
    """Parse a time in UTC, which is also the default zone; InputError if it is none."""
    try:
        read = datetime.fromisoformat(text)
        return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
    except (ValueError, OverflowError):  # the first and last hours of all years are in no year elsewhere
        raise InputError(
            f"{text!r} is no time", where="TIME", hint="Write it as 2026-01-31T10:00:00Z."
        ) from None


def history_json(history: AuditHistory) -> str:
    """Return a history with every entry as one JSON document."""
    body: dict[str, Any] = {
        "model": history.model,
        "place": history.place,
        "entries": [entry.to_json() for entry in history.state.entries],
        "succession": history.state.succession,
        "warning": history.warning,
        "unknown": history.unknown,
    }
    return json.dumps(body, ensure_ascii=False)

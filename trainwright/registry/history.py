"""Report which version was in production, when and why, from the audit alone."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainwright.errors import DependencyError, InputError
from trainwright.experiment import Registry
from trainwright.registry.audit import AuditEvent, AuditLog, AuditState
from trainwright.registry.changes import disagreement, open_registry, require_audit, require_audit_head
from trainwright.registry.names import PRODUCTION
from trainwright.registry.promote import event_facts
from trainwright.registry.versions import read_aliases, read_head
from trainwright.tracking.server import persist


@dataclass(frozen=True)
class AuditHistory:
    """An audit that was read and holds together.

    Attributes:
        model: Name of the registered model.
        place: Where it lies.
        state: What it says.
        warning: What does not agree with it; empty if nothing was found.
        unknown: Why MLflow's aliases were not compared with it; empty if they were.
    """

    model: str
    place: str
    state: AuditState
    warning: str
    unknown: str


def read_history(registry: Registry, *, compare: bool = True) -> AuditHistory:
    """Read a model's audit, check it, and compare MLflow's aliases with it.

    Raises:
        Broken: The entries do not follow from each other, or the last ones are missing.
        InputError: There is no audit there.
    """
    chain = AuditLog(require_audit(registry), registry.model)
    state = chain.read()
    if not state.entries:
        raise InputError(
            f"there is no audit of {registry.model!r}",
            where=chain.place,
            hint="Nothing was promoted, or it lies elsewhere.",
        )
    told = []
    if state.open:
        told.append(
            f"entry {state.open.seq} was begun at {state.open.time} and not ended: promote again, or "
            "trainwright model restore"
        )
    unknown = "MLflow was not asked" if not compare else ""
    if compare:
        try:
            told += _compared(registry, state, chain)
        except DependencyError as error:
            unknown = f"MLflow did not answer: {error.what.splitlines()[0]}"
    return AuditHistory(registry.model, chain.place, state, "; ".join(told), unknown)


def _compared(registry: Registry, state: AuditState, chain: AuditLog) -> list[str]:
    place = open_registry(registry.model_copy(update={"retry_s": 0}))
    name = registry.model
    head = persist(lambda: read_head(place.client, name), registry.tracking_uri, 0)
    require_audit_head(state, head, chain)
    found = persist(lambda: read_aliases(place.client, name), registry.tracking_uri, 0)
    told = disagreement(found, state.aliases or {}) if state.events and not state.open else ""
    return [told] if told else []


def history_lines(history: AuditHistory) -> Iterator[str]:
    """Write a history, one line an entry, the newest last."""
    state = history.state
    count = len(state.entries)
    yield f"{history.model}   {count} entries, each follows from the one before   {history.place}"
    for event in state.events:
        intent = event.intent
        by = ", ".join(f"{name} {intent.who[name]}" for name in ("by", "approver") if intent.who.get(name))
        yield f"  {_written(event.commit.moment)}  {_moved(event):<44} {by}: {intent.reason}"
    line = state.succession
    if line:
        yield f"  production is {line[-1]}" + (
            f", before it {', '.join(reversed(line[:-1]))}" if line[1:] else ""
        )
    yield from _told(history)


def _written(moment: datetime) -> str:
    """Write a time whole: whoever asks for what stood there at this time gets this change, not the last."""
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _moved(event: AuditEvent) -> str:
    intent = event.intent
    if intent.action == "promote":
        return f"{intent.version} from {intent.origin or 'nowhere'} to {intent.target}"
    if intent.action == "rollback":
        return f"{intent.version} back in production, {intent.expected} out"
    return "aliases restored"


def _told(history: AuditHistory) -> Iterator[str]:
    if history.unknown:
        yield f"  not compared with MLflow's aliases: {history.unknown}"
    if history.warning:
        yield f"  DISAGREEMENT: {history.warning}"


def production_at(
    history: AuditHistory, moment: datetime
) -> tuple[str, AuditEvent | None, AuditEvent | None]:
    """Say which version was in production at a time.

    Returns:
        The version, empty for none; the change that brought it there, None if it was there before the audit
        began; and the change that ended it, None if it still is.
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
    """Write which version was in production at a time, and why; a time after ``now`` is said to be one."""
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
    yield from _told(history)


def parse_moment(text: str) -> datetime:
    """Read a time, in UTC; so is one without a zone.

    Raises:
        InputError: It is none.
    """
    try:
        read = datetime.fromisoformat(text)
        return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
    except (ValueError, OverflowError):  # the first and last hours of all years are in no year elsewhere
        raise InputError(
            f"{text!r} is no time", where="TIME", hint="Write it as 2026-01-31T10:00:00Z."
        ) from None


def history_json(history: AuditHistory) -> str:
    """Write a history as one JSON document: every entry, and what does not agree."""
    body: dict[str, Any] = {
        "model": history.model,
        "place": history.place,
        "entries": [entry.to_json() for entry in history.state.entries],
        "succession": history.state.succession,
        "warning": history.warning,
        "unknown": history.unknown,
    }
    return json.dumps(body, ensure_ascii=False)

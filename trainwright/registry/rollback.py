"""Roll back production to the previous version, or restore MLflow's aliases from the audit."""

from trainwright.errors import InputError
from trainwright.experiment import PromotionRequest, Registry
from trainwright.registry.audit import ROLLBACK, AuditEntry, AuditEvent
from trainwright.registry.changes import (
    RegistryState,
    after_rollback,
    apply_change,
    restore_aliases,
)
from trainwright.registry.hub import try_mirror
from trainwright.registry.names import PRODUCTION
from trainwright.registry.promote import connect


def rollback(registry: Registry, by: str, reason: str, out: str = "") -> AuditEvent:
    """Restore the previous version in production without requirements, or complete an open rollback.

    Args:
        registry: Section of MLflow and the audit.
        by: Who requests it.
        reason: Why.
        out: The version to remove. Nothing happens if the last change removed it already, or if another is in
            production. Empty: any.

    Raises:
        InputError: No version was in production before, ``out`` is not, or ``by`` or ``reason`` is empty.
        DependencyError: MLflow or the audit's store was away.
    """
    _require_requester(by, reason)
    completed: list[AuditEvent] = []

    def decide(present: RegistryState) -> AuditEntry | None:
        done = present.finished
        if done and done.intent.action == ROLLBACK and out in ("", done.intent.expected):
            completed.append(done)
            return None
        there = present.aliases.get(PRODUCTION, "")
        last = present.state.events[-1] if present.state.events else None
        if out and last and last.intent.facts.get("out") == out and last.production == there:
            completed.append(last)
            return None
        if out and out != there:
            raise InputError(
                f"version {there or 'none'} is in production, not {out}: nothing was done",
                where="rollback",
            )
        gone = present.missing({*present.state.succession, *present.aliases.values()})
        aliases, stages = after_rollback(present.aliases, present.state, gone)
        return present.intent(
            ROLLBACK,
            aliases[PRODUCTION],
            PRODUCTION,
            origin=present.state.stage(aliases[PRODUCTION]) or "",
            expected=there,
            after=aliases,
            stages=stages,
            who={"by": by},
            reason=reason,
            facts={"out": there}
            | ({"found": present.disagreement} if present.disagreement else {})
            | ({"gone": ", ".join(sorted(gone))} if gone else {}),
        )

    event = apply_change(connect(registry), decide) or completed[0]
    try_mirror(registry)
    return event


def _require_requester(by: str, reason: str) -> None:
    PromotionRequest.check({"to": PRODUCTION, "by": by, "reason": reason}, "request")


def restore(registry: Registry, by: str, reason: str, *, adopt: bool = False) -> AuditEvent | None:
    """Set MLflow's aliases to what the audit says; return None if nothing differs.

    Args:
        registry: Section of MLflow and the audit.
        by: Who requests it.
        reason: Why.
        adopt: Accept entries from before signatures, and entries beyond the last one that MLflow notes.

    Raises:
        InputError: ``by`` or ``reason`` is missing.
        DependencyError: MLflow or the audit's store was away.
    """
    _require_requester(by, reason)
    event = restore_aliases(connect(registry, adopt=adopt), {"by": by}, reason)
    try_mirror(registry)
    return event

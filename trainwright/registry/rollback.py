"""Roll back production to the previous version, or restore MLflow's aliases from the audit."""

from trainwright.errors import InputError
from trainwright.experiment import PromotionRequest, Registry
from trainwright.registry.audit import ROLLBACK, AuditEntry, AuditEvent
from trainwright.registry.changes import (
    AliasChange,
    RegistryState,
    after_rollback,
    apply_change,
    open_registry,
    restore_aliases,
)
from trainwright.registry.names import PRODUCTION


def rollback(registry: Registry, by: str, reason: str, out: str = "") -> AuditEvent:
    """Bring back the version that was in production before.

    Nothing is asked of it: it was in production. One that was begun and not ended is carried through, and no
    second one is begun.

    Args:
        registry: Where the model is registered, and its audit.
        by: Who asks for it.
        reason: Why.
        out: The version that is to be taken out; where another is in production, nothing is done. Empty:
            whichever is there.

    Raises:
        InputError: Nothing was in production before, or another version is there now; or nobody is named, or
            no reason.
        DependencyError: MLflow or the audit's store was away.
    """
    _require_said(by, reason)
    carried: list[AuditEvent] = []

    def decide(present: RegistryState) -> AliasChange | None:
        if present.finished and _is_asked_for(present.finished.intent, out):
            carried.append(present.finished)
            return None
        there = present.aliases.get(PRODUCTION, "")
        if out and out != there:
            raise InputError(
                f"version {there or 'none'} is in production, not {out}: nothing was done",
                where="rollback",
            )
        gone = present.missing({*present.state.succession, *present.aliases.values()})
        standing = after_rollback(present.aliases, present.state, gone)
        return AliasChange(
            action=ROLLBACK,
            version=standing.aliases[PRODUCTION],
            origin=present.state.stage(standing.aliases[PRODUCTION]) or "",
            target=PRODUCTION,
            expected=there,
            after=standing.aliases,
            stages=standing.stages,
            who={"by": by},
            reason=reason,
            facts={"out": there}
            | ({"found": present.disagreement} if present.disagreement else {})
            | ({"gone": ", ".join(sorted(gone))} if gone else {}),
        )

    event = apply_change(open_registry(registry), decide)
    return event or carried[0]


def _is_asked_for(done: AuditEntry, out: str) -> bool:
    """Return True if the completed change is this request: a rollback of the same version."""
    return done.action == ROLLBACK and out in ("", done.expected)


def _require_said(by: str, reason: str) -> None:
    """Check who asks and why as a promotion does: the audit keeps both."""
    PromotionRequest.check({"to": PRODUCTION, "by": by, "reason": reason}, "request")


def restore(registry: Registry, by: str, reason: str) -> AuditEvent | None:
    """Set MLflow's aliases to what the audit says; None if they are so already.

    Raises:
        InputError: Nobody is named, or no reason.
        DependencyError: MLflow or the audit's store was away.
    """
    _require_said(by, reason)
    return restore_aliases(open_registry(registry), {"by": by}, reason)

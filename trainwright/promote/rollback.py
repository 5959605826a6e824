"""One command back: what was in production before is in production again, whatever else is the matter."""

from trainwright.errors import InputError
from trainwright.experiment import PromotionRequest, Registry
from trainwright.promote.aliases import rolled_back
from trainwright.promote.place import opened
from trainwright.registry.change import Change, Present, changed, restored
from trainwright.registry.entries import ROLLBACK, Entry, Event
from trainwright.registry.names import PRODUCTION


def rollback(registry: Registry, by: str, reason: str, out: str = "") -> Event:
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
    carried: list[Event] = []

    def decide(present: Present) -> Change | None:
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
        standing = rolled_back(present.aliases, present.state, gone)
        return Change(
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

    event = changed(opened(registry), decide)
    return event or carried[0]


def _is_asked_for(done: Entry, out: str) -> bool:
    """Whether what another had begun is this very request: a rollback of the version that is to go."""
    return done.action == ROLLBACK and out in ("", done.expected)


def _require_said(by: str, reason: str) -> None:
    """Check who asks and why as a promotion does: the audit keeps both."""
    PromotionRequest.check({"to": PRODUCTION, "by": by, "reason": reason}, "request")


def restore(registry: Registry, by: str, reason: str) -> Event | None:
    """Set MLflow's aliases to what the audit says; None if they are so already.

    Raises:
        InputError: Nobody is named, or no reason.
        DependencyError: MLflow or the audit's store was away.
    """
    _require_said(by, reason)
    return restored(opened(registry), {"by": by}, reason)

"""Interruptions of a job: losses that belong together, of which the launcher charges one to a budget.

The loss of one pod ends the processes of all others, and each of those ends looks like a loss of its own: an
elastic survivor returns the exit code of the rank that was evicted, and an 11-node job that its queue
preempts loses eleven pods. Nothing that Kubernetes says of a pod tells these apart, so they are grouped by
what ran at the time of the first one.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainwright.launch.diagnosis.incident import Incident
from trainwright.launch.failure import Failure

_FELT_S = 600.0
"""Seconds after a loss, or after its pod is back, in which the others can still end because of it.

A node that dies silently is noticed when a collective operation times out. Too long a time charges one
interruption in place of two, and at most once for every container that lived through the first.
"""

_SYMPTOMS = frozenset({"HANG", "INFRASTRUCTURE", "NCCL_TIMEOUT", "UNKNOWN"})
"""Classes that the processes show when something else, which Kubernetes may tell later, was the cause."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A pod, or a run of its container, that was lost.

    Attributes:
        key: The pod's identity, and when the run of the container had begun where only that was lost.
        budget: Whose restarts it counts against.
        kind: Its class.
        what: What happened.
        place: Its place in the job, which a pod that replaces it takes.
        suspended: Whether the job's queue took it by suspending the job.
        began_s: When the run that was lost had begun, in seconds since 1970; None if unknown.
        at_s: When it was lost; None if unknown.
        back_s: When its place ran again; None if it did not.
    """

    key: str
    budget: str
    kind: str
    what: str
    place: str = ""
    suspended: bool = False
    began_s: float | None = None
    at_s: float | None = None
    back_s: float | None = None

    @classmethod
    def of(cls, entry: Incident) -> "Loss":
        """Return the loss that an incident is."""
        pod, finding = entry.pod, entry.finding
        runs = [entry.began_s] if entry.began_s is not None else list(pod.starts[-1:])
        return cls(
            # Known by this, whoever sees it, and however often.
            key=pod.uid if entry.began_s is None else f"{pod.uid}/{entry.began_s:.0f}",
            budget=finding.budget,
            kind=finding.kind,
            what=finding.what,
            place=pod.place,
            suspended=finding.reason == "Suspended",
            began_s=next(iter(runs), None),
            at_s=None if entry.at_s == math.inf else entry.at_s,
            back_s=entry.back_s,
        )


@dataclass(frozen=True)
class Interruption:
    """Losses that belong together, the earliest first."""

    losses: tuple[Loss, ...]

    @property
    def charged(self) -> Loss | None:
        """The loss whose budget pays for all; None for a queue's suspension, which costs nothing."""
        cause = min(self.losses, key=lambda loss: (loss.kind in _SYMPTOMS, _time(loss.at_s)))
        free = cause.kind == "PREEMPTED" and any(loss.suspended for loss in self.losses)
        return None if free else cause

    @property
    def recovered(self) -> bool:
        """Whether everything that was lost ran again."""
        return all(loss.back_s is not None for loss in self.losses)

    def takes(self, loss: Loss) -> bool:
        """Tell whether a later loss belongs to this interruption.

        It does if its run was there when the interruption began, and the others can still have felt it. A
        run that began in the same second counts as there, unless it is the next one at the same place.
        """
        began_s, first_s = loss.began_s or 0.0, _time(self.losses[0].at_s)
        places = {entry.place for entry in self.losses}
        if began_s > first_s or (began_s == first_s and loss.place in places):
            return False
        latest_s = max(
            _time(entry.back_s if entry.back_s is not None else entry.at_s) for entry in self.losses
        )
        return loss.at_s is None or loss.at_s <= latest_s + _FELT_S


def losses(found: Iterable[Incident]) -> tuple[Loss, ...]:
    """Return the losses among incidents; one that only shows that another process had failed is none."""
    return tuple(Loss.of(entry) for entry in found if not entry.finding.weak)


def interruptions(lost: Iterable[Loss]) -> tuple[Interruption, ...]:
    """Group losses into interruptions, in the order of their time."""
    groups: list[Interruption] = []
    for loss in sorted(lost, key=lambda loss: _time(loss.at_s)):
        if groups and groups[-1].takes(loss):
            groups[-1] = Interruption((*groups[-1].losses, loss))
        else:
            groups.append(Interruption((loss,)))
    return tuple(groups)


def charged(lost: Iterable[Loss]) -> tuple[Loss, ...]:
    """Return the loss of each interruption that its budget pays for."""
    return tuple(loss for group in interruptions(lost) if (loss := group.charged))


def spent(lost: Iterable[Loss]) -> dict[str, int]:
    """Count interruptions by budget."""
    return _counted(charged(lost))


def spent_by_attempt(failure: Failure, lost: Iterable[Loss], *, used_up: bool = False) -> dict[str, int]:
    """Count the interruptions of an attempt that failed; its own failure is one, however many pods show it.

    The failure is the last interruption if the job did not recover from that, or if it ended because of too
    many of them. Otherwise, as when the job hangs hours after it recovered, the failure counts besides.

    Args:
        failure: How the attempt failed.
        lost: What the attempt lost.
        used_up: Whether the operator ended the job at its backoff limit.
    """
    groups = interruptions(lost)
    ended = bool(groups) and (used_up or not groups[-1].recovered)
    paid = [loss for group in (groups[:-1] if ended else groups) if (loss := group.charged)]
    # A launcher that ends a job whose budget is used up names the class of the loss that used it up.
    last = next((loss for loss in reversed(paid) if loss.budget == failure.budget), None)
    within = not ended and last is not None and last.kind == failure.kind
    counts = _counted(paid)
    return {**counts, failure.budget: counts.get(failure.budget, 0) + (0 if within else 1)}


def _counted(found: Sequence[Loss]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for loss in found:
        counts[loss.budget] = counts.get(loss.budget, 0) + 1
    return counts


def _time(at_s: float | None) -> float:
    return math.inf if at_s is None else at_s

"""Kueue's Workload of a job: whether it has quota, why not, and which job took it.

The messages are those of Kueue 0.15 to 0.19 (``pkg/scheduler/flavorassigner``, ``pkg/workload``).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainwright.launch.diagnosis.state import parse_time

Object = Mapping[str, Any]

_POD_SET = re.compile(r"couldn't assign flavors to pod set [^:]+: ")
_PASSES_LATER = re.compile(r"insufficient unused quota|topology", re.IGNORECASE)
"""Reasons about one pod set that pass when other jobs end."""

_NEVER = re.compile(
    r"> maximum capacity|unavailable in ClusterQueue|untolerated taint|doesn't match node affinity"
)
"""Reasons that no other job's end changes."""

_TOO_MUCH = "ExceedsMaxQuota"
"""Reason of releases after 0.19 for a workload above its queue's maximum."""

_PREEMPTOR = re.compile(r"Preempted to accommodate a workload \(UID: [^,)]+, JobUID: ([^,)]+)\)")
_WHY = re.compile(r"due to ([^;]+)")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The latest version of a job's Workload.

    Attributes:
        uid: Its identity.
        name: Its name.
        active: Whether Kueue considers it; a deactivated one is never admitted.
        reason: Why it has no quota, or why Kueue gave it up.
        message: The same as a sentence.
        since_s: Since when, in seconds since 1970.
        cluster_queue: ClusterQueue that admitted it; empty before.
        flavors: Resource flavors that it was admitted to.
    """

    uid: str
    name: str
    active: bool = True
    reason: str = ""
    message: str = ""
    since_s: float | None = None
    cluster_queue: str = ""
    flavors: tuple[str, ...] = ()

    @property
    def given_up(self) -> bool:
        """True if Kueue admits it only after somebody activates it again."""
        return not self.active

    @property
    def preemptor(self) -> str:
        """``JobUID`` of the job that took its quota; empty if none."""
        found = _PREEMPTOR.search(self.message)
        return found[1] if found and found[1] != "UNKNOWN" else ""

    @property
    def admission(self) -> str:
        """A text with its queue and flavors; empty if it is not admitted."""
        if not self.cluster_queue:
            return ""
        flavors = f", flavor {', '.join(self.flavors)}" if self.flavors else ""
        return f"admitted by cluster queue {self.cluster_queue}{flavors}"


def read_workload(body: Object) -> Workload:
    """Parse a Workload.

    An eviction counts only while its status is ``True``. For a deactivated Workload the eviction has the
    reason, while ``QuotaReserved`` may keep an older one.
    """
    metadata, status = body["metadata"], body.get("status") or {}
    conditions = {entry["type"]: entry for entry in status.get("conditions") or []}
    active = (body.get("spec") or {}).get("active", True)
    reserved = conditions.get("QuotaReserved", {})
    evicted = conditions.get("Evicted", {})
    told = reserved if reserved.get("status") == "False" else {}
    if evicted.get("status") == "True" and (not active or not told or "Preempted" in evicted["reason"]):
        told = evicted
    elif not active:
        told = {"reason": "Deactivated", "message": "The workload is deactivated"}
    admission = status.get("admission") or {}
    assigned = admission.get("podSetAssignments") or []
    flavors = dict.fromkeys(name for entry in assigned for name in (entry.get("flavors") or {}).values())
    return Workload(
        uid=metadata["uid"],
        name=metadata["name"],
        active=bool(active),
        reason=told.get("reason") or "",
        message=told.get("message") or "",
        since_s=parse_time(told.get("lastTransitionTime")),
        cluster_queue=admission.get("clusterQueue") or "",
        flavors=tuple(flavors),
    )


def can_never_be_admitted(reason: str, message: str) -> bool:
    """Tell whether a queue can never admit a workload, whatever other jobs end.

    For each pod set Kueue lists every flavor that it tried. A flavor whose quota is in use may be free later,
    so some pod set has to be without such a flavor.
    """
    if reason == _TOO_MUCH:
        return True
    return any(
        _NEVER.search(clause) and not _PASSES_LATER.search(clause) for clause in _POD_SET.split(message)[1:]
    )


def preemption_cause(message: str) -> str:
    """Return Kueue's cause of a preemption, such as ``prioritization in the ClusterQueue``."""
    found = _WHY.search(message)
    return found[1].strip() if found else ""

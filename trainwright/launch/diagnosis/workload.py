"""Kueue's Workload of a job: whether it has quota, why not, and which job took it.

The messages are those of Kueue 0.15 to 0.19 (``pkg/scheduler/flavorassigner``, ``pkg/workload``).
"""

import re
from dataclasses import dataclass

from trainwright.launch.diagnosis.state import Object, parse_time

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
        active: Whether Kueue considers it; a deactivated one is admitted only after it is activated again.
        reason, message: Why it has no quota, or why Kueue gave it up.
        admission: ClusterQueue and resource flavors that admitted it, as a text; empty before.
    """

    uid: str
    name: str
    active: bool = True
    reason: str = ""
    message: str = ""
    since_s: float | None = None
    admission: str = ""

    @property
    def preemptor(self) -> str:
        """``JobUID`` of the job that took its quota; empty if none."""
        found = _PREEMPTOR.search(self.message)
        return found[1] if found and found[1] != "UNKNOWN" else ""


def read_workload(body: Object) -> Workload:
    """Parse a Workload.

    An eviction counts only while its status is ``True``. For a deactivated Workload the eviction has the
    reason, while ``QuotaReserved`` may keep an older one.
    """
    status = body.get("status") or {}
    conditions = {entry["type"]: entry for entry in status.get("conditions") or []}
    active = bool((body.get("spec") or {}).get("active", True))
    reserved, evicted = conditions.get("QuotaReserved", {}), conditions.get("Evicted", {})
    cause = reserved if reserved.get("status") == "False" else {}
    if evicted.get("status") == "True" and (not active or not cause or "Preempted" in evicted["reason"]):
        cause = evicted
    elif not active:
        cause = {"reason": "Deactivated", "message": "The workload is deactivated"}
    admitted = status.get("admission") or {}
    pod_sets = admitted.get("podSetAssignments") or []
    flavors = dict.fromkeys(name for entry in pod_sets for name in (entry.get("flavors") or {}).values())
    queue = admitted.get("clusterQueue")
    text = f"admitted by cluster queue {queue}" + (f", flavor {', '.join(flavors)}" if flavors else "")
    return Workload(
        uid=body["metadata"]["uid"],
        name=body["metadata"]["name"],
        active=active,
        reason=cause.get("reason") or "",
        message=cause.get("message") or "",
        since_s=parse_time(cause.get("lastTransitionTime")),
        admission=text if queue else "",
    )


def can_never_be_admitted(reason: str, message: str) -> bool:
    """Tell whether a queue can never admit a workload, whatever other jobs end.

    For each pod set Kueue lists every flavor that it tried. A flavor whose quota is in use may be free later,
    so some pod set has to be without such a flavor.
    """
    return reason == _TOO_MUCH or any(
        _NEVER.search(clause) and not _PASSES_LATER.search(clause) for clause in _POD_SET.split(message)[1:]
    )


def preemption_cause(message: str) -> str:
    """Return Kueue's cause of a preemption, such as ``prioritization in the ClusterQueue``."""
    found = _WHY.search(message)
    return found[1].strip() if found else ""

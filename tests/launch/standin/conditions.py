"""The conditions of a PyTorchJob, and how the operator changes the list of them."""

from tests.launch.standin.resources import Object
from tests.launch.standin.store import now


def holds(status: Object, kind: str) -> bool:
    """Tell whether a condition is True."""
    return any(
        entry["type"] == kind and entry["status"] == "True" for entry in status.get("conditions") or []
    )


def finished(status: Object) -> bool:
    """Tell whether a job is at its end; it can have succeeded and failed at once."""
    return holds(status, "Succeeded") or holds(status, "Failed")


def put(status: Object, kind: str, message: str, value: str = "True", reason: str = "") -> None:
    """Set a condition: it moves to the end of the list.

    Once Failed is True, nothing changes any more. Running and Restarting remove one another; Succeeded and
    Failed turn Running to False, and leave Restarting as it is.
    """
    if holds(status, "Failed"):
        return
    reason = f"PyTorchJob{reason or kind}"
    known = next((entry for entry in status.get("conditions") or [] if entry["type"] == kind), None)
    if known and (known["status"], known["reason"]) == (value, reason):
        return
    since = known["lastTransitionTime"] if known and known["status"] == value else now()
    kept = []
    for entry in status.get("conditions") or []:
        if entry["type"] == kind or {kind, entry["type"]} == {"Running", "Restarting"}:
            continue
        ends = kind in ("Failed", "Succeeded") and entry["type"] == "Running"
        kept.append({**entry, "status": "False"} if ends else entry)
    told = {"type": kind, "status": value, "reason": reason, "message": message}
    status["conditions"] = [*kept, {**told, "lastTransitionTime": since, "lastUpdateTime": now()}]

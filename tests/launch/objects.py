"""Objects as the Kubernetes API writes them, for what no recording shows."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from trainwright.launch.diagnosis.incidents import Incident, Loss, charged_losses
from trainwright.launch.diagnosis.observed_job import ObservedJob

Object = dict[str, Any]
JOB, UID = "tw", "job-1"


def observe(observed: ObservedJob, kind: str, change: str, body: Object) -> None:
    """Add an event of a watch: kind, change (``ADDED``, ``MODIFIED`` or ``DELETED``) and object."""
    gone = change == "DELETED"
    match kind:
        case "PyTorchJob" | "TrainJob":
            observed.update_job(body, gone=gone)
        case "Pod":
            observed.update_pod(body, gone=gone)
        case "Event" if not gone:
            observed.add_event(body)


def losses_of(found: Iterable[Incident]) -> tuple[Loss, ...]:
    """Return the losses among incidents, weak ones excluded."""
    return tuple(Loss.of(entry) for entry in found if not entry.weak)


def count_interruptions(lost: Iterable[Loss]) -> dict[str, int]:
    """Count interruptions by budget."""
    return dict(Counter(loss.budget for loss in charged_losses(lost)))


def at(second: int) -> str:
    """Return a time as Kubernetes writes it, so many seconds after 8 o'clock."""
    return f"2026-11-20T08:{second // 60:02}:{second % 60:02}Z"


def job(*conditions: str, **changes: Any) -> Object:
    """Make a job of one master and one worker, created at 0, whose conditions came to hold at 60.

    A condition is ``TYPE`` or ``TYPE:MESSAGE``.
    """
    entries = [
        {"type": kind, "status": "True", "reason": kind, "message": message, "lastTransitionTime": at(60)}
        for kind, _, message in (text.partition(":") for text in conditions)
    ]
    metadata = {"name": JOB, "uid": UID, "creationTimestamp": at(0), **changes.pop("metadata", {})}
    spec = {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 1}}}
    return {"metadata": metadata, "spec": {**spec, **changes}, "status": {"conditions": entries}}


def pod(name: str = "tw-worker-0", *, state: Object | None = None, gpus: int = 0, **changes: Any) -> Object:
    """Make a pod that was put on node n1 at 5 and has run since 10; ``state`` is that of its container."""
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    environment = {"RANK": name[-1] if "master" in name else str(int(name[-1]) + 1)}
    environment |= {"WORLD_SIZE": "2", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "1"}
    container = {
        "name": "pytorch",
        "resources": {"limits": limits},
        "command": changes.pop("command", ["python"]),
        "env": [{"name": key, "value": value} for key, value in environment.items()],
    }
    status = {"name": "pytorch", "restartCount": 0, "lastState": {}}
    status["state"] = state if state is not None else {"running": {"startedAt": at(10)}}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(5)}
    conditions = [changes.pop("scheduled", scheduled), *changes.pop("conditions", [])]
    metadata = {
        "name": name,
        "uid": f"uid-{name}",
        "creationTimestamp": at(1),
        "ownerReferences": [{"uid": UID}],
        **changes.pop("metadata", {}),
    }
    spec = {"nodeName": "n1", "containers": [container], "volumes": changes.pop("volumes", [])}
    return {
        "metadata": metadata,
        "spec": spec,
        "status": {
            "phase": "Running",
            "conditions": conditions,
            "containerStatuses": [status],
            **changes,
        },
    }


def ended(code: int, reason: str = "Error", *, second: int = 50, message: str = "") -> Object:
    """Make the state of a container that ran from 10 on and has ended."""
    body = {"exitCode": code, "reason": reason, "startedAt": at(10), "finishedAt": at(second)}
    return {"terminated": body | ({"message": message} if message else {})}


def event(
    reason: str, message: str, *, name: str = JOB, kind: str = "PyTorchJob", second: int = 30
) -> Object:
    """Make an event about the job, or about another object."""
    uid = UID if name == JOB else f"uid-{name}"
    return {
        "metadata": {"name": f"{name}.{reason}.{second}", "uid": f"{name}.{reason}.{second}"},
        "involvedObject": {"kind": kind, "name": name, "uid": uid},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "lastTimestamp": at(second),
    }


def seen(*bodies: Object, log: str = "", gone: bool = False) -> ObservedJob:
    """Observe objects in this order; ``log`` is that of tw-worker-0."""
    observed = ObservedJob(JOB)
    for body in bodies:
        if "involvedObject" in body:
            observed.add_event(body)
        elif "containers" in body["spec"]:
            observed.update_pod(body)
        else:
            observed.update_job(body)
    observed.add_log("uid-tw-worker-0", log)
    if gone:
        observed.mark_job_removed()
    return observed

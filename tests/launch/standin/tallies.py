"""What the training operator counts of a job's pods."""

from collections.abc import Iterator
from datetime import UTC, datetime

from tests.launch.standin import replicas
from tests.launch.standin.resources import Object

NO_CODE = 0xBEEF
"""Stands for the exit code of a container that has not ended."""


def oddities(pods: list[Object]) -> Iterator[tuple[str, str]]:
    """Give what is odd about pods, reason and message: the operator repeats it as events of the job."""
    for pod in pods:
        meta, state = pod["metadata"], pod["status"]
        if state.get("phase") in ("Succeeded", "Failed") or "deletionTimestamp" in meta:
            continue
        for entry in state.get("containerStatuses") or []:
            head = f"Error pod {meta['name']} container {entry['name']}"
            ended, waits = entry["state"].get("terminated"), entry["state"].get("waiting")
            if ended and ended["exitCode"] != 0:
                said = f"{head} exitCode: {ended['exitCode']} terminated message: {ended.get('message', '')}"
                yield ended["reason"], said
            if waits and waits.get("message"):
                yield waits["reason"], f"{head} waiting message: {waits['message']}"
        told = (state.get("conditions") or [])[:1]
        if not state.get("containerStatuses") and told and told[0]["status"] != "True":
            yield (
                told[0].get("reason", ""),
                f"Error pod {meta['name']} condition message: {told[0].get('message', '')}",
            )


def counted(pod: Object) -> str:
    """Return what a pod counts as. One that runs and is being deleted has failed."""
    phase = pod["status"].get("phase")
    if phase == "Running":
        return "failed" if "deletionTimestamp" in pod["metadata"] else "active"
    return {"Succeeded": "succeeded", "Failed": "failed"}.get(phase, "")


def exit_code(pod: Object) -> int:
    for entry in pod["status"].get("containerStatuses") or []:
        ended = entry["state"].get("terminated")
        if entry["name"] == replicas.CONTAINER and ended:
            return int(ended["exitCode"])
    return NO_CODE


def new_failure(job: Object, status: Object, pods: list[Object], limit: int) -> bool:
    """Tell whether a pod has failed since the last look; only a limit of 0 makes that count."""
    failed = sum(pod["status"].get("phase") == "Failed" for pod in pods)
    known = sum(entry.get("failed", 0) for entry in (status.get("replicaStatuses") or {}).values())
    active = sum(
        pod["status"].get("phase") not in ("Succeeded", "Failed")
        and "deletionTimestamp" not in pod["metadata"]
        for pod in pods
    )
    wanted = sum(entry["replicas"] for entry in replicas.defaulted(job["spec"]).values())
    return failed > known and active != wanted and limit == 0


def restarts(job: Object, pods: list[Object]) -> int:
    """Count the restarts of containers of pods that run now; those of replaced pods are lost."""
    parts, total = replicas.defaulted(job["spec"]), 0
    for pod in pods:
        kind = pod["metadata"]["labels"]["training.kubeflow.org/replica-type"].capitalize()
        if parts.get(kind, {}).get("restartPolicy") == "Never" or pod["status"].get("phase") != "Running":
            continue
        for key in ("initContainerStatuses", "containerStatuses"):
            total += sum(entry["restartCount"] for entry in pod["status"].get(key) or [])
    return total


def seconds_since(stamp: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()

"""What a PyTorchJob and its pods say about how things stand. Pure functions over the API's plain objects."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainwright.errors import (
    DependencyError,
    InputError,
    InternalError,
    PreemptedUnsaved,
    TrainwrightError,
)

_BY_CODE = {kind.code: kind for kind in TrainwrightError.__subclasses__()}
_BROKEN = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
    }
)
_OUT_OF_MEMORY = "OOMKilled"


def phase(job: Mapping[str, Any]) -> Literal["pending", "running", "succeeded", "failed", "disputed"]:
    """Return where a job stands.

    The order of the conditions means nothing, and Succeeded and Failed can both be true: disputed.
    """
    conditions = job.get("status", {}).get("conditions") or []
    true = {entry["type"] for entry in conditions if entry["status"] == "True"}
    match "Succeeded" in true, "Failed" in true:
        case True, True:
            return "disputed"
        case True, False:
            return "succeeded"
        case False, True:
            return "failed"
    return "running" if true & {"Running", "Restarting"} else "pending"


@dataclass(frozen=True)
class Waiting:
    """A pod that cannot start.

    Attributes:
        pod: Its name.
        reason: Kubernetes' word for it.
        message: What Kubernetes says.
        broken: Whether waiting longer is likely to be in vain.
    """

    pod: str
    reason: str
    message: str
    broken: bool

    def __str__(self) -> str:
        """Say it on one line."""
        return f"pod {self.pod}: {self.reason}" + (f": {self.message}" if self.message else "")


def waiting(pods: Iterable[Mapping[str, Any]]) -> Waiting | None:
    """Return a pod that cannot start, a broken one if there is any.

    The job itself stays Created for ever in that case, so the pods have to be asked.
    """
    found = []
    for pod in pods:
        if pod["metadata"].get("deletionTimestamp"):
            continue
        name = pod["metadata"]["name"]
        for entry in pod["status"].get("containerStatuses") or []:
            state = entry["state"].get("waiting") or {}
            if state.get("reason", "") in _BROKEN:
                found.append(Waiting(name, state["reason"], state.get("message", ""), broken=True))
        for entry in pod["status"].get("conditions") or []:
            if entry["type"] == "PodScheduled" and entry["status"] == "False":
                found.append(Waiting(name, entry.get("reason", ""), entry.get("message", ""), broken=False))
    return min(found, key=lambda entry: not entry.broken, default=None)


@dataclass(frozen=True)
class PodFailure:
    """A pod that ended badly, or is being taken away.

    Attributes:
        pod: Its name.
        when: Time, as Kubernetes writes it.
        exit_code: Exit code of its container; absent while it still runs.
        reason: Kubernetes' word for how it ended.
        disrupted: Kubernetes' word for why it was taken off its node; empty if it was not.
    """

    pod: str
    when: str
    exit_code: int | None
    reason: str
    disrupted: str

    def __str__(self) -> str:
        """Say it on one line."""
        if self.disrupted:
            return f"pod {self.pod} was taken off its node ({self.disrupted})"
        return f"pod {self.pod} ended with exit code {self.exit_code} ({self.reason})"

    def to_error(self) -> TrainwrightError:
        """Return the error that this amounts to, when no process left a better one."""
        if self.disrupted:
            return PreemptedUnsaved(str(self), hint="Run the step again.")
        if self.reason == _OUT_OF_MEMORY:
            return InputError(
                f"{self}: it needed more memory than it was given",
                where="resources.memory_gib",
                hint="Raise it, or use fewer processes a node or a smaller batch.",
            )
        kind = _BY_CODE.get(self.exit_code or 0, InternalError)
        return kind(str(self), hint="Its last lines are in the log of that pod.")


def first_failure(pods: Iterable[Mapping[str, Any]]) -> PodFailure | None:
    """Return the pod that ended badly first, or was taken away first."""
    found = [failure for pod in pods if (failure := _failure(pod))]
    return min(found, key=lambda failure: failure.when, default=None)


def _failure(pod: Mapping[str, Any]) -> PodFailure | None:
    """Return how a pod failed, if it did.

    A pod that was deleted before it ever started shows exit code 137 too, with reason
    ContainerStatusUnknown; it has failed nothing. One that was evicted may exit 0 and has failed.
    """
    name, status = pod["metadata"]["name"], pod["status"]
    states = [entry["state"].get("terminated") for entry in status.get("containerStatuses") or []]
    ended = next((state for state in states if state), None)
    code, reason = (ended["exitCode"], ended.get("reason", "")) if ended else (None, "")
    for entry in status.get("conditions") or []:
        if entry["type"] == "DisruptionTarget" and entry["status"] == "True":
            when, why = entry.get("lastTransitionTime") or "", entry.get("reason", entry["type"])
            return PodFailure(name, when, code, reason, why)
    if ended and code and reason != "ContainerStatusUnknown":
        return PodFailure(name, ended.get("finishedAt") or "", code, reason, "")
    return None


def unexplained(job: Mapping[str, Any], marker: str) -> TrainwrightError:
    """Return the error for a job that ended and left neither its marker nor a failed pod."""
    conditions = job.get("status", {}).get("conditions") or []
    last = [entry.get("message", "") for entry in conditions if entry["type"] in {"Succeeded", "Failed"}]
    said = "; ".join(last) or "nothing"
    return DependencyError(
        f"the job ended without its completion marker {marker}; the operator says: {said}",
        where=f"PyTorchJob {job['metadata']['name']}",
        hint="A pod that is evicted and exits 0 looks like success: run the step again.",
    )

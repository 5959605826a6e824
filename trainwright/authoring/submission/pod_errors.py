"""Errors that Argo reports for the pods of a run: pods that cannot start, and failures around the program.

Argo keeps the reason as the message of the pod's node: Kubernetes' own word and sentence while a pod waits
(``ImagePullBackOff: …``, ``Unschedulable: …``), and the container with its exit code once it has ended.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainwright.errors import (
    DependencyError,
    Hang,
    InputError,
    PermissionRefused,
    PreemptedUnsaved,
    TrainwrightError,
    TransientError,
)

STARTING = frozenset({"", "PodInitializing", "ContainerCreating"})
"""Messages of a pod that starts as every pod does."""

_NODE = re.compile(r"(?P<task>.+?)(-driver)?(\(\d+\))?")
_PLAIN = re.compile(r"main: Error \(exit code (?!143\))\d+\)")
"""What Argo says of every program that failed: the reason is in the step's log. With 143 it was stopped."""

_CAUSES: tuple[tuple[str, type[TrainwrightError], str, str], ...] = (
    (
        r"InvalidImageName|ErrImageNeverPull",
        InputError,
        "the image has no valid name",
        "Look at --registry, and at the image in the compiled pipeline.",
    ),
    (
        r"ErrImagePull|ImagePullBackOff|ImageInspectError|RegistryUnavailable",
        DependencyError,
        "the image cannot be pulled",
        "Look at the image's name, at --registry, and at the pull secrets of the namespace.",
    ),
    (
        r"CreateContainerConfigError",
        InputError,
        "the container cannot be configured",
        "Create the Secret or ConfigMap, or take the reference out of the pipeline.",
    ),
    (
        r"persistentvolumeclaim",
        InputError,
        "the pod has no volume",
        "Create the claim (deploy/base/volume.yaml), or name another one: resources.claim.",
    ),
    (
        r"Unschedulable",
        DependencyError,
        "no node takes the pod",
        "Ask for less (steps.STEP.cpu and .memory), add a node, or wait for room.",
    ),
    (
        r"OOMKilled",
        InputError,
        "the step ran out of memory",
        "Give it more: steps.STEP.memory of the experiment file.",
    ),
    (
        r"EmptyDir volume|ephemeral(?: local)? storage",
        DependencyError,
        "the pod used more disk than it may",
        "Raise the limit that the sentence names, or keep less on the disk of the pod.",
    ),
    (
        r"exit code 143",
        PreemptedUnsaved,
        "the pod was stopped from outside, as when it is deleted or its node drained",
        "Run again: trainwright retry. Argo counts this as a failure, which OnError does not retry.",
    ),
    (
        r"exceeded quota",
        DependencyError,
        "the namespace's quota is used up",
        "Ask for less (steps.STEP.cpu and .memory), or wait until other pods end.",
    ),
    (
        r"is forbidden|violates PodSecurity",
        InputError,
        "the namespace does not allow the pod",
        "Change what the sentence names: a LimitRange, Pod Security, or rights of the service account.",
    ),
    (
        r"AccessDenied|Access Denied|InvalidAccessKeyId|SignatureDoesNotMatch|403 Forbidden",
        PermissionRefused,
        "the store of the pipeline rejects Argo's keys",
        "Look at Secret mlpipeline-minio-artifact and at the role of the service account: "
        "trainwright doctor --host.",
    ),
    (
        r"failed to (?:put|get|save|load|upload|download)|wait: Error|init: Error",
        DependencyError,
        "Argo could not save or load what belongs to the step",
        "Look whether the pipeline's store is up: trainwright doctor --host; then trainwright retry.",
    ),
    (
        r"deadline",
        Hang,
        "the step exceeded its time limit",
        "Look into its log for where the time went.",
    ),
    (
        r"pod deleted|low on resource|[Ee]vict|[Pp]reempt|[Ss]hutdown|NodeLost|[Tt]ermination",
        TransientError,
        "the pod was lost with its node, and so were its retries",
        "Run again: trainwright retry.",
    ),
)
"""Patterns of messages, most specific first: the error, in our words, and what to do."""


def task_of(node: str) -> str:
    """Return the task that a node belongs to: ``train`` for ``W(0).root(0).train(0).executor(0)``."""
    *_, part = (part for part in node.split(".") if not part.startswith("executor"))
    found = _NODE.fullmatch(part)
    return found["task"] if found else part


def blocked(nodes: Mapping[str, Any]) -> dict[str, str]:
    """Return the message of every pod that cannot start, by task."""
    waiting = (
        node for node in nodes.values() if node.get("type") == "Pod" and node.get("phase") == "Pending"
    )
    return {
        task_of(str(node.get("name", ""))): message
        for node in waiting
        if (message := str(node.get("message") or "")) not in STARTING
    }


def failure(nodes: Mapping[str, Any], before: Mapping[str, str]) -> tuple[str, TrainwrightError] | None:
    """Return the task that failed first for a reason that Argo knows, with the error.

    Args:
        nodes: Of the workflow.
        before: Messages of pods that could not start, by task: when a time limit ends such a pod, Argo keeps
            the limit only.
    """
    for node in sorted(_failed(nodes), key=lambda node: str(node.get("finishedAt") or "9")):
        task = task_of(str(node.get("name", "")))
        message = str(node.get("message") or "")
        if "deadline" in message:
            message = before.get(task, message)
        if message and not _PLAIN.fullmatch(message) and (error := explained(message)):
            return task, error
    return None


def _failed(nodes: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the pods that failed, but for attempts after which the retry succeeded."""
    good = {
        child
        for node in nodes.values()
        if node.get("type") == "Retry" and node.get("phase") == "Succeeded"
        for child in node.get("children") or ()
    }
    for name, node in nodes.items():
        if node.get("type") == "Pod" and node.get("phase") in {"Failed", "Error"} and name not in good:
            yield node


def explained(message: str) -> TrainwrightError | None:
    """Return the error that a message of Argo or Kubernetes stands for; None for one that is unknown."""
    for pattern, kind, text, hint in _CAUSES:
        if re.search(pattern, message):
            return kind(f"{text}: {message}", hint=hint)
    return None

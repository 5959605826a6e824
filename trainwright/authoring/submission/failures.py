"""The reason for which a step failed: its own line in the log, Argo's message, or the launcher's last words.

The container of a step ends with 1 whatever code the step ended with, because its main process is Kubeflow's
launcher. The line that every step of this library ends with is in the log. The API server reads a log from
the pod while there is one. Afterwards it reads the archive that Argo keeps in the object store
(``main-logs``, with ``archiveLogs: true``, which is set in KFP's own manifests).

Argo keeps its reason as the message of the pod's node: Kubernetes' own word and sentence while a pod waits
(``ImagePullBackOff: …``, ``Unschedulable: …``), and the container with its exit code once it has ended.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from trainwright.authoring.submission.connection import FAILURES, Connection
from trainwright.authoring.submission.progress import RETRYABLE
from trainwright.errors import (
    ERRORS,
    DependencyError,
    Hang,
    InputError,
    InternalError,
    PermissionRefused,
    PreemptedUnsaved,
    TrainwrightError,
    TransientError,
    as_record,
    last_record,
    record_in,
)

STARTING = frozenset({"", "PodInitializing", "ContainerCreating"})
"""Messages of a pod that starts as every pod does."""

_TASK_NODE = re.compile(r"(?P<task>.+?)(-driver)?(\(\d+\))?")
_PLAIN = re.compile(r"main: Error \(exit code (?!143\))\d+\)")
"""Argo's message for every program that failed: the reason is in the step's log. With 143 it was stopped."""

_CAUSES: tuple[tuple[str, type[TrainwrightError], str, str], ...] = (
    (r"InvalidImageName|ErrImageNeverPull", InputError, "the image has no valid name",
     "Look at --registry, and at the image in the compiled pipeline."),
    (r"ErrImagePull|ImagePullBackOff|ImageInspectError|RegistryUnavailable", DependencyError,
     "the image cannot be pulled",
     "Look at the image's name, at --registry, and at the pull secrets of the namespace."),
    (r"CreateContainerConfigError", InputError, "the container cannot be configured",
     "Create the Secret or ConfigMap, or take the reference out of the pipeline."),
    (r"persistentvolumeclaim", InputError, "the pod has no volume",
     "Create the claim (deploy/base/volume.yaml), or name another one: resources.claim."),
    (r"Unschedulable", DependencyError, "no node takes the pod",
     "Ask for less (steps.STEP.cpu and .memory), add a node, or wait for room."),
    (r"OOMKilled", InputError, "the step ran out of memory",
     "Give it more: steps.STEP.memory of the experiment file."),
    (r"EmptyDir volume|ephemeral(?: local)? storage", DependencyError,
     "the pod used more disk than it may",
     "Raise the limit that the sentence names, or keep less on the disk of the pod."),
    (r"exit code 143", PreemptedUnsaved,
     "the pod was stopped from outside, as when it is deleted or its node drained",
     "Run again: trainwright retry. Argo counts this as a failure, which OnError does not retry."),
    (r"exceeded quota", DependencyError, "the namespace's quota is used up",
     "Ask for less (steps.STEP.cpu and .memory), or wait until other pods end."),
    (r"is forbidden|violates PodSecurity", InputError, "the namespace does not allow the pod",
     "Change what the sentence names: a LimitRange, Pod Security, or rights of the service account."),
    (r"AccessDenied|Access Denied|InvalidAccessKeyId|SignatureDoesNotMatch|403 Forbidden", PermissionRefused,
     "the store of the pipeline rejects Argo's keys",
     "Look at Secret mlpipeline-minio-artifact and at the role of the service account: "
     "trainwright doctor --host."),
    (r"failed to (?:put|get|save|load|upload|download)|wait: Error|init: Error", DependencyError,
     "Argo could not save or load what belongs to the step",
     "Look whether the pipeline's store is up: trainwright doctor --host; then trainwright retry."),
    (r"deadline", Hang, "the step exceeded its time limit", "Look into its log for where the time went."),
    (r"pod deleted|low on resource|[Ee]vict|[Pp]reempt|[Ss]hutdown|NodeLost|[Tt]ermination", TransientError,
     "the pod was lost with its node, and so were its retries", "Run again: trainwright retry."),
)  # fmt: skip
"""Patterns of messages, most specific first: the error, in our words, and what to do."""

PLATFORM = "kubeflow"
"""The component of an error that Kubeflow's launcher or driver printed, not the step."""

MOST_NODES = 8
TAIL_BYTES = 131_072
MOST_BYTES = 64 * 1024 * 1024
"""A longer log has no line that we know of: it is not read to its end."""

_TEMPLATES = ("retry-system-container-impl", "system-container-impl")
"""KFP 2.17's names for the templates of the pods that run a step, with a retry policy and without."""

_PLATFORM = re.compile(r"^[EF]\d{4} \S+ +\d+ \S+\.go:\d+\] (failed to execute component|KFP driver): (.+)$")
"""The last words of Kubeflow's launcher or driver, as glog writes them."""

_OTHER_VERSION = re.compile(
    r"^(?:ModuleNotFoundError|ImportError|\S*python\S*): (?:No module named|cannot import name '\w+' from)"
    r" '?trainwright\b.*$",
    re.MULTILINE,
)
"""The end of a component that imports what the library in its image does not have.

It imports before :func:`trainwright.errors.reported` runs, so that no error line of ours follows.
"""


def task_of(node: str) -> str:
    """Return the task that a node belongs to: ``train`` for ``W(0).root(0).train(0).executor(0)``."""
    *_, part = (part for part in node.split(".") if not part.startswith("executor"))
    found = _TASK_NODE.fullmatch(part)
    return found["task"] if found else part


def blocked(nodes: Mapping[str, Any]) -> dict[str, str]:
    """Return the message of every pod that cannot start, by task."""
    return {
        task_of(str(node.get("name", ""))): message
        for node in nodes.values()
        if node.get("type") == "Pod" and node.get("phase") == "Pending"
        if (message := str(node.get("message") or "")) not in STARTING
    }


def failure(nodes: Mapping[str, Any], before: Mapping[str, str]) -> tuple[str, TrainwrightError] | None:
    """Return the task that failed first for a reason that Argo knows, with the error.

    Argo's message of a node ends with what the step wrote as its termination message, its error line.

    Args:
        nodes: Of the workflow.
        before: Messages of pods that could not start, by task: when a time limit ends such a pod, Argo keeps
            the limit only.
    """
    retried = {  # attempts after which a retry succeeded
        child
        for node in nodes.values()
        if node.get("type") == "Retry" and node.get("phase") == "Succeeded"
        for child in node.get("children") or ()
    }
    failed = [
        node
        for name, node in nodes.items()
        if node.get("type") == "Pod" and node.get("phase") in {"Failed", "Error"} and name not in retried
    ]
    for node in sorted(failed, key=lambda node: str(node.get("finishedAt") or "9")):
        task, message = task_of(str(node.get("name", ""))), str(node.get("message") or "")
        if record := record_in(message):
            texts = {name: record[name] for name in ("where", "hint")}
            return task, ERRORS[record["code"]](record["what"], **texts)
        if "deadline" in message:
            message = before.get(task, message)
        if message and not _PLAIN.fullmatch(message) and (error := explained(message)):
            return task, error
    return None


def explained(message: str) -> TrainwrightError | None:
    """Return the error that a message of Argo or Kubernetes stands for; None for an unknown one."""
    for pattern, kind, text, hint in _CAUSES:
        if re.search(pattern, message):
            return kind(f"{text}: {message}", hint=hint)
    return None


def reason(api: Connection, run: Any) -> dict[str, Any]:
    """Return the error of the step that failed, with the fields of ``as_record``; or nothing.

    The step's own line wins. It refines a failure into another one, never into success: the API knows that.
    Without one, the last words of Kubeflow's launcher or driver are translated. A log that cannot be read is
    no error.
    """
    said: dict[str, Any] = {}
    for log in _logs(api, run):
        if found := last_record(log):
            return found
        last = [match for line in log.splitlines() if (match := _PLATFORM.match(line))][-1:]
        if lines := _OTHER_VERSION.findall(log):
            return as_record(_other_version(lines[-1]), PLATFORM)
        if last and not said:
            said = as_record(_translated(last[0][1], last[0][2].strip()), PLATFORM)
    return said


def _logs(api: Connection, run: Any) -> Iterator[str]:
    """Yield the ends of the logs of failed nodes: the first failure and the last attempt first."""
    listed = (run.run_details and run.run_details.task_details) or []
    ended = [detail for detail in listed if detail.state in RETRYABLE]
    ended.sort(key=lambda detail: str(detail.end_time or "9"))
    executors = [detail for detail in ended if str(detail.display_name).startswith("executor")]
    nodes: list[str] = []
    for detail in [*executors, *ended]:
        nodes += [child.pod_name for child in reversed(detail.child_tasks or []) if child.pod_name]
        nodes += [detail.pod_name] if detail.pod_name else []
    run_id = quote(run.run_id, safe="")
    for node in list(dict.fromkeys(nodes))[:MOST_NODES]:
        # A pod is called WORKFLOW-TEMPLATE-NUMBER, its node WORKFLOW-NUMBER.
        workflow, _, number = node.rpartition("-")
        pods = [f"{workflow}-{template}-{number}" for template in _TEMPLATES] if number.isdigit() else []
        for pod in [*pods, node]:
            yield _tail(api, f"/apis/v1alpha1/runs/{run_id}/nodes/{quote(pod, safe='')}/log").decode(
                errors="replace"
            )
        path = f"/apis/v2beta1/runs/{run_id}/nodes/{quote(node, safe='')}/artifacts/main-logs:read"
        yield _archived(_tail(api, path))


def _tail(api: Connection, path: str) -> bytes:
    """Return the end of an answer; empty if the API does not give it, or it is too long."""
    tail, total = b"", 0
    try:
        answer = api.get(path)
        try:
            for part in answer.stream(TAIL_BYTES):
                tail, total = (tail + part)[-TAIL_BYTES:], total + len(part)
                if total > MOST_BYTES:
                    return b""
        finally:
            answer.release_conn()
    except (*FAILURES, TrainwrightError, ValueError):
        return b""
    return tail


def _archived(data: bytes) -> str:
    """Decode the end of ``{"data":"BASE64"}``: from its end backwards, in groups of four letters."""
    if not data.endswith(b'"}'):
        return ""
    text = data.removeprefix(b'{"data":"').removesuffix(b'"}')
    try:
        return base64.b64decode(text[len(text) % 4 :], validate=True).decode(errors="replace")
    except ValueError:
        return ""


def _other_version(said: str) -> TrainwrightError:
    """Return the error for a step that cannot import this library."""
    return DependencyError(
        f"the step's image is of another version than its pipeline: {said}",
        hint="Build the images of the version that compiled the pipeline (make images PUSH=HOST/TEAM), and "
        "name them by digest, so that no node runs an older one (trainwright compile --lock-images).",
    )


def _translated(speaker: str, said: str) -> TrainwrightError:
    """Return the error that a sentence of Kubeflow's launcher or driver stands for."""
    if match := re.fullmatch(r"(?:.*: )?exit status (\d+)", said):
        text = f"the step's program ended with exit code {match[1]} and printed no error line of trainwright"
        return InternalError(text, hint="Look into the step's log, on the page of the run.")
    if match := re.fullmatch(r"(?:.*: )?signal: (\w+).*", said):
        text = f"the step's program was ended by a signal: {match[1]}"
        return InternalError(text, hint="If it was killed, it may have run out of memory: ask for more.")
    if re.fullmatch(r"(?:.*: )?(?:exec|fork/exec)\b.*", said):
        text = f"Kubeflow's launcher cannot start the step's program: {said}"
        return InputError(text, hint="Look whether the step names the image it was compiled for.")
    part = "launcher failed around the step's code" if speaker.startswith("failed") else "driver failed"
    hint = "Look whether the pipeline's store and its credentials are there: trainwright doctor --host."
    return DependencyError(f"Kubeflow's {part}: {said}", hint=hint)

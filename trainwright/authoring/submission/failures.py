"""The reason for which a step failed: its own line in the log, Argo's message, or the launcher's last words.

The container of a step ends with 1 whatever code the step ended with, because its main process is Kubeflow's
launcher. The line that every step of this library ends with is in the log. The API server reads a log from
the pod while there is one. Afterwards it reads the archive that Argo keeps in the object store
(``main-logs``, with ``archiveLogs: true``, which is set in KFP's own manifests).

Argo keeps its reason as the message of the pod's node: Kubernetes' own word and sentence while a pod waits
(``ImagePullBackOff: …``, ``Unschedulable: …``), and the container with its exit code once it has ended.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import urllib3

from trainwright.authoring.submission.connection import FAILURES, Connection
from trainwright.authoring.submission.progress import RETRYABLE
from trainwright.errors import (
    MARK,
    DependencyError,
    Hang,
    InputError,
    InternalError,
    PermissionRefused,
    PreemptedUnsaved,
    TrainwrightError,
    TransientError,
    as_record,
)

STARTING = frozenset({"", "PodInitializing", "ContainerCreating"})
"""Messages of a pod that starts as every pod does."""

_TASK_NODE = re.compile(r"(?P<task>.+?)(-driver)?(\(\d+\))?")
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
    found = _TASK_NODE.fullmatch(part)
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


MOST_NODES = 8
TAIL_BYTES = 65_536
MOST_BYTES = 64 * 1024 * 1024
"""Of a log, at most so much is read; a step that printed more has no line that we know of."""

PLATFORM = "kubeflow"
"""The component of an error that Kubeflow's launcher or driver printed, not the step."""

_NODE = re.compile(r"(.+)-(\d+)")
_TEMPLATES = ("retry-system-container-impl", "system-container-impl")
"""What KFP 2.17 calls the templates of the pods that run a step, with a retry policy and without."""

_ARCHIVE = "main-logs"
_OPENING = b'{"data":"'
_PLATFORM = re.compile(r"^[EF]\d{4} \S+ +\d+ \S+\.go:\d+\] (failed to execute component|KFP driver): (.+)$")
"""The last words of Kubeflow's launcher or driver, as glog writes them."""

_ENDED = re.compile(r"(?:.*: )?exit status (\d+)")
_KILLED = re.compile(r"(?:.*: )?signal: (\w+).*")
_NO_PROGRAM = re.compile(r"(?:.*: )?(?:exec|fork/exec)\b.*")


def reason(api: Connection, run: Any) -> dict[str, Any]:
    """Return the error of the step that failed, with the fields of ``as_record``; or nothing.

    The step's own line wins. Without one, what Kubeflow's launcher or driver said is translated. Never
    raises: what cannot be read is not known.
    """
    said: dict[str, Any] = {}
    for log in _logs(api, run):
        if found := _line(log):
            return found
        said = said or _platform(log)
    return said


def _logs(api: Connection, run: Any) -> Iterator[str]:
    """Yield the ends of the logs of failed steps: of their pods, and from the archive."""
    for node in list(dict.fromkeys(_nodes(run)))[:MOST_NODES]:
        yield from (log for pod in _pods(node) if (log := _pod_log(api, run.run_id, pod)))
        yield _archived_log(api, run.run_id, node)


def _nodes(run: Any) -> Iterator[str]:
    """Yield the workflow nodes that failed: the first failure and the last attempt first."""
    details = (run.run_details.task_details if run.run_details else None) or []
    ended = sorted((detail for detail in details if detail.state in RETRYABLE), key=_end)
    executors = [detail for detail in ended if str(detail.display_name).startswith("executor")]
    for detail in [*executors, *ended]:
        yield from (child.pod_name for child in reversed(detail.child_tasks or []) if child.pod_name)
        if detail.pod_name:
            yield detail.pod_name


def _pods(node: str) -> Iterator[str]:
    """Yield the names that a node's pod may have: ``WORKFLOW-NUMBER``, with a template in between."""
    if parts := _NODE.fullmatch(node):
        yield from (f"{parts[1]}-{template}-{parts[2]}" for template in _TEMPLATES)
    yield node


def _end(detail: Any) -> str:
    """Order by the end: of several that failed, the first is the reason."""
    return str(detail.end_time or "9")


def _pod_log(api: Connection, run_id: str, pod: str) -> str:
    """Return the end of a pod's log; empty if the API does not give it."""
    path = f"/apis/v1alpha1/runs/{quote(run_id, safe='')}/nodes/{quote(pod, safe='')}/log"
    return _read(api, path, lambda data: data)


def _archived_log(api: Connection, run_id: str, node: str) -> str:
    """Return the end of the archived log of a node; empty if there is none, or it may not be read."""
    node = f"{quote(run_id, safe='')}/nodes/{quote(node, safe='')}"
    return _read(api, f"/apis/v2beta1/runs/{node}/artifacts/{_ARCHIVE}:read", _decoded)


def _read(api: Connection, path: str, decode: Callable[[bytes], bytes]) -> str:
    limits = (api.place.connect_s, api.place.answer_s)
    try:
        answer = api.client.call_api(
            path,
            "GET",
            auth_settings=["Bearer"],
            _preload_content=False,
            _request_timeout=limits,
            _return_http_data_only=True,
        )
        return decode(_tail(answer)).decode(errors="replace")
    except (*FAILURES, ValueError):
        return ""


def _tail(answer: urllib3.BaseHTTPResponse) -> bytes:
    """Read an answer to its end, and keep the end only."""
    kept, total = b"", 0
    try:
        for part in answer.stream(TAIL_BYTES):
            kept, total = (kept + part)[-2 * TAIL_BYTES :], total + len(part)
            if total > MOST_BYTES:
                return b""
    finally:
        answer.release_conn()
    return kept


def _decoded(data: bytes) -> bytes:
    """Decode the end of ``{"data":"BASE64"}``: from its end backwards, in groups of four letters."""
    if not data.endswith(b'"}'):
        return b""
    text = data.removeprefix(_OPENING).removesuffix(b'"}')
    return base64.b64decode(text[len(text) % 4 :], validate=True)


def _line(log: str) -> dict[str, Any]:
    for line in reversed(log.splitlines()):
        if line.startswith(MARK):
            try:
                found = json.loads(line.removeprefix(MARK))
            except ValueError:
                continue
            if isinstance(found, dict) and isinstance(found.get("code"), int):
                return found
    return {}


def _platform(log: str) -> dict[str, Any]:
    """Translate the last words of Kubeflow's launcher or driver; nothing if the log has none."""
    found = [match for line in log.splitlines() if (match := _PLATFORM.match(line))]
    if not found:
        return {}
    return as_record(_translated(found[-1][1], found[-1][2].strip()), PLATFORM)


def _translated(who: str, said: str) -> TrainwrightError:
    """Return the error that a sentence of Kubeflow's launcher or driver stands for."""
    look = "Look into the step's log, on the page of the run."
    if match := _ENDED.fullmatch(said):
        text = f"the step's program ended with exit code {match[1]} and printed no error line of trainwright"
        return InternalError(text, hint=look)
    if match := _KILLED.fullmatch(said):
        text = f"the step's program was ended by a signal: {match[1]}"
        return InternalError(text, hint="If it was killed, it may have run out of memory: ask for more.")
    if _NO_PROGRAM.fullmatch(said):
        text = f"Kubeflow's launcher cannot start the step's program: {said}"
        return InputError(text, hint="Look whether the step names the image it was compiled for.")
    part = "launcher failed around the step's code" if who.startswith("failed") else "driver failed"
    hint = "Look whether the pipeline's store and its credentials are there: trainwright doctor --host."
    return DependencyError(f"Kubeflow's {part}: {said}", hint=hint)

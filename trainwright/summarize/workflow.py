"""The tasks of a run as its Argo Workflow lists them: names, states, cache hits, errors, artifact URIs.

Kubeflow Pipelines 2.17 runs each task as a driver and, unless the cache serves it, an executor. Its API
names neither artifacts nor cache hits, and MLMD has no client that is small enough for a step. The Workflow
has both, and every pod of a run may read it: ``pipeline-runner`` and ``default-editor`` have ``get`` on it.
"""

import base64
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.documents import read_json
from trainwright.errors import DependencyError, InputError, PermissionRefused
from trainwright.http_exchange import HttpStatus, exchange, is_transient
from trainwright.http_limits import MAX_BYTES, inflate
from trainwright.retries import GaveUp, retry

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts the token of a pod's service account."""

HTML = "system.HTML"
"""KFP's type of a page."""

_DRIVER = re.compile(r"(?P<path>.*)-driver")
_TEMPLATE = "container-driver"
_ROOT = ".root-driver"
_STATES = {
    "Succeeded": "done",
    "Failed": "failed",
    "Error": "failed",
    "Skipped": "skipped",
    "Omitted": "skipped",
    "Running": "running",
    "Pending": "running",
}
DEADLINE_S, _TIMEOUT_S = 15.0, 20.0
"""For the retries of a call, and for one answer: the page is worth having without the workflow."""

_FORBIDDEN = frozenset({401, 403})


@dataclass(frozen=True)
class WorkflowReader:
    """The Kubernetes API as a pod reaches it; ``authority`` is a CA file, empty for the system's."""

    address: str
    namespace: str
    token: str = field(repr=False)
    authority: str = ""


@dataclass(frozen=True)
class WorkflowTask:
    """One task of a run.

    Attributes:
        name: Unique name, also of its folder in the store: ``resolve-2``.
        shown: Display name: ``resolve-features``.
        state: ``done``, ``cached``, ``failed``, ``skipped`` or ``running``.
        inputs: URIs of its input artifacts, of this run or an earlier one.
        outputs: URIs of its output artifacts.
        reports: URIs of those that are pages of HTML.
        message: Argo's message of a failed task.
        started: Start of its driver, ISO 8601.
        ended: End of its executor.
        image: Its image.
    """

    name: str
    shown: str
    state: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    message: str = ""
    started: str = ""
    ended: str = ""
    image: str = ""


@dataclass(frozen=True)
class Workflow:
    """Tasks of a run in the order of their start, skipped ones last, and the arguments of its pipeline."""

    tasks: list[WorkflowTask]
    arguments: dict[str, Any]


def in_cluster(account: Path = ACCOUNT) -> WorkflowReader | None:
    """Return the API of this pod's cluster, recognized as Kubernetes' clients do; None outside a cluster."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host:
        return None
    try:
        token, namespace = ((account / name).read_text().strip() for name in ("token", "namespace"))
    except OSError:
        token, namespace = "", ""
    host = f"[{host}]" if ":" in host else host
    return WorkflowReader(f"https://{host}:{port or 443}", namespace, token, str(account / "ca.crt"))


def read_workflow(cluster: WorkflowReader, workflow: str) -> Workflow:
    """Return the tasks and the arguments of a run.

    Raises:
        PermissionRefused: The service account may not read it, or the pod has no token.
        DependencyError: The API does not answer, or has no such workflow.
        InputError: The workflow lists no tasks, or is not in Argo's format.
    """
    if not cluster.token:
        raise PermissionRefused(
            "the run's workflow could not be read: this pod has no token of a service account",
            where=str(ACCOUNT),
            hint="Set automountServiceAccountToken: true on the service account that steps run as.",
        )
    what = f"workflows/{workflow}"
    try:
        found = _get(cluster, what)
        tasks, arguments = tasks_of(found), arguments_of(found)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError, zlib.error) as error:
        said = f"{type(error).__name__}: {error}"
        raise InputError(f"the run's workflow is not in Argo's form: {said}", where=what) from None
    if not tasks:
        raise InputError("the run's workflow lists no tasks", where=what)
    return Workflow(tasks, arguments)


def tasks_of(workflow: Mapping[str, Any]) -> list[WorkflowTask]:
    """Return the tasks that a Workflow object lists."""
    nodes = _nodes(workflow)
    found = [
        _task(match["path"], node, nodes)
        for name, node in nodes.items()
        if (match := _DRIVER.fullmatch(name)) and str(node.get("templateName", "")).endswith(_TEMPLATE)
    ]
    return sorted(found, key=lambda task: (task.state == "skipped", task.started, task.name))


def arguments_of(workflow: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that the driver of the whole pipeline gets; empty if it lists none."""
    for name, node in _nodes(workflow).items():
        if name.endswith(_ROOT):
            config = _parameters(node.get("inputs")).get("runtime-config")
            return dict(read_json(config).get("parameterValues", {})) if config else {}
    return {}


def _nodes(workflow: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    status = workflow.get("status") or {}
    packed = status.get("compressedNodes")  # Argo compresses those of a large workflow
    listed = read_json(inflate(base64.b64decode(packed), MAX_BYTES)) if packed else status.get("nodes")
    return {str(node["name"]): node for node in dict(listed or {}).values()}


def _task(path: str, driver: Mapping[str, Any], nodes: Mapping[str, Any]) -> WorkflowTask:
    executor = nodes.get(path, {})
    decided = _parameters(driver.get("outputs"))
    phase = driver.get("phase", "")
    name = path.rpartition(".")[2]
    phase = executor.get("phase") or ("Running" if phase == "Succeeded" else phase)
    state = _STATES.get(str(phase), "running")
    if decided.get("cached-decision") == "true":
        state = "cached"
    elif decided.get("condition") == "false":
        state = "skipped"
    patch = decided.get("pod-spec-patch", "")
    inputs, outputs, reports = _artifacts(patch)
    return WorkflowTask(
        name=name,
        shown=_shown(_parameters(driver.get("inputs")).get("task", "")) or name,
        state=state,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        reports=tuple(reports),
        message=_reason(path, nodes) if state == "failed" else "",
        started=str(driver.get("startedAt") or ""),
        ended=str((executor or driver).get("finishedAt") or ""),
        image=_image(patch),
    )


def _reason(path: str, nodes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return Argo's message at a failed task's driver, its executor, or an attempt of either."""
    own = (f"{path}-driver", f"{path}(", f"{path}.")
    messages = (node.get("message") for name, node in nodes.items() if name == path or name.startswith(own))
    return next((str(message) for message in messages if message), "")


def _parameters(side: Mapping[str, Any] | None) -> dict[str, str]:
    return {entry["name"]: str(entry.get("value") or "") for entry in (side or {}).get("parameters") or []}


def _shown(task: str) -> str:
    """Return the display name in the task's specification."""
    try:
        return str(read_json(task)["taskInfo"]["name"])
    except (ValueError, KeyError, TypeError):
        return ""


def _artifacts(patch: str) -> tuple[list[str], list[str], list[str]]:
    """Return the URIs of inputs, outputs and pages among these that a driver passed to its executor."""
    try:
        [container] = read_json(patch)["containers"]
        command = container["command"]
        passed = read_json(command[command.index("--executor_input") + 1])
    except (ValueError, KeyError, TypeError):
        return [], [], []
    inputs, outputs = ([*_listed(passed.get(side))] for side in ("inputs", "outputs"))
    pages = [entry for entry in outputs if (entry.get("type") or {}).get("schemaTitle") == HTML]
    return [entry["uri"] for entry in inputs], [entry["uri"] for entry in outputs], [p["uri"] for p in pages]


def _image(patch: str) -> str:
    """Return the image that a driver passed to its executor."""
    try:
        [container] = read_json(patch)["containers"]
        return str(container.get("image") or "")
    except (ValueError, KeyError, TypeError):
        return ""


def _listed(side: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    for entry in ((side or {}).get("artifacts") or {}).values():
        yield from (artifact for artifact in entry.get("artifacts") or [] if artifact.get("uri"))


def _get(cluster: WorkflowReader, what: str) -> dict[str, Any]:
    """Read one object of Argo's in the pod's namespace."""
    path = f"/apis/argoproj.io/v1alpha1/namespaces/{cluster.namespace}/{what}"
    where = f"{cluster.address}{path}"
    headers = {"Authorization": f"Bearer {cluster.token}"}

    def ask() -> bytes:
        return exchange("GET", where, headers, timeout_s=_TIMEOUT_S, authority=cluster.authority)

    try:
        return dict(read_json(retry(ask, is_transient, where, DEADLINE_S)))
    except GaveUp as gave_up:
        error: Exception = gave_up.error
    except HttpStatus as status:
        if status.code in _FORBIDDEN:
            raise PermissionRefused(
                f"the service account may not read the run's workflow: {status}",
                where=where,
                hint="Allow get on workflows.argoproj.io, as KFP's own role pipeline-runner does.",
            ) from None
        error = status
    said = error if isinstance(error, HttpStatus) else f"{type(error).__name__}: {error}"
    raise DependencyError(f"the run's workflow could not be read: {said}", where=where)

"""The object that a job belongs to: when it goes, the job goes with it.

In Kubeflow Pipelines that is the Argo Workflow of the run. Every pod of a step says itself whose it is, in
its owner references, so neither a parameter (which would be part of the cache key) nor a right to read
workflows is needed: only the pod's own name. That is the one thing here that comes from the environment.
"""

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainwright.errors import TrainwrightError

_WORKFLOW = "Workflow"
_POD_NAME = "KFP_POD_NAME"
"""What Kubeflow Pipelines tells every step through the downward API: a host name is cut at 63 characters."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """An object of the job's namespace that owns it, such as the Argo Workflow of the run.

    Attributes:
        api_version: Such as ``argoproj.io/v1alpha1``.
        kind: Such as ``Workflow``.
        name: Its name.
        uid: Its identity: another object of the same name does not own the job.
    """

    api_version: str
    kind: str
    name: str
    uid: str


def own_pod() -> str:
    """Return the name of the pod that this process runs in; that of the machine outside of a cluster."""
    return os.environ.get(_POD_NAME) or socket.gethostname()


def find_owner(
    read_pod: Callable[[str], Mapping[str, Any] | None], pod: str | None = None
) -> tuple[Owner | None, str]:
    """Find the workflow that this pod belongs to.

    A job without an owner is no error: its lease and its deadline still end it.

    Args:
        read_pod: Reads a pod of the namespace; nothing if there is none of that name.
        pod: Name of the pod; this process's own if absent.

    Returns:
        The owner, and the empty string; or nothing, and why there is none.
    """
    name = pod or own_pod()
    try:
        found = read_pod(name)
    except TrainwrightError as error:
        return None, f"pod {name} could not be read: {error.what}"
    if found is None:
        return None, f"there is no pod {name} in this namespace"
    references = found.get("metadata", {}).get("ownerReferences") or []
    for entry in references:
        if entry.get("kind") == _WORKFLOW and entry.get("uid"):
            owner = Owner(
                api_version=entry["apiVersion"], kind=entry["kind"], name=entry["name"], uid=entry["uid"]
            )
            return owner, ""
    kinds = ", ".join(str(entry.get("kind")) for entry in references)
    owned = f"its owner is a {kinds}" if kinds else "it has no owner"
    return None, f"pod {name} belongs to no workflow: {owned}"

"""Whether the run that a job belongs to is still at work."""

from typing import Any

import urllib3
from kubernetes import client as k8s  # type: ignore[import-untyped]

from trainwright.launch.cluster.answers import Absent, Call, of_refusal, of_transport
from trainwright.launch.cluster.api import Api

_GROUP, _VERSION, _PLURAL = "argoproj.io", "v1alpha1", "workflows"
_ANSWER_S = 30.0


def phase(api: Api, name: str, uid: str) -> str | None:
    """Return the phase of a workflow: empty before it begins, nothing if there is none of that identity.

    Raises:
        PermissionRefused: Workflows may not be read.
        DependencyError: The cluster knows no workflows.
        TransientError: The API is out of reach.
    """
    try:
        found = api.retry(lambda: _read(api, name))
    except Absent:
        return None
    if found["metadata"]["uid"] != uid:
        return None
    return str((found.get("status") or {}).get("phase", ""))


def _read(api: Api, name: str) -> dict[str, Any]:
    call = Call(
        verb="get",
        resource=_PLURAL,
        group=_GROUP,
        namespace=api.namespace,
        name=name,
        operator="Argo Workflows",
    )
    try:
        found: dict[str, Any] = k8s.CustomObjectsApi(api.client).get_namespaced_custom_object(
            _GROUP, _VERSION, api.namespace, _PLURAL, name, _request_timeout=_ANSWER_S
        )
    except k8s.ApiException as error:
        raise of_refusal(error, call) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise of_transport(error) from error
    return found

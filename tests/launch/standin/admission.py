"""What happens to an object before it is stored: the schema's checks, names, and the operator's webhook."""

import re
import secrets
import string
from typing import Any

from tests.launch.standin import schema as schemas
from tests.launch.standin.answers import Refused, bad, denied, invalid
from tests.launch.standin.resources import Object, Resource

_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_LABEL = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_VALUE = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
_UNCHECKED = (
    "FieldValueInvalid",
    "<nil>",
    'Invalid value: "null": some validation rules were not checked because the object was invalid; '
    "correct the existing errors to complete validation",
)
_MANAGERS = ("kueue.x-k8s.io/multikueue", "kubeflow.org/training-operator")


def decoded(resource: Resource, namespace: str, body: Any, mode: str, schema: str = "") -> tuple[Object, str]:
    """Read an object; return it without what its kind does not have, and a warning of that.

    Args:
        resource: What it has to be.
        namespace: Where it is to be stored.
        body: What came.
        mode: ``Strict``, ``Warn`` or ``Ignore``.
        schema: Name of the schema that is installed; empty for none.

    Raises:
        Refused: It is something else, or has unknown fields and ``mode`` is strict.
    """
    if not isinstance(body, dict):
        said = "couldn't get version/kind; json parse error"
        raise bad(f"the object provided is unrecognized (must be of type {resource.kind}): {said}")
    body = {"apiVersion": resource.api_version, "kind": resource.kind} | body
    warning = ""
    if schema:
        tree = schemas.schema(schema)
        extra = [f'unknown field "{field}"' for field in schemas.unknown(body, tree)]
        if extra and mode == "Strict":
            said = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
            raise bad(f"{said}: strict decoding error: {', '.join(extra)}")
        told = extra if mode == "Warn" else []
        told += ["spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead"] * _old(body)
        warning = f"299 - {_quoted(told[0])}" if told else ""
        body = schemas.pruned(body, tree)
    meta = body["metadata"] = dict(body.get("metadata") or {})
    if meta.get("namespace", namespace) != namespace and resource.namespaced:
        raise bad("the namespace of the provided object does not match the namespace sent on the request")
    if not meta.get("name") and meta.get("generateName"):
        letters = string.ascii_lowercase + string.digits
        meta["name"] = meta["generateName"] + "".join(secrets.choice(letters) for _ in range(5))
    return body, warning


def _old(body: Object) -> bool:
    spec = body.get("spec")
    return isinstance(spec, dict) and "nProcPerNode" in (spec.get("elasticPolicy") or {})


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def check(
    resource: Resource, body: Object, before: Object | None = None, warning: str = "", schema: str = ""
) -> None:
    """Check an object that is about to be stored, against its schema and its webhook.

    Raises:
        Refused: It is not stored.
    """
    meta = body["metadata"]
    name = meta.get("name") or ""
    if body["kind"] != resource.kind:
        cause = ("FieldValueInvalid", "kind", f'Invalid value: "{body["kind"]}": must be {resource.kind}')
        raise invalid(resource, name, [cause], kind=body["kind"])
    if causes := _metadata_faults(meta):
        raise invalid(resource, name, causes)
    if schema:
        tree = schemas.schema(schema)
        causes = schemas.faults(body, tree)
        if any(reason in ("FieldValueTypeInvalid", "FieldValueRequired") for reason, *_ in causes):
            causes.append(_UNCHECKED)
        causes = causes or (schemas.moved(body, before, tree) if before else [])
        if causes:
            raise invalid(resource, name, causes)
    if resource.kind == "PyTorchJob":
        _admit_pytorchjob(body, warning)
    if resource.kind == "TrainJob" and not re.fullmatch(_LABEL, name):
        said = 'Invalid value: "object": metadata.name must match RFC 1035 DNS label format'
        raise invalid(resource, name, [("FieldValueInvalid", "<nil>", said)])


def _metadata_faults(meta: Object) -> list[schemas.Cause]:
    name = meta.get("name")
    if not name:
        return [("FieldValueRequired", "metadata.name", "Required value: name or generateName is required")]
    if not re.fullmatch(_SUBDOMAIN, name):
        said = (
            f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case '
            "alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character "
            f"(e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
        )
        return [("FieldValueInvalid", "metadata.name", said)]
    for value in (meta.get("labels") or {}).values():
        if not isinstance(value, str) or not re.fullmatch(_VALUE, value) or len(value) > 63:
            said = (
                f'Invalid value: "{value}": a valid label must be an empty string or consist of alphanumeric '
                "characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. "
                f"'MyValue',  or 'my_value',  or '12345', regex used for validation is '{_VALUE}')"
            )
            return [("FieldValueInvalid", "metadata.labels", said)]
    for key, value in (meta.get("annotations") or {}).items():
        if not isinstance(value, str):
            said = f'Invalid value: "{value}": annotation {key} is no string'
            return [("FieldValueInvalid", "metadata.annotations", said)]
    return []


def _admit_pytorchjob(body: Object, warning: str) -> None:
    """Check what the operator's webhook checks; what it lets through is let through."""
    name, spec = body["metadata"]["name"], body["spec"]
    faults = []
    if len(name) > 63:
        shown = f'Invalid value: "{name}": should match'
        faults.append(f"metadata.name: {shown}: must be no more than 63 characters")
    elif not re.fullmatch(_LABEL, name):
        faults.append(
            f'metadata.name: Invalid value: "{name}": should match: a DNS-1035 label must consist of '
            "lower case alphanumeric characters or '-', start with an alphabetic character, and end with an "
            f"alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '{_LABEL}')"
        )
    manager = spec.get("runPolicy", {}).get("managedBy")
    if manager and manager not in _MANAGERS:
        known = ", ".join(f'"{entry}"' for entry in _MANAGERS)
        faults.append(f'spec.runPolicy.managedBy: Unsupported value: "{manager}": supported values: {known}')
    elastic = spec.get("elasticPolicy")
    if elastic and "nProcPerNode" in elastic and "nprocPerNode" in spec:
        faults.append("spec.elasticPolicy.nProcPerNode: Forbidden: must not be used with spec.nprocPerNode")
    faults += _replica_faults(spec["pytorchReplicaSpecs"], elastic is not None)
    if faults:
        refusal = denied(faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]")
        refusal.headers = {"Warning": warning} if warning else {}
        raise refusal


def _replica_faults(replicas: Object, elastic: bool) -> list[str]:
    found = []
    if elastic and "Worker" not in replicas:
        found.append(
            "spec.pytorchReplicaSpecs[Worker]: Required value: must be configured if elastic policy is used"
        )
    for kind, entry in replicas.items():
        at = f"spec.pytorchReplicaSpecs[{kind}]"
        if kind not in ("Master", "Worker"):
            supported = 'supported values: "Master", "Worker"'
            found.append(f'{at}: Unsupported value: "{kind}": {supported}')
            continue
        count = entry.get("replicas", 1)
        if kind == "Master" and count != 1:
            found.append(f"{at}.replicas: Forbidden: must be 1")
        if kind == "Worker" and count < 1:
            found.append(f"{at}.replicas: Forbidden: must be at least 1")
        found += _container_faults(f"{at}.template.spec.containers", entry)
    return found


def _container_faults(at: str, entry: Object) -> list[str]:
    containers = entry.get("template", {}).get("spec", {}).get("containers") or []
    found = [
        f"{at}[{index}].image: Required value: must be required"
        for index, container in enumerate(containers)
        if not container.get("image")
    ]
    if not any(container["name"] == "pytorch" for container in containers):
        found.append(f"{at}: Required value: must have at least one container with name pytorch")
    return found


def webhook_down() -> Refused:
    """Answer to a write while the operator, whose webhook has to agree, is down."""
    hook = "validator.pytorchjob.training-operator.kubeflow.org"
    address = "https://training-operator.kubeflow.svc:443/validate-kubeflow-org-v1-pytorchjob?timeout=10s"
    said = (
        f'failed calling webhook "{hook}": failed to call webhook: Post "{address}": '
        "dial tcp 127.0.0.1:443: connect: connection refused"
    )
    details = {"causes": [{"message": said}]}
    return Refused(500, "InternalError", f"Internal error occurred: {said}", details)

"""What is wrong with the pods of a manifest, beyond their form."""

import re
from collections.abc import Iterator
from typing import Any

from trainwright.launch import words

_IPC_LOCK = "IPC_LOCK"
_WHOLE = re.compile(r"[1-9]\d*")
_MOST_ANNOTATED = 256 * 1024
_NAMED = (("persistentVolumeClaim", "claimName"), ("secret", "secretName"), ("configMap", "name"))


def at(body: Any, *path: str) -> Any:
    """Return what lies at a path; an empty mapping where there is nothing."""
    for part in path:
        body = body.get(part) if isinstance(body, dict) else None
    return {} if body is None else body


def entries(value: Any) -> list[dict[str, Any]]:
    """Return the mappings of a list; none where it is no list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def metadata(body: Any, place: str) -> Iterator[str]:
    """Say what is wrong with labels and annotations."""
    for key, value in at(body, "labels").items():
        if not words.is_key(str(key)):
            yield f"{place}.labels: {key!r} is not the key of a label"
        if not words.is_label(str(value)):
            yield f"{place}.labels.{key} {value!r} is not the value of a label"
    notes = at(body, "annotations")
    yield from (
        f"{place}.annotations: {key!r} is not the key of an annotation"
        for key in notes
        if not words.is_key(key)
    )
    size = sum(len(key) + len(str(value)) for key, value in notes.items())
    if size > _MOST_ANNOTATED:
        yield f"{place}.annotations hold {size:,} bytes, at most {_MOST_ANNOTATED:,} are taken"


def template(body: Any, place: str, name: str) -> Iterator[str]:
    """Say what is wrong with a pod that a manifest describes whole.

    Args:
        body: Its metadata and specification.
        place: Where it stands, for the messages.
        name: What its one container has to be called.
    """
    spec, where = at(body, "spec"), f"{place}.spec"
    yield from metadata(at(body, "metadata"), f"{place}.metadata")
    containers = entries(at(spec, "containers"))
    if [entry.get("name") for entry in containers] != [name]:
        yield f"{where}.containers are {[entry.get('name') for entry in containers]}, must be [{name!r}]"
    yield from _pod(spec, where)
    grace = at(spec, "terminationGracePeriodSeconds")
    if not isinstance(grace, int) or grace < 1:
        yield f"{where}.terminationGracePeriodSeconds is {grace or None}: nothing could be saved"
    if at(spec, "automountServiceAccountToken") is not False:
        yield f"{where}.automountServiceAccountToken is not false: a training needs no access to the API"
    volumes = {str(entry.get("name")) for entry in entries(at(spec, "volumes"))}
    for index, entry in enumerate(containers):
        yield from container(entry, f"{where}.containers[{index}]", volumes)
        limit = at(entry, "resources", "limits", "memory")
        yield from shared_memory(spec, limit, where)


def patch(body: Any, place: str, name: str) -> Iterator[str]:
    """Say what is wrong with the part of a pod that a manifest lays over a runtime's."""
    spec, where = at(body, "spec"), f"{place}.spec"
    yield from metadata(at(body, "metadata"), f"{place}.metadata")
    yield from _pod(spec, where)
    if "terminationGracePeriodSeconds" in spec:
        yield f"{where}.terminationGracePeriodSeconds belongs into the runtime: Trainer 2.2 and Kueue lack it"
    volumes = {str(entry.get("name")) for entry in entries(at(spec, "volumes"))}
    for index, entry in enumerate(entries(at(spec, "containers"))):
        if entry.get("name") != name:
            yield f"{where}.containers[{index}].name is {entry.get('name')!r}, and the runtime has {name!r}"
        if entry.get("env"):
            yield f"{where}.containers[{index}].env belongs into spec.trainer.env"
        yield from _mounts(entry, f"{where}.containers[{index}]", volumes)
        yield from _security(entry, f"{where}.containers[{index}]")


def _pod(spec: Any, place: str) -> Iterator[str]:
    if at(spec, "securityContext", "runAsNonRoot") is not True:
        yield f"{place}.securityContext.runAsNonRoot is not true"
    user = at(spec, "securityContext", "runAsUser")
    if not isinstance(user, int) or user < 1:
        yield f"{place}.securityContext.runAsUser is {user or None}: containers of the operator would be root"
    if at(spec, "securityContext", "seccompProfile", "type") != "RuntimeDefault":
        yield f"{place}.securityContext.seccompProfile.type is not RuntimeDefault"
    for key, value in at(spec, "nodeSelector").items():
        if not (words.is_key(str(key)) and words.is_label(str(value))):
            yield f"{place}.nodeSelector {key}={value} is not a label that a node can have"
    for field in ("serviceAccountName", "priorityClassName"):
        if (name := at(spec, field)) and not words.is_subdomain(str(name)):
            yield f"{place}.{field} {name!r} is not the name of an object"
    yield from _volumes(spec, place)


def _volumes(spec: Any, place: str) -> Iterator[str]:
    volumes = entries(at(spec, "volumes"))
    for index, entry in enumerate(volumes):
        if not words.is_name(str(entry.get("name"))):
            yield f"{place}.volumes[{index}].name {entry.get('name')!r} is not a DNS label"
        for field, key in _NAMED:
            if (name := at(entry, field, key)) and not words.is_subdomain(str(name)):
                yield f"{place}.volumes[{index}].{field}.{key} {name!r:.80} is not the name of an object"
        limit = at(entry, "emptyDir", "sizeLimit")
        if limit and not words.is_quantity(str(limit)):
            yield f"{place}.volumes[{index}].emptyDir.sizeLimit {limit!r} is not an amount"
        if "hostPath" in entry:
            yield f"{place}.volumes[{index}].hostPath gives away the node"
    yield from _twice(f"{place}.volumes", [entry.get("name") for entry in volumes])


def container(body: Any, place: str, volumes: set[str], *, patched: bool = False) -> Iterator[str]:
    """Say what is wrong with a container.

    Args:
        body: The container.
        place: Where it stands, for the messages.
        volumes: Names of the pod's volumes.
        patched: Whether mounts and security stand elsewhere, in the patch of a runtime.
    """
    if not words.is_image(str(at(body, "image"))):
        yield f"{place}.image {at(body, 'image')!r} is not a reference to an image"
    if not at(body, "command"):
        yield f"{place}.command is empty"
    yield from _resources(at(body, "resources"), f"{place}.{'resourcesPerNode' if patched else 'resources'}")
    yield from _variables(entries(at(body, "env")), f"{place}.env")
    if not patched:
        yield from _mounts(body, place, volumes)
        yield from _security(body, place)


def _resources(body: Any, place: str) -> Iterator[str]:
    for part in ("requests", "limits"):
        for name in ("cpu", "memory"):
            if not at(body, part, name):
                yield f"{place}.{part}.{name} is missing"
        for name, amount in at(body, part).items():
            if not words.is_quantity(str(amount)):
                yield f"{place}.{part}.{name} {amount!r} is not an amount"
            elif "/" in name and not _WHOLE.fullmatch(str(amount)):
                yield f"{place}.{part}.{name} {amount!r} is not a whole number above 0"
    for name, asked in at(body, "requests").items():
        limit = at(body, "limits").get(name)
        known = limit is not None and words.is_quantity(str(asked)) and words.is_quantity(str(limit))
        if known and words.amount_of(str(asked)) > words.amount_of(str(limit)):
            yield f"{place}.requests.{name} {asked} is above its limit {limit}"


def _variables(variables: list[dict[str, Any]], place: str) -> Iterator[str]:
    for index, entry in enumerate(variables):
        name = str(entry.get("name"))
        if not words.is_variable(name):
            yield f"{place}[{index}].name {name!r} is not the name of a variable"
        if words.OPERATOR.fullmatch(name):
            yield f"{place}[{index}].name {name} is set by the operator or by torchrun"
        if ("value" in entry) == ("valueFrom" in entry):
            yield f"{place}[{index}] {name} needs either a value or a reference"
    yield from _twice(place, [entry.get("name") for entry in variables])


def _mounts(body: Any, place: str, volumes: set[str]) -> Iterator[str]:
    mounts = entries(at(body, "volumeMounts"))
    for index, entry in enumerate(mounts):
        if entry.get("name") not in volumes:
            yield f"{place}.volumeMounts[{index}].name {entry.get('name')!r} is none of the pod's volumes"
        if not str(entry.get("mountPath")).startswith("/"):
            yield f"{place}.volumeMounts[{index}].mountPath {entry.get('mountPath')!r} is not absolute"
    yield from _twice(f"{place}.volumeMounts", [entry.get("mountPath") for entry in mounts])


def _security(body: Any, place: str) -> Iterator[str]:
    context = at(body, "securityContext")
    if at(context, "allowPrivilegeEscalation") is not False:
        yield f"{place}.securityContext.allowPrivilegeEscalation is not false"
    if at(context, "readOnlyRootFilesystem") is not True:
        yield f"{place}.securityContext.readOnlyRootFilesystem is not true"
    added = at(context, "capabilities", "add") or []
    if at(context, "capabilities", "drop") != ["ALL"] or added not in ([], [_IPC_LOCK]):
        yield f"{place}.securityContext.capabilities do not drop ALL, or add more than {_IPC_LOCK}"
    if at(context, "privileged"):
        yield f"{place}.securityContext.privileged is set"


def shared_memory(spec: Any, limit: Any, place: str) -> Iterator[str]:
    """Say so if ``/dev/shm`` can hold all the memory that a pod has: filling it would kill the pod."""
    for index, entry in enumerate(entries(at(spec, "volumes"))):
        size = at(entry, "emptyDir", "sizeLimit")
        if at(entry, "emptyDir", "medium") != "Memory":
            continue
        if not size:
            yield f"{place}.volumes[{index}] is memory without a sizeLimit"
        elif _exceeds(str(size), str(limit)):
            yield f"{place}.volumes[{index}] of {size} leaves nothing of the memory, {limit}"


def _exceeds(size: str, limit: str) -> bool:
    known = words.is_quantity(size) and words.is_quantity(limit)
    return known and words.amount_of(size) >= words.amount_of(limit)


def _twice(place: str, given: list[Any]) -> Iterator[str]:
    for name in sorted({str(name) for name in given if given.count(name) > 1}):
        yield f"{place} has {name} twice"

"""The form of a manifest, field by field: what a server with strict validation says, before there is one.

The types are those of the clients: ``kubernetes``, ``kubeflow-training``, and for TrainJob, which no client
of the launcher's image knows, the table below (kubeflow/trainer, ``pkg/apis/trainer/v1alpha1``).
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from datetime import date
from functools import lru_cache
from typing import Any

Fields = Mapping[str, str]

_POD_SPEC_PATCH = {
    "serviceAccountName": "str",
    "volumes": "list[V1Volume]",
    "initContainers": "list[ContainerPatch]",
    "containers": "list[ContainerPatch]",
    "imagePullSecrets": "list[V1LocalObjectReference]",
    "securityContext": "V1PodSecurityContext",
    "nodeSelector": "dict(str, str)",
    "affinity": "V1Affinity",
    "tolerations": "list[V1Toleration]",
    "schedulingGates": "list[V1PodSchedulingGate]",
    "terminationGracePeriodSeconds": "int",
}

_TRAINER: dict[str, Fields] = {
    "TrainJob": {
        "apiVersion": "str",
        "kind": "str",
        "metadata": "V1ObjectMeta",
        "spec": "TrainJobSpec",
        "status": "object",
    },
    "TrainJobSpec": {
        "runtimeRef": "RuntimeRef",
        "initializer": "object",
        "trainer": "Trainer",
        "runtimePatches": "list[RuntimePatch]",
        "suspend": "bool",
        "activeDeadlineSeconds": "int",
        "managedBy": "str",
    },
    "RuntimeRef": {"name": "str", "apiGroup": "str", "kind": "str"},
    "Trainer": {
        "image": "str",
        "command": "list[str]",
        "args": "list[str]",
        "env": "list[V1EnvVar]",
        "numNodes": "int",
        "resourcesPerNode": "V1ResourceRequirements",
        "numProcPerNode": "int",
    },
    "RuntimePatch": {"manager": "str", "time": "datetime", "trainingRuntimeSpec": "RuntimeSpecPatch"},
    "RuntimeSpecPatch": {"template": "JobSetPatch"},
    "JobSetPatch": {"metadata": "V1ObjectMeta", "spec": "JobSetSpecPatch"},
    "JobSetSpecPatch": {"replicatedJobs": "list[ReplicatedJobPatch]"},
    "ReplicatedJobPatch": {"name": "str", "template": "JobPatch"},
    "JobPatch": {"metadata": "V1ObjectMeta", "spec": "JobSpecPatch"},
    "JobSpecPatch": {"template": "PodPatch"},
    "PodPatch": {"metadata": "V1ObjectMeta", "spec": "PodSpecPatch"},
    "PodSpecPatch": _POD_SPEC_PATCH,
    "ContainerPatch": {
        "name": "str",
        "env": "list[V1EnvVar]",
        "volumeMounts": "list[V1VolumeMount]",
        "securityContext": "V1SecurityContext",
    },
}
_REQUIRED = {
    "TrainJobSpec": ("runtimeRef",),
    "RuntimeRef": ("name",),
    "RuntimePatch": ("manager",),
    "ReplicatedJobPatch": ("name",),
    "ContainerPatch": ("name",),
}

_PLAIN: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (float, int),
    "datetime": (str, date),
    "date": (str, date),
}


def wrong(value: object, kind: str, place: str = "") -> Iterator[str]:
    """Say where a value has not the form of a kind: unknown, missing or mistyped fields.

    Args:
        value: What is to be checked, as JSON.
        kind: A model of the clients (``V1Pod``), a kind of TrainJob's table, or one of their notations for
            lists, mappings and plain values.
        place: Where it stands, for the messages.
    """
    if match := re.fullmatch(r"list\[(.+)\]", kind):
        yield from _wrong_list(value, match[1], place)
    elif match := re.fullmatch(r"dict\(str, (.+)\)", kind):
        yield from _wrong_map(value, match[1], place)
    elif kind in _PLAIN:
        if not isinstance(value, _PLAIN[kind]) or (isinstance(value, bool) and kind != "bool"):
            yield f"{place}: expected {kind}, got {value!r:.60}"
    elif kind != "object":
        yield from _wrong_model(value, kind, place)


def _wrong_list(value: object, kind: str, place: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{place}: expected a list, got {value!r:.60}"
        return
    for index, entry in enumerate(value):
        yield from wrong(entry, kind, f"{place}[{index}]")


def _wrong_map(value: object, kind: str, place: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{place}: expected a mapping, got {value!r:.60}"
        return
    for key, entry in value.items():
        yield from wrong(entry, kind, f"{place}.{key}")


def _wrong_model(value: object, kind: str, place: str) -> Iterator[str]:
    known, required = _model(kind)
    if not isinstance(value, dict):
        yield f"{place or kind}: expected a mapping, got {value!r:.60}"
        return
    for name, entry in value.items():
        path = f"{place}.{name}".lstrip(".")
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            yield f"{path}: unknown field" + (f"; did you mean {close[0]}?" if close else "")
        elif entry is not None:
            yield from wrong(entry, known[name], path)
    for name in required:
        if value.get(name) is None:
            yield f"{f'{place}.{name}'.lstrip('.')}: missing"


@lru_cache(maxsize=512)
def _model(kind: str) -> tuple[Fields, tuple[str, ...]]:
    """Return the fields of a kind with their types, and which of them have to be there."""
    if kind in _TRAINER:
        return _TRAINER[kind], _REQUIRED.get(kind, ())
    from kubeflow.training import models  # type: ignore[import-untyped]
    from kubernetes import client as k8s  # type: ignore[import-untyped]

    found: Any = getattr(models, kind, None) or getattr(k8s, kind)
    types = {json: found.openapi_types[name] for name, json in found.attribute_map.items()}
    required = tuple(json for name, json in found.attribute_map.items() if _is_required(found, name))
    return types, required


def _is_required(model: Any, name: str) -> bool:
    """Tell whether a model of the clients refuses to be without a field: its setter says so."""
    empty = model.__new__(model)
    from kubernetes import client as k8s

    empty.local_vars_configuration = k8s.Configuration()
    try:
        setattr(empty, name, None)
    except ValueError:
        return True
    return False

"""Applies the settings of a pipeline's task to the job that its step submits.

Kubeflow Pipelines passes them as a ``dsl.TaskConfig``: parts of a pod, as Kubernetes writes them. Amounts in
the section ``resources`` override those of the task; any other contradiction is an error. Without a cluster
there are none.
"""

import re
import sys
from collections.abc import Mapping
from typing import Any

from trainwright.errors import InputError
from trainwright.experiment import Resources
from trainwright.launch import kubernetes_names

_FIELDS = {"cpu": "cpu", "memory": "memory_gib", "nvidia.com/gpu": "gpus"}
_GIB = 1024.0**3
_PLATFORM_VARIABLE = re.compile(r"(KFP|MLFLOW)_\w+|ARGO_\w+|NAMESPACE")
"""Variables that Kubeflow Pipelines adds for the step alone; some differ at every retry."""

_SECRET = re.compile(
    r"(?i)(\w*_)?(token|password|passwd|secret|credentials?|(api|access|private|secret)_?key)"
)


def apply_task_config(resources: Resources, step: Mapping[str, Any]) -> tuple[Resources, dict[str, str]]:
    """Complete the section with the settings of the task, and return it with the task's variables by name.

    Raises:
        InputError: A setting cannot be passed on, or contradicts the section; lists all of them.
    """
    wrong: list[str] = []
    data = resources.model_dump(mode="json")
    placement = data["placement"]
    _amounts(resources, step.get("resources") or {}, data, wrong)
    _nodes(step, placement, wrong)
    placement["volumes"] += _volumes(step, resources, wrong)
    env = _variables(step.get("env") or [], placement["env_from_secrets"], wrong)
    if wrong:
        raise InputError("; ".join(wrong), where="settings of the task train", hint="Set it in one place.")
    return Resources.check(data, "settings of the task train"), env


def _amounts(resources: Resources, step: Mapping[str, Any], data: dict[str, Any], wrong: list[str]) -> None:
    """Use the task's amounts where the section has none. Limits override requests."""
    amounts = {**(step.get("requests") or {}), **(step.get("limits") or {})}
    for name, amount in amounts.items():
        try:
            number = kubernetes_names.amount_of(str(amount))
        except ValueError as error:
            wrong.append(f"{name}: {error}")
            continue
        if name == "ephemeral-storage":
            if data["placement"]["disk_gib"] is None:
                data["placement"]["disk_gib"] = number / _GIB
            continue
        if name not in _FIELDS:
            wrong.append(f"{name} cannot be passed on, only {', '.join(_FIELDS)}, ephemeral-storage")
            continue
        field = _FIELDS[name]
        value = {"cpu": number, "memory_gib": number / _GIB, "gpus": int(number)}[field]
        if field not in resources.model_fields_set:
            data[field] = value
        elif data[field] != value:
            section = f"resources.{field} is {data[field]:g}"
            sys.stderr.write(f"The job does not get the task's {name} of {amount}: {section}\n")
    if data["gpus"] and "processes" not in resources.model_fields_set:
        data["processes"] = data["gpus"]


def _nodes(step: Mapping[str, Any], placement: dict[str, Any], wrong: list[str]) -> None:
    """Add node selector, affinity and tolerations of the task."""
    for key, value in (step.get("node_selector") or {}).items():
        known = placement["node_selector"].setdefault(key, value)
        if known != value:
            wrong.append(f"node selector {key} is {value!r}, and resources.placement has {known!r}")
    if affinity := step.get("affinity"):
        if placement["affinity"] and placement["affinity"] != affinity:
            wrong.append("affinity differs from that of resources.placement")
        placement["affinity"] = affinity
    for entry in step.get("tolerations") or []:
        toleration = {
            "key": entry.get("key") or "",
            "operator": entry.get("operator") or "Equal",
            "value": entry.get("value") or "",
            "effect": entry.get("effect") or "",
            "seconds": entry.get("tolerationSeconds"),
        }
        if toleration not in placement["tolerations"]:
            placement["tolerations"].append(toleration)


def _volumes(step: Mapping[str, Any], resources: Resources, wrong: list[str]) -> list[dict[str, Any]]:
    """Return the task's volumes as ``resources.placement.volumes``, without the one shared with the job."""
    sources: dict[str, dict[str, Any]] = {}
    for entry in step.get("volumes") or []:
        if claim := entry.get("persistentVolumeClaim"):
            sources[entry["name"]] = {"claim": claim["claimName"]}
        for field, key, name in (("secret", "secret", "secretName"), ("configMap", "config", "name")):
            if (source := entry.get(field)) and not source.get("items"):
                sources[entry["name"]] = {key: source[name], "optional": bool(source.get("optional"))}
    known = {volume.path for volume in resources.placement.volumes}
    found = []
    for mount in step.get("volume_mounts") or []:
        path, volume = mount["mountPath"], sources.get(mount["name"])
        if volume is None:
            wrong.append(f"the volume at {path} cannot be passed on: it is no claim, Secret or ConfigMap")
        elif path == resources.mount:
            if volume.get("claim") != resources.claim:
                wrong.append(f"{path} is not the volume of resources.claim {resources.claim!r}")
        elif path in known:
            wrong.append(f"{path} is mounted by resources.placement.volumes, too")
        else:
            more = {"read_only": bool(mount.get("readOnly")), "sub_path": mount.get("subPath") or ""}
            found.append({"path": path, **volume, **more})
    return found


def _variables(
    variables: list[Mapping[str, Any]], references: list[dict[str, Any]], wrong: list[str]
) -> dict[str, str]:
    """Return variables by value, and add those by reference; no secret may be in a manifest."""
    env: dict[str, str] = {}
    known = {entry["name"]: entry for entry in references}
    for entry in variables:
        name, source = entry["name"], entry.get("valueFrom") or {}
        secret, config = source.get("secretKeyRef") or {}, source.get("configMapKeyRef") or {}
        if _PLATFORM_VARIABLE.fullmatch(name):
            continue
        if kubernetes_names.RESERVED.fullmatch(name):
            wrong.append(f"variable {name} is set by the operator, torchrun or the launcher")
        elif secret or config:
            reference = {
                "name": name,
                "secret": secret.get("name", ""),
                "config": config.get("name", ""),
                "key": (secret or config)["key"],
                "optional": bool((secret or config).get("optional")),
            }
            if name not in known:
                references.append(known.setdefault(name, reference))
            elif known[name] != reference and not reference["optional"]:
                wrong.append(f"variable {name} refers to another object than in resources.placement")
        elif source:
            wrong.append(f"variable {name} refers to {', '.join(source)}, which cannot be passed on")
        elif _SECRET.fullmatch(name):
            wrong.append(f"variable {name} has a secret as its value: use kubernetes.use_secret_as_env")
        else:
            env[name] = str(entry.get("value") or "")
    return env

"""What a pipeline's author set on the step itself, for the job that the step submits.

Kubeflow Pipelines hands it over as a ``dsl.TaskConfig``: pieces of a pod, as Kubernetes writes them. Amounts
that the section ``resources`` names win over those of the step; whatever else both say differently is an
error. Without a cluster there is nothing to hand over.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainwright.errors import InputError
from trainwright.experiment import Resources
from trainwright.launch import kubernetes_names

_GPU = "nvidia.com/gpu"
_GIB = 1024.0**3
_OF_THE_PLATFORM = re.compile(r"(KFP|MLFLOW)_\w+|ARGO_\w+|NAMESPACE")
"""Variables that Kubeflow Pipelines adds for the step alone; some differ at every retry."""

_SECRET = re.compile(
    r"(?i)(\w*_)?(token|password|passwd|secret|credentials?|(api|access|private|secret)_?key)"
)


@dataclass
class Inherited:
    """What the job gets beside what the sections say.

    Attributes:
        resources: The section, completed.
        env: Environment variables by value.
    """

    resources: Resources
    env: dict[str, str] = field(default_factory=dict)


def inherit(resources: Resources, step: Mapping[str, Any]) -> Inherited:
    """Complete what is asked for with what was set on the step.

    Args:
        resources: The section; what it names itself is known from what it was read from.
        step: The fields of a ``dsl.TaskConfig``: ``affinity``, ``env``, ``node_selector``, ``resources``,
            ``tolerations``, ``volumes``, ``volume_mounts``; each may be absent.

    Raises:
        InputError: Something cannot be handed on, or contradicts the section; all of it is named.
    """
    wrong: list[str] = []
    data = resources.model_dump(mode="json")
    placement = data["placement"]
    _amounts(resources, step.get("resources") or {}, data, wrong)
    _nodes(step, placement, wrong)
    placement["volumes"] += _volumes(step, resources, wrong)
    env = _variables(step.get("env") or [], placement["env_from_secrets"], wrong)
    if wrong:
        raise InputError(
            "; ".join(wrong), where="what the pipeline sets on the step train", hint="Say it in one place."
        )
    return Inherited(Resources.check(data, "what the pipeline sets on the step train"), env)


def _amounts(resources: Resources, given: Mapping[str, Any], data: dict[str, Any], wrong: list[str]) -> None:
    """Take the step's amounts where the section names none. Limits come before requests."""
    amounts = {**(given.get("requests") or {}), **(given.get("limits") or {})}
    for name, amount in amounts.items():
        try:
            number = kubernetes_names.amount_of(str(amount))
        except ValueError as error:
            wrong.append(f"{name}: {error}")
            continue
        fields = {
            "cpu": ("cpu", number),
            "memory": ("memory_gib", number / _GIB),
            _GPU: ("gpus", int(number)),
        }
        if name == "ephemeral-storage":
            if data["placement"]["disk_gib"] is None:
                data["placement"]["disk_gib"] = number / _GIB
        elif name not in fields:
            wrong.append(f"{name} cannot be handed on, only {', '.join(fields)}, ephemeral-storage")
        elif fields[name][0] not in resources.model_fields_set:
            data[fields[name][0]] = fields[name][1]
        elif data[fields[name][0]] != fields[name][1]:
            said = f"resources.{fields[name][0]} says {data[fields[name][0]]:g}"
            sys.stderr.write(f"The step's {name} of {amount} is not what its job gets: {said}\n")
    if data["gpus"] and "processes" not in resources.model_fields_set:
        data["processes"] = data["gpus"]


def _nodes(step: Mapping[str, Any], placement: dict[str, Any], wrong: list[str]) -> None:
    """Add which nodes the step was given."""
    for key, value in (step.get("node_selector") or {}).items():
        said = placement["node_selector"].setdefault(key, value)
        if said != value:
            wrong.append(f"node selector {key} is {value!r}, and resources.placement says {said!r}")
    if affinity := step.get("affinity"):
        if placement["affinity"] and placement["affinity"] != affinity:
            wrong.append("affinity is another than that of resources.placement")
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
    """Return the step's volumes but for the one that it shares with its job anyway."""
    sources = {entry["name"]: _source(entry) for entry in step.get("volumes") or []}
    known = {volume.path for volume in resources.placement.volumes}
    found = []
    for mount in step.get("volume_mounts") or []:
        path, source = mount["mountPath"], sources.get(mount["name"])
        if source is None:
            wrong.append(f"the volume at {path} cannot be handed on: it is no claim, Secret or ConfigMap")
        elif path == resources.mount:
            if source.get("claim") != resources.claim:
                wrong.append(f"{path} is another volume than resources.claim {resources.claim!r}")
        elif path in known:
            wrong.append(f"{path} is mounted by resources.placement.volumes, too")
        else:
            more = {"read_only": bool(mount.get("readOnly")), "sub_path": mount.get("subPath") or ""}
            found.append({"path": path, **source, **more})
    return found


def _source(volume: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a volume is made from, in our words."""
    if claim := volume.get("persistentVolumeClaim"):
        return {"claim": claim["claimName"]}
    if (secret := volume.get("secret")) and not secret.get("items"):
        return {"secret": secret["secretName"], "optional": bool(secret.get("optional"))}
    if (config := volume.get("configMap")) and not config.get("items"):
        return {"config": config["name"], "optional": bool(config.get("optional"))}
    return None


def _variables(
    given: list[Mapping[str, Any]], references: list[dict[str, Any]], wrong: list[str]
) -> dict[str, str]:
    """Return the step's variables by value, and add those by reference. No secret goes into a manifest."""
    env: dict[str, str] = {}
    known = {entry["name"]: entry for entry in references}
    for entry in given:
        name, source = entry["name"], entry.get("valueFrom") or {}
        if _OF_THE_PLATFORM.fullmatch(name):
            continue
        if kubernetes_names.RESERVED.fullmatch(name):
            wrong.append(f"variable {name} is set by the operator, torchrun or the launcher")
            continue
        if reference := source.get("secretKeyRef") or source.get("configMapKeyRef"):
            made = {
                "name": name,
                "secret": "",
                "config": "",
                "key": reference["key"],
                "optional": bool(reference.get("optional")),
            } | {"secret" if "secretKeyRef" in source else "config": reference["name"]}
            said = known.setdefault(name, made)
            if said == made and made not in references:
                references.append(made)
            elif said != made and not made["optional"]:
                wrong.append(f"variable {name} refers to another object than resources.placement says")
        elif source:
            wrong.append(f"variable {name} refers to {', '.join(source)}, which cannot be handed on")
        elif _SECRET.fullmatch(name):
            wrong.append(f"variable {name} is given by its value: use kubernetes.use_secret_as_env")
        else:
            env[name] = str(entry.get("value") or "")
    return env

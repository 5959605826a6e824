"""The schemas of jobs, and what an object has against them.

The long part, pod templates, comes out of the models of the kubernetes client and of kubeflow-training; a
JSON file beside this one holds the rest, in which ``$model`` names a model.
"""

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from kubernetes import client as k8s  # type: ignore[import-untyped]

from tests.launch.standin.resources import Object

QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]"
    r"|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_PLAIN = {"str": "string", "int": "integer", "bool": "boolean", "float": "number", "datetime": "string"}
_FREE: Object = {"x-kubernetes-preserve-unknown-fields": True}
_EMBEDDED = ("annotations", "finalizers", "labels", "name", "namespace")
"""What of ``metadata`` a template in a custom resource may say."""

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "number": (int, float),
    "object": (dict,),
    "array": (list,),
}
_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}

Cause = tuple[str, str, str]
"""Reason, field and message of a fault."""


_SINCE_2_3 = "terminationGracePeriodSeconds"
"""Field that a TrainJob's patch of a pod has since Trainer 2.3; the types of Kueue up to 0.19 lack it too."""


@cache
def schema(name: str) -> Object:
    """Return a schema, with models put in; ``trainjob-2.2`` is that of an older release of Trainer."""
    kind, _, release = name.partition("-")
    text = Path(__file__).with_name(f"{kind}.json").read_text()
    return _filled(json.loads(text.replace(f'"{_SINCE_2_3}",', "") if release == "2.2" else text))


def _filled(node: Object) -> Object:
    if "$model" in node:
        rest = {key: value for key, value in node.items() if key not in ("$model", "only", "containers")}
        full = copy.deepcopy(of_model(node["$model"]))
        if "only" in node:
            full["properties"] = {key: full["properties"][key] for key in node["only"]}
        for kind in ("containers", "initContainers") if "containers" in node else ():
            entries = full["properties"][kind]["items"]
            entries["properties"] = {key: entries["properties"][key] for key in node["containers"]}
        return full | rest
    node = dict(node)
    if "properties" in node:
        node["properties"] = {key: _filled(value) for key, value in node["properties"].items()}
    if "items" in node:
        node["items"] = _filled(node["items"])
    return node


def _training_model(name: str) -> Any:
    """Return a model of kubeflow-training, which only the launcher's environment has: only jobs need it."""
    from kubeflow.training import models  # type: ignore[import-untyped]

    return getattr(models, name, None)


@cache
def of_model(name: str) -> Object:
    """Derive the schema of a model of the kubernetes client, or of kubeflow-training."""
    model = getattr(k8s, name, None) or _training_model(name)
    if model is None:
        return _FREE
    names: dict[str, str] = model.attribute_map
    kept = [key for key in names if name != "V1ObjectMeta" or key in _EMBEDDED]
    properties = {names[key]: _of_type(model.openapi_types[key], names[key], name) for key in kept}
    required = [names[key] for key in _required(model)]
    return {"type": "object", "properties": properties, "required": required}


def _of_type(text: str, field: str, owner: str) -> Object:
    if owner == "V1ResourceRequirements" and field in ("limits", "requests"):
        quantity = {"pattern": QUANTITY, "x-kubernetes-int-or-string": True}
        return {"type": "object", "additionalProperties": quantity}
    if (owner, field) == ("V1EmptyDirVolumeSource", "sizeLimit"):
        return {"pattern": QUANTITY, "x-kubernetes-int-or-string": True}
    if text in _PLAIN:
        return {"type": _PLAIN[text]}
    if text.startswith("list["):
        return {"type": "array", "items": _of_type(text[5:-1], "", "")}
    if text.startswith("dict("):
        return {"type": "object", "additionalProperties": _of_type(text[5:-1].partition(", ")[2], "", "")}
    return of_model(text)


def _required(model: Any) -> list[str]:
    """Ask a model which of its attributes may not be absent."""
    lenient, strict = k8s.Configuration(), k8s.Configuration()
    lenient.client_side_validation, strict.client_side_validation = False, True
    probe = model(local_vars_configuration=lenient)
    probe.local_vars_configuration = strict
    found = []
    for key in model.openapi_types:
        try:
            setattr(probe, key, None)
        except ValueError:
            found.append(key)
    return found


def unknown(body: Any, node: Object, path: str = "") -> list[str]:
    """List the fields that a schema does not have, such as ``spec.pytorchReplicaSpecs.Worker.x``."""
    found: list[str] = []
    if isinstance(body, list) and "items" in node:
        for index, entry in enumerate(body):
            found += unknown(entry, node["items"], f"{path}[{index}]")
    if not isinstance(body, dict) or _FREE.items() <= node.items():
        return found
    for key in sorted(body):
        at = f"{path}.{key}" if path else key
        inner = node.get("properties", {}).get(key, node.get("additionalProperties"))
        if inner is None:
            found += [at] if "properties" in node else []
        else:
            found += unknown(body[key], inner, at)
    return found


def pruned(body: Any, node: Object) -> Any:
    """Return an object without the fields that its schema does not have, and with its defaults."""
    if isinstance(body, list) and "items" in node:
        return [pruned(entry, node["items"]) for entry in body]
    if not isinstance(body, dict) or _FREE.items() <= node.items():
        return body
    known, others = node.get("properties", {}), node.get("additionalProperties")
    kept = {}
    for key, value in body.items():
        inner = known.get(key, others)
        if inner is not None and value is not None:
            kept[key] = pruned(value, inner)
        elif "properties" not in node:
            kept[key] = value
    defaults = {key: inner["default"] for key, inner in known.items() if "default" in inner}
    return defaults | kept


def faults(body: Any, node: Object, path: str = "") -> list[Cause]:
    """List what an object has against a schema."""
    kind = node.get("type")
    if kind and (not isinstance(body, _TYPES[kind]) or (isinstance(body, bool) and kind != "boolean")):
        is_ = "null" if body is None else _NAMES[type(body)]
        said = f'Invalid value: "{is_}": {path} in body must be of type {kind}: "{is_}"'
        return [("FieldValueTypeInvalid", path, said)]
    found: list[Cause] = _value_faults(body, node, path)
    if isinstance(body, list):
        for index, entry in enumerate(body):
            found += faults(entry, node.get("items", _FREE), f"{path}[{index}]")
    if isinstance(body, dict):
        for key in node.get("required", []):
            if key not in body:
                found.append(("FieldValueRequired", f"{path}.{key}" if path else key, "Required value"))
        for key, value in body.items():
            inner = node.get("properties", {}).get(key, node.get("additionalProperties"))
            if inner is not None:
                found += faults(value, inner, f"{path}.{key}" if path else key)
    return found


def _value_faults(body: Any, node: Object, path: str) -> list[Cause]:
    if "pattern" in node and isinstance(body, str) and not re.search(node["pattern"], body):
        said = f"Invalid value: \"{body}\": {path} in body should match '{node['pattern']}'"
        return [("FieldValueInvalid", path, said)]
    if "minimum" in node and body < node["minimum"]:
        at_least = f"{path} in body should be greater than or equal to {node['minimum']}"
        return [("FieldValueInvalid", path, f"Invalid value: {body}: {at_least}")]
    if "allowed" in node and body not in node["allowed"]:
        return [("FieldValueInvalid", path, f'Invalid value: "{body}": {node["said"]}')]
    return []


def moved(body: Object, before: Object, node: Object, path: str = "") -> list[Cause]:
    """List the fields that were changed and may not be."""
    found: list[Cause] = []
    for key, inner in node.get("properties", {}).items():
        at = f"{path}.{key}" if path else key
        old, new = before.get(key), body.get(key)
        if inner.get("immutable") and old is not None and old != new:
            found.append(("FieldValueInvalid", at, "Invalid value: field is immutable"))
        elif isinstance(old, dict) and isinstance(new, dict):
            found += moved(new, old, inner, at)
    return found

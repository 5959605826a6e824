"""What ``kubectl apply -k`` would apply, without kubectl: as much of kustomize as ``deploy/`` uses.

Anything else in a kustomization is an error here, so that nothing is left out of what the tests look at.
Where there is a kubectl, a test holds the two against each other.
"""

import copy
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
CLUSTER_WIDE = {
    "ClusterQueue", "ClusterTrainingRuntime", "Cohort", "PriorityClass", "ResourceFlavor",
    "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "WorkloadPriorityClass",
}  # fmt: skip
KNOWN = {"apiVersion", "kind", "labels", "namespace", "resources", "images", "patches"}


def resolved(folder: Path) -> list[Object]:
    """Return the objects of a kustomization, in the order in which they are listed."""
    (asked,) = yaml.safe_load_all((folder / "kustomization.yaml").read_text())
    assert not set(asked) - KNOWN, f"{folder}: not understood: {sorted(set(asked) - KNOWN)}"
    made = [body for name in asked["resources"] for body in _resource(folder / name)]
    for patch in asked.get("patches", []):
        _patch(made, patch)
    for entry in asked.get("labels", []):
        assert entry.keys() == {"pairs"}, "selectors stay as they are"
        for body in made:
            body["metadata"]["labels"] = body["metadata"].get("labels", {}) | entry["pairs"]
    if "namespace" in asked:
        _into(made, asked["namespace"])
    images = {entry["name"]: f"{entry['newName']}@{entry['digest']}" for entry in asked.get("images", [])}
    return [_with_images(body, images) for body in made]


def _resource(path: Path) -> list[Object]:
    return resolved(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))


def _patch(made: list[Object], patch: Object) -> None:
    """Apply a patch that adds to the end of a list (RFC 6902)."""
    wanted = (patch["target"]["kind"], patch["target"]["name"])
    (body,) = (body for body in made if (body["kind"], body["metadata"]["name"]) == wanted)
    for change in yaml.safe_load(patch["patch"]):
        *way, end = change["path"].strip("/").split("/")
        assert (change["op"], end) == ("add", "-"), "not understood"
        place: Any = body
        for part in way:
            place = place[part]
        place.append(copy.deepcopy(change["value"]))


def _into(made: list[Object], namespace: str) -> None:
    accounts = {body["metadata"]["name"] for body in made if body["kind"] == "ServiceAccount"}
    for body in made:
        if body["kind"] not in CLUSTER_WIDE:
            body["metadata"]["namespace"] = namespace
        for subject in body.get("subjects", []):
            if subject["name"] in accounts:
                subject["namespace"] = namespace


def _with_images(value: Any, images: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            key: images.get(entry, entry) if key == "image" else _with_images(entry, images)
            for key, entry in value.items()
        }
    return [_with_images(entry, images) for entry in value] if isinstance(value, list) else value

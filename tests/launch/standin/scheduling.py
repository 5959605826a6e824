"""Which node a pod goes to, and why none will do."""

from collections import Counter

from tests.launch.standin.resources import Object

_UNITS = {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
}


def amount(text: object) -> float:
    """Read a quantity such as ``64Mi`` or ``500m``."""
    said = str(text)
    for unit, factor in _UNITS.items():
        if said.endswith(unit):
            return float(said.removesuffix(unit)) * factor
    return float(said)


def requests(pod: Object) -> dict[str, float]:
    """Sum up what a pod's containers ask for; a limit alone counts as a request."""
    total: dict[str, float] = {}
    for container in pod["spec"]["containers"]:
        told = container.get("resources") or {}
        for name, value in {**(told.get("limits") or {}), **(told.get("requests") or {})}.items():
            total[name] = total.get(name, 0) + amount(value)
    return total


def tolerates(pod: Object, taint: Object) -> bool:
    """Tell whether a pod puts up with a taint."""
    for entry in pod["spec"].get("tolerations") or []:
        equal = entry.get("operator", "Equal") == "Exists" or entry.get("value", "") == taint.get("value", "")
        if (
            entry.get("key", taint["key"]) == taint["key"]
            and equal
            and entry.get("effect") in (None, "", taint["effect"])
        ):
            return True
    return False


def choose(pod: Object, nodes: list[Object], pods: list[Object]) -> tuple[str, str]:
    """Choose a node.

    Args:
        pod: What is to be placed.
        nodes: All nodes.
        pods: All pods: those that are on a node and have not ended take up its room.

    Returns:
        The node's name, or nothing and the scheduler's words.
    """
    reasons: Counter[str] = Counter()
    loads = Counter(other["spec"].get("nodeName") for other in pods if not _over(other))
    for node in sorted(nodes, key=lambda node: loads[node["metadata"]["name"]]):
        if why := _against(pod, node, pods):
            reasons.update(why)
        else:
            return node["metadata"]["name"], ""
    said = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    head = f"0/{len(nodes)} nodes are available"
    victims = f"{head}: {len(nodes)} No preemption victims found for incoming pod."
    return "", f"{head}: {said}. preemption: {victims}"


def _against(pod: Object, node: Object, pods: list[Object]) -> list[str]:
    labels = node["metadata"].get("labels") or {}
    if not (pod["spec"].get("nodeSelector") or {}).items() <= labels.items():
        return ["node(s) didn't match Pod's node affinity/selector"]
    for taint in node["spec"].get("taints") or []:
        if taint["effect"] in ("NoSchedule", "NoExecute") and not tolerates(pod, taint):
            return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
    if node["spec"].get("unschedulable"):
        return ["node(s) were unschedulable"]
    room = {name: amount(value) for name, value in node["status"]["allocatable"].items()}
    for other in pods:
        if other["spec"].get("nodeName") == node["metadata"]["name"] and not _over(other):
            for name, value in requests(other).items():
                room[name] = room.get(name, 0) - value
    return [
        f"Insufficient {name}" for name, value in sorted(requests(pod).items()) if value > room.get(name, 0)
    ]


def _over(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")

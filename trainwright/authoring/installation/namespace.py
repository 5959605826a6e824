"""The namespace that runs have their pods in: accounts, rights, the claim, MLflow, and the nodes."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from kubernetes.utils import parse_quantity  # type: ignore[import-untyped]

from trainwright.authoring import catalog
from trainwright.authoring.diagnostic import Diagnostic
from trainwright.authoring.installation import training
from trainwright.authoring.installation.pipelines import Installation
from trainwright.authoring.installation.reading import ClusterReader

Right = tuple[str, str, str]

JOBS = ("create", "delete", "get", "list", "patch", "watch")
TRAIN_RIGHTS: tuple[Right, ...] = (
    *(("kubeflow.org", "pytorchjobs", verb) for verb in JOBS),
    *(("trainer.kubeflow.org", "trainjobs", verb) for verb in JOBS),
    *(("", "pods", verb) for verb in ("delete", "list", "watch")),
    ("", "pods/log", "get"),
    ("", "events", "list"),
    ("kueue.x-k8s.io", "workloads", "list"),
    ("argoproj.io", "workflows", "get"),
)
"""What the account of a train step has to be allowed: the Role of deploy/base/train.yaml."""

SUBMIT_RIGHTS = ("create", "get", "list", "readArtifact", "retry", "terminate")
"""What a caller has to be allowed on runs where there are profiles: the Role of deploy/ci/submit.yaml."""

CLAIM = "trainwright-shared"
PIPELINE = "train_and_register"
_PARAMETER = re.compile(r"\{\{\$\.inputs\.parameters\['pipelinechannel--([^']+)'\]\}\}")


def overlay(place: Installation) -> str:
    """Return the command that gives a namespace what a train step needs."""
    return f"kubectl apply -k deploy/overlays/{'profile' if place.profiles else 'single-user'}"


def inspect_accounts(cluster: ClusterReader, place: Installation) -> Iterator[Diagnostic]:
    """Inspect the account of the steps, what it may do, and what the caller may do."""
    answer = cluster.get(f"/api/v1/namespaces/{place.namespace}/serviceaccounts/{place.runner}")
    if answer.state == "hidden":
        yield Diagnostic("account", "?", f"the caller may not read ServiceAccount {place.runner}")
    elif answer.state == "absent":
        text = f"no ServiceAccount {place.runner} in {place.namespace}: no pod of a run can start"
        advice = (
            "Kubeflow makes it: look whether this is the namespace of a profile, or name --service-account."
        )
        yield Diagnostic("account", "miss", text, advice)
    else:
        yield Diagnostic("account", "ok", f"{place.runner}, whom steps run as")
    yield _rights(cluster, place)
    if place.profiles:
        yield _submit_rights(cluster, place)


def _rights(cluster: ClusterReader, place: Installation) -> Diagnostic:
    """Judge the rights of the steps' account, as far as the caller may ask for them."""
    served = {
        "kubeflow.org": training.knows(cluster, training.OPERATOR),
        "trainer.kubeflow.org": training.knows(cluster, training.TRAINER),
        "kueue.x-k8s.io": cluster.serves(training.KUEUE),
    }
    wanted = [right for right in TRAIN_RIGHTS if served.get(right[0], True)]
    asked = {right: cluster.allowed(place.namespace, *right, account=place.runner) for right in wanted[:1]}
    if None in asked.values():
        return _binding(cluster, place)
    lacking = [
        right for right in wanted if not cluster.allowed(place.namespace, *right, account=place.runner)
    ]
    if not lacking:
        return Diagnostic("rights", "ok", f"{place.runner} may run training jobs ({len(wanted)} rights)")
    listed = ", ".join(f"{verb} {resource}" for _, resource, verb in lacking[:4])
    more = f" and {len(lacking) - 4} more" if len(lacking) > 4 else ""  # noqa: PLR2004
    text = f"{place.runner} lacks {listed}{more}: a train step that needs it ends with 50"
    return Diagnostic("rights", "miss", text, overlay(place), code=50)


def _binding(cluster: ClusterReader, place: Installation) -> Diagnostic:
    """Judge the rights by their RoleBinding, for a caller who may not ask about other accounts."""
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{place.namespace}/rolebindings/trainwright-train"
    answer = cluster.get(path)
    if answer.state == "hidden":
        return Diagnostic("rights", "?", f"the caller may not ask what {place.runner} may do")
    subjects = [entry.get("name") for entry in answer.body.get("subjects") or []]
    if place.runner in subjects:
        return Diagnostic("rights", "ok", f"RoleBinding trainwright-train names {place.runner}")
    text = f"no RoleBinding trainwright-train names {place.runner}: a train step ends with 50"
    return Diagnostic("rights", "miss", text, overlay(place), code=50)


def _submit_rights(cluster: ClusterReader, place: Installation) -> Diagnostic:
    group = "pipelines.kubeflow.org"
    lacking = [verb for verb in SUBMIT_RIGHTS if not cluster.allowed(place.namespace, group, "runs", verb)]
    if not lacking:
        return Diagnostic(
            "submit", "ok", f"the caller may submit, follow, retry and stop runs in {place.namespace}"
        )
    text = f"the kubeconfig's identity may not {', '.join(lacking)} runs in {place.namespace}"
    return Diagnostic("submit", "note", text, "CI has an account of its own: kubectl apply -k deploy/ci.")


def inspect_claim(cluster: ClusterReader, place: Installation) -> Iterator[Diagnostic]:
    """Inspect the claim that a train step and its job share."""
    answer = cluster.get(f"/api/v1/namespaces/{place.namespace}/persistentvolumeclaims/{CLAIM}")
    if answer.state == "hidden":
        yield Diagnostic("claim", "?", f"the caller may not read PersistentVolumeClaim {CLAIM}")
        return
    if answer.state == "absent":
        text = f"no PersistentVolumeClaim {CLAIM} in {place.namespace}: the pod of a train step never starts"
        yield Diagnostic("claim", "miss", text, f"{overlay(place)}, or name your own in resources.claim.")
        return
    phase = answer.body.get("status", {}).get("phase", "Pending")
    modes = answer.body.get("spec", {}).get("accessModes") or []
    if phase == "Lost":
        yield Diagnostic(
            "claim", "miss", f"{CLAIM} is Lost: its volume is gone", "Make it anew on another volume."
        )
    elif "ReadWriteMany" not in modes:
        text = f"{CLAIM} is {', '.join(modes)}: a job on several nodes cannot mount it"
        yield Diagnostic("claim", "note", text, "Use a storage class with ReadWriteMany.")
    elif phase != "Bound":
        advice = "With volumeBindingMode WaitForFirstConsumer that is normal before the first training."
        yield Diagnostic("claim", "note", f"{CLAIM} is {phase}", advice)
    else:
        yield Diagnostic("claim", "ok", f"{CLAIM} is bound, {', '.join(modes)}")


def inspect_mlflow(cluster: ClusterReader, place: Installation) -> Iterator[Diagnostic]:
    """Look for a server of MLflow in the cluster."""
    spaces = dict.fromkeys([place.namespace, place.system, "mlflow"])
    answers = {space: cluster.get(f"/api/v1/namespaces/{space}/services") for space in spaces}
    found = [
        f"http://{entry['metadata']['name']}.{space}.svc:{port.get('port')}"
        for space, answer in answers.items()
        for entry in answer.items
        if "mlflow" in entry["metadata"]["name"]
        for port in (entry.get("spec", {}).get("ports") or [])[:1]
    ]
    if found:
        yield Diagnostic("mlflow", "ok", f"{', '.join(found)}: for registry.tracking_uri")
    elif "hidden" in {answer.state for answer in answers.values()}:
        yield Diagnostic("mlflow", "?", f"the caller may not list Services in {' or '.join(answers)}")
    else:
        text = f"no Service called mlflow in {', '.join(answers)}: register ends with 21 without a server"
        yield Diagnostic("mlflow", "note", text, "Name the server that you use in registry.tracking_uri.")


def inspect_nodes(cluster: ClusterReader) -> Iterator[Diagnostic]:
    """Compare the largest pods of the main pipeline with the nodes. What else runs on them is not counted."""
    answer = cluster.get("/api/v1/nodes")
    if answer.state != "found":
        yield Diagnostic(
            "nodes", "?", "the caller may not list nodes: whether the steps' pods fit is not known"
        )
        return
    free = [node.get("status", {}).get("allocatable", {}) for node in answer.items]
    sizes = [(float(_amount(node, "cpu")), float(_amount(node, "memory"))) for node in free]
    wanted = largest_steps()
    tight = [
        f"{name} ({cores:g} cores, {memory / 1e9:.1f} GB)"
        for name, (cores, memory) in sorted(wanted.items())
        if not any(cores <= has and memory <= room for has, room in sizes)
    ]
    largest = max(sizes, default=(0.0, 0.0))[0]
    text = f"{len(sizes)} node{'s' * (len(sizes) != 1)}, the largest with {largest:g} cores"
    if tight:
        advice = "Ask for less in the pipeline's parameters of sizes, or add a larger node."
        yield Diagnostic("nodes", "miss", f"{text}; none holds {', '.join(tight)}", advice)
    else:
        yield Diagnostic("nodes", "ok", f"{text}; each step of {PIPELINE} fits on an empty node")


def _amount(node: Mapping[str, Any], resource: str) -> Any:
    return parse_quantity(node.get(resource, 0))


def largest_steps() -> dict[str, tuple[float, float]]:
    """Return cores and bytes that the pods of the main pipeline's steps ask for, by executor, on defaults."""
    document = next(yaml.safe_load_all(catalog.pipeline(PIPELINE).read_text()))
    defaults = document["root"].get("inputDefinitions", {}).get("parameters", {})

    def amount(text: str) -> float:
        if parameter := _PARAMETER.fullmatch(text):
            text = str(defaults.get(parameter[1], {}).get("defaultValue") or 0)
        return float(parse_quantity(text))

    found = {}
    for label, executor in document["deploymentSpec"]["executors"].items():
        asked = executor.get("container", {}).get("resources", {})
        sizes = (asked.get("resourceCpuRequest", "0"), asked.get("resourceMemoryRequest", "0"))
        found[label.removeprefix("exec-")] = (amount(sizes[0]), amount(sizes[1]))
    return found

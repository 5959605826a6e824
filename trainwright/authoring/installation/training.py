"""Inspect the training operator or Trainer, the runtime, and the free quota of Kueue's queues."""

from collections.abc import Iterator

from kubernetes.utils import parse_quantity  # type: ignore[import-untyped]

from trainwright.authoring.diagnostic import Diagnostic
from trainwright.authoring.installation.pipelines import Installation, image_of
from trainwright.authoring.installation.reading import ClusterReader, Object

OPERATOR, TRAINER, KUEUE = "kubeflow.org/v1", "trainer.kubeflow.org/v1alpha1", "kueue.x-k8s.io/v1beta2"
RUNTIME = "trainwright-torch"
RUNTIME_ADVICE = "kubectl apply -f deploy/trainer/runtime.yaml"
JOBS = {OPERATOR: "pytorchjobs", TRAINER: "trainjobs"}
DEPLOYMENTS = {
    OPERATOR: ("training-operator",),
    TRAINER: ("kubeflow-trainer-controller-manager",),
    KUEUE: ("kueue-controller-manager",),
}
NAMESPACES = ("kubeflow", "kubeflow-system", "kueue-system")
"""Where their own manifests put them."""


def knows(cluster: ClusterReader, kind: str) -> bool:
    """Say whether the cluster has the custom resource of an operator: :data:`OPERATOR` or :data:`TRAINER`."""
    found = cluster.get(f"/apis/{kind}").body.get("resources") or []
    return any(entry.get("name") == JOBS[kind] for entry in found)


def inspect_training(cluster: ClusterReader, place: Installation) -> Iterator[Diagnostic]:
    """Inspect the operators of training jobs."""
    operator, trainer = knows(cluster, OPERATOR), knows(cluster, TRAINER)
    if operator:
        yield Diagnostic("pytorchjob", "ok", f"training operator: {_version(cluster, place, OPERATOR)}")
    if trainer:
        yield Diagnostic("trainjob", "ok", f"Kubeflow Trainer: {_version(cluster, place, TRAINER)}")
        yield _runtime(cluster, needed=not operator)
    if not operator and not trainer:
        text = "the cluster knows neither PyTorchJobs nor TrainJobs: every train step ends with 21"
        advice = "Install the training operator 1.9, or Kubeflow Trainer: docs/running-on-kubeflow.md."
        yield Diagnostic("training", "miss", text, advice)
    elif not operator:
        text = "no PyTorchJobs, which resources.launcher asks for by default"
        yield Diagnostic(
            "pytorchjob", "note", text, "Set resources.launcher: trainjob in the experiment file."
        )


def _version(cluster: ClusterReader, place: Installation, kind: str) -> str:
    """Return the image of an operator, which has its version, from wherever its Deployment is."""
    hidden = False
    for namespace in dict.fromkeys([place.system, *NAMESPACES]):
        for name in DEPLOYMENTS[kind]:
            answer = cluster.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")
            if answer.state == "found":
                return image_of(answer.body)
            hidden = hidden or answer.state == "hidden"
    return "its version is not known" + (": the caller may not read Deployments" if hidden else "")


def _runtime(cluster: ClusterReader, *, needed: bool) -> Diagnostic:
    answer = cluster.get(f"/apis/{TRAINER}/clustertrainingruntimes/{RUNTIME}")
    if answer.state == "found":
        return Diagnostic("runtime", "ok", f"ClusterTrainingRuntime {RUNTIME}")
    if answer.state == "hidden":
        return Diagnostic("runtime", "?", f"the caller may not read ClusterTrainingRuntime {RUNTIME}")
    text = f"no ClusterTrainingRuntime {RUNTIME}: no TrainJob of this library starts"
    return Diagnostic("runtime", "miss" if needed else "note", text, RUNTIME_ADVICE)


def inspect_queues(cluster: ClusterReader, place: Installation) -> Iterator[Diagnostic]:
    """Inspect the queues of the namespace, and how much of them is free."""
    if not cluster.serves(KUEUE):
        old = cluster.serves("kueue.x-k8s.io/v1beta1")
        text = "Kueue is older than 0.15" if old else "no Kueue: jobs start as soon as they are made"
        advice = "placement.queue needs Kueue 0.15 or later." if old else ""
        yield Diagnostic("queues", "note" if old else "ok", text, advice)
        return
    yield Diagnostic("kueue", "ok", _version(cluster, place, KUEUE))
    answer = cluster.get(f"/apis/{KUEUE}/namespaces/{place.namespace}/localqueues")
    if answer.state != "found":
        yield Diagnostic("queues", "?", f"the caller may not list LocalQueues in {place.namespace}")
    elif not answer.items:
        text = f"{place.namespace} has no LocalQueue: a job with placement.queue is never admitted"
        yield Diagnostic("queues", "note", text, "Adapt deploy/kueue, then kubectl apply -k deploy/kueue.")
    else:
        yield from (_queue(cluster, queue) for queue in answer.items)


def _queue(cluster: ClusterReader, queue: Object) -> Diagnostic:
    name, behind = queue["metadata"]["name"], queue.get("spec", {}).get("clusterQueue", "")
    waiting = queue.get("status", {}).get("pendingWorkloads", 0)
    text = f"{name} (ClusterQueue {behind}): {waiting} waiting"
    answer = cluster.get(f"/apis/{KUEUE}/clusterqueues/{behind}")
    if answer.state == "absent":
        advice = "Adapt deploy/kueue, then kubectl apply -k deploy/kueue."
        return Diagnostic("queue", "miss", f"{name}: there is no ClusterQueue {behind}", advice)
    if answer.state == "hidden":
        return Diagnostic("queue", "?", f"{text}; the caller may not read the ClusterQueue's quota")
    room = ", ".join(
        f"{resource} {used:g} of {all_:g}" for resource, (used, all_) in _room(answer.body).items()
    )
    stopped = (
        queue.get("spec", {}).get("stopPolicy") or answer.body.get("spec", {}).get("stopPolicy") or "None"
    )
    if stopped != "None":
        text = f"{text}; stopped ({stopped}): nothing is admitted"
        return Diagnostic("queue", "note", text, "Whoever stopped it has to set stopPolicy: None.")
    return Diagnostic("queue", "ok", f"{text}; used: {room}")


def _room(queue: Object) -> dict[str, tuple[float, float]]:
    """Return, by resource, how much of a ClusterQueue is reserved and how much there is, over all flavors."""
    found: dict[str, tuple[float, float]] = {}
    for group in queue.get("spec", {}).get("resourceGroups") or []:
        for flavor in group.get("flavors") or []:
            for entry in flavor.get("resources") or []:
                used, quota = found.get(entry["name"], (0.0, 0.0))
                found[entry["name"]] = (used, quota + float(parse_quantity(entry.get("nominalQuota", 0))))
    for flavor in queue.get("status", {}).get("flavorsReservation") or []:
        for entry in flavor.get("resources") or []:
            used, quota = found.get(entry["name"], (0.0, 0.0))
            found[entry["name"]] = (used + float(parse_quantity(entry.get("total", 0))), quota)
    return found

"""What is wrong with a manifest, beyond its form: what no webhook looks at, and the operator believes.

The recordings show that the operator accepts a restart policy ``Sometimes``, a rendezvous backend that does
not exist, a minimum above its maximum, and names whose pods cannot be made; such a job then hangs.
"""

from collections.abc import Iterator
from typing import Any

from trainwright.launch import words
from trainwright.launch.manifests import annotations as names
from trainwright.launch.manifests import fields, pod_checks, trainjob
from trainwright.launch.manifests.pod_checks import at, entries

_KINDS = {"PyTorchJob": "KubeflowOrgV1PyTorchJob", "TrainJob": "TrainJob"}
_RESTARTS = ("Always", "OnFailure", "Never", "ExitCode")
_RESTARTING = ("Always", "OnFailure", "ExitCode")
_CLEAN = ("None", "Running", "All")
_BACKENDS = ("c10d", "etcd", "etcd-v2")
_MANAGERS = ("kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue")
_LONGEST = 63
_MOST_ENTRIES = 128


def refusals(body: dict[str, Any]) -> list[str]:
    """Say everything that is wrong with a PyTorchJob or a TrainJob; nothing for one that can be submitted."""
    kind = body.get("kind")
    if kind not in _KINDS:
        return [f"kind {kind!r} is not one of {', '.join(_KINDS)}"]
    found = [*fields.wrong(body, _KINDS[kind]), *_metadata(body)]
    found += [*_pytorchjob(body), *_elastic(body)] if kind == "PyTorchJob" else _trainjob(body)
    return list(dict.fromkeys(found))


def _metadata(body: dict[str, Any]) -> Iterator[str]:
    name = str(at(body, "metadata", "name"))
    if not words.is_job_name(name):
        yield f"metadata.name {name!r} is not a DNS-1035 label of at most 52 characters"
    yield from pod_checks.metadata(at(body, "metadata"), "metadata")
    labels = at(body, "metadata", "labels")
    for key in (names.QUEUE, names.WORKLOAD_PRIORITY):
        if key in labels and not words.is_subdomain(str(labels[key])):
            yield f"metadata.labels.{key} {labels[key]!r} is not the name of an object"
    limit = labels.get(names.MAX_EXEC_TIME, "1")
    if not str(limit).isdigit() or int(limit) < 1:
        yield f"metadata.labels.{names.MAX_EXEC_TIME} {limit!r} is not a number of seconds above 0"
    suspended = at(body, "spec", "suspend") or at(body, "spec", "runPolicy", "suspend")
    if names.QUEUE in labels and suspended:
        yield "suspend is the queue's to set; without one to resume it, the job never starts"
    for index, owner in enumerate(entries(at(body, "metadata", "ownerReferences"))):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                yield f"metadata.ownerReferences[{index}].{field} is empty"


def _pytorchjob(body: dict[str, Any]) -> Iterator[str]:
    spec, replicas = at(body, "spec"), at(body, "spec", "pytorchReplicaSpecs")
    restarts = any(at(replica, "restartPolicy") in _RESTARTING for replica in replicas.values())
    yield from _policy(at(spec, "runPolicy"), restarts=restarts)
    yield from _roles(replicas, bool(at(spec, "elasticPolicy")))
    processes = at(spec, "nprocPerNode") or "auto"
    if processes not in ("auto", "cpu", "gpu") and not (str(processes).isdigit() and int(processes)):
        yield f"spec.nprocPerNode {processes!r} is not auto, cpu, gpu or a number above 0"
    for role, replica in replicas.items():
        place = f"spec.pytorchReplicaSpecs.{role}"
        policy = at(replica, "restartPolicy") or "(none)"
        if policy not in _RESTARTS:
            yield f"{place}.restartPolicy {policy!r} is not one of {', '.join(_RESTARTS)}"
        if at(replica, "template", "spec", "restartPolicy"):
            yield f"{place}.template.spec.restartPolicy is overridden by {place}.restartPolicy: leave it out"
        yield from pod_checks.template(at(replica, "template"), f"{place}.template", "pytorch")
        pod = f"{at(body, 'metadata', 'name')}-{role.lower()}-{max(_count(replica) - 1, 0)}"
        if len(pod) > _LONGEST:
            yield f"{place}: the name of its last pod, {pod}, is longer than {_LONGEST} characters"


def _policy(policy: Any, *, restarts: bool) -> Iterator[str]:
    word = at(policy, "cleanPodPolicy")
    if word not in _CLEAN:
        yield f"spec.runPolicy.cleanPodPolicy {word!r} is not one of {', '.join(_CLEAN)}"
    lowest = {"activeDeadlineSeconds": 1, "backoffLimit": 0, "ttlSecondsAfterFinished": 0}
    for name, least in lowest.items():
        value = at(policy, name)
        if name == "backoffLimit" and value == {} and not restarts:
            continue  # nothing is ever started again
        if not isinstance(value, int) or value < least:
            yield f"spec.runPolicy.{name} is {value if value != {} else None}, must be at least {least}"
    manager = at(policy, "managedBy")
    if manager and manager not in _MANAGERS:
        yield f"spec.runPolicy.managedBy {manager!r} is not one of {', '.join(_MANAGERS)}"


def _roles(replicas: dict[str, Any], elastic: bool) -> Iterator[str]:
    place = "spec.pytorchReplicaSpecs"
    if unknown := sorted(replicas.keys() - {"Master", "Worker"}):
        yield f"{place} has {', '.join(unknown)}; there are Master and Worker"
    if not elastic and "Master" not in replicas:
        yield f"{place} has no Master: the first Worker that ends well would end the job"
    if "Master" in replicas and _count(replicas["Master"]) != 1:
        yield f"{place}.Master.replicas is {_count(replicas['Master'])}, must be 1"
    if "Worker" in replicas and _count(replicas["Worker"]) < 1:
        yield f"{place}.Worker.replicas is {_count(replicas['Worker'])}, must be at least 1"
    if elastic and set(replicas) != {"Worker"}:
        yield f"{place} of an elastic job has Worker only; its Master could be lost for good"


def _elastic(body: dict[str, Any]) -> Iterator[str]:
    policy, place = at(body, "spec", "elasticPolicy"), "spec.elasticPolicy"
    if not policy:
        return
    least, most = policy.get("minReplicas"), policy.get("maxReplicas")
    count = _count(at(body, "spec", "pytorchReplicaSpecs", "Worker"))
    if not (isinstance(least, int) and isinstance(most, int) and 1 <= least <= most):
        yield f"{place}: minReplicas {least} and maxReplicas {most} are not 1 <= min <= max"
    elif count != most:
        yield f"{place}.maxReplicas is {most}, and there are {count} Workers: a start would wait for more"
    if policy.get("rdzvBackend") not in _BACKENDS:
        yield f"{place}.rdzvBackend {policy.get('rdzvBackend')!r} is not one of {', '.join(_BACKENDS)}"
    if policy.get("nProcPerNode") is not None:
        yield f"{place}.nProcPerNode is deprecated, and refused together with spec.nprocPerNode: leave it out"
    for index, entry in enumerate(entries(policy.get("rdzvConf"))):
        if any(mark in str(entry.get(part, "")) for part in ("key", "value") for mark in ",= "):
            yield f"{place}.rdzvConf[{index}] {entry!r} holds a comma, = or a space: it cannot be told apart"


def _count(replica: Any) -> int:
    """Return how many pods a role has; the operator takes 1 where nothing is said."""
    count = at(replica, "replicas")
    return count if isinstance(count, int) else 1


def _trainjob(body: dict[str, Any]) -> Iterator[str]:
    spec, trainer = at(body, "spec"), at(body, "spec", "trainer")
    if not words.is_subdomain(str(at(spec, "runtimeRef", "name"))):
        yield f"spec.runtimeRef.name {at(spec, 'runtimeRef', 'name')!r} is not the name of a runtime"
    for place, value in (
        ("spec.trainer.numNodes", at(trainer, "numNodes")),
        ("spec.trainer.numProcPerNode", at(trainer, "numProcPerNode")),
        ("spec.activeDeadlineSeconds", at(spec, "activeDeadlineSeconds")),
    ):
        if not isinstance(value, int) or value < 1:
            yield f"{place} is {value if value != {} else None}, must be at least 1"
    for part in ("command", "env"):
        if len(trainer.get(part) or []) > _MOST_ENTRIES:
            yield f"spec.trainer.{part} has {len(trainer[part])} entries, at most {_MOST_ENTRIES} are taken"
    yield from pod_checks.container(
        {**trainer, "resources": at(trainer, "resourcesPerNode")}, "spec.trainer", set(), patched=True
    )
    for index, patch in enumerate(entries(spec.get("runtimePatches"))):
        yield from _patch(patch, f"spec.runtimePatches[{index}]", trainer)


def _patch(patch: dict[str, Any], place: str, trainer: dict[str, Any]) -> Iterator[str]:
    prefix, slash, path = str(patch.get("manager", "")).partition("/")
    if not (slash and path and words.is_subdomain(prefix)):
        yield f"{place}.manager {patch.get('manager')!r} is not of the form domain/name"
    jobs = entries(at(patch, "trainingRuntimeSpec", "template", "spec", "replicatedJobs"))
    for index, job in enumerate(jobs):
        where = f"{place}.trainingRuntimeSpec.template.spec.replicatedJobs[{index}]"
        pod = at(job, "template", "spec", "template")
        yield from pod_checks.patch(pod, f"{where}.template.spec.template", trainjob.CONTAINER)
        limit = at(trainer, "resourcesPerNode", "limits", "memory")
        yield from pod_checks.shared_memory(at(pod, "spec"), limit, f"{where}.template.spec.template.spec")

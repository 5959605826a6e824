"""Translate a job into a PyTorchJob (training operator v1) or a TrainJob (Kubeflow Trainer v2.2 and later).

The same job always gives the same manifest.
"""

import json
from collections.abc import Mapping
from typing import Any

from trainwright.documents import canonical, digest_text
from trainwright.errors import InputError
from trainwright.experiment.resources import VolumeMount
from trainwright.launch import kubernetes_names
from trainwright.launch.job import GPU, Job, node_labels, tolerations

Body = dict[str, Any]

RUN_ID = "trainwright/run-id"
"""Annotation: the ``run`` of the job."""

SPEC_SHA256 = "trainwright/spec-sha256"
"""Annotation: the digest of the job."""

FOLDER = "trainwright/folder"
"""Annotation: the folder of the attempt that the job's pods write into."""

ATTEMPT = "trainwright/attempt"
"""Annotation and label of the pods: the attempt, since the jobs of several attempts have the same name."""

MANAGED_BY, OURS = "app.kubernetes.io/managed-by", "trainwright"
"""Label of every job and pod of this library, and its value."""

QUEUE = "kueue.x-k8s.io/queue-name"
WORKLOAD_PRIORITY = "kueue.x-k8s.io/priority-class"

JOIN_TIMEOUT_S = 900
"""Seconds for which the pods of a job wait for one another: images are pulled, nodes are added."""

DEADLINE_MARGIN_S = 120
"""Seconds by which the operator's deadline is later than the launcher's: it is the second line."""

_TTL_S, _LAST_CALL_S = 86_400, 30
_MORE_GRACE_S = 5
_TEMPORARY = "/tmp"  # noqa: S108  # nosec B108
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  # nosec B108
_USER = 65532
_POD_SECURITY: Body = {
    "runAsNonRoot": True,
    # A number, because the operator adds init-pytorch (alpine:3.10, root) to the Workers, which a node
    # otherwise refuses to start (CreateContainerConfigError).
    "runAsUser": _USER,
    "runAsGroup": _USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""With the container's, what the profile ``restricted`` of Pod Security requires."""


def make_manifest(job: Job, kind: str, owner: Body | None = None) -> Body:
    """Translate a job into the object of kind ``pytorchjob`` or ``trainjob``.

    The server validates the manifest in a dry run before the job is created. Checked here is only what
    neither the server nor the operator rejects: both accept pods that can never be created.

    Args:
        job: The job.
        kind: Name of the launcher.
        owner: Owner reference of an object in the same namespace, from :func:`owner_reference`.

    Raises:
        InputError: The job cannot run on a cluster; all problems are listed.
    """
    makers = {"pytorchjob": _pytorchjob, "trainjob": _trainjob}
    if kind not in makers:
        known = ", ".join(makers)
        raise InputError(f"no kind of job {kind!r}; known are {known}", where="resources.launcher")
    problems, unsupported = _problems(job), _unsupported_by_trainjob(job) if kind == "trainjob" else []
    if problems or unsupported:
        hint = "Use launcher: pytorchjob." if unsupported else ""
        raise InputError("; ".join([*problems, *unsupported]), where="job for a cluster", hint=hint)
    body: Body = json.loads(json.dumps(makers[kind](job)))  # a caller may change it
    body["metadata"] |= {"ownerReferences": [owner]} if owner else {}
    return body


def owner_reference(workflow: str, uid: str) -> Body:
    """Return a reference to the owner, which may go before the job: to block that takes another right."""
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": workflow, "uid": uid}
    return owner | {"controller": False, "blockOwnerDeletion": False}


def grace_s(job: Job) -> int:
    """Return a pod's termination grace period: that of its processes, and the agent's own seconds."""
    return job.grace_s + _MORE_GRACE_S


def _problems(job: Job) -> list[str]:
    """Return what keeps the pods of a job from being created."""
    problems = []
    if not (job.claim and job.mount and job.folder.is_relative_to(job.mount)):
        problems.append(f"folder {job.folder} is not on a mounted claim ({job.claim!r} at {job.mount!r})")
    elif not kubernetes_names.is_subdomain(job.claim):
        problems.append(f"claim {job.claim!r:.80} is not the name of a PersistentVolumeClaim")
    if not kubernetes_names.is_image(job.image):
        problems.append(f"image {job.image!r} is not a reference to an image")
    paths = [mount["mountPath"] for mount in _volumes(job)[1]]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    return problems + [f"volumeMounts has {path} twice" for path in twice]


def _unsupported_by_trainjob(job: Job) -> list[str]:
    placement, found = job.placement, []
    if _is_elastic(job):
        found.append(
            f"a TrainJob cannot be elastic, and placement.min_nodes {placement.min_nodes} is below "
            f"nodes {job.nodes}"
        )
    for name in ("priority_class", "scheduler"):
        if value := getattr(placement, name):
            found.append(
                f"a TrainJob takes its pods' {name.replace('_', ' ')} from the runtime {placement.runtime}, "
                f"and placement.{name} is {value!r}"
            )
    return found


def _is_elastic(job: Job) -> bool:
    return job.placement.min_nodes is not None and job.placement.min_nodes < job.nodes


def _pytorchjob(job: Job) -> Body:
    """Translate a job into a PyTorchJob.

    A job of a fixed number of nodes is one Master and Workers that are never restarted: the loss of one stops
    all, the job fails at once, and the launcher decides. (Under OnFailure and ExitCode the operator retries
    out-of-memory kills too, and does not count.)

    An elastic job has Workers only, with OnFailure, the one policy under which a node can be taken away
    without the job failing: the others continue with fewer, and the replacement joins them. One Worker that
    exits 0 makes such a job Succeeded, which an agent never does without the completion marker.
    """
    from kubeflow.training import models  # type: ignore[import-untyped]
    from kubernetes import client  # type: ignore[import-untyped]

    limits = models.KubeflowOrgV1RunPolicy(
        # Pods that still run when the job has ended hold GPUs; the others keep their logs.
        clean_pod_policy="Running",
        active_deadline_seconds=job.timeout_s + DEADLINE_MARGIN_S,
        ttl_seconds_after_finished=_TTL_S,
    )
    elastic = None
    if _is_elastic(job):
        # The operator counts containers, and one loss can restart those of all pods. At this limit a job
        # loses all pods with their logs, so the limit is beyond all that the launcher allows.
        allowed = job.budget.preemption + job.budget.infrastructure + job.budget.user
        limits.backoff_limit = job.nodes * (allowed + 1)
        elastic = models.KubeflowOrgV1ElasticPolicy(**_elastic_policy(job))
        policy, replicas, template = "OnFailure", {"Worker": job.nodes}, _pod_template(job, ())
    else:
        replicas = {"Master": 1} | ({"Worker": job.nodes - 1} if job.nodes > 1 else {})
        policy, template = "Never", _pod_template(job, (f"--rdzv-conf=timeout={JOIN_TIMEOUT_S}",))
    roles = {
        role: models.KubeflowOrgV1ReplicaSpec(replicas=count, restart_policy=policy, template=template)
        for role, count in replicas.items()
    }
    spec = models.KubeflowOrgV1PyTorchJobSpec(
        nproc_per_node=str(job.processes),
        run_policy=limits,
        pytorch_replica_specs=roles,
        elastic_policy=elastic,
    )
    made = models.KubeflowOrgV1PyTorchJob(
        api_version="kubeflow.org/v1", kind="PyTorchJob", metadata=_metadata(job), spec=spec
    )
    body: Body = client.ApiClient().sanitize_for_serialization(made)
    return body


def _elastic_policy(job: Job) -> Body:
    conf = {"join_timeout": str(JOIN_TIMEOUT_S), "last_call_timeout": str(_LAST_CALL_S)}
    return {
        "min_replicas": job.placement.min_nodes,
        "max_replicas": job.nodes,  # more than there are pods would make every start wait for the last call
        "rdzv_backend": "c10d",
        "rdzv_conf": [{"key": key, "value": value} for key, value in conf.items()],
        "max_restarts": job.restarts,
    }


def _pod_template(job: Job, rendezvous: tuple[str, ...]) -> Body:
    volumes, mounts = _volumes(job)
    container = {
        "name": "pytorch",
        "image": job.image,
        "command": _command(job, rendezvous),
        "env": _environment(job),
        "resources": _resources(job),
        "volumeMounts": mounts,
        "securityContext": _container_security(job),
    }
    spec = {
        "containers": [container],
        "volumes": volumes,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_s(job),
        "securityContext": _POD_SECURITY,
        **_scheduling(job),
    }
    names = {"priorityClassName": job.placement.priority_class, "schedulerName": job.placement.scheduler}
    return {"metadata": _pod_metadata(job), "spec": spec | {key: name for key, name in names.items() if name}}


def _trainjob(job: Job) -> Body:
    """Translate a job into a TrainJob, which takes most of a pod from its runtime and patches some of it.

    The patch holds only fields that Trainer 2.2 has: 2.2 rejects others, and Kueue (0.15 to 0.19, built with
    the types of Trainer 2.2) removes them when it admits the job. The JobSet that Trainer derives then
    differs from the existing one in an immutable field, and the job never starts.
    """
    volumes, mounts = _volumes(job)
    container = {"name": "node", "volumeMounts": mounts, "securityContext": _container_security(job)}
    patch = {
        "containers": [container],
        "volumes": volumes,
        "securityContext": _POD_SECURITY,
        **_scheduling(job),
    }
    pod = {"metadata": _pod_metadata(job), "spec": patch}
    template = {"spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": pod}}}]}}
    spec = {
        "runtimeRef": {
            "apiGroup": "trainer.kubeflow.org",
            "kind": job.placement.runtime_kind,
            "name": job.placement.runtime,
        },
        "trainer": {
            "image": job.image,
            "command": _command(job, (f"--rdzv-conf=timeout={JOIN_TIMEOUT_S}",)),
            "env": _environment(job),
            "numNodes": job.nodes,
            "numProcPerNode": job.processes,
            "resourcesPerNode": _resources(job),
        },
        "runtimePatches": [
            {"manager": "trainwright/launcher", "trainingRuntimeSpec": {"template": template}}
        ],
        "activeDeadlineSeconds": job.timeout_s + DEADLINE_MARGIN_S,
    }
    version = "trainer.kubeflow.org/v1alpha1"
    return {"apiVersion": version, "kind": "TrainJob", "metadata": _metadata(job), "spec": spec}


def _metadata(job: Job) -> Body:
    """Return name, labels and annotations of the job itself."""
    queue = {
        QUEUE: job.placement.queue,
        WORKLOAD_PRIORITY: job.placement.workload_priority,
        "kueue.x-k8s.io/max-exec-time-seconds": str(job.placement.max_exec_time_s or ""),
    }
    return {
        "name": job.name,
        "labels": _labels(job) | {key: value for key, value in queue.items() if value},
        "annotations": {
            RUN_ID: job.run,
            SPEC_SHA256: job.digest,
            FOLDER: str(job.folder),
            ATTEMPT: job.attempt,
        },
    }


def _labels(job: Job) -> dict[str, str]:
    """Return the labels of the job and of every pod; the run's address does not fit into a label."""
    return job.placement.labels | {
        MANAGED_BY: OURS,
        "trainwright/task": job.name.removeprefix("tw-").rpartition("-")[0],
        "trainwright/run": digest_text(job.run)[:16],
    }


def _pod_metadata(job: Job) -> Body:
    notes = {
        # A mesh's sidecar would keep the pod alive after its training, and encrypt what NCCL sends.
        "sidecar.istio.io/inject": "false",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "kueue.x-k8s.io/podset-required-topology": job.placement.required_topology,
        "kueue.x-k8s.io/podset-preferred-topology": job.placement.preferred_topology,
    }
    attempt = {ATTEMPT: job.attempt} if kubernetes_names.is_label(job.attempt) else {}
    return {
        "labels": _labels(job) | attempt,
        "annotations": {key: value for key, value in notes.items() if value},
    }


def _command(job: Job, rendezvous: tuple[str, ...]) -> list[str]:
    """Return the command of every pod: the agent, which runs torchrun, which runs the program."""
    agent = ["python", "-m", "trainwright.launch.agent", str(job.folder), *job.agent_options, "--"]
    return [*agent, f"--max-restarts={job.restarts}", *rendezvous, *job.arguments]


def _environment(job: Job) -> list[Body]:
    """Return variables with public values, and references to Secrets and ConfigMaps."""
    variables: list[Body] = [{"name": name, "value": text} for name, text in sorted(job.environment.items())]
    for entry in job.placement.env_from_secrets:
        kind = "secretKeyRef" if entry.secret else "configMapKeyRef"
        source = {"name": entry.secret or entry.config, "key": entry.key, "optional": entry.optional}
        variables.append({"name": entry.name, "valueFrom": {kind: source}})
    return variables


def _resources(job: Job) -> Body:
    """Return equal requests and limits: a pod that gets less than it was promised stops all others."""
    amounts = {"cpu": f"{job.cpu:g}", "memory": _mebibytes(job.memory_gib)}
    if job.placement.disk_gib:
        amounts["ephemeral-storage"] = _mebibytes(job.placement.disk_gib)
    if job.gpus:
        amounts[GPU] = str(job.gpus)
    amounts |= {name: str(count) for name, count in job.placement.devices.items()}
    return {"requests": amounts, "limits": amounts}


def _volumes(job: Job) -> tuple[list[Body], list[Body]]:
    """Return the volumes of a pod and where its container mounts them."""
    temporary: Body = {"sizeLimit": _mebibytes(job.placement.disk_gib)} if job.placement.disk_gib else {}
    volumes: list[Body] = [
        {"name": "shared", "persistentVolumeClaim": {"claimName": job.claim}},
        {"name": "tmp", "emptyDir": temporary},
    ]
    mounts: list[Body] = [
        {"name": "shared", "mountPath": job.mount},
        {"name": "tmp", "mountPath": _TEMPORARY},
    ]
    # Counts as memory of the pod; without it, Kubernetes gives 64 MiB.
    shared_gib = job.placement.shared_memory_gib or (
        job.memory_gib / 2 if job.gpus or job.processes > 1 else None
    )
    if shared_gib:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _mebibytes(shared_gib)}})
        mounts.append({"name": "shm", "mountPath": _SHARED_MEMORY})
    for volume in job.placement.volumes:
        name = "shared"
        if volume.claim != job.claim:
            source = _volume_source(volume)
            name = f"more-{digest_text(canonical(source))[:8]}"
            if all(entry["name"] != name for entry in volumes):
                volumes.append({"name": name, **source})
        mount: Body = {"name": name, "mountPath": volume.path}
        if volume.read_only or not volume.claim:
            mount["readOnly"] = True
        mounts.append(mount | ({"subPath": volume.sub_path} if volume.sub_path else {}))
    return volumes, mounts


def _volume_source(volume: VolumeMount) -> Body:
    if volume.claim:
        return {"persistentVolumeClaim": {"claimName": volume.claim}}
    options = {"defaultMode": 0o440, "optional": volume.optional}
    if volume.secret:
        return {"secret": {"secretName": volume.secret, **options}}
    return {"configMap": {"name": volume.config, **options}}


def _container_security(job: Job) -> Body:
    """Return what a container may do: nothing, but to lock memory where RDMA needs it."""
    added = {"add": ["IPC_LOCK"]} if job.placement.ipc_lock else {}
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], **added},
        "readOnlyRootFilesystem": True,
    }


def _scheduling(job: Job) -> Body:
    """Return the fields of a pod that say where it runs."""
    placement = job.placement
    fields: Mapping[str, Any] = {
        "nodeSelector": node_labels(placement),
        "affinity": placement.affinity,
        "tolerations": [
            {
                ("tolerationSeconds" if name == "seconds" else name): value
                for name, value in entry.model_dump().items()
                if value not in {"", None}
            }
            for entry in tolerations(placement)
        ],
        "serviceAccountName": placement.service_account,
        "imagePullSecrets": [{"name": name} for name in placement.image_pull_secrets],
    }
    return {name: value for name, value in fields.items() if value}


def _mebibytes(gib: float) -> str:
    return f"{round(gib * 1024)}Mi"

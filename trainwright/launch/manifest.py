"""From a job to a PyTorchJob. Pure: the same job gives the same manifest."""

import re
from typing import Any

from kubeflow.training import models  # type: ignore[import-untyped]
from kubernetes import client as k8s  # type: ignore[import-untyped]

from trainwright.errors import InputError
from trainwright.launch.job import Job

GROUP, VERSION, PLURAL, KIND = "kubeflow.org", "v1", "pytorchjobs", "PyTorchJob"

DIGEST = "trainwright/spec-sha256"
"""Annotation: the digest of the job, by which a launcher knows it again."""

FOLDER = "trainwright/folder"
"""Annotation: the folder of the attempt that the job's pods write into."""

_KEPT_S = 86_400
_MARGIN_S = 120
_MAX_NAME = 52


def to_manifest(job: Job) -> dict[str, Any]:
    """Translate a job.

    One Master and the other nodes as Workers; a pod that fails is not restarted, because the launcher owns
    the retries. The operator's own deadline is a second line behind the launcher's.

    Raises:
        InputError: The job cannot run on a cluster.
    """
    _check(job)
    template = _template(job)
    roles = {"Master": 1} | ({"Worker": job.nodes - 1} if job.nodes > 1 else {})
    replicas = {
        role: models.KubeflowOrgV1ReplicaSpec(replicas=count, restart_policy="Never", template=template)
        for role, count in roles.items()
    }
    policy = models.KubeflowOrgV1RunPolicy(
        clean_pod_policy="Running",
        backoff_limit=0,
        active_deadline_seconds=job.timeout_s + _MARGIN_S,
        ttl_seconds_after_finished=_KEPT_S,
    )
    body = models.KubeflowOrgV1PyTorchJob(
        api_version=f"{GROUP}/{VERSION}",
        kind=KIND,
        metadata=k8s.V1ObjectMeta(
            name=job.name,
            labels={"app.kubernetes.io/managed-by": "trainwright"},
            annotations={DIGEST: job.digest, FOLDER: str(job.folder)},
        ),
        spec=models.KubeflowOrgV1PyTorchJobSpec(
            nproc_per_node=str(job.processes), pytorch_replica_specs=replicas, run_policy=policy
        ),
    )
    plain: dict[str, Any] = k8s.ApiClient().sanitize_for_serialization(body)
    return plain


def _check(job: Job) -> None:
    """Refuse what the operator would accept and then not run."""
    wrong = []
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", job.name) or len(job.name) > _MAX_NAME:
        wrong.append(f"name {job.name!r} is not a DNS-1035 label of at most {_MAX_NAME} characters")
    if not re.fullmatch(r"[^\s@]+(@sha256:[0-9a-f]{64})?", job.image):
        wrong.append(f"image {job.image!r} is not an image reference")
    if not job.claim or not job.folder.is_relative_to(job.mount or "/dev/null"):
        wrong.append(f"folder {job.folder} is not on a mounted claim ({job.claim!r} at {job.mount!r})")
    if wrong:
        raise InputError("; ".join(wrong), where="job for a cluster")


def _template(job: Job) -> k8s.V1PodTemplateSpec:
    volumes = [
        k8s.V1Volume(
            name="shared",
            persistent_volume_claim=k8s.V1PersistentVolumeClaimVolumeSource(claim_name=job.claim),
        )
    ]
    mounts = [k8s.V1VolumeMount(name="shared", mount_path=job.mount)]
    if job.gpus:
        # What NCCL shares between processes; the default of 64 MiB is too small. Counts as memory.
        volumes.append(k8s.V1Volume(name="shm", empty_dir=k8s.V1EmptyDirVolumeSource(medium="Memory")))
        mounts.append(k8s.V1VolumeMount(name="shm", mount_path="/dev/shm"))  # noqa: S108  # nosec B108
    return k8s.V1PodTemplateSpec(
        metadata=k8s.V1ObjectMeta(annotations={"sidecar.istio.io/inject": "false"}),
        spec=k8s.V1PodSpec(
            containers=[_container(job, mounts)],
            volumes=volumes,
            automount_service_account_token=False,
            termination_grace_period_seconds=job.grace_s + 5,
            security_context=k8s.V1PodSecurityContext(
                run_as_non_root=True, seccomp_profile=k8s.V1SeccompProfile(type="RuntimeDefault")
            ),
        ),
    )


def _container(job: Job, mounts: list[k8s.V1VolumeMount]) -> k8s.V1Container:
    amounts = {"cpu": f"{job.cpu:g}", "memory": f"{round(job.memory_gib * 1024)}Mi"}
    if job.gpus:
        amounts["nvidia.com/gpu"] = str(job.gpus)
    agent = ["python", "-m", "trainwright.launch.agent", str(job.folder), *job.watched, "--"]
    command = [*agent, f"--max-restarts={job.restarts}", *job.arguments]
    return k8s.V1Container(
        name="pytorch",
        image=job.image,
        command=command,
        env=[k8s.V1EnvVar(name=name, value=value) for name, value in sorted(job.environment.items())],
        resources=k8s.V1ResourceRequirements(requests=amounts, limits=amounts),
        volume_mounts=mounts,
        security_context=k8s.V1SecurityContext(
            allow_privilege_escalation=False, capabilities=k8s.V1Capabilities(drop=["ALL"])
        ),
    )

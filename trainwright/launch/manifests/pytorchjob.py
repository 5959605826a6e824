"""Translate a job into a PyTorchJob of the Kubeflow training operator v1."""

from trainwright.launch.job import Job
from trainwright.launch.manifests import pods
from trainwright.launch.manifests.pods import Body, Owner

_TTL_S = 86_400
_LAST_CALL_S = 30


def make_pytorchjob(job: Job, owner: Owner | None) -> Body:
    """Translate a job.

    A job of a fixed number of nodes is one Master and the others as Workers, none of which is started
    again: the loss of one stops all, so the job fails at once, says so, and the launcher decides. (Under
    OnFailure and ExitCode the operator decides: it takes an out-of-memory kill for worth a retry, and does
    not count.)

    An elastic job has Workers only. They are OnFailure, the one policy under which a node can be taken away
    without the job failing: the others continue with fewer, and the pod that replaces it joins them. With one
    Worker that exits 0 such a job has Succeeded, which no agent of ours does without the completion marker.
    """
    from kubeflow.training import models  # type: ignore[import-untyped]
    from kubernetes import client  # type: ignore[import-untyped]

    elastic = job.placement.min_nodes is not None and job.placement.min_nodes < job.nodes
    policy = models.KubeflowOrgV1RunPolicy(
        # Pods that still run when the job has ended hold GPUs; the others keep their logs.
        clean_pod_policy="Running",
        backoff_limit=_backoff_limit(job) if elastic else None,
        active_deadline_seconds=job.timeout_s + pods.DEADLINE_MARGIN_S,
        ttl_seconds_after_finished=_TTL_S,
    )
    replicas = _elastic_replicas(job) if elastic else _static_replicas(job)
    spec = models.KubeflowOrgV1PyTorchJobSpec(
        nproc_per_node=str(job.processes),
        run_policy=policy,
        pytorch_replica_specs={
            role: models.KubeflowOrgV1ReplicaSpec(**replica) for role, replica in replicas.items()
        },
        elastic_policy=models.KubeflowOrgV1ElasticPolicy(**_elastic_policy(job)) if elastic else None,
    )
    made = models.KubeflowOrgV1PyTorchJob(
        api_version="kubeflow.org/v1", kind="PyTorchJob", metadata=pods.metadata(job, owner), spec=spec
    )
    body: Body = client.ApiClient().sanitize_for_serialization(made)
    return body


def _backoff_limit(job: Job) -> int:
    """Return a limit of restarts beyond all that the launcher allows: the second line, if there is none.

    The operator counts containers, and one loss can restart those of all pods. A job that reaches its limit
    loses all pods, logs included; so the launcher comes first.
    """
    budget = job.budget
    return job.nodes * (budget.preemption + budget.infrastructure + budget.user + 1)


def _static_replicas(job: Job) -> Body:
    template = _template(job, (f"--rdzv-conf=timeout={pods.JOIN_TIMEOUT_S}",))
    roles = {"Master": 1} | ({"Worker": job.nodes - 1} if job.nodes > 1 else {})
    return {
        role: {"replicas": count, "restart_policy": "Never", "template": template}
        for role, count in roles.items()
    }


def _elastic_replicas(job: Job) -> Body:
    return {"Worker": {"replicas": job.nodes, "restart_policy": "OnFailure", "template": _template(job)}}


def _elastic_policy(job: Job) -> Body:
    """Bounds of the world. More than there are pods would make every start wait for the last call."""
    conf = {"join_timeout": str(pods.JOIN_TIMEOUT_S), "last_call_timeout": str(_LAST_CALL_S)}
    return {
        "min_replicas": job.placement.min_nodes,
        "max_replicas": job.nodes,
        "rdzv_backend": "c10d",
        "rdzv_conf": [{"key": key, "value": value} for key, value in conf.items()],
        "max_restarts": job.restarts,
    }


def _template(job: Job, rendezvous: tuple[str, ...] = ()) -> Body:
    volumes, mounts = pods.volumes(job)
    container = {
        "name": "pytorch",
        "image": job.image,
        "command": pods.command(job, rendezvous),
        "env": pods.environment(job),
        "resources": pods.resources(job),
        "volumeMounts": mounts,
        "securityContext": pods.container_security(job.placement),
    }
    spec = {
        "containers": [container],
        "volumes": volumes,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": pods.grace_s(job),
        "securityContext": pods.POD_SECURITY,
        **pods.scheduling(job.placement),
    }
    if job.placement.priority_class:
        spec["priorityClassName"] = job.placement.priority_class
    if job.placement.scheduler:
        spec["schedulerName"] = job.placement.scheduler
    return {"metadata": pods.pod_metadata(job), "spec": spec}

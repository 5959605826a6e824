"""From a job to a TrainJob of Kubeflow Trainer v2 (v2.2 and later: ``runtimePatches``).

The patch holds only fields that Trainer 2.2 has, also for later versions: 2.2 rejects others, and Kueue
(0.15 to 0.19, built with the types of Trainer 2.2) removes them from the TrainJob when it admits it. The
JobSet that Trainer derives then differs from the one that exists in an immutable field, and the job never
starts. What the patch cannot say, such as ``terminationGracePeriodSeconds``, the runtime does.
"""

from trainwright.errors import InputError
from trainwright.launch.job import Job
from trainwright.launch.manifests import pods
from trainwright.launch.manifests.pods import Body, Owner

MANAGER = "trainwright/launcher"
"""Whose patches of the runtime these are."""

CONTAINER = REPLICATED = "node"
"""What the runtime calls its job and its container."""


def make_trainjob(job: Job, owner: Owner | None) -> Body:
    """Translate a job.

    Kubeflow Trainer v2 takes most of a pod from the runtime that the job names, and lets a job patch some of
    it. It has no time after which a job that has ended is removed: the launcher and the janitor do that.

    Raises:
        InputError: The job asks for what a TrainJob cannot say.
    """
    if refused := _unsupported(job):
        raise InputError("; ".join(refused), where="job for a TrainJob", hint="Use launcher: pytorchjob.")
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": pods.metadata(job, owner),
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": job.placement.runtime_kind,
                "name": job.placement.runtime,
            },
            "trainer": {
                "image": job.image,
                "command": pods.command(job, (f"--rdzv-conf=timeout={pods.JOIN_TIMEOUT_S}",)),
                "env": pods.environment(job),
                "numNodes": job.nodes,
                "numProcPerNode": job.processes,
                "resourcesPerNode": pods.resources(job),
            },
            "runtimePatches": [{"manager": MANAGER, "trainingRuntimeSpec": {"template": _template(job)}}],
            "activeDeadlineSeconds": job.timeout_s + pods.DEADLINE_MARGIN_S,
        },
    }


def _unsupported(job: Job) -> list[str]:
    placement = job.placement
    found = []
    if placement.min_nodes is not None and placement.min_nodes < job.nodes:
        found.append(
            f"a TrainJob cannot be elastic, and placement.min_nodes {placement.min_nodes} is below "
            f"nodes {job.nodes}"
        )
    if placement.priority_class:
        found.append(
            f"a TrainJob takes its pods' priority class from the runtime {placement.runtime}, and "
            f"placement.priority_class is {placement.priority_class!r}"
        )
    if placement.scheduler:
        found.append(
            f"a TrainJob takes its pods' scheduler from the runtime {placement.runtime}, and "
            f"placement.scheduler is {placement.scheduler!r}"
        )
    return found


def _template(job: Job) -> Body:
    """Patch the pods of the runtime's job."""
    volumes, mounts = pods.volumes(job)
    spec = {
        "containers": [
            {
                "name": CONTAINER,
                "volumeMounts": mounts,
                "securityContext": pods.container_security(job.placement),
            }
        ],
        "volumes": volumes,
        "securityContext": pods.POD_SECURITY,
        **pods.scheduling(job.placement),
    }
    pod = {"metadata": pods.pod_metadata(job), "spec": spec}
    return {"spec": {"replicatedJobs": [{"name": REPLICATED, "template": {"spec": {"template": pod}}}]}}

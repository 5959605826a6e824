"""Translate a job into the object that an operator runs. The same job always gives the same manifest."""

import json
from typing import Any

from trainwright.errors import InputError
from trainwright.launch import kubernetes_names
from trainwright.launch.job import Job
from trainwright.launch.manifests import pods, pytorchjob, trainjob
from trainwright.launch.manifests.pods import Owner

_MAKERS = {"pytorchjob": pytorchjob.make_pytorchjob, "trainjob": trainjob.make_trainjob}


def make_manifest(job: Job, kind: str, owner: Owner | None = None) -> dict[str, Any]:
    """Translate a job.

    The server validates the manifest in a dry run before the job is created. Checked here is only what
    neither the server nor the operator rejects: both accept pods that can never be created.

    Args:
        job: The job.
        kind: ``pytorchjob`` or ``trainjob``.
        owner: Object in the same namespace that owns the job, if any.

    Raises:
        InputError: The job cannot run on a cluster; all problems are listed.
    """
    if kind not in _MAKERS:
        raise InputError(
            f"no kind of job {kind!r}; known are {', '.join(_MAKERS)}", where="resources.launcher"
        )
    problems = _problems(job)
    try:
        body = _MAKERS[kind](job, owner)
    except InputError as error:
        raise InputError("; ".join([*problems, error.what]), where=error.where, hint=error.hint) from None
    if problems:
        raise InputError("; ".join(problems), where="job for a cluster")
    copied: dict[str, Any] = json.loads(json.dumps(body))  # a caller may change it
    return copied


def _problems(job: Job) -> list[str]:
    """Return what keeps the pods of a job from being created."""
    problems = []
    if not (job.claim and job.mount and job.folder.is_relative_to(job.mount)):
        problems.append(f"folder {job.folder} is not on a mounted claim ({job.claim!r} at {job.mount!r})")
    elif not kubernetes_names.is_subdomain(job.claim):
        problems.append(f"claim {job.claim!r:.80} is not the name of a PersistentVolumeClaim")
    if not kubernetes_names.is_image(job.image):
        problems.append(f"image {job.image!r} is not a reference to an image")
    paths = [mount["mountPath"] for mount in pods.volumes(job)[1]]
    problems += [
        f"volumeMounts has {path} twice" for path in sorted({path for path in paths if paths.count(path) > 1})
    ]
    return problems

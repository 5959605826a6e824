"""From a job to what an operator is asked for. Pure: the same job gives the same manifest."""

import json
from typing import Any

from trainwright.errors import InputError
from trainwright.launch.job import Job
from trainwright.launch.manifests import checks, pytorchjob, trainjob
from trainwright.launch.owner import Owner

_MAKERS = {"pytorchjob": pytorchjob.make, "trainjob": trainjob.make}


def make(job: Job, kind: str, owner: Owner | None = None) -> dict[str, Any]:
    """Translate a job, and refuse what the operator would accept and then not run.

    Args:
        job: The job.
        kind: ``pytorchjob`` or ``trainjob``.
        owner: What the job is to go with, of the same namespace; absent: nothing.

    Raises:
        InputError: The job cannot run on a cluster; everything that is wrong is named.
    """
    if kind not in _MAKERS:
        raise InputError(
            f"no kind of job {kind!r}; known are {', '.join(_MAKERS)}", where="resources.launcher"
        )
    wrong = _off_the_cluster(job)
    try:
        body = _MAKERS[kind](job, owner)
    except InputError as error:
        raise InputError("; ".join([*wrong, error.what]), where=error.where, hint=error.hint) from None
    if wrong := [*wrong, *checks.refusals(body)]:
        raise InputError("; ".join(wrong), where="job for a cluster")
    copied: dict[str, Any] = json.loads(json.dumps(body))  # shares nothing with another one
    return copied


def _off_the_cluster(job: Job) -> list[str]:
    """Say what keeps a job from running on a cluster at all."""
    if job.claim and job.mount and job.folder.is_relative_to(job.mount):
        return []
    return [f"folder {job.folder} is not on a mounted claim ({job.claim!r} at {job.mount!r})"]

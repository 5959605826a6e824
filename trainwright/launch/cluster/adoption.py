"""Create a job, or adopt the one that exists already: one job, whatever replies are lost."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.errors import InputError
from trainwright.launch.cluster import lease
from trainwright.launch.cluster.api import Api, Object
from trainwright.launch.cluster.deletion import (
    attempt_of,
    delete_and_wait,
    wait_until_gone,
    wait_until_name_is_free,
)
from trainwright.launch.cluster.history import FailedAttempt
from trainwright.launch.cluster.responses import ApiConflict, ApiInvalid, ApiNotFound, ApiUnavailable
from trainwright.launch.job import Job
from trainwright.launch.manifests import annotations


@dataclass(frozen=True, kw_only=True)
class LeasedJob:
    """A job whose lease this launcher holds.

    Attributes:
        name: Its name.
        uid: Its identity.
        folder: Folder of the attempt that its pods write into.
        body: The job as it was found or created.
        found: Whether it existed already.
    """

    name: str
    uid: str
    folder: Path
    body: Object
    found: bool

    @classmethod
    def of(cls, body: Object, *, found: bool) -> "LeasedJob":
        """Return the leased job that an object describes."""
        metadata = body["metadata"]
        folder = Path(metadata["annotations"][annotations.FOLDER])
        return cls(name=metadata["name"], uid=metadata["uid"], folder=folder, body=body, found=found)

    @property
    def attempt(self) -> str:
        """The name of its attempt."""
        return attempt_of(self.body)

    @property
    def version(self) -> str:
        """The ``resourceVersion`` of ``body``."""
        return str(self.body["metadata"].get("resourceVersion", ""))


def create_or_adopt(api: Api, job: Job, manifest: Object, holder: str, gone_s: float) -> LeasedJob:
    """Create a job after a dry run, or adopt the same job if it exists.

    A job that is being deleted, or that an earlier launch gave up, is created anew once it is gone.

    Args:
        api: Access to the cluster.
        job: The job.
        manifest: The job as an object.
        holder: Name of this launcher.
        gone_s: Seconds in which a job that is being deleted has to disappear.

    Raises:
        InputError: Another job has that name, or the server rejects the job.
        DependencyError: A job that is being deleted does not disappear.
        TrainwrightError: The API rejects a call, or is unreachable for too long.
    """
    metadata, leased = manifest["metadata"], lease.lease_annotations(holder, api)
    body = manifest | {"metadata": metadata | {"annotations": metadata["annotations"] | leased}}
    validated = False
    while True:
        wait_until_name_is_free(api, job.name, gone_s)
        try:
            if not validated:
                api.validate(body)
            validated = True
            return LeasedJob.of(api.create(body), found=False)
        except ApiConflict:
            found = api.job(job.name)
        if found is None:
            continue
        require_same_job(found, job, api.namespace)
        if lease.holder_of(found) == holder:
            return LeasedJob.of(found, found=False)  # this launcher created it, only the reply was lost
        uid = found["metadata"]["uid"]
        if found["metadata"].get("deletionTimestamp"):
            wait_until_gone(api, job.name, uid, gone_s, attempt_of(found))
        elif _is_abandoned(found):
            delete_and_wait(api, job.name, uid, gone_s, attempt_of(found))
        elif adopted := _adopt(api, found, holder):
            return adopted


def require_same_job(found: Object, job: Job, namespace: str) -> None:
    """Reject an existing job that is not the requested one.

    Raises:
        InputError: It belongs to another run, or has another specification.
    """
    actual: dict[str, Any] = found["metadata"].get("annotations") or {}
    expected = {annotations.RUN_ID: job.run, annotations.SPEC_SHA256: job.digest}
    wrong = [
        f"{name} is {actual.get(name, '')[:64] or 'absent'}, expected {value[:64]}"
        for name, value in expected.items()
        if actual.get(name) != value
    ]
    if wrong:
        raise InputError(
            f"there is a job {job.name} that is not ours: {'; '.join(wrong)}",
            where=f"namespace {namespace}",
            hint="Delete it if nobody needs it.",
        )


def _is_abandoned(found: Object) -> bool:
    """Tell whether an earlier launch gave the attempt up."""
    path = Path(found["metadata"]["annotations"][annotations.FOLDER]) / FailedAttempt.FILE
    try:
        return path.exists() and FailedAttempt.read(path).final
    except (InputError, OSError):
        return False


def _adopt(api: Api, found: Object, holder: str) -> LeasedJob | None:
    """Take over the lease of a job; None if the job is gone or being deleted by now."""
    name, uid = found["metadata"]["name"], found["metadata"]["uid"]

    def take() -> Object:
        return api.annotate(name, uid, lease.lease_annotations(holder, api), unless_changed={})

    try:
        body = api.retry(take)
    except (ApiNotFound, ApiConflict, ApiInvalid, ApiUnavailable):
        return None
    return None if body["metadata"].get("deletionTimestamp") else LeasedJob.of(body, found=True)

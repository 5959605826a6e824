"""One job, whatever replies are lost: it is created, or the one that is there already is taken over."""

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
    """A job that this launcher looks after.

    Attributes:
        name: Its name.
        uid: Its identity.
        folder: Folder of the attempt that its pods write into.
        body: The job as it was found or made.
        found: Whether it was there already.
    """

    name: str
    uid: str
    folder: Path
    body: Object
    found: bool

    @property
    def attempt(self) -> str:
        """The attempt that it runs."""
        return attempt_of(self.body)

    @property
    def version(self) -> str:
        """The version of ``body``."""
        return str(self.body["metadata"].get("resourceVersion", ""))


def create_or_adopt(api: Api, job: Job, manifest: Object, holder: str, gone_s: float) -> LeasedJob:
    """Create a job, or take over the one of that name that is there already, if it is the same one.

    A job that is being deleted is waited for, and then made anew; so is one that an earlier launch gave up.

    Args:
        api: Access to the cluster.
        job: What is to be run.
        manifest: The job as an object.
        holder: Name of this launcher.
        gone_s: Seconds in which a job that is being deleted has to be gone.

    Raises:
        InputError: There is another job of that name, or the job is refused.
        DependencyError: A job that is being deleted does not go away.
        TrainwrightError: The API refuses, or is out of reach for too long.
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
            return _leased(api.create(body), found=False)
        except ApiConflict:
            found = api.job(job.name)
        if found is None:
            continue
        require_same_job(found, job, api.namespace)
        if lease.holder_of(found) == holder:
            return _leased(found, found=False)  # created by ourselves: only the reply was lost
        uid = found["metadata"]["uid"]
        if found["metadata"].get("deletionTimestamp"):
            wait_until_gone(api, job.name, uid, gone_s, attempt_of(found))
        elif _is_abandoned(found):
            delete_and_wait(api, job.name, uid, gone_s, attempt_of(found))
        elif taken := _adopt(api, found, holder):
            return taken


def require_same_job(found: Object, job: Job, namespace: str) -> None:
    """Refuse a job that is not the one that is to be run.

    Raises:
        InputError: It belongs to another run, or has another specification.
    """
    said: dict[str, Any] = found["metadata"].get("annotations") or {}
    wanted = {annotations.RUN_ID: job.run, annotations.SPEC_SHA256: job.digest}
    wrong = [
        f"{name} is {said.get(name, '')[:64] or 'absent'}, expected {value[:64]}"
        for name, value in wanted.items()
        if said.get(name) != value
    ]
    if wrong:
        raise InputError(
            f"there is a job {job.name} that is not ours: {'; '.join(wrong)}",
            where=f"namespace {namespace}",
            hint="Delete it if nobody needs it.",
        )


def _is_abandoned(found: Object) -> bool:
    """Tell whether an earlier launch has given the attempt up: whoever runs it again, begins anew."""
    path = Path(found["metadata"]["annotations"][annotations.FOLDER]) / FailedAttempt.FILE
    try:
        return path.exists() and FailedAttempt.read(path).final
    except (InputError, OSError):
        return False


def _adopt(api: Api, found: Object, holder: str) -> LeasedJob | None:
    """Take a job over; nothing if it is gone or being deleted by now."""
    name, uid = found["metadata"]["name"], found["metadata"]["uid"]

    def take() -> Object:
        said = lease.lease_annotations(holder, api)
        return api.annotate(name, uid, said, unless_changed={})

    try:
        body = api.retry(take)
    except (ApiNotFound, ApiConflict, ApiInvalid, ApiUnavailable):
        return None
    return None if body["metadata"].get("deletionTimestamp") else _leased(body, found=True)


def _leased(body: Object, *, found: bool) -> LeasedJob:
    metadata = body["metadata"]
    return LeasedJob(
        name=metadata["name"],
        uid=metadata["uid"],
        folder=Path(metadata["annotations"][annotations.FOLDER]),
        body=body,
        found=found,
    )

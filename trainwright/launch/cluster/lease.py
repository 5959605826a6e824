"""The lease of a job, by which one launcher at a time is in charge: create a job, adopt it, renew, delete.

The lease is annotations of the job that name the holder and until when. A launcher that is started again
takes it over; the previous holder notices when it renews, and stops without touching the job. The janitor
deletes jobs whose lease has expired. Each change is one JSON patch that tests the holder: it needs no clock
but the API server's and no object besides the job, unlike a lease in a store (trainwright.storage.lease).
"""

import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trainwright.errors import InputError, TrainwrightError, TransientError
from trainwright.launch.cluster.api import Api
from trainwright.launch.cluster.deletion import wait_until_gone, wait_until_name_is_free
from trainwright.launch.cluster.history import FailedAttempt
from trainwright.launch.cluster.responses import (
    ApiConflict,
    ApiInvalid,
    ApiNotFound,
    ApiUnavailable,
    Object,
)
from trainwright.launch.job import Job
from trainwright.launch.manifests import ATTEMPT, FOLDER, RUN_ID, SPEC_SHA256
from trainwright.retries import Backoff, RetryPolicy

HOLDER = "trainwright/holder"
"""Annotation: the launcher that holds the lease."""

LEASE_UNTIL = "trainwright/lease-until"
"""Annotation: end of the lease, ISO 8601 in UTC."""

OUTAGE_S = "trainwright/outage-s"
"""Annotation: seconds for which the holder retries during an outage of the API. The janitor keeps a job
without an owner for so long after its lease."""

LEASE_S, RENEW_S = 180.0, 60.0


class LeaseLost(Exception):
    """Another launcher has taken over the lease; its name is the message."""


def new_holder() -> str:
    """Return a name for this launcher that no other launcher ever had."""
    return f"{socket.gethostname()}-{secrets.token_hex(6)}"


def lease_annotations(holder: str, api: Api) -> dict[str, str]:
    """Return the annotations of a lease that begins now, by the API server's clock."""
    until = datetime.fromtimestamp(api.clock.now() + LEASE_S, UTC)
    text = until.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {HOLDER: holder, LEASE_UNTIL: text, OUTAGE_S: f"{api.policy.outage_s:.0f}"}


def holder_of(job: Object) -> str:
    """Return the holder of a job's lease; empty if it has none."""
    return str((job["metadata"].get("annotations") or {}).get(HOLDER, ""))


@dataclass(kw_only=True)
class LeasedJob:
    """A job whose lease this launcher, ``holder``, holds.

    ``body`` is the job as it was observed last; ``adopted`` tells that this launcher did not create it.
    """

    api: Api
    holder: str
    body: Object
    adopted: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.body["metadata"]["name"])

    @property
    def uid(self) -> str:
        """Its identity."""
        return str(self.body["metadata"]["uid"])

    @property
    def folder(self) -> Path:
        """The folder of the attempt that its pods write into."""
        return Path(self.body["metadata"]["annotations"][FOLDER])

    @property
    def attempt(self) -> str:
        """The name of its attempt."""
        return attempt_of(self.body)

    def require_held(self) -> Object | None:
        """Return the job as it is now; None if it is gone, or another one has its name.

        Raises:
            LeaseLost: Another launcher holds the lease.
        """
        found = self.api.job(self.name)
        if found is None or found["metadata"].get("uid") != self.uid:
            return None
        if holder_of(found) not in ("", self.holder):
            raise LeaseLost(holder_of(found))
        return found

    def delete(self, **options: float) -> None:
        """Delete the job in the version that was observed last, with options of :meth:`.Api.delete`.

        Only if the job has changed since, its holder is read first.

        Raises:
            LeaseLost: Another launcher holds the lease.
        """
        version = self.body["metadata"].get("resourceVersion", "")
        while True:
            if not version:
                found = self.require_held()
                if found is None or found["metadata"].get("deletionTimestamp"):
                    return
                version = found["metadata"]["resourceVersion"]
            try:
                self.api.delete(self.name, self.uid, version, **options)
            except ApiConflict:
                version = ""
            else:
                return

    def renew(self) -> bool:
        """Renew the lease; tell whether no retry is needed.

        Raises:
            LeaseLost: Another launcher has taken over.
        """
        try:
            values = lease_annotations(self.holder, self.api)
            self.api.annotate(self.name, self.uid, values, unless_changed={HOLDER: self.holder})
        except ApiNotFound:
            return True
        except (ApiUnavailable, ApiConflict):
            return False
        except ApiInvalid:
            self.require_held()
        return True


class LeaseRenewal:
    """Renews a lease in a thread, through outages of any length; calls ``notify`` with a LeaseLost."""

    def __init__(
        self, leased: LeasedJob, notify: Callable[[Exception], None], every_s: float = RENEW_S
    ) -> None:
        self._leased, self._notify, self._every_s = leased, notify, every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def __enter__(self) -> Self:
        """Start renewing."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop renewing; the lease expires by itself."""
        self._stopped.set()

    def _run(self) -> None:
        # The watch of the job limits how long an outage may last.
        policy = RetryPolicy(outage_s=float("inf"), longest_s=min(self._every_s, 20.0))
        backoff, due = Backoff(policy, self._stopped), time.monotonic() + self._every_s
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._every_s
            try:
                while not self._leased.renew():
                    backoff.wait(TransientError("the lease is renewed late"))
            except LeaseLost as lost:
                self._notify(lost)
                return
            except Exception as error:  # whatever it is: the next renewal may succeed
                if not self._stopped.is_set():
                    reason = error.what if isinstance(error, TrainwrightError) else type(error).__name__
                    sys.stderr.write(f"the lease of {self._leased.name} could not be renewed: {reason}\n")
            backoff.reset()


def create_or_adopt(api: Api, job: Job, manifest: Object, holder: str, gone_s: float) -> LeasedJob:
    """Create a job after a dry run, or adopt the same job if it exists: one job, whatever replies are lost.

    A job that is being deleted, or that an earlier launch gave up, is created anew once it is gone.
    """
    metadata = manifest["metadata"]
    notes = metadata["annotations"] | lease_annotations(holder, api)
    body = manifest | {"metadata": metadata | {"annotations": notes}}
    validated = False
    while True:
        wait_until_name_is_free(api, job.name, gone_s)
        try:
            if not validated:
                api.validate(body)
            validated = True
            return LeasedJob(api=api, holder=holder, body=api.create(body))
        except ApiConflict:
            found = api.job(job.name)
        if found is None:
            continue
        _require_same_job(found, job, api.namespace)
        if holder_of(found) == holder:  # this launcher created it, only the reply was lost
            return LeasedJob(api=api, holder=holder, body=found)
        uid = found["metadata"]["uid"]
        deleting, abandoned = found["metadata"].get("deletionTimestamp"), _is_abandoned(found)
        if deleting or abandoned:
            if not deleting:
                api.delete(job.name, uid)
            wait_until_gone(api, job.name, uid, gone_s, attempt_of(found))
        elif adopted := _adopt(api, found, holder):
            return adopted


def attempt_of(job: Object) -> str:
    """Return the attempt that the pods of a job belong to."""
    notes: dict[str, str] = job["metadata"].get("annotations") or {}
    return notes.get(ATTEMPT) or notes.get(FOLDER, "").rpartition("/")[2]


def _require_same_job(found: Object, job: Job, namespace: str) -> None:
    """Reject an existing job that belongs to another run, or has another specification."""
    actual: dict[str, Any] = found["metadata"].get("annotations") or {}
    wrong = [
        f"{name} is {actual.get(name, '')[:64] or 'absent'}, expected {value[:64]}"
        for name, value in {RUN_ID: job.run, SPEC_SHA256: job.digest}.items()
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
    path = Path(found["metadata"]["annotations"][FOLDER]) / FailedAttempt.FILE
    try:
        return path.exists() and FailedAttempt.read(path).final
    except (InputError, OSError):
        return False


def _adopt(api: Api, found: Object, holder: str) -> LeasedJob | None:
    """Take over the lease of a job; None if the job is gone or being deleted by now."""
    name, uid = found["metadata"]["name"], found["metadata"]["uid"]
    try:
        body = api.retry(lambda: api.annotate(name, uid, lease_annotations(holder, api), unless_changed={}))
    except (ApiNotFound, ApiConflict, ApiInvalid, ApiUnavailable):
        return None
    deleting = body["metadata"].get("deletionTimestamp")
    return None if deleting else LeasedJob(api=api, holder=holder, body=body, adopted=True)

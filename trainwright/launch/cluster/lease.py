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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from trainwright.errors import (
    DependencyError,
    InputError,
    PermissionRefused,
    TrainwrightError,
    TransientError,
)
from trainwright.launch.cluster.api import FOREGROUND, Api, Selection
from trainwright.launch.cluster.history import FailedAttempt
from trainwright.launch.cluster.responses import (
    ApiConflict,
    ApiGone,
    ApiInvalid,
    ApiNotFound,
    ApiUnavailable,
    Object,
)
from trainwright.launch.job import Job
from trainwright.launch.manifests import ATTEMPT, FOLDER, MANAGED_BY, OURS, RUN_ID, SPEC_SHA256
from trainwright.retries import Backoff, RetryPolicy

HOLDER = "trainwright/holder"
"""Annotation: the launcher that holds the lease."""

LEASE_UNTIL = "trainwright/lease-until"
"""Annotation: end of the lease, ISO 8601 in UTC."""

OUTAGE_S = "trainwright/outage-s"
"""Annotation: seconds for which the holder retries during an outage of the API. The janitor keeps a job
without an owner for so long after its lease."""

LEASE_S, RENEW_S = 180.0, 60.0

_FIRST_POLL_S, _LONGEST_POLL_S = 0.1, 2.0
_OVERDUE_S = 30.0
"""Seconds beyond its grace period after which a pod's node has failed to end it."""

_CHECK_S = 5.0
_ENDED_PHASES = frozenset({"Succeeded", "Failed"})
_NODE_LOST = "NodeNotReady"
"""Reason of the event by which Kubernetes' node controller says of a pod that its node does not respond."""


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

    def __exit__(self, *_: object) -> None:
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


def wait_until_gone(api: Api, name: str, uid: str, gone_s: float, attempt: str = "") -> None:
    """Wait until a deleted job and its pods are gone, also those of a lost node.

    A job that is deleted in the background is gone at once, its pods are not. Pods are selected by the job's
    name and distinguished by the attempt's label, since the jobs of all attempts have the same name.

    Args:
        name: The job.
        uid: Its identity; empty where the object is known to be gone. The wait then also ends when another
            launcher creates a job of that name, whose pods these may be.
        gone_s: Longest wait, in seconds.
        attempt: Only the pods of this attempt count; empty: all.

    Raises:
        DependencyError: It takes longer.
    """
    lost = _LostPodRemover(api, name, min(_OVERDUE_S, gone_s / 4))

    def gone() -> bool:
        found = api.job(name)
        if not uid and found is not None:
            return True
        exists = found is not None and found["metadata"].get("uid") == uid
        if not exists and not live_pods(api, name, attempt):
            return True
        lost.remove()
        return False

    if not poll_until(gone, gone_s):
        raise DependencyError(
            f"job {name} does not go away within {gone_s:,.0f} s{lost.summary}",
            where=f"namespace {api.namespace}",
            hint="Look at its pods, their nodes and its finalizers. A node that is lost has to be removed; "
            "one that responds and cannot end a process (a driver that hangs), drained and restarted. "
            "Then run the step again: it resumes from its last checkpoint.",
        )


def poll_until(condition: Callable[[], bool], longest_s: float) -> bool:
    """Poll a condition with growing pauses; tell whether it held in time."""
    end, pause = time.monotonic() + longest_s, _FIRST_POLL_S
    while not condition():
        if time.monotonic() + pause > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_POLL_S)
    return True


def wait_until_name_is_free(api: Api, name: str, gone_s: float) -> None:
    """Wait for the pods of a job deleted in the background; in the foreground it keeps its name."""
    if api.kind.propagation != FOREGROUND and live_pods(api, name) and api.job(name) is None:
        wait_until_gone(api, name, "", gone_s)


def live_pods(api: Api, name: str, attempt: str = "") -> list[Object]:
    """Return the pods of a job, or of one attempt, that have not ended."""
    pods, _ = api.retry(lambda: api.select(Selection(kind="pods", labels=f"{api.kind.pods}={name}")))
    return [
        pod
        for pod in pods
        if (pod.get("status") or {}).get("phase") not in _ENDED_PHASES and belongs_to(pod, attempt)
    ]


def belongs_to(pod: Object, attempt: str) -> bool:
    """Tell whether a pod belongs to an attempt; one without the label may belong to any."""
    label = (pod["metadata"].get("labels") or {}).get(ATTEMPT, "")
    return not attempt or label in ("", attempt)


class _LostPodRemover:
    """Removes by force the pods of lost nodes, which otherwise keep a deleted job and its name.

    Kubernetes keeps the pod of a node that does not respond for as long as the node is listed. A pod is
    removed if all of this holds: it is ours and being deleted; it is long beyond its grace period; it is not
    ready; and the node controller has said of this very pod that its node is not ready. A node that responds
    but cannot end a process (a driver that hangs) meets none of this: its GPU is not given to another pod. A
    process that still runs on a lost node does no harm: its attempt number is outdated.
    """

    def __init__(self, api: Api, job: str, overdue_s: float) -> None:
        self._api, self._overdue_s = api, overdue_s
        self._pods = Selection(kind="pods", labels=f"{api.kind.pods}={job},{MANAGED_BY}={OURS}")
        self._started_s = self._checked_s = time.monotonic()
        self._allowed, self.summary = True, ""

    def remove(self) -> None:
        """Remove the lost pods; most calls return at once, since a check every few seconds is enough."""
        now = time.monotonic()
        if not self._allowed or now - self._checked_s < min(_CHECK_S, self._overdue_s / 2):
            return
        self._checked_s = now
        try:
            for pod in self._lost(now):
                name = pod["metadata"]["name"]
                self._api.remove_pod(name, pod["metadata"]["uid"])
                sys.stderr.write(f"pod {name} was removed: its node {_node_of(pod)} is lost\n")
        except (ApiUnavailable, ApiGone):
            return
        except PermissionRefused as error:
            self._allowed = False
            self.summary += f"; a pod of a lost node could not be removed: {error.what}"

    def _lost(self, now: float) -> Iterator[Object]:
        pods, _ = self._api.select(self._pods)
        deleting = [pod for pod in pods if pod["metadata"].get("deletionTimestamp")]
        names = sorted(f"{pod['metadata']['name']} on node {_node_of(pod)}" for pod in deleting)
        self.summary = f"; it is kept by {', '.join(names)}" if names else ""
        for pod in deleting:
            grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            conditions = (pod.get("status") or {}).get("conditions") or []
            ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
            overdue = now - self._started_s >= grace_s + self._overdue_s
            if overdue and not ready and self._node_is_lost(pod):
                yield pod

    def _node_is_lost(self, pod: Object) -> bool:
        return any(
            event.get("reason") == _NODE_LOST
            and (event.get("involvedObject") or {}).get("uid") == pod["metadata"]["uid"]
            for event in self._api.events(pod["metadata"]["name"])
        )


def _node_of(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "of no name")

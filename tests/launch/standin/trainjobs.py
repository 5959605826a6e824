"""Kubeflow Trainer v2: TrainJobs out of runtimes. There are no JobSets here; what they do is done at once."""

import copy
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tests.launch.standin import runtimes
from tests.launch.standin.answers import Refused
from tests.launch.standin.deletion import delete
from tests.launch.standin.events import Recorder
from tests.launch.standin.loop import Loop
from tests.launch.standin.resources import BY_KIND, POD, Object, Resource
from tests.launch.standin.store import Change, Store, now

TRAINJOB = BY_KIND["TrainJob"]
_RESTARTS = 6


@dataclass
class JobSet:
    """What stands for the JobSet of a TrainJob.

    Attributes:
        uid: Its identity.
        failures: Pods that were lost, beside the restarts of those that are there.
        ended: Condition that it ended with; empty while it goes on.
        done: Indexes of pods that have succeeded.
    """

    uid: str = field(default_factory=lambda: secrets.token_hex(8))
    failures: int = 0
    ended: Object = field(default_factory=dict)
    done: set[int] = field(default_factory=set)


class Trainer:
    """Reconciles TrainJobs in the cluster's thread."""

    def __init__(self, store: Store, loop: Loop) -> None:
        self._store, self._loop, self._sets = store, loop, dict[str, JobSet]()
        self._events = Recorder(store, "trainjob-controller")
        self._began: dict[str, datetime] = {}
        store.listen(self._hear)

    def require_runtime(self, resource: Resource, body: Object) -> None:
        """Refuse a TrainJob of a runtime that is not there.

        Raises:
            Refused: As the webhook says it.
        """
        wanted = (body.get("spec") or {}).get("runtimeRef") or {}
        if resource != TRAINJOB or "name" not in wanted:
            return
        kind = wanted.get("kind", "ClusterTrainingRuntime")
        space = "" if kind == "ClusterTrainingRuntime" else body["metadata"].get("namespace", "team")
        if kind not in BY_KIND or self._store.find(BY_KIND[kind], space, wanted["name"]) is None:
            said = (
                f'{kind}.trainer.kubeflow.org "{wanted["name"]}" not found: specified {kind} must be created'
            )
            hook = "validator.trainjob.trainer.kubeflow.org"
            why = f"spec.RuntimeRef: Invalid value: {said} before the TrainJob is created"
            raise Refused(403, "Forbidden", f'admission webhook "{hook}" denied the request: {why}')

    def collect(self, name: str, namespace: str = "team") -> None:
        """Remove the JobSet of a TrainJob, as somebody did: one that has failed is run again."""

        def collect() -> None:
            job = self._store.get(TRAINJOB, namespace, name)
            self._sets.pop(job["metadata"]["uid"], None)
            for pod in self._pods(job):
                delete(self._store, pod, {})
            self._enqueue(namespace, name)

        self._loop.now(collect)

    def _hear(self, change: Change) -> None:
        meta = change.body["metadata"]
        if change.resource == TRAINJOB and change.type != "DELETED":
            self._enqueue(meta["namespace"], meta["name"])
        for entry in meta.get("ownerReferences") or () if change.resource == POD else ():
            if entry["kind"] == "TrainJob":
                if change.type == "DELETED":
                    self._lost(entry["uid"], change.body)
                self._enqueue(meta["namespace"], entry["name"])

    def _enqueue(self, namespace: str, name: str) -> None:
        self._loop.do(lambda: self._reconcile(namespace, name), ("TrainJob", namespace, name))

    def _lost(self, uid: str, pod: Object) -> None:
        """Count a pod that is gone and had not succeeded."""
        held = self._sets.get(uid)
        if (
            held
            and not held.ended
            and held.uid == runtimes.jobset_of(pod)
            and pod["status"].get("phase") != "Succeeded"
        ):
            held.failures += 1

    def _pods(self, job: Object) -> list[Object]:
        uid = job["metadata"]["uid"]
        return self._store.list(
            POD,
            job["metadata"]["namespace"],
            lambda body: any(entry["uid"] == uid for entry in body["metadata"].get("ownerReferences") or []),
        )

    def _reconcile(self, namespace: str, name: str) -> None:
        job = self._store.find(TRAINJOB, namespace, name)
        if job is None or "deletionTimestamp" in job["metadata"]:
            return
        if "multikueue" in (job["spec"].get("managedBy") or ""):
            return
        status = copy.deepcopy(job.get("status") or {})
        failed = _condition(status, "Failed")
        if failed and failed["reason"] != "DeadlineExceeded" and failed["status"] == "True":
            # The real one forgets a failure at each look, and learns it again from the JobSet if it can.
            status["conditions"] = [entry for entry in status["conditions"] if entry["type"] != "Failed"]
        self._suspend_or_go_on(job, status)
        self._end_at_deadline(job, status)
        if status != (job.get("status") or {}):
            self._store.edit(TRAINJOB, namespace, name, lambda body: body.update(status=status))

    def _suspend_or_go_on(self, job: Object, status: Object) -> None:
        uid, suspended = job["metadata"]["uid"], _condition(status, "Suspended")
        over = any(_condition(status, kind) for kind in ("Complete", "Failed"))
        if job["spec"].get("suspend"):
            _put(status, "Suspended", "True", "Suspended", "TrainJob is suspended")
            held = self._sets.pop(uid, None)
            self._began.pop(uid, None)
            for pod in self._pods(job) if held is None or not held.ended else ():
                delete(self._store, pod, {})
            status["jobsStatus"] = [_counts(suspended=1)]
            return
        if suspended and suspended["status"] == "True":
            _put(status, "Suspended", "False", "Resumed", "TrainJob is resumed")
        if over:
            return
        held = self._sets.setdefault(uid, JobSet())
        self._began.setdefault(uid, datetime.now(UTC))
        self._run(job, status, held)

    def _run(self, job: Object, status: Object, held: JobSet) -> None:
        """Make the pods that are missing, and tell how they stand."""
        nodes, name = self._nodes(job), job["metadata"]["name"]
        pods = {runtimes.index_of(pod): pod for pod in self._pods(job) if runtimes.jobset_of(pod) == held.uid}
        held.done |= {index for index, pod in pods.items() if pod["status"].get("phase") == "Succeeded"}
        failed = [pod for pod in pods.values() if pod["status"].get("phase") == "Failed"]
        restarts = sum(
            entry["restartCount"]
            for pod in pods.values()
            for entry in pod["status"].get("containerStatuses") or []
        )
        if not held.ended and held.failures + len(failed) + restarts > self._limit(job):
            said = (
                f"jobset failed due to one or more job failures (first failed job: {name}-{runtimes.NODE}-0)"
            )
            held.ended = {"kind": "Failed", "reason": "FailedJobs", "message": said}
            for pod in pods.values():
                if pod["status"].get("phase") not in ("Succeeded", "Failed"):
                    delete(self._store, pod, {})
        elif not held.ended and len(held.done) == nodes:
            said = "jobset completed successfully"
            held.ended = {"kind": "Complete", "reason": "AllJobsCompleted", "message": said}
        if held.ended:
            _put(status, held.ended["kind"], "True", held.ended["reason"], held.ended["message"])
            over = "failed" if held.ended["kind"] == "Failed" else "succeeded"
            status["jobsStatus"] = [_counts(**{over: 1})]
            return
        for pod in failed:
            delete(self._store, pod, {})
        for index in set(range(nodes)) - set(pods) - held.done:
            self._store.add(
                POD,
                job["metadata"]["namespace"],
                runtimes.pod(job, self._runtime(job), index, nodes, held.uid),
            )
        ready = sum(pod["status"].get("phase") == "Running" for pod in pods.values()) == nodes
        status["jobsStatus"] = [_counts(active=1, ready=int(ready))]

    def _nodes(self, job: Object) -> int:
        wanted = (job["spec"].get("trainer") or {}).get("numNodes")
        return int(wanted or self._runtime(job)["spec"]["mlPolicy"].get("numNodes", 1))

    def _limit(self, job: Object) -> int:
        part = self._runtime(job)["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
        return int(part.get("backoffLimit", _RESTARTS))

    def _runtime(self, job: Object) -> Object:
        wanted = job["spec"]["runtimeRef"]
        kind = BY_KIND[wanted.get("kind", "ClusterTrainingRuntime")]
        return self._store.get(kind, job["metadata"]["namespace"] if kind.namespaced else "", wanted["name"])

    def _end_at_deadline(self, job: Object, status: Object) -> None:
        """Fail a job that takes too long: unlike a PyTorchJob's, this deadline wakes its operator."""
        deadline, began = job["spec"].get("activeDeadlineSeconds"), self._began.get(job["metadata"]["uid"])
        over = any(_condition(status, kind) for kind in ("Complete", "Failed"))
        if not deadline or not began or over or job["spec"].get("suspend"):
            return
        rest = deadline - (datetime.now(UTC) - began).total_seconds()
        space, name = job["metadata"]["namespace"], job["metadata"]["name"]
        if rest > 0:
            self._loop.after(rest + 0.01, lambda: self._enqueue(space, name))
            return
        _put(status, "Failed", "True", "DeadlineExceeded", "TrainJob exceeded its active deadline")
        for pod in self._pods(job):
            delete(self._store, pod, {})


def _counts(**some: int) -> Object:
    return {
        "name": runtimes.NODE,
        "active": 0,
        "failed": 0,
        "ready": 0,
        "succeeded": 0,
        "suspended": 0,
        **some,
    }


def _condition(status: Object, kind: str) -> Object | None:
    return next((entry for entry in status.get("conditions") or [] if entry["type"] == kind), None)


def _put(status: Object, kind: str, value: str, reason: str, message: str) -> None:
    """Set a condition in its place in the list."""
    told = status.setdefault("conditions", [])
    entry = {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": now()}
    for index, known in enumerate(told):
        if known["type"] == kind:
            since = known["lastTransitionTime"] if known["status"] == value else entry["lastTransitionTime"]
            told[index] = {**entry, "lastTransitionTime": since}
            return
    told.append(entry)

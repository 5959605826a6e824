"""Kubeflow Trainer v2: TrainJobs become JobSets."""

import copy
import json
from datetime import UTC, datetime

from tests.launch.standin import runtimes
from tests.launch.standin.answers import Refused
from tests.launch.standin.deletion import delete
from tests.launch.standin.events import Recorder
from tests.launch.standin.jobsets import JOBSET, condition, put, put_status
from tests.launch.standin.loop import Loop
from tests.launch.standin.resources import BY_KIND, Object, Resource
from tests.launch.standin.store import Change, Store

TRAINJOB = BY_KIND["TrainJob"]
_SHOWN = 700


class Trainer:
    """Reconciles TrainJobs in the cluster's thread."""

    def __init__(self, store: Store, loop: Loop) -> None:
        self._store, self._loop = store, loop
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
            delete(self._store, self._store.get(JOBSET, namespace, name), {})

        self._loop.now(collect)

    def _hear(self, change: Change) -> None:
        meta = change.body["metadata"]
        if (change.resource == TRAINJOB and change.type != "DELETED") or change.resource == JOBSET:
            self._enqueue(meta["namespace"], meta["name"])

    def _enqueue(self, namespace: str, name: str) -> None:
        self._loop.do(lambda: self._reconcile(namespace, name), ("TrainJob", namespace, name))

    def _reconcile(self, namespace: str, name: str) -> None:
        """Look at a TrainJob. One that is being deleted is like any other, as in the real one (2.3.0)."""
        job = self._store.find(TRAINJOB, namespace, name)
        if job is None or "multikueue" in (job["spec"].get("managedBy") or ""):
            return
        status = copy.deepcopy(job.get("status") or {})
        failed = condition(status, "Failed")
        if failed and failed["reason"] != "DeadlineExceeded" and failed["status"] == "True":
            # The real one forgets a failure at each look, and learns it again from the JobSet if it can.
            status["conditions"] = [entry for entry in status["conditions"] if entry["type"] != "Failed"]
        held = self._jobset(job, status)
        self._suspend_or_go_on(job, status)
        self._follow(held, status)
        self._end_at_deadline(job, status)
        put_status(self._store, TRAINJOB, job, status)

    def _jobset(self, job: Object, status: Object) -> Object | None:
        """Return the JobSet of a job: made, or changed where JobSet's webhook lets it."""
        space, name = job["metadata"]["namespace"], job["metadata"]["name"]
        found = self._store.find(JOBSET, space, name)
        if any(condition(status, kind) for kind in ("Complete", "Failed")):
            return found
        wanted = runtimes.jobset(job, self._runtime(job))
        if found is None:
            if not job["spec"].get("suspend"):
                self._began.setdefault(job["metadata"]["uid"], datetime.now(UTC))
            return self._store.add(JOBSET, space, wanted)
        owner = found["metadata"]["ownerReferences"][0]["uid"]
        if owner != job["metadata"]["uid"] or "deletionTimestamp" in found["metadata"]:
            return None
        if found["spec"]["suspend"] == wanted["spec"]["suspend"]:
            return found
        if found["spec"]["replicatedJobs"] != wanted["spec"]["replicatedJobs"]:
            self._denied(job, wanted)
            return found
        if not wanted["spec"]["suspend"]:
            self._began[job["metadata"]["uid"]] = datetime.now(UTC)
        return self._store.edit(JOBSET, space, name, lambda body: body.update(spec=wanted["spec"]))

    def _denied(self, job: Object, wanted: Object) -> None:
        name, value = job["metadata"]["name"], json.dumps(wanted["spec"]["replicatedJobs"])
        invalid = f'JobSet.jobset.x-k8s.io "{name}" is invalid: spec.replicatedJobs: Invalid value: '
        denied = f'admission webhook "vjobset.kb.io" denied the request: {invalid}{value[:_SHOWN]} ...'
        said = f"TrainJob resources reconciliation failed: {denied}: field is immutable"
        self._events.say(job, "Warning", "TrainJobResourcesCreationFailed", said)

    def _suspend_or_go_on(self, job: Object, status: Object) -> None:
        suspended = condition(status, "Suspended")
        if job["spec"].get("suspend"):
            put(status, "Suspended", "True", "Suspended", "TrainJob is suspended")
            self._began.pop(job["metadata"]["uid"], None)
        elif suspended and suspended["status"] == "True":
            put(status, "Suspended", "False", "Resumed", "TrainJob is resumed")

    def _follow(self, held: Object | None, status: Object) -> None:
        """Take over how the JobSet stands."""
        told = (held or {}).get("status") or {}
        for kind, ours in (("Failed", "Failed"), ("Completed", "Complete")):
            if ended := condition(told, kind):
                put(status, ours, "True", ended["reason"], ended["message"])
        if "replicatedJobsStatus" in told:
            status["jobsStatus"] = told["replicatedJobsStatus"]

    def _runtime(self, job: Object) -> Object:
        wanted = job["spec"]["runtimeRef"]
        kind = BY_KIND[wanted.get("kind", "ClusterTrainingRuntime")]
        return self._store.get(kind, job["metadata"]["namespace"] if kind.namespaced else "", wanted["name"])

    def _end_at_deadline(self, job: Object, status: Object) -> None:
        """Fail a job that takes too long: unlike a PyTorchJob's, this deadline wakes its operator."""
        deadline, began = job["spec"].get("activeDeadlineSeconds"), self._began.get(job["metadata"]["uid"])
        over = any(condition(status, kind) for kind in ("Complete", "Failed"))
        if not deadline or not began or over or job["spec"].get("suspend"):
            return
        rest = deadline - (datetime.now(UTC) - began).total_seconds()
        space, name = job["metadata"]["namespace"], job["metadata"]["name"]
        if rest > 0:
            self._loop.after(rest + 0.01, lambda: self._enqueue(space, name))
            return
        put(status, "Failed", "True", "DeadlineExceeded", "TrainJob exceeded its active deadline")
        if (found := self._store.find(JOBSET, space, name)) is not None:
            delete(self._store, found, {})

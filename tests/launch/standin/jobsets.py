"""JobSets, and the batch Jobs in them: what stands between a TrainJob and its pods."""

import copy
from dataclasses import dataclass, field

from tests.launch.standin import runtimes
from tests.launch.standin.answers import Refused
from tests.launch.standin.deletion import delete
from tests.launch.standin.events import Recorder
from tests.launch.standin.loop import Loop
from tests.launch.standin.resources import BY_KIND, POD, Address, Object, Resource
from tests.launch.standin.store import Change, Store, now
from tests.launch.standin.verbs import Request, Verbs

JOBSET, BATCH = BY_KIND["JobSet"], BY_KIND["Job"]
_RESTARTS = 6
_FIRST_S, _LONGEST_S = 0.25, 10.0
_OVER = ("Succeeded", "Failed")


class JobSets:
    """Reconciles JobSets: one batch Job each."""

    def __init__(self, store: Store, loop: Loop) -> None:
        self._store, self._loop = store, loop
        self._events = Recorder(store, "jobset")
        store.listen(self._hear)

    def _hear(self, change: Change) -> None:
        meta = change.body["metadata"]
        if change.resource == JOBSET and change.type != "DELETED":
            self._enqueue(meta["namespace"], meta["name"])
        for entry in meta.get("ownerReferences") or () if change.resource == BATCH else ():
            if entry["kind"] == "JobSet":
                self._enqueue(meta["namespace"], entry["name"])

    def _enqueue(self, namespace: str, name: str) -> None:
        self._loop.do(lambda: self._reconcile(namespace, name), ("JobSet", namespace, name))

    def _reconcile(self, namespace: str, name: str) -> None:
        body = self._store.find(JOBSET, namespace, name)
        if body is None or "deletionTimestamp" in body["metadata"]:
            return
        status = copy.deepcopy(body.get("status") or {})
        if any(condition(status, kind) for kind in ("Completed", "Failed")):
            return
        job = self._job(body)
        if job is not None:
            self._follow(body, job, status)
            put_status(self._store, JOBSET, body, status)

    def _job(self, body: Object) -> Object | None:
        """Return the batch Job, as suspended as its JobSet; none while one of that name has to go first."""
        wanted, space = runtimes.batch_job(body), body["metadata"]["namespace"]
        job = self._store.find(BATCH, space, wanted["metadata"]["name"])
        if job is None:
            return self._store.add(BATCH, space, wanted)
        if job["metadata"]["ownerReferences"][0]["uid"] != body["metadata"]["uid"]:
            return None
        if "deletionTimestamp" in job["metadata"] or job["spec"]["suspend"] == body["spec"]["suspend"]:
            return job
        template = wanted["spec"]["template"]

        def edit(found: Object) -> None:
            found["spec"] |= {"suspend": body["spec"]["suspend"], "template": template}

        return self._store.edit(BATCH, space, job["metadata"]["name"], edit)

    def _follow(self, body: Object, job: Object, status: Object) -> None:
        """Take over how the batch Job stands."""
        told, counts = job.get("status") or {}, dict.fromkeys(("active", "ready", "succeeded", "failed"), 0)
        name = job["metadata"]["name"]
        if condition(told, "Failed"):
            ends = (body["spec"].get("failurePolicy") or {}).get("maxRestarts") == 0
            reason = "ReachedMaxRestarts" if ends else "FailedJobs"
            why = "reaching max number of restarts" if ends else "one or more job failures"
            counts["failed"] = 1
            self._end(
                body, status, "Failed", reason, f"jobset failed due to {why} (first failed job: {name})"
            )
        elif condition(told, "Complete"):
            counts["succeeded"] = 1
            self._end(body, status, "Completed", "AllJobsCompleted", "jobset completed successfully")
        else:
            wanted = job["spec"]["completions"]
            counts["active"] = int(bool(told.get("active")))
            counts["ready"] = int((told.get("ready") or 0) + (told.get("succeeded") or 0) >= wanted)
        self._suspend(body, status)
        suspended = int(bool(body["spec"]["suspend"]))
        status["replicatedJobsStatus"] = [{"name": runtimes.NODE, **counts, "suspended": suspended}]

    def _end(self, body: Object, status: Object, kind: str, reason: str, message: str) -> None:
        put(status, kind, "True", reason, message)
        self._events.say(body, "Warning" if kind == "Failed" else "Normal", reason, message)

    def _suspend(self, body: Object, status: Object) -> None:
        known = condition(status, "Suspended")
        if body["spec"]["suspend"]:
            put(status, "Suspended", "True", "SuspendedJobs", "jobset is suspended")
        elif known and known["status"] == "True":
            put(status, "Suspended", "False", "ResumeJobs", "jobset is resumed")


@dataclass
class Tally:
    """What a batch Job remembers of pods that are gone: how many were lost, which indexes are done."""

    lost: int = 0
    done: set[int] = field(default_factory=set)
    refusals: int = 0


class BatchJobs:
    """Reconciles the batch Jobs of JobSets: indexed, with one pod for each index."""

    def __init__(self, verbs: Verbs, loop: Loop) -> None:
        self._store, self._verbs, self._loop = verbs.store, verbs, loop
        self._tallies: dict[str, Tally] = {}
        self._events = Recorder(verbs.store, "job-controller")
        verbs.store.listen(self._hear)

    def _hear(self, change: Change) -> None:
        meta = change.body["metadata"]
        if change.resource == BATCH and change.type != "DELETED" and _in_set(change.body):
            self._enqueue(meta["namespace"], meta["name"])
        for entry in meta.get("ownerReferences") or () if change.resource == POD else ():
            if entry["kind"] == "Job":
                if change.type == "DELETED":
                    self._lose(entry["uid"], change.body)
                self._enqueue(meta["namespace"], entry["name"])

    def _enqueue(self, namespace: str, name: str) -> None:
        self._loop.do(lambda: self._reconcile(namespace, name), ("Job", namespace, name))

    def _lose(self, uid: str, pod: Object) -> None:
        """Count a pod that is gone and had not succeeded, unless its job was suspended or has ended."""
        entry = pod["metadata"]["ownerReferences"][0]
        job = self._store.find(BATCH, pod["metadata"]["namespace"], entry["name"])
        if job is None or job["metadata"]["uid"] != uid or job["spec"]["suspend"]:
            return
        if pod["status"].get("phase") != "Succeeded" and not condition(
            job.get("status") or {}, "FailureTarget"
        ):
            self._tallies.setdefault(uid, Tally()).lost += 1

    def _pods(self, job: Object) -> list[Object]:
        uid = job["metadata"]["uid"]
        return self._store.list(
            POD,
            job["metadata"]["namespace"],
            lambda body: any(entry["uid"] == uid for entry in body["metadata"].get("ownerReferences") or []),
        )

    def _reconcile(self, namespace: str, name: str) -> None:
        job = self._store.find(BATCH, namespace, name)
        if job is None or "deletionTimestamp" in job["metadata"] or not _in_set(job):
            return
        status = copy.deepcopy(job.get("status") or {})
        if any(condition(status, kind) for kind in ("Complete", "Failed")):
            return
        pods, tally = self._pods(job), self._tallies.setdefault(job["metadata"]["uid"], Tally())
        tally.done |= {runtimes.index_of(pod) for pod in pods if pod["status"].get("phase") == "Succeeded"}
        if job["spec"]["suspend"]:
            self._stop(job, pods)
            put(status, "Suspended", "True", "JobSuspended", "Job suspended")
        else:
            if condition(status, "Suspended"):
                put(status, "Suspended", "False", "JobResumed", "Job resumed")
            self._go_on(job, status, pods, tally)
        self._count(job, status, tally)
        put_status(self._store, BATCH, job, status)

    def _stop(self, job: Object, pods: list[Object]) -> None:
        for pod in pods:
            if pod["status"].get("phase") not in _OVER and "deletionTimestamp" not in pod["metadata"]:
                said = f"Deleted pod: {pod['metadata']['name']}"
                self._events.say(job, "Normal", "SuccessfulDelete", said)
                delete(self._store, pod, {})

    def _go_on(self, job: Object, status: Object, pods: list[Object], tally: Tally) -> None:
        """Make the pods that are missing, or end."""
        failed = [pod for pod in pods if pod["status"].get("phase") == "Failed"]
        restarts = sum(
            entry["restartCount"] for pod in pods for entry in pod["status"].get("containerStatuses") or []
        )
        limit = int(job["spec"].get("backoffLimit", _RESTARTS))
        if condition(status, "FailureTarget") or tally.lost + len(failed) + restarts > limit:
            self._fail(job, status, pods)
            return
        if len(tally.done) == job["spec"]["completions"]:
            told = ("CompletionsReached", "Reached expected number of succeeded pods")
            put(status, "SuccessCriteriaMet", "True", *told)
            put(status, "Complete", "True", *told)
            self._events.say(job, "Normal", "Completed", "Job completed")
            return
        for pod in failed:
            delete(self._store, pod, {})
        there = {runtimes.index_of(pod) for pod in pods if pod not in failed}
        for index in sorted(set(range(job["spec"]["completions"])) - there - tally.done):
            if not self._create(job, index, tally):
                return

    def _fail(self, job: Object, status: Object, pods: list[Object]) -> None:
        """Stop what still runs; the job has failed once all of it has stopped."""
        told = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
        put(status, "FailureTarget", "True", *told)
        self._stop(job, pods)
        if all(pod["status"].get("phase") in _OVER for pod in self._pods(job)):
            put(status, "Failed", "True", *told)
            self._events.say(job, "Warning", *told)

    def _create(self, job: Object, index: int, tally: Tally) -> bool:
        """Create a pod as anybody does: what the namespace rejects is said in an event on this very Job."""
        space, body = job["metadata"]["namespace"], runtimes.pod(job, index)
        try:
            self._verbs.answer(Request("create", Address(POD, space), {}, body))
        except Refused as refused:
            tally.refusals += 1
            self._events.say(job, "Warning", "FailedCreate", f"Error creating: {refused.message}")
            pause = min(_FIRST_S * 2**tally.refusals, _LONGEST_S)
            name = job["metadata"]["name"]
            self._loop.after(pause, lambda: self._enqueue(space, name))
            return False
        self._events.say(job, "Normal", "SuccessfulCreate", f"Created pod: {body['metadata']['name']}")
        return True

    def _count(self, job: Object, status: Object, tally: Tally) -> None:
        pods = self._pods(job)
        going = [pod for pod in pods if pod["status"].get("phase") not in _OVER]
        staying = [pod for pod in going if "deletionTimestamp" not in pod["metadata"]]
        status["active"] = len(staying)
        status["ready"] = sum(pod["status"].get("phase") == "Running" for pod in staying)
        status["terminating"] = len(going) - len(staying)
        status["succeeded"] = len(tally.done)
        status["failed"] = tally.lost + sum(pod["status"].get("phase") == "Failed" for pod in pods)


def _in_set(job: Object) -> bool:
    return any(entry["kind"] == "JobSet" for entry in job["metadata"].get("ownerReferences") or [])


def put_status(store: Store, resource: Resource, body: Object, status: Object) -> None:
    """Write the status of an object, if it has changed and the object is still there."""
    meta = body["metadata"]
    found = store.find(resource, meta["namespace"], meta["name"])
    if found and found["metadata"]["uid"] == meta["uid"] and status != (found.get("status") or {}):
        store.edit(resource, meta["namespace"], meta["name"], lambda told: told.update(status=status))


def condition(status: Object, kind: str) -> Object | None:
    """Return a condition; nothing if there is none."""
    return next((entry for entry in status.get("conditions") or [] if entry["type"] == kind), None)


def put(status: Object, kind: str, value: str, reason: str, message: str) -> None:
    """Set a condition in its place in the list."""
    told = status.setdefault("conditions", [])
    entry = {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": now()}
    for index, known in enumerate(told):
        if known["type"] == kind:
            since = known["lastTransitionTime"] if known["status"] == value else entry["lastTransitionTime"]
            told[index] = {**entry, "lastTransitionTime": since}
            return
    told.append(entry)

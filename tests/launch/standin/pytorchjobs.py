"""The training operator: makes the pods of PyTorchJobs and tells how the jobs stand, traps included."""

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager

from tests.launch.standin import conditions, replicas, tallies
from tests.launch.standin.answers import Refused
from tests.launch.standin.deletion import delete
from tests.launch.standin.events import Recorder
from tests.launch.standin.loop import Loop
from tests.launch.standin.resources import BY_KIND, JOB, POD, Object
from tests.launch.standin.store import Change, now
from tests.launch.standin.verbs import Verbs

_SERVICE = BY_KIND["Service"]
_RETRYABLE = 128


class TrainingOperator:
    """Reconciles PyTorchJobs in the cluster's thread.

    Attributes:
        order: In which order it goes through a job's replica types: ``random``, as the real one, or names.
    """

    def __init__(self, verbs: Verbs, loop: Loop, seed: int) -> None:
        self._verbs, self._store, self._loop = verbs, verbs.store, loop
        self._events = Recorder(self._store, replicas.OPERATOR)
        self._random = random.Random(seed)  # noqa: S311
        self._up, self.order = True, ("random",)
        self._store.listen(self._hear)

    def stop(self) -> None:
        """Take it down: nothing is reconciled, and every write of a job is refused: its webhook is gone."""
        self._up, self._verbs.webhook = False, False

    def start(self) -> None:
        """Start it again: it sees what became of everything meanwhile, at once."""
        self._up, self._verbs.webhook = True, True
        for job in self._store.list(JOB):
            self._enqueue(job["metadata"]["namespace"], job["metadata"]["name"])

    def absent(self) -> None:
        """Be none at all: jobs are accepted, and nothing becomes of them."""
        self._up = False

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Take it down for as long as the block lasts."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def _hear(self, change: Change) -> None:
        meta = change.body["metadata"]
        if change.resource == JOB and change.type != "DELETED":
            self._enqueue(meta["namespace"], meta["name"])
        elif change.resource in (POD, _SERVICE):
            for entry in meta.get("ownerReferences") or ():
                if entry["kind"] == "PyTorchJob" and entry.get("controller"):
                    self._enqueue(meta["namespace"], entry["name"])

    def _enqueue(self, namespace: str, name: str) -> None:
        self._loop.do(lambda: self._guarded(namespace, name), ("PyTorchJob", namespace, name))

    def _guarded(self, namespace: str, name: str) -> None:
        try:
            self.reconcile(namespace, name)
        except Refused:
            self._loop.after(0.05, lambda: self._enqueue(namespace, name))  # Something moved meanwhile.

    def reconcile(self, namespace: str, name: str) -> None:
        """Look at a job and its pods, and do what is to be done now."""
        job = self._store.find(JOB, namespace, name)
        if not self._up or job is None or "deletionTimestamp" in job["metadata"]:
            return
        policy = job["spec"].get("runPolicy") or {}
        if policy.get("managedBy", "kubeflow.org/training-operator") != "kubeflow.org/training-operator":
            return
        status = copy.deepcopy(job.get("status") or {})
        conditions.put(status, "Created", f"PyTorchJob {name} is created.")
        if conditions.finished(status):
            self._finish(job, status, policy)
        elif policy.get("suspend"):
            self._suspend(job, status)
        elif message := self._over_limit(job, status, policy):
            self._end_by_limit(job, status, message)
        else:
            self._go_on(job, status)
        self._write(job, status)

    def _write(self, job: Object, status: Object) -> None:
        def note(body: Object) -> None:
            if body["metadata"]["uid"] == job["metadata"]["uid"]:
                body["status"] = status

        if status != job.get("status") and self._store.find(
            JOB, job["metadata"]["namespace"], job["metadata"]["name"]
        ):
            self._store.edit(JOB, job["metadata"]["namespace"], job["metadata"]["name"], note)

    def _pods(self, job: Object) -> list[Object]:
        """Return the pods with the job's labels, whoever owns them."""
        wanted = replicas.labels(job["metadata"]["name"]).items()
        return self._store.list(
            POD,
            job["metadata"]["namespace"],
            lambda body: wanted <= (body["metadata"].get("labels") or {}).items(),
        )

    def _finish(self, job: Object, status: Object, policy: Object) -> None:
        """Clean up behind a job that is at its end."""
        clean = policy.get("cleanPodPolicy", "None")
        for pod in self._pods(job) if clean != "None" else ():
            if clean == "Running" and pod["status"].get("phase") not in ("Running", "Pending"):
                continue
            self._delete_pod(job, pod)
        if conditions.holds(status, "Succeeded"):
            for entry in (status.get("replicaStatuses") or {}).values():
                if active := entry.pop("active", 0):
                    entry["succeeded"] = entry.get("succeeded", 0) + active
        ttl, ended = policy.get("ttlSecondsAfterFinished"), status.get("completionTime")
        # Without a time of completion, as after Failed by an exit code, the real one only complains for ever.
        if ttl is not None and ended and not policy.get("suspend"):
            rest = ttl - tallies.seconds_since(ended)
            if rest <= 0:
                self._events.say(
                    job, "Normal", "SuccessfulDeletePod", f"Deleted job: {job['metadata']['name']}"
                )
                delete(self._store, job, {"propagationPolicy": "Background"})
            else:
                space, name = job["metadata"]["namespace"], job["metadata"]["name"]
                self._loop.after(rest + 0.05, lambda: self._enqueue(space, name))

    def _suspend(self, job: Object, status: Object) -> None:
        for pod in self._pods(job):
            self._delete_pod(job, pod)
        for entry in (status.get("replicaStatuses") or {}).values():
            entry.pop("active", None)
        message = f"PyTorchJob {job['metadata']['name']} is suspended."
        if conditions.holds(status, "Running"):
            conditions.put(status, "Running", message, "False", "Suspended")
        if not conditions.holds(status, "Suspended"):
            conditions.put(status, "Suspended", message)
        self._events.say(job, "Normal", "PyTorchJobSuspended", message)

    def _over_limit(self, job: Object, status: Object, policy: Object) -> str:
        """Return why a job is ended, if it is over one of its limits."""
        name, pods = job["metadata"]["name"], self._pods(job)
        limit, deadline = policy.get("backoffLimit"), policy.get("activeDeadlineSeconds")
        if limit is not None and (
            tallies.new_failure(job, status, pods, limit) or tallies.restarts(job, pods) >= max(1, limit)
        ):
            return f"Job {name} has failed because it has reached the specified backoff limit"
        # Nothing wakes the operator when the deadline comes: it is only seen when something else happens.
        if (
            deadline is not None
            and status.get("startTime")
            and tallies.seconds_since(status["startTime"]) >= deadline
        ):
            return f"Job {name} has failed because it was active longer than specified deadline"
        return ""

    def _end_by_limit(self, job: Object, status: Object, message: str) -> None:
        status.setdefault("completionTime", now())
        for pod in self._pods(job):
            self._delete_pod(job, pod)
        self._events.say(job, "Normal", "PyTorchJobFailed", message)
        conditions.put(status, "Failed", message)
        # The real one looks once more at its own copy of the job, which does not know of this yet: a pod that
        # is gone by then is made again, and nobody ends it (backoff-zero-exitcode).
        stale = copy.deepcopy(job.get("status") or {})
        self._loop.do(lambda: self._look_again(job, stale))

    def _look_again(self, job: Object, stale: Object) -> None:
        found = self._store.find(JOB, job["metadata"]["namespace"], job["metadata"]["name"])
        if self._up and found is not None and found["metadata"]["uid"] == job["metadata"]["uid"]:
            self._go_on(job, stale)

    def _go_on(self, job: Object, status: Object) -> None:
        name = job["metadata"]["name"]
        if conditions.holds(status, "Suspended"):
            message = f"PyTorchJob {name} is resumed."
            conditions.put(status, "Suspended", message, "False", "Resumed")
            status["startTime"] = now()
            self._events.say(job, "Normal", "PyTorchJobResumed", message)
        pods = self._pods(job)
        for reason, message in tallies.oddities(pods):
            self._events.say(job, "Warning", reason, message)
        parts = replicas.defaulted(job["spec"])
        for kind in self._ordered(parts):
            status.setdefault("replicaStatuses", {})[kind] = {}
            self._replicate(job, status, pods, kind, parts[kind])
        status.setdefault("startTime", now())
        self._judge(job, status, parts)

    def _ordered(self, parts: Object) -> list[str]:
        found = [kind for kind in self.order if kind in parts] if self.order != ("random",) else list(parts)
        if self.order == ("random",):
            self._random.shuffle(found)
        return found

    def _replicate(self, job: Object, status: Object, pods: list[Object], kind: str, entry: Object) -> None:
        """Make the pods of one replica type that are missing, and count those that are there."""
        mine = {
            int(pod["metadata"]["labels"]["training.kubeflow.org/replica-index"]): pod
            for pod in pods
            if pod["metadata"]["labels"]["training.kubeflow.org/replica-type"] == kind.lower()
        }
        space, counts = job["metadata"]["namespace"], status["replicaStatuses"][kind]
        for index in range(entry["replicas"]):
            if index not in mine:
                made = self._store.add(POD, space, replicas.pod(job, kind, index, entry))
                self._events.say(
                    job, "Normal", "SuccessfulCreatePod", f"Created pod: {made['metadata']['name']}"
                )
            else:
                self._see_pod(job, status, kind, entry, mine[index])
                if counted := tallies.counted(mine[index]):
                    counts[counted] = counts.get(counted, 0) + 1
            name = f"{job['metadata']['name']}-{kind.lower()}-{index}"
            if self._store.find(_SERVICE, space, name) is None:
                self._store.add(_SERVICE, space, replicas.service(job, kind, index))
                self._events.say(job, "Normal", "SuccessfulCreateService", f"Created service: {name}")

    def _see_pod(self, job: Object, status: Object, kind: str, entry: Object, pod: Object) -> None:
        code, name, policy = tallies.exit_code(pod), job["metadata"]["name"], entry["restartPolicy"]
        if code != tallies.NO_CODE:
            full = f"{pod['metadata']['namespace']}.{pod['metadata']['name']}"
            self._events.say(job, "Normal", "ExitedWithCode", f"Pod: {full} exited with code {code}")
        if pod["status"].get("phase") != "Failed":
            return
        if policy in ("OnFailure", "Always") or (policy == "ExitCode" and code >= _RETRYABLE):
            self._delete_pod(job, pod, service=False)
            message = f"job {name} is restarting because {kind} replica(s) failed."
            self._events.say(job, "Warning", "PyTorchJobRestarting", message)
            conditions.put(status, "Restarting", message)
        elif policy == "ExitCode":
            message = f'job "{name}" is failing because "{kind}" replica(s) failed.'
            self._events.say(job, "Warning", "PyTorchJobFailed", message)
            conditions.put(status, "Failed", message)

    def _judge(self, job: Object, status: Object, parts: Object) -> None:
        """Set Running, Succeeded, Restarting and Failed from the counts, one replica type after the other."""
        name, space = job["metadata"]["name"], job["metadata"]["namespace"]
        for kind in self._ordered(parts):
            counts = status["replicaStatuses"][kind]
            counts["selector"] = ",".join(
                f"{key}={value}" for key, value in replicas.labels(name, kind).items()
            )
            done, active, failed = (counts.get(key, 0) for key in ("succeeded", "active", "failed"))
            wanted = parts[kind]["replicas"]
            if "Master" in parts and kind == "Master":
                if active:
                    conditions.put(status, "Running", f"PyTorchJob {name} is running.")
                if done == wanted:
                    self._succeed(job, status, f"PyTorchJob {name} is successfully completed.")
                    return
            elif "Master" not in parts:
                if done == wanted or ("elasticPolicy" in job["spec"] and done):
                    self._succeed(job, status, f"PyTorchJob {space}/{name} successfully completed.")
                elif active:
                    conditions.put(status, "Running", f"PyTorchJob {space}/{name} is running.")
            if failed and wanted > done + active:
                self._count_failures(job, status, kind, failed, parts[kind]["restartPolicy"])

    def _succeed(self, job: Object, status: Object, message: str) -> None:
        self._events.say(job, "Normal", "PyTorchJobSucceeded", message)
        status.setdefault("completionTime", now())
        conditions.put(status, "Succeeded", message)

    def _count_failures(self, job: Object, status: Object, kind: str, failed: int, policy: str) -> None:
        name = job["metadata"]["name"]
        if policy != "Never":
            message = f"PyTorchJob {name} is restarting because {failed} {kind} replica(s) failed."
            self._events.say(job, "Warning", "PyTorchJobRestarting", message)
            conditions.put(status, "Restarting", message)
            return
        message = f"PyTorchJob {name} is failed because {failed} {kind} replica(s) failed."
        self._events.say(job, "Normal", "PyTorchJobFailed", message)
        status.setdefault("completionTime", now())
        conditions.put(status, "Failed", message)

    def _delete_pod(self, job: Object, pod: Object, *, service: bool = True) -> None:
        space, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        if "deletionTimestamp" not in pod["metadata"]:
            delete(self._store, pod, {})
            self._events.say(job, "Normal", "SuccessfulDeletePod", f"Deleted pod: {name}")
        found = self._store.find(_SERVICE, space, name) if service else None
        if found is not None:
            delete(self._store, found, {})
            self._events.say(job, "Normal", "SuccessfulDeleteService", f"Deleted service: {name}")

"""Kueue: jobs with a queue's label wait, suspended, until there is room for them."""

import secrets
from collections.abc import Callable

from tests.launch.standin import replicas
from tests.launch.standin.events import Recorder
from tests.launch.standin.loop import Loop
from tests.launch.standin.resources import BY_KIND, Object, Resource
from tests.launch.standin.store import Change, Store, now

WORKLOAD, QUEUE = BY_KIND["Workload"], BY_KIND["LocalQueue"]
_QUEUE, _PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
_LONGEST = "kueue.x-k8s.io/max-exec-time-seconds"
_KINDS = ("PyTorchJob", "TrainJob")
_FULL = (
    "couldn't assign flavors to pod set {part}: insufficient unused quota for nvidia.com/gpu in flavor "
    "default-flavor, 1 more needed"
)


class Kueue:
    """Admits jobs, and takes their room away again.

    Attributes:
        slots: How many jobs there is room for; ``None``: for all. Others wait until one ends.
        manual: Whether jobs wait until :meth:`admit` lets them in.
    """

    def __init__(self, store: Store, loop: Loop) -> None:
        self._store, self._loop = store, loop
        self.slots: int | None = None
        self.manual = False
        self._kept_out: set[str] = set()
        self._events = Recorder(store, "kueue-job-controller")
        store.listen(self._hear)

    def add_queue(
        self, name: str = "team-queue", namespace: str = "team", cluster_queue: str = "cluster-queue"
    ) -> None:
        """Add a queue that jobs can name."""
        body = {"apiVersion": QUEUE.api_version, "kind": QUEUE.kind, "metadata": {"name": name}}
        self._store.add(QUEUE, namespace, {**body, "spec": {"clusterQueue": cluster_queue}})

    def add_priority(self, name: str, value: int) -> None:
        """Add a priority class for workloads."""
        resource = BY_KIND["WorkloadPriorityClass"]
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}}
        self._store.add(resource, "", {**body, "value": value})

    def hold(self, resource: Resource, body: Object) -> None:
        """Suspend a job that is about to be created and names a queue: what its webhook does."""
        if resource.kind in _KINDS and _QUEUE in (body["metadata"].get("labels") or {}):
            _set_suspend(body, suspend=True)

    def workload(self, job: str, namespace: str = "team") -> Object | None:
        """Return the workload of a job."""
        return next(
            (
                body
                for body in self._store.list(WORKLOAD, namespace)
                if body["metadata"]["ownerReferences"][0]["name"] == job
            ),
            None,
        )

    def admit(self, job: str, namespace: str = "team") -> None:
        """Let a job in, whatever room there is."""

        def admit() -> None:
            found = self._known(job, namespace)
            self._kept_out.discard(found["metadata"]["uid"])
            self._admit(found)

        self._loop.now(admit)

    def preempt(self, job: str, namespace: str = "team") -> None:
        """Take a job's room away for a more important one; it waits until it is admitted by hand."""
        said = "Preempted to accommodate a workload (UID: 0, JobUID: 0) due to prioritization"

        def preempt() -> None:
            found = self._known(job, namespace)
            self._kept_out.add(found["metadata"]["uid"])
            self._evict(found, "Preempted", f"{said} in the ClusterQueue")

        self._loop.now(preempt)

    def _known(self, job: str, namespace: str) -> Object:
        found = self.workload(job, namespace)
        assert found is not None, f"there is no workload of {job}"
        return found

    def _hear(self, change: Change) -> None:
        if change.resource.kind in _KINDS and change.type != "DELETED":
            place = (change.resource, change.body["metadata"]["namespace"], change.body["metadata"]["name"])
            self._loop.do(lambda: self._see(*place), ("Kueue", *place))
        elif change.resource in (WORKLOAD, QUEUE):
            self._loop.do(self._fill, "kueue")

    def _see(self, resource: Resource, namespace: str, name: str) -> None:
        job = self._store.find(resource, namespace, name)
        if (
            job is None
            or _QUEUE not in (job["metadata"].get("labels") or {})
            or "deletionTimestamp" in job["metadata"]
        ):
            return
        found = self.workload(name, namespace)
        if found is None:
            self._create(job)
        elif ended := _ended(job):
            self._conclude(found, ended)

    def _create(self, job: Object) -> None:
        """Make the workload of a job, if all that it names is there."""
        meta, labels = job["metadata"], job["metadata"]["labels"]
        spec: Object = {"queueName": labels[_QUEUE], "active": True, "podSets": _parts(job)}
        if name := labels.get(_PRIORITY):
            known = self._store.find(BY_KIND["WorkloadPriorityClass"], "", name)
            if known is None:
                said = f'WorkloadPriorityClass.kueue.x-k8s.io "{name}" not found'
                self._events.say(job, "Warning", "WorkloadPriorityClassNotFound", said)
                return
            named = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": name}
            spec |= {"priorityClassRef": named, "priority": known["value"]}
        if longest := labels.get(_LONGEST):
            spec["maximumExecutionTimeSeconds"] = int(longest)
        called = f"{job['kind'].lower()}-{meta['name']}-{secrets.token_hex(3)[:5]}"
        metadata = {
            "name": called,
            "labels": {"kueue.x-k8s.io/job-uid": meta["uid"]},
            "ownerReferences": [replicas.owner(job)],
        }
        body = {"apiVersion": WORKLOAD.api_version, "kind": WORKLOAD.kind, "metadata": metadata, "spec": spec}
        self._store.add(WORKLOAD, meta["namespace"], body)
        self._events.say(job, "Normal", "CreatedWorkload", f"Created Workload: {meta['namespace']}/{called}")

    def _fill(self) -> None:
        """Let in who waits, as far as there is room, in the order of priority and age."""
        all_of_them = self._store.list(WORKLOAD)
        used = sum(_holds(body, "Admitted") and not _holds(body, "Finished") for body in all_of_them)
        room = float("inf") if self.slots is None else self.slots
        waiting = [
            body
            for body in all_of_them
            if not _holds(body, "Admitted") and not _holds(body, "Finished") and body["spec"]["active"]
        ]
        waiting.sort(
            key=lambda body: (-body["spec"].get("priority", 0), int(body["metadata"]["resourceVersion"]))
        )
        for body in waiting:
            queue = body["spec"]["queueName"]
            if self._store.find(QUEUE, body["metadata"]["namespace"], queue) is None:
                self._wait(body, "Inadmissible", f"LocalQueue {queue} doesn't exist")
            elif self.manual or body["metadata"]["uid"] in self._kept_out or used >= room:
                self._wait(body, "Pending", _FULL.format(part=body["spec"]["podSets"][0]["name"]))
            else:
                used += 1
                self._admit(body)

    def _wait(self, workload: Object, reason: str, message: str) -> None:
        self._edit(workload, lambda body: _put(body, "QuotaReserved", "False", reason, message))

    def _admit(self, workload: Object) -> None:
        queue = self._store.find(QUEUE, workload["metadata"]["namespace"], workload["spec"]["queueName"])
        name = (queue or {"spec": {"clusterQueue": "cluster-queue"}})["spec"]["clusterQueue"]
        parts = [{"name": entry["name"], "count": entry["count"]} for entry in workload["spec"]["podSets"]]

        def admit(body: Object) -> None:
            body.setdefault("status", {})["admission"] = {"clusterQueue": name, "podSetAssignments": parts}
            _put(body, "QuotaReserved", "True", "QuotaReserved", f"Quota reserved in ClusterQueue {name}")
            _put(body, "Admitted", "True", "Admitted", "The workload is admitted")
            if _condition(body, "Evicted"):
                _put(
                    body,
                    "Evicted",
                    "False",
                    "QuotaReserved",
                    f"Previously: {_condition(body, 'Evicted')['message']}",
                )

        admitted = self._edit(workload, admit)
        self._suspend(workload, suspend=False, reason="Started", message=f"Admitted by clusterQueue {name}")
        if longest := workload["spec"].get("maximumExecutionTimeSeconds"):
            since = _condition(admitted, "Admitted")["lastTransitionTime"]
            self._loop.after(longest, lambda: self._over_time(workload, since))

    def _over_time(self, workload: Object, since: str) -> None:
        found = self._store.find(WORKLOAD, workload["metadata"]["namespace"], workload["metadata"]["name"])
        if found is None or _holds(found, "Finished") or not _holds(found, "Admitted"):
            return
        if _condition(found, "Admitted")["lastTransitionTime"] == since:
            said = "The workload is deactivated due to exceeding the maximum execution time"
            self._edit(found, lambda body: body["spec"].update(active=False))
            self._evict(found, "DeactivatedDueToMaximumExecutionTimeExceeded", said)

    def _evict(self, workload: Object, reason: str, message: str) -> None:
        def evict(body: Object) -> None:
            body.setdefault("status", {}).pop("admission", None)
            _put(body, "Evicted", "True", reason, message)
            _put(body, "QuotaReserved", "False", "Pending", message)
            _put(body, "Admitted", "False", "NoReservation", "The workload has no reservation")

        # Suspended first, so that its room is not given away, to itself even, before that.
        self._suspend(workload, suspend=True, reason="Stopped", message=message)
        self._edit(workload, evict)

    def _conclude(self, workload: Object, ended: Object) -> None:
        reason = "Succeeded" if ended["type"] in ("Succeeded", "Complete") else "Failed"
        self._edit(workload, lambda body: _put(body, "Finished", "True", reason, ended.get("message", "")))

    def _edit(self, workload: Object, edit: Callable[[Object], None]) -> Object:
        meta = workload["metadata"]
        return self._store.edit(WORKLOAD, meta["namespace"], meta["name"], edit)

    def _suspend(self, workload: Object, *, suspend: bool, reason: str, message: str) -> None:
        owner, space = workload["metadata"]["ownerReferences"][0], workload["metadata"]["namespace"]
        resource = BY_KIND[owner["kind"]]
        if (job := self._store.find(resource, space, owner["name"])) is not None:

            def edit(body: Object) -> None:
                _set_suspend(body, suspend=suspend)
                body["metadata"]["generation"] += 1

            self._events.say(job, "Normal", reason, message)
            self._store.edit(resource, space, owner["name"], edit)


def _set_suspend(job: Object, *, suspend: bool) -> None:
    if job["kind"] == "PyTorchJob":
        job["spec"].setdefault("runPolicy", {})["suspend"] = suspend
    else:
        job["spec"]["suspend"] = suspend


def _parts(job: Object) -> list[Object]:
    if job["kind"] == "TrainJob":
        return [{"name": "node", "count": (job["spec"].get("trainer") or {}).get("numNodes", 1)}]
    parts = replicas.defaulted(job["spec"])
    return [{"name": kind.lower(), "count": entry["replicas"]} for kind, entry in parts.items()]


def _ended(job: Object) -> Object | None:
    for entry in (job.get("status") or {}).get("conditions") or []:
        if entry["type"] in ("Succeeded", "Complete", "Failed") and entry["status"] == "True":
            found: Object = entry
            return found
    return None


def _condition(body: Object, kind: str) -> Object:
    told = (body.get("status") or {}).get("conditions") or []
    return next((entry for entry in told if entry["type"] == kind), {})


def _holds(body: Object, kind: str) -> bool:
    return bool(_condition(body, kind).get("status") == "True")


def _put(body: Object, kind: str, value: str, reason: str, message: str) -> None:
    told = body.setdefault("status", {}).setdefault("conditions", [])
    known = _condition(body, kind)
    if (known.get("status"), known.get("reason"), known.get("message")) == (value, reason, message):
        return
    since = known["lastTransitionTime"] if known.get("status") == value else now()
    entry = {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": since}
    told[:] = [*(other for other in told if other["type"] != kind), entry]

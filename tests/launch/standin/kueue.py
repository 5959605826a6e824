"""Kueue: jobs with a queue's label wait, suspended, until there is room for them."""

import secrets
from collections.abc import Callable

from tests.launch.standin import replicas
from tests.launch.standin.events import Recorder
from tests.launch.standin.loop import Loop
from tests.launch.standin.resources import BY_KIND, Object, Resource
from tests.launch.standin.scheduling import amount, requests
from tests.launch.standin.schema import pruned, schema
from tests.launch.standin.store import Change, Store, now

WORKLOAD, QUEUE = BY_KIND["Workload"], BY_KIND["LocalQueue"]
_QUEUE, _PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
_LONGEST, _JOB_UID = "kueue.x-k8s.io/max-exec-time-seconds", "kueue.x-k8s.io/job-uid"
_KINDS = ("PyTorchJob", "TrainJob")
FLAVOR = "default-flavor"
_UNASSIGNED = "couldn't assign flavors to pod set {part}: {why} in flavor {flavor}"
_FULL = "insufficient unused quota for nvidia.com/gpu"
_TOO_MUCH = "insufficient quota for {resource}"
_EVER = (
    "previously considered podsets requests (0) + current podset request ({wanted}) > maximum capacity "
    "({most})"
)
_OVERTIME = "The workload is deactivated due to exceeding the maximum execution time"


class Kueue:
    """Admits jobs, and takes their room away again.

    Attributes:
        slots: How many jobs there is room for; ``None``: for all. Others wait until one ends.
        manual: Whether jobs wait until :meth:`admit` lets them in.
        most: By resource, the most that all pods of a pod set may ask for; others are never let in.
    """

    def __init__(self, store: Store, loop: Loop) -> None:
        self._store, self._loop = store, loop
        self.slots: int | None = None
        self.manual = False
        self.most: dict[str, str] = {}
        self._kept_out: set[str] = set()
        self._events = Recorder(store, "kueue-job-controller")
        self._admissions = Recorder(store, "kueue-admission")
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

    def preempt(self, job: str, namespace: str = "team", *, by: str = "") -> None:
        """Take a job's room away for a more important one; it waits until it is admitted by hand.

        Args:
            job: The job.
            namespace: Its namespace.
            by: The job that gets the room; empty: one that nobody knows.
        """

        def preempt() -> None:
            found = self._known(job, namespace)
            other = self._known(by, namespace) if by else None
            uid = other["metadata"]["uid"] if other else "0"
            owner = other["metadata"]["labels"][_JOB_UID] if other else "0"
            self._kept_out.add(found["metadata"]["uid"])
            path = f"/{found['spec']['queueName']}"
            said = f"Preempted to accommodate a workload (UID: {uid}, JobUID: {owner}) due to prioritization"
            paths = f"preemptor path: {path}; preemptee path: {path}"
            self._evict(found, "Preempted", f"{said} in the ClusterQueue; {paths}")

        self._loop.now(preempt)

    def deactivate(self, job: str, namespace: str = "team") -> None:
        """Set a job's workload inactive, as an administrator does: it is never let in again."""

        def deactivate() -> None:
            found = self._edit(self._known(job, namespace), lambda body: body["spec"].update(active=False))
            said = "The workload is deactivated"
            if _holds(found, "Admitted"):
                self._evict(found, "Deactivated", said)
                return
            self._edit(found, lambda body: _put(body, "Evicted", "True", "Deactivated", said))
            self._suspend(found, suspend=True, reason="Stopped", message=said)

        self._loop.now(deactivate)

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
                return  # the real one only writes it into its own log, and tries again
            named = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": name}
            spec |= {"priorityClassRef": named, "priority": known["value"]}
        if longest := labels.get(_LONGEST):
            spec["maximumExecutionTimeSeconds"] = int(longest)
        called = f"{job['kind'].lower()}-{meta['name']}-{secrets.token_hex(3)[:5]}"
        metadata = {
            "name": called,
            "labels": {_JOB_UID: meta["uid"]},
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
            elif why := self._never(body):
                self._wait(body, "Pending", why)
            elif body["metadata"]["uid"] in self._kept_out and _holds(body, "Evicted"):
                continue
            elif self.manual or body["metadata"]["uid"] in self._kept_out or used >= room:
                part = body["spec"]["podSets"][0]["name"]
                told = _UNASSIGNED.format(part=part, why=_FULL, flavor=FLAVOR)
                self._wait(body, "Pending", f"{told}, 1 more needed")
            else:
                used += 1
                self._admit(body)

    def _never(self, workload: Object) -> str:
        """Say which pod set asks for more than there is; nothing if none does."""
        for part in workload["spec"]["podSets"]:
            asked = requests({"spec": part["template"]["spec"]})
            for resource, most in self.most.items():
                wanted = asked.get(resource, 0) * part["count"]
                if wanted > amount(most):
                    why = _TOO_MUCH.format(resource=resource)
                    told = _UNASSIGNED.format(part=part["name"], why=why, flavor=FLAVOR)
                    return f"{told}, {_EVER.format(wanted=f'{wanted:g}', most=most)}"
        return ""

    def _wait(self, workload: Object, reason: str, message: str) -> None:
        self._edit(workload, lambda body: _put(body, "QuotaReserved", "False", reason, message))

    def _admit(self, workload: Object) -> None:
        queue = self._store.find(QUEUE, workload["metadata"]["namespace"], workload["spec"]["queueName"])
        name = (queue or {"spec": {"clusterQueue": "cluster-queue"}})["spec"]["clusterQueue"]
        parts = [
            {
                "name": entry["name"],
                "count": entry["count"],
                "flavors": dict.fromkeys(requests({"spec": entry["template"]["spec"]}) or ("cpu",), FLAVOR),
            }
            for entry in workload["spec"]["podSets"]
        ]

        def admit(body: Object) -> None:
            body.setdefault("status", {})["admission"] = {"clusterQueue": name, "podSetAssignments": parts}
            _put(body, "QuotaReserved", "True", "QuotaReserved", f"Quota reserved in ClusterQueue {name}")
            _put(body, "Admitted", "True", "Admitted", "The workload is admitted")
            for kind in ("Evicted", "Preempted"):
                if _holds(body, kind):
                    past = f"Previously: {_condition(body, kind)['message']}"
                    _put(body, kind, "False", "QuotaReserved", past)

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
            limit = workload["spec"]["maximumExecutionTimeSeconds"]
            said = f"The maximum execution time ({limit}s) exceeded"
            self._admissions.say(found, "Warning", "MaximumExecutionTimeExceeded", said)

            def deactivate(body: Object) -> None:
                body["spec"]["active"] = False
                why = "exceeding the maximum execution time"
                _put(body, "DeactivationTarget", "True", "MaximumExecutionTimeExceeded", why)

            found = self._edit(found, deactivate)
            self._evict(found, "DeactivatedDueToMaximumExecutionTimeExceeded", _OVERTIME)

    def _evict(self, workload: Object, reason: str, message: str) -> None:
        def evict(body: Object) -> None:
            body.setdefault("status", {}).pop("admission", None)
            _put(body, "Evicted", "True", reason, message)
            _put(body, "QuotaReserved", "False", "Pending", message)
            _put(body, "Admitted", "False", "NoReservation", "The workload has no reservation")
            _put(body, "Requeued", str(body["spec"]["active"]), reason, message)
            if reason == "Preempted":
                _put(body, "Preempted", "True", "InClusterQueue", message)

        # Suspended first, so that its room is not given away, to itself even, before that.
        self._suspend(workload, suspend=True, reason="Stopped", message=message)
        self._edit(workload, evict)
        self._admissions.say(workload, "Normal", f"EvictedDueTo{reason}", message)

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
                if body["kind"] == "TrainJob":
                    # Its client knows the fields of Trainer 2.2, and writes no others.
                    body["spec"] = pruned(body, schema("trainjob-2.2"))["spec"]

            self._events.say(job, "Normal", reason, message)
            self._store.edit(resource, space, owner["name"], edit)


def _set_suspend(job: Object, *, suspend: bool) -> None:
    if job["kind"] == "PyTorchJob":
        job["spec"].setdefault("runPolicy", {})["suspend"] = suspend
    else:
        job["spec"]["suspend"] = suspend


def _parts(job: Object) -> list[Object]:
    if job["kind"] == "TrainJob":
        trainer = job["spec"].get("trainer") or {}
        container = {"name": "node", "resources": trainer.get("resourcesPerNode") or {}}
        template = {"spec": {"containers": [container]}}
        return [{"name": "node", "count": trainer.get("numNodes", 1), "template": template}]
    parts = replicas.defaulted(job["spec"])
    return [
        {"name": kind.lower(), "count": entry["replicas"], "template": entry["template"]}
        for kind, entry in parts.items()
    ]


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
    if known:
        told[told.index(known)] = entry
    else:
        told.append(entry)

"""Nodes: which pods they take, and how they are lost now and then."""

import contextlib
import signal
from collections.abc import Iterator

from tests.launch.standin import logs, podstates, scheduling
from tests.launch.standin.answers import Refused
from tests.launch.standin.deletion import delete, disrupt
from tests.launch.standin.events import Recorder
from tests.launch.standin.kubelet import Kubelet
from tests.launch.standin.loop import Loop
from tests.launch.standin.plans import Plan, Plans
from tests.launch.standin.resources import BY_KIND, POD, Address, Object
from tests.launch.standin.runs import Run
from tests.launch.standin.store import Change, Store, now
from tests.launch.standin.verbs import Answer

NODE = BY_KIND["Node"]
_BY_TAINT = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")


class Nodes:
    """The nodes of a cluster: the scheduler, what befalls them, and their pods by name.

    Attributes:
        plans: What becomes of pods.
    """

    def __init__(self, store: Store, loop: Loop, kubelet: Kubelet) -> None:
        self._store, self._loop, self._kubelet = store, loop, kubelet
        self._events, self._taints = (
            Recorder(store, "default-scheduler", "s"),
            Recorder(store, "taint-eviction-controller"),
        )
        self._controller = Recorder(store, "node-controller")
        self.plans: Plans = kubelet.plans
        store.listen(self._hear)

    def close(self) -> None:
        """Kill everything that still runs."""
        self._kubelet.bury()

    def add(self, name: str, *, gpus: int = 0, **labels: str) -> None:
        """Add a node with plenty of everything but GPUs."""
        room = {"cpu": "1000", "memory": "1000Gi", "pods": "1000", "ephemeral-storage": "1000Gi"}
        room |= {"nvidia.com/gpu": str(gpus)} if gpus else {}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": now()}
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}}
        self._store.add(
            NODE, "", {**body, "status": {"allocatable": room, "capacity": room, "conditions": [ready]}}
        )

    def plan(self, pods: str = "*", **what: object) -> None:
        """Plan what becomes of pods; the latest plan that is for a pod counts. See :class:`Plan`."""
        self.plans.add(Plan(pods, **what))  # type: ignore[arg-type]

    def run(self, name: str, namespace: str = "team") -> Run:
        """Return a pod that is on a node."""
        found = self._store.get(POD, namespace, name)
        return self._kubelet.runs[found["metadata"]["uid"]]

    def pid(self, name: str, namespace: str = "team") -> int:
        """Return the process id of a pod's first process."""
        process = self.run(name, namespace).process
        assert process is not None, f"{name} runs no process"
        return process.pid

    def end(
        self,
        name: str,
        code: int,
        *,
        reason: str = "",
        message: str = "",
        log: str = "",
        namespace: str = "team",
    ) -> None:
        """End a container that has no process, as if by itself."""

        def end() -> None:
            run = self.run(name, namespace)
            assert run.process is None, f"{name} runs a process"
            run.logs.starts[-1].write(log.encode())
            self._kubelet.act(run, run.number, code, reason, message)

        self._loop.now(end)

    def end_together(self, codes: dict[str, int], namespace: str = "team") -> None:
        """End several containers at once, before anybody can look."""

        def end() -> None:
            for name, code in codes.items():
                run = self.run(name, namespace)
                self._kubelet.act(run, run.number, code)

        self._loop.now(end)

    def kill(self, name: str, *, oom: bool = False, namespace: str = "team") -> None:
        """Kill a container with all its processes, for want of memory or by anybody."""
        self._loop.now(lambda: self._kubelet.kill(self.run(name, namespace), oom=oom))

    def evict(self, name: str, namespace: str = "team", *, by: str = "api") -> None:
        """Take a pod away: through the Eviction ``api``, by a ``taint`` of its node, or by ``preemption``."""
        told = {
            "api": ("EvictionByEvictionAPI", "Eviction API: evicting"),
            "taint": _BY_TAINT,
            "preemption": (
                "PreemptionByScheduler",
                "default-scheduler: preempting to accommodate a higher priority pod",
            ),
        }[by]
        pod = self._store.get(POD, namespace, name)
        disrupt(self._store, pod, *told)
        delete(self._store, self._store.get(POD, namespace, name), {})

    def starve(self, name: str, namespace: str = "team") -> None:
        """Fail a pod because its node runs out of disk; its object stays."""
        said = "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 9Gi."

        def fail() -> None:
            run = self.run(name, namespace)
            disrupt(self._store, run.pod, "TerminationByKubelet", said)
            self._kubelet.fail(run, "Evicted", said)

        self._loop.now(fail)

    def taint(self, node: str, key: str = "maint", value: str = "1", effect: str = "NoExecute") -> None:
        """Set a taint on a node; ``NoExecute`` drives away the pods that do not put up with it."""
        mark = {"key": key, "value": value, "effect": effect}
        self._store.edit(NODE, "", node, lambda body: body["spec"].setdefault("taints", []).append(mark))

    def untaint(self, node: str) -> None:
        """Remove all taints of a node."""
        self._store.edit(NODE, "", node, lambda body: body["spec"].pop("taints", None))

    def lose(self, node: str) -> None:
        """Lose a node: its processes are gone, nothing is heard of it, its pods are to be deleted.

        Its pods are told so with an event and a condition, as by the node controller of Kubernetes
        (``MarkPodsNotReady`` in ``pkg/controller/util/node``).
        """

        def lose() -> None:
            self._kubelet.lost.add(node)
            for pod in self._on(node):
                run = self._kubelet.runs.get(pod["metadata"]["uid"])
                if run and run.process:
                    run.process.kill()

        self._loop.now(lose)
        self._store.edit(NODE, "", node, _unheard_of)
        for pod in self._on(node):
            where = pod["metadata"]["namespace"], pod["metadata"]["name"]
            self._store.edit(POD, *where, _not_ready)
            self._controller.say(pod, "Warning", "NodeNotReady", "Node is not ready")
        self.taint(node, "node.kubernetes.io/unreachable", "")

    def remove(self, node: str) -> None:
        """Remove a node for good; the objects of its pods go with it."""
        for pod in self._on(node):
            where = pod["metadata"]["namespace"], pod["metadata"]["name"]
            disrupt(self._store, pod, "DeletionByPodGC", "PodGC: node no longer exists")
            failed = self._store.edit(POD, *where, lambda body: body["status"].update(phase="Failed"))
            delete(self._store, failed, {"gracePeriodSeconds": 0})
        self._store.drop(NODE, self._store.get(NODE, "", node))

    def signal(self, name: str, number: int = signal.SIGKILL, namespace: str = "team") -> None:
        """Send the first process of a pod a signal, as anybody on its node could."""
        process = self.run(name, namespace).process
        assert process is not None, f"{name} runs no process"
        process.signal(number)

    def log(self, address: Address, query: dict[str, str]) -> Answer | Iterator[bytes]:
        """Answer who asks for the log of a pod."""
        pod = self._store.get(POD, address.namespace, address.name)
        if pod["spec"].get("nodeName") in self._kubelet.lost:
            raise logs.out_of_reach(pod["spec"]["nodeName"])
        run = self._kubelet.runs.get(pod["metadata"]["uid"])
        return logs.answer(pod, pod["spec"]["containers"][0]["name"], run.logs if run else None, query)

    def _on(self, node: str) -> list[Object]:
        return self._store.list(POD, selects=lambda body: body["spec"].get("nodeName") == node)

    def _hear(self, change: Change) -> None:
        meta = change.body["metadata"]
        if change.resource == POD:
            if change.type == "DELETED":
                self._loop.do(lambda: self._drop(meta["uid"]))
            place = (meta["namespace"], meta["name"])
            self._loop.do(lambda: self._sync(*place), ("Pod", *place))
        elif change.resource == NODE and change.type != "DELETED":
            self._loop.do(lambda: self._drive_away(meta["name"]), ("Node", meta["name"]))
            self._loop.do(self._place_waiting, "waiting")

    def _drop(self, uid: str) -> None:
        """Let go of a pod whose object is gone; others may take its room."""
        run = self._kubelet.runs.pop(uid, None)
        if run and run.process:
            run.process.kill()
        self._loop.do(self._place_waiting, "waiting")

    def _place_waiting(self) -> None:
        for pod in self._store.list(POD, selects=lambda body: not body["spec"].get("nodeName")):
            self._schedule(pod)

    def _sync(self, namespace: str, name: str) -> None:
        pod = self._store.find(POD, namespace, name)
        if pod is None:
            return
        with contextlib.suppress(Refused):  # somebody was faster
            run, node = self._kubelet.runs.get(pod["metadata"]["uid"]), pod["spec"].get("nodeName")
            if not node:
                self._schedule(pod)
            elif node in self._kubelet.lost or pod["status"].get("phase") in ("Succeeded", "Failed"):
                return
            elif run is None:
                self._kubelet.take(pod)
            elif "deletionTimestamp" in pod["metadata"] and not run.ending:
                self._kubelet.stop(run)

    def _schedule(self, pod: Object) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            return
        plan, meta = self.plans.of(pod["metadata"]["name"]), pod["metadata"]
        if plan.waits == "Unschedulable":
            node, why = "", plan.message or "0/1 nodes are available: 1 Insufficient cpu."
        else:
            node, why = scheduling.choose(pod, self._store.list(NODE), self._store.list(POD))
        told = {"status": "True"} if node else {"status": "False", "reason": "Unschedulable", "message": why}
        noted = podstates.conditions(pod["status"], {"PodScheduled": told})
        spec = {**pod["spec"], "nodeName": node} if node else pod["spec"]
        placed = self._store.put(POD, {**pod, "spec": spec, "status": {**pod["status"], "conditions": noted}})
        if placed is pod:
            return
        said = f"Successfully assigned {meta['namespace']}/{meta['name']} to {node}" if node else why
        kind, reason, action = (
            ("Normal", "Scheduled", "Binding") if node else ("Warning", "FailedScheduling", "Scheduling")
        )
        self._events.say_once(pod, kind, reason, said, action)

    def _drive_away(self, node: str) -> None:
        """Delete the pods of a node that do not put up with its taints, one after the other."""
        found = self._store.find(NODE, "", node) or {"spec": {}}
        taints = [mark for mark in found["spec"].get("taints") or [] if mark["effect"] == "NoExecute"]
        for pod in self._on(node):
            over = pod["status"].get("phase") in ("Succeeded", "Failed")
            if over or "deletionTimestamp" in pod["metadata"]:
                continue
            if not all(scheduling.tolerates(pod, mark) for mark in taints):
                where = pod["metadata"]["namespace"], pod["metadata"]["name"]
                said = f"Marking for deletion Pod {'/'.join(where)}"
                self._taints.say(pod, "Normal", "TaintManagerEviction", said)
                disrupt(self._store, pod, *_BY_TAINT)
                delete(self._store, self._store.get(POD, *where), {})
                self._loop.do(lambda: self._drive_away(node))
                return


def _not_ready(pod: Object) -> None:
    for entry in pod["status"].get("conditions") or []:
        if entry["type"] == "Ready":
            entry |= {"status": "False", "lastTransitionTime": now()}


def _unheard_of(node: Object) -> None:
    for entry in node["status"]["conditions"]:
        if entry["type"] == "Ready":
            entry |= {"status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": now()}
            entry["message"] = "Kubelet stopped posting node status."

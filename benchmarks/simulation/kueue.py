"""Kueue 0.19's admission: ClusterQueues of one flat cohort, fair sharing, one resource of one flavor.

It follows ``pkg/scheduler`` (``scheduler.go``, ``fair_sharing_iterator.go``, ``preemption/preemption.go``)
and ``pkg/cache`` (quota and shares, queues). tests/teams compares it with recordings of Kueue itself.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

GPU = "nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True)
class ClusterQueue:
    """The fields of a ClusterQueue that decide about admission."""

    name: str
    nominal: int
    lending_limit: int | None = None
    borrowing_limit: int | None = None
    weight: float = 1
    strategy: str = "BestEffortFIFO"
    reclaim: str = "Never"
    within: str = "Never"

    @classmethod
    def of(cls, manifest: Mapping[str, Any], flavor: str) -> "ClusterQueue":
        """Read the quota of GPUs of one flavor from a manifest."""
        spec = manifest["spec"]
        (flavors,) = (group["flavors"] for group in spec["resourceGroups"])
        (quotas,) = (entry["resources"] for entry in flavors if entry["name"] == flavor)
        (quota,) = (entry for entry in quotas if entry["name"] == GPU)
        return cls(
            name=manifest["metadata"]["name"],
            nominal=int(quota["nominalQuota"]),
            lending_limit=quota.get("lendingLimit"),
            borrowing_limit=quota.get("borrowingLimit"),
            weight=float(spec.get("fairSharing", {}).get("weight", 1)),
            strategy=spec.get("queueingStrategy", "BestEffortFIFO"),
            reclaim=spec["preemption"].get("reclaimWithinCohort", "Never"),
            within=spec["preemption"].get("withinClusterQueue", "Never"),
        )

    @property
    def local(self) -> int:
        """Quota that is never lent."""
        return 0 if self.lending_limit is None else max(0, self.nominal - self.lending_limit)


@dataclass(eq=False, kw_only=True)
class Workload:
    """A job in a queue."""

    name: str
    queue: str
    gpus: int
    created: int
    priority: int = 0
    admitted: int | None = None
    evicted: bool = False


class Share(NamedTuple):
    """Dominant resource share: compared in this order."""

    borrowing: bool
    ratio: float


class Snapshot:
    """Quota and usage of a cohort; a single ClusterQueue has none."""

    def __init__(self, queues: Mapping[str, ClusterQueue], usage: Mapping[str, int]) -> None:
        self.queues, self.usage = queues, dict(usage)
        self.lent = sum(queue.nominal - queue.local for queue in queues.values())
        self.has_cohort = len(queues) > 1

    def available(self, name: str) -> int:
        """Return the GPUs that the queue can still use."""
        queue, used = self.queues[name], self.usage[name]
        if not self.has_cohort:
            return queue.nominal - used
        outside = {key: max(0, self.usage[key] - entry.local) for key, entry in self.queues.items()}
        free = self.lent - sum(outside.values())
        if queue.borrowing_limit is not None:
            free = min(free, queue.nominal - queue.local - outside[name] + queue.borrowing_limit)
        return max(0, queue.local - used) + free

    def potential(self, name: str) -> int:
        """Return the GPUs that the queue could use were all idle."""
        queue = self.queues[name]
        most = queue.local + self.lent if self.has_cohort else queue.nominal
        return most if queue.borrowing_limit is None else min(most, queue.nominal + queue.borrowing_limit)

    def borrows(self, name: str) -> bool:
        """Tell whether a queue uses more than its quota."""
        return self.has_cohort and self.usage[name] > self.queues[name].nominal

    def share(self, name: str) -> Share:
        """Return the borrowed part of what the cohort can lend, by weight."""
        if not self.borrows(name):
            return Share(False, 0)
        queue = self.queues[name]
        return Share(True, (self.usage[name] - queue.nominal) * 1000 / self.lent / queue.weight)

    @contextmanager
    def changed(self, name: str, gpus: int) -> Iterator[None]:
        """Count more or less usage for a moment."""
        self.usage[name] += gpus
        yield
        self.usage[name] -= gpus


@dataclass
class Entry:
    """The head of a queue in a cycle: it fits, it can preempt its targets, or neither."""

    workload: Workload
    fits: bool = False
    preempts: bool = False
    targets: list[Workload] = field(default_factory=list)


class Kueue:
    """The queues, and what is admitted.

    Args:
        queues: One ClusterQueue, or all of a cohort.
    """

    def __init__(self, queues: Sequence[ClusterQueue]) -> None:
        self.queues = {queue.name: queue for queue in queues}
        self.admitted: dict[str, list[Workload]] = {name: [] for name in self.queues}
        self.active: dict[str, list[Workload]] = {name: [] for name in self.queues}
        self.inadmissible: dict[str, list[Workload]] = {name: [] for name in self.queues}
        self.preemptor: dict[str, Workload | None] = dict.fromkeys(self.queues)

    def submit(self, workload: Workload) -> None:
        """Put a workload into its queue."""
        self.active[workload.queue].append(workload)

    def release(self, workload: Workload) -> None:
        """Free the quota of a workload that ended, or was evicted and is gone: it queues again."""
        self.admitted[workload.queue].remove(workload)
        workload.admitted = None
        if workload.evicted:
            workload.evicted = False
            self.submit(workload)
        for name, parked in self.inadmissible.items():
            self.active[name] += parked
            parked.clear()

    def pending(self, name: str) -> list[Workload]:
        """Return what waits in a queue."""
        return self.active[name] + self.inadmissible[name]

    def schedule(self, now: int) -> tuple[list[Workload], list[Workload]]:
        """Run cycles until nothing changes any more; return what was admitted and what was evicted."""
        admitted: list[Workload] = []
        evicted: list[Workload] = []
        while self._cycle(now, admitted, evicted):
            pass
        return admitted, evicted

    def _cycle(self, now: int, admitted: list[Workload], evicted: list[Workload]) -> bool:
        heads = [min(entries, key=self._queue_order) for entries in self.active.values() if entries]
        for head in heads:
            self.active[head.queue].remove(head)
        usage = {name: sum(entry.gpus for entry in entries) for name, entries in self.admitted.items()}
        snapshot = Snapshot(self.queues, usage)
        waiting = [self._nominate(snapshot, head) for head in heads]
        claimed: list[Workload] = []
        progress = False
        while waiting:
            entry = min(waiting, key=lambda entry: self._tournament(snapshot, entry.workload))
            waiting.remove(entry)
            workload, immediate = entry.workload, self.queues[entry.workload.queue].strategy == "StrictFIFO"
            if entry.fits or entry.targets:
                immediate = True
                if self._process(snapshot, entry, claimed):
                    if entry.fits:
                        workload.admitted, progress = now, True
                        self.admitted[workload.queue].append(workload)
                        admitted.append(workload)
                        if self.preemptor[workload.queue] is workload:
                            self.preemptor[workload.queue] = None
                        continue
                    fresh = [target for target in entry.targets if not target.evicted]
                    for target in fresh:
                        target.evicted = True
                    evicted += fresh
                    progress |= bool(fresh)
                    self.preemptor[workload.queue] = workload
            elif entry.preempts and self.queues[workload.queue].reclaim != "Any":
                snapshot.usage[workload.queue] += _reserve(snapshot, workload)
            (self.active if immediate else self.inadmissible)[workload.queue].append(workload)
            progress |= not immediate
        return progress

    def _queue_order(self, workload: Workload) -> tuple[bool, int, int, str]:
        queue = self.queues[workload.queue]
        sticky = queue.strategy == "BestEffortFIFO" and self.preemptor[workload.queue] is workload
        return not sticky, -workload.priority, workload.created, workload.name

    def _tournament(self, snapshot: Snapshot, workload: Workload) -> tuple[Share, int, int, str]:
        with snapshot.changed(workload.queue, workload.gpus):
            share = snapshot.share(workload.queue)
        return share, -workload.priority, workload.created, workload.name

    def _nominate(self, snapshot: Snapshot, workload: Workload) -> Entry:
        queue, gpus = self.queues[workload.queue], workload.gpus
        if gpus > snapshot.potential(queue.name):
            return Entry(workload)
        if gpus <= snapshot.available(queue.name):
            return Entry(workload, fits=True)
        if gpus <= queue.nominal or (snapshot.has_cohort and queue.reclaim != "Never"):
            return Entry(workload, preempts=True, targets=self._targets(snapshot, workload))
        return Entry(workload)

    def _process(self, snapshot: Snapshot, entry: Entry, claimed: list[Workload]) -> bool:
        """Count a head's usage if it still fits after the heads before it, and without their targets."""
        workload = entry.workload
        if any(target in claimed for target in entry.targets):
            return False
        gone = claimed + entry.targets
        for target in gone:
            snapshot.usage[target.queue] -= target.gpus
        fits = workload.gpus <= snapshot.available(workload.queue)
        for target in gone:
            snapshot.usage[target.queue] += target.gpus
        if fits:
            claimed += entry.targets
            snapshot.usage[workload.queue] += workload.gpus
        return fits

    def _targets(self, snapshot: Snapshot, workload: Workload) -> list[Workload]:
        """Return the workloads to evict for one that does not fit; none if that does not help."""
        queue = self.queues[workload.queue]
        candidates = [
            *(self._lower(workload, queue.name) if queue.within == "LowerPriority" else []),
            *(
                target
                for name in self.queues
                if name != queue.name and queue.reclaim != "Never" and snapshot.borrows(name)
                for target in (self.admitted[name] if queue.reclaim == "Any" else self._lower(workload, name))
            ),
        ]
        candidates.sort(key=lambda target: _candidate_order(workload, target))
        with snapshot.changed(queue.name, workload.gpus):
            targets = _Preemption(snapshot, workload, candidates).targets()
        fits = bool(targets) and workload.gpus <= snapshot.available(queue.name)
        for target in reversed(targets[:-1] if fits else []):  # add back what was removed for nothing
            with snapshot.changed(target.queue, target.gpus):
                spare = workload.gpus <= snapshot.available(queue.name)
            if spare:
                snapshot.usage[target.queue] += target.gpus
                targets.remove(target)
        for target in targets:
            snapshot.usage[target.queue] += target.gpus
        return targets if fits else []

    def _lower(self, workload: Workload, name: str) -> list[Workload]:
        return [target for target in self.admitted[name] if target.priority < workload.priority]


class _Preemption:
    """Fair sharing's choice of targets; the usage of those it returns is removed from the snapshot."""

    def __init__(self, snapshot: Snapshot, workload: Workload, candidates: list[Workload]) -> None:
        self.snapshot, self.workload, self.candidates = snapshot, workload, candidates
        self.removed: list[Workload] = []
        self.left: dict[str, deque[Workload]] = {}
        self.pruned: set[str] = set()

    def targets(self) -> list[Workload]:
        retry: list[Workload] = []
        if not self._first(retry):
            self._second(retry)
        return self.removed

    def _first(self, retry: list[Workload]) -> bool:
        """Apply LessThanOrEqualToFinalShare; within its nominal quota, the preemptor may take any."""
        own = self.workload.queue
        within_nominal = not self.snapshot.borrows(own)
        for name in self._highest(self.candidates):
            if name == own or within_nominal:
                if self._remove(self.left[name].popleft()):
                    return True
                continue
            while self.left[name]:
                target = self.left[name].popleft()
                with self.snapshot.changed(name, -target.gpus):
                    passed = self.snapshot.share(own) <= self.snapshot.share(name)
                if not passed:
                    retry.append(target)
                elif self._remove(target):
                    return True
                else:
                    break
        return False

    def _second(self, retry: list[Workload]) -> None:
        """Apply LessThanInitialShare, once to each queue."""
        for name in self._highest(retry):
            target = self.left[name].popleft()
            if self.snapshot.share(self.workload.queue) < self.snapshot.share(name) and self._remove(target):
                return
            self.pruned.add(name)

    def _highest(self, candidates: list[Workload]) -> Iterator[str]:
        """Yield the queue with the highest share, until none that borrows has a candidate."""
        self.left, self.pruned = {name: deque() for name in self.snapshot.queues}, set()
        for target in candidates:
            self.left[target.queue].append(target)
        own = self.workload.queue
        while True:
            for name in self.left:
                if not self.left[name] or not (name == own or self.snapshot.borrows(name)):
                    self.pruned.add(name)
            names = [name for name in self.left if name not in self.pruned]
            if not names:
                return
            yield min(names, key=self._target_order)

    def _target_order(self, name: str) -> tuple[float, Any]:
        return -self.snapshot.share(name).ratio, _candidate_order(self.workload, self.left[name][0])

    def _remove(self, target: Workload) -> bool:
        self.removed.append(target)
        self.snapshot.usage[target.queue] -= target.gpus
        with self.snapshot.changed(self.workload.queue, -self.workload.gpus):
            return self.workload.gpus <= self.snapshot.available(self.workload.queue)


def _candidate_order(workload: Workload, target: Workload) -> tuple[bool, bool, int, int, str]:
    admitted = target.admitted or 0
    return not target.evicted, target.queue == workload.queue, target.priority, -admitted, target.name


def _reserve(snapshot: Snapshot, workload: Workload) -> int:
    """Return what a head that finds no targets keeps from the heads after it."""
    queue, used = snapshot.queues[workload.queue], snapshot.usage[workload.queue]
    if snapshot.has_cohort and used + workload.gpus > queue.nominal:
        return (
            workload.gpus
            if queue.borrowing_limit is None
            else min(workload.gpus, queue.nominal + queue.borrowing_limit - used)
        )
    return max(0, min(workload.gpus, queue.nominal - used))

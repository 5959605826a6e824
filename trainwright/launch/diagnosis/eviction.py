"""Pods that were taken off their node: by an eviction, a taint, a shutdown, the kubelet, or by hand."""

import re

from trainwright.launch.diagnosis.finding import Finding
from trainwright.launch.diagnosis.pod_story import PodStory, Word

_KUBELET = "TerminationByKubelet"
_OWN_LIMIT = re.compile(
    r"Usage of EmptyDir volume \"(?P<volume>[^\"]+)\" exceeds the limit"
    r"|Pod ephemeral local storage usage exceeds the total limit"
    r"|exceeded its local ephemeral storage limit"
)
_LOW = re.compile(r"(?:low on resource: |had condition: )\[?(?P<resource>[\w-]+)")
_DISK = frozenset({"ephemeral-storage", "DiskPressure", "inodes", "imagefs", "nodefs"})
_MEMORY = frozenset({"memory", "MemoryPressure"})
_REJECTED = frozenset(
    {
        "UnexpectedAdmissionError",
        "NodeAffinity",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
        "TopologyAffinityError",
    }
)
_WORDS = {
    "EvictionByEvictionAPI": "an eviction was asked for, as when a node is drained",
    "DeletionByTaintManager": "its node got a taint that it does not tolerate",
    "PreemptionByScheduler": "a pod of a higher priority needed its place",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "its node shut down",
    "Terminated": "its node shut down",
    "NodeShutdown": "its node shut down",
    "Shutdown": "its node shut down",
    "Preempting": "a critical pod needed its place",
    "NodeLost": "its node does not answer",
}


def judge(pod: PodStory) -> Finding | None:
    """Return why a pod was thrown out, if Kubernetes says that it was.

    The pod itself is the only place that says so: its container shows exit code 137, or 0 if the program
    saved its state and left in time.
    """
    verdict = pod.verdict
    if verdict and verdict.reason == "Evicted":
        return _by_kubelet(pod, verdict)
    if verdict and (verdict.reason in _REJECTED or verdict.reason.startswith("OutOf")):
        return _refused_by_node(pod, verdict)
    if pod.disruption and pod.disruption.reason == _KUBELET and _LOW.search(pod.disruption.message):
        return _by_kubelet(pod, pod.disruption)
    if pod.disruption:
        return _preempted(pod, pod.disruption) if pod.starts else None
    if verdict and verdict.reason in _WORDS:
        return _preempted(pod, verdict)
    return None


def deleted(pod: PodStory, *, suspended: bool, replaced: bool) -> Finding:
    """Return what the deletion of a running pod amounts to, where Kubernetes gives no reason for it.

    One that is gone and replaced before it was seen to end may have ended in any way.
    """
    if pod.deletion is None and replaced:
        what = f"pod {pod.name} was replaced before it was seen to end"
        return Finding(kind="UNKNOWN", what=what, reason="PodReplaced", rank=pod.rank)
    if pod.deletion is None:
        return _preempted(pod, Word(reason="PodVanished"), "it is gone, and was never seen to end")
    if suspended:
        return _preempted(pod, Word(reason="Suspended"), "the job was suspended, as its queue does")
    return _preempted(pod, Word(reason="PodDeleted"), "it was deleted while it ran, and nothing says by whom")


def _preempted(pod: PodStory, word: Word, why: str = "") -> Finding:
    because = why or _WORDS.get(word.reason, "Kubernetes took it away")
    return Finding(
        kind="PREEMPTED",
        what=f"pod {pod.name} was taken off its node ({word.reason}): {because}",
        reason=word.reason,
        exit_code=pod.endings[-1].exit_code if pod.endings else None,
        rank=pod.rank,
        evidence=(f"pod {pod.name}: {word.message}",) if word.message else (),
    )


def _by_kubelet(pod: PodStory, word: Word) -> Finding:
    """Tell a pod's own limit from a node that ran short, and disks from memory."""
    own, low = _OWN_LIMIT.search(word.message), _LOW.search(word.message)
    resource = low["resource"] if low else ""
    volume = own["volume"] if own and own["volume"] else ""
    in_memory = volume in pod.memory_volumes if volume else resource in _MEMORY
    greedy = "has larger consumption of memory" in word.message or "exceeds its request" in word.message
    code = pod.endings[-1].exit_code if pod.endings else None
    shown = (f"pod {pod.name}: Evicted: {word.message}",)
    if in_memory and not own and not greedy:
        return _preempted(
            pod, word, "its node ran out of memory, though it used no more than it had asked for"
        )
    if in_memory:
        return Finding(
            kind="HOST_OOM",
            what=f"pod {pod.name} was evicted for the memory it used: {word.message}",
            reason="Evicted",
            exit_code=code,
            rank=pod.rank,
            evidence=shown,
        )
    if not own and resource not in _DISK and not word.message.startswith("The node was low"):
        return _preempted(pod, word, f"the kubelet evicted it: {word.message}")
    advice = "Write less to local disks, or raise the limit that it ran into." if own else ""
    return Finding(
        kind="EVICTED_DISK",
        what=f"pod {pod.name} was evicted for disk space: {word.message}",
        reason="Evicted",
        exit_code=code,
        rank=pod.rank,
        evidence=shown,
        advice=advice,
        retryable=not own,
        charged="user" if own else "",
    )


def _refused_by_node(pod: PodStory, word: Word) -> Finding:
    """The kubelet did not admit a pod that the scheduler had put on its node."""
    broken = "unhealthy devices" in word.message or "no longer healthy" in word.message
    return Finding(
        kind="NODE_GPU" if broken else "INFRASTRUCTURE",
        what=f"node {pod.node} refused pod {pod.name}: {word.message or word.reason}",
        reason=word.reason,
        rank=pod.rank,
        evidence=(f"pod {pod.name}: {word.reason}: {word.message}",),
    )

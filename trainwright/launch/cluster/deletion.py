"""Waiting for a deleted job to be gone with all of its pods, also where a node that is lost holds them.

A job that is deleted in the background is gone at once, and its pods are not. Pods are found by the job's
name and told apart by the label of the attempt: jobs of several attempts have the same name.
"""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from trainwright.errors import DependencyError, PermissionRefused
from trainwright.launch.cluster.api import FOREGROUND, Api, Object, Selection
from trainwright.launch.cluster.responses import ApiGone, ApiUnavailable
from trainwright.launch.manifests.annotations import ATTEMPT, FOLDER, MANAGED_BY, OURS

_FIRST_S, _LONGEST_S = 0.1, 2.0
_OVERDUE_S = 30.0
"""Seconds beyond its grace after which a pod that is still there was not ended by its node."""

_CHECK_S = 5.0
_ENDED_PHASES = frozenset({"Succeeded", "Failed"})
_NODE_LOST = "NodeNotReady"
"""Reason of the event with which Kubernetes' node controller tells a pod that its node does not answer."""


def delete_and_wait(api: Api, name: str, uid: str, gone_s: float, attempt: str = "") -> None:
    """Delete a job and wait until it and all of its pods are gone.

    Raises:
        DependencyError: It takes too long.
    """
    api.delete(name, uid)
    wait_until_gone(api, name, uid, gone_s, attempt)


def wait_until_gone(api: Api, name: str, uid: str, gone_s: float, attempt: str = "") -> None:
    """Wait until a deleted job and its pods are gone.

    Args:
        api: Access to the cluster.
        name: The job.
        uid: Its identity; empty where the object is known to be gone. The wait then also ends when another
            launcher creates a job of that name: the pods may be those of the new one.
        gone_s: Longest time to wait, in seconds.
        attempt: Only the pods of this attempt count; empty: those of every attempt.

    Raises:
        DependencyError: It takes too long.
    """
    left = LostPodRemover(api, name, min(_OVERDUE_S, gone_s / 4))

    def gone() -> bool:
        found = api.job(name)
        if not uid and found is not None:
            return True
        there = found is not None and found["metadata"].get("uid") == uid
        if not there and not live_pods(api, name, attempt):
            return True
        left.release()
        return False

    if not poll_until(gone, gone_s):
        raise DependencyError(
            f"job {name} does not go away within {gone_s:,.0f} s{left.told}",
            where=f"namespace {api.namespace}",
            hint="Look at its pods, their nodes and its finalizers. A node that is lost has to be removed; "
            "one that answers and cannot end a process (a driver that hangs), drained and started anew. "
            "Then run the step again: it goes on from its last checkpoint.",
        )


def poll_until(fact: Callable[[], bool], longest_s: float) -> bool:
    """Ask again and again, less and less often; tell whether it came true in time."""
    end, pause = time.monotonic() + longest_s, _FIRST_S
    while not fact():
        if time.monotonic() + pause > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_S)
    return True


def wait_until_name_is_free(api: Api, name: str, gone_s: float) -> None:
    """Wait for the pods that a deleted job of this name has left, if there is no such job any more.

    A job that is deleted in the foreground keeps its name until they are gone: nothing has to be asked.

    Raises:
        DependencyError: It takes too long.
    """
    if api.kind.propagation == FOREGROUND:
        return
    if live_pods(api, name) and api.job(name) is None:
        wait_until_gone(api, name, "", gone_s)


def live_pods(api: Api, name: str, attempt: str = "") -> list[Object]:
    """Return the pods of a job that have not ended; of one attempt, if it is named."""
    pods, _ = api.retry(lambda: api.select(Selection(kind="pods", labels=f"{api.kind.pods}={name}")))
    return [
        pod
        for pod in pods
        if (pod.get("status") or {}).get("phase") not in _ENDED_PHASES and belongs_to(pod, attempt)
    ]


def belongs_to(pod: Object, attempt: str) -> bool:
    """Tell whether a pod belongs to an attempt; one without the label may belong to any, and so does."""
    label = (pod["metadata"].get("labels") or {}).get(ATTEMPT, "")
    return not attempt or label in ("", attempt)


def attempt_of(job: Object) -> str:
    """Return the attempt that the pods of a job belong to."""
    notes: dict[str, str] = job["metadata"].get("annotations") or {}
    return notes.get(ATTEMPT) or notes.get(FOLDER, "").rpartition("/")[2]


def all_pods_ending(api: Api, name: str, attempt: str) -> bool:
    """Tell whether every pod of an attempt has ended, or is told to."""
    return all(pod["metadata"].get("deletionTimestamp") for pod in live_pods(api, name, attempt))


class LostPodRemover:
    """The pods that keep a deleted job: one is removed by force once its node is known to be lost.

    Nothing but its node can end a pod in good order, and a node that does not answer never does. Kubernetes
    leaves such a pod for as long as the node is listed, and the name of the job is taken for as long. It is
    removed if all of this holds: it is ours and told to end; it is there much longer than its grace; it is
    not ready; and the node controller has said of this very pod that its node is not ready. A node that
    answers but cannot end a process (a driver that hangs) is none of these: its GPU is not given to another
    pod. Where a lost node still runs the process, nothing new is put on it, and the process writes nothing
    that counts: the number of its attempt is an old one.

    Args:
        api: Access to the cluster.
        job: Name of the job.
        late_s: Seconds beyond its grace after which a pod is looked at.
    """

    def __init__(self, api: Api, job: str, late_s: float) -> None:
        self._api, self._late_s = api, late_s
        self._mine = Selection(kind="pods", labels=f"{api.kind.pods}={job},{MANAGED_BY}={OURS}")
        self._began_s = self._looked_s = time.monotonic()
        self._allowed, self.told = True, ""

    def release(self) -> None:
        """Remove the pods that are lost; a look now and then is enough, and none before it can be one."""
        now = time.monotonic()
        pause = min(_CHECK_S, self._late_s / 2)
        if not self._allowed or now - self._looked_s < pause:
            return
        self._looked_s = now
        try:
            for pod in self._lost(now):
                name = pod["metadata"]["name"]
                self._api.remove_pod(name, pod["metadata"]["uid"])
                sys.stderr.write(f"pod {name} was removed: its node {_node_of(pod)} is lost\n")
        except (ApiUnavailable, ApiGone):
            return
        except PermissionRefused as error:
            self._allowed = False
            self.told += f"; a pod of a lost node could not be removed: {error.what}"

    def _lost(self, now: float) -> Iterator[Object]:
        """Find the pods whose nodes are lost. They were told to end when the waiting began, or before."""
        pods, _ = self._api.select(self._mine)
        leaving = [pod for pod in pods if pod["metadata"].get("deletionTimestamp")]
        names = sorted(f"{pod['metadata']['name']} on node {_node_of(pod)}" for pod in leaving)
        self.told = f"; it is kept by {', '.join(names)}" if names else ""
        for pod in leaving:
            grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            late = now - self._began_s >= grace_s + self._late_s
            if late and not _ready(pod) and self._unheard_of(pod):
                yield pod

    def _unheard_of(self, pod: Object) -> bool:
        """Tell whether the node controller has said that the node of this pod is not ready."""
        return any(
            event.get("reason") == _NODE_LOST
            and (event.get("involvedObject") or {}).get("uid") == pod["metadata"]["uid"]
            for event in self._api.events(pod["metadata"]["name"])
        )


def _ready(pod: Object) -> bool:
    conditions: list[dict[str, Any]] = (pod.get("status") or {}).get("conditions") or []
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def _node_of(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "of no name")

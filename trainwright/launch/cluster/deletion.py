"""Delete a job and wait until its pods are gone, also those of a lost node.

A job that is deleted in the background is gone at once, its pods are not. Pods are selected by the job's name
and told apart by the attempt's label, since the jobs of all attempts have the same name.
"""

import sys
import time
from collections.abc import Callable, Iterator

from trainwright.errors import DependencyError, PermissionRefused
from trainwright.launch.cluster.api import FOREGROUND, Api, Selection
from trainwright.launch.cluster.responses import ApiGone, ApiUnavailable, Object
from trainwright.launch.manifests import ATTEMPT, MANAGED_BY, OURS

_FIRST_S, _LONGEST_S = 0.1, 2.0
_OVERDUE_S = 30.0
"""Seconds beyond its grace period after which a pod's node has failed to end it."""

_CHECK_S = 5.0
_ENDED_PHASES = frozenset({"Succeeded", "Failed"})
_NODE_LOST = "NodeNotReady"
"""Reason of the event by which Kubernetes' node controller says of a pod that its node does not respond."""


def wait_until_gone(api: Api, name: str, uid: str, gone_s: float, attempt: str = "") -> None:
    """Wait until a deleted job and its pods are gone.

    Args:
        name: The job.
        uid: Its identity; empty where the object is known to be gone. The wait then also ends when another
            launcher creates a job of that name, whose pods these may be.
        gone_s: Longest wait, in seconds.
        attempt: Only the pods of this attempt count; empty: all.

    Raises:
        DependencyError: It takes longer.
    """
    lost = _LostPodRemover(api, name, min(_OVERDUE_S, gone_s / 4))

    def gone() -> bool:
        found = api.job(name)
        if not uid and found is not None:
            return True
        exists = found is not None and found["metadata"].get("uid") == uid
        if not exists and not live_pods(api, name, attempt):
            return True
        lost.remove()
        return False

    if not poll_until(gone, gone_s):
        raise DependencyError(
            f"job {name} does not go away within {gone_s:,.0f} s{lost.summary}",
            where=f"namespace {api.namespace}",
            hint="Look at its pods, their nodes and its finalizers. A node that is lost has to be removed; "
            "one that responds and cannot end a process (a driver that hangs), drained and restarted. "
            "Then run the step again: it resumes from its last checkpoint.",
        )


def poll_until(condition: Callable[[], bool], longest_s: float) -> bool:
    """Poll a condition with growing pauses; tell whether it held in time."""
    end, pause = time.monotonic() + longest_s, _FIRST_S
    while not condition():
        if time.monotonic() + pause > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_S)
    return True


def wait_until_name_is_free(api: Api, name: str, gone_s: float) -> None:
    """Wait for the pods of a job deleted in the background; in the foreground it keeps its name."""
    if api.kind.propagation != FOREGROUND and live_pods(api, name) and api.job(name) is None:
        wait_until_gone(api, name, "", gone_s)


def live_pods(api: Api, name: str, attempt: str = "") -> list[Object]:
    """Return the pods of a job, or of one attempt, that have not ended."""
    pods, _ = api.retry(lambda: api.select(Selection(kind="pods", labels=f"{api.kind.pods}={name}")))
    return [
        pod
        for pod in pods
        if (pod.get("status") or {}).get("phase") not in _ENDED_PHASES and belongs_to(pod, attempt)
    ]


def belongs_to(pod: Object, attempt: str) -> bool:
    """Tell whether a pod belongs to an attempt; one without the label may belong to any."""
    label = (pod["metadata"].get("labels") or {}).get(ATTEMPT, "")
    return not attempt or label in ("", attempt)


class _LostPodRemover:
    """Removes by force the pods of lost nodes, which otherwise keep a deleted job and its name.

    Kubernetes keeps the pod of a node that does not respond for as long as the node is listed. A pod is
    removed if all of this holds: it is ours and being deleted; it is long beyond its grace period; it is not
    ready; and the node controller has said of this very pod that its node is not ready. A node that responds
    but cannot end a process (a driver that hangs) meets none of this: its GPU is not given to another pod. A
    process that still runs on a lost node does no harm: its attempt number is outdated.
    """

    def __init__(self, api: Api, job: str, overdue_s: float) -> None:
        self._api, self._overdue_s = api, overdue_s
        self._pods = Selection(kind="pods", labels=f"{api.kind.pods}={job},{MANAGED_BY}={OURS}")
        self._started_s = self._checked_s = time.monotonic()
        self._allowed, self.summary = True, ""

    def remove(self) -> None:
        """Remove the lost pods; most calls return at once, since a check every few seconds is enough."""
        now = time.monotonic()
        if not self._allowed or now - self._checked_s < min(_CHECK_S, self._overdue_s / 2):
            return
        self._checked_s = now
        try:
            for pod in self._lost(now):
                name = pod["metadata"]["name"]
                self._api.remove_pod(name, pod["metadata"]["uid"])
                sys.stderr.write(f"pod {name} was removed: its node {_node_of(pod)} is lost\n")
        except (ApiUnavailable, ApiGone):
            return
        except PermissionRefused as error:
            self._allowed = False
            self.summary += f"; a pod of a lost node could not be removed: {error.what}"

    def _lost(self, now: float) -> Iterator[Object]:
        pods, _ = self._api.select(self._pods)
        deleting = [pod for pod in pods if pod["metadata"].get("deletionTimestamp")]
        names = sorted(f"{pod['metadata']['name']} on node {_node_of(pod)}" for pod in deleting)
        self.summary = f"; it is kept by {', '.join(names)}" if names else ""
        for pod in deleting:
            grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            conditions = (pod.get("status") or {}).get("conditions") or []
            ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
            overdue = now - self._started_s >= grace_s + self._overdue_s
            if overdue and not ready and self._node_is_lost(pod):
                yield pod

    def _node_is_lost(self, pod: Object) -> bool:
        return any(
            event.get("reason") == _NODE_LOST
            and (event.get("involvedObject") or {}).get("uid") == pod["metadata"]["uid"]
            for event in self._api.events(pod["metadata"]["name"])
        )


def _node_of(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "of no name")

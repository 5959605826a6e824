"""The tasks of a run from its Argo Workflow, where the API lists them as they once were.

Argo compresses the nodes of a workflow above 1 MB. KFP 2.17's API server stores the state of such a run and
none of its tasks: it lists what it knew before the workflow grew that large. It keeps the compressed nodes,
and returns them to a caller who may read the run in the answer of ``/apis/v1beta1``.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import kfp_server_api

from trainwright.authoring.submission import failures
from trainwright.authoring.submission.connection import FAILURES, Connection, document
from trainwright.authoring.submission.progress import ENDED, RUNNING, WAITING, details
from trainwright.documents import read_json
from trainwright.errors import TrainwrightError
from trainwright.http_limits import MAX_BYTES, inflate

_ATTEMPT = re.compile(r"\(\d+\)$")
"""End of the display name of an attempt at a task."""

STILL = 2
"""Looks at an unchanged list after which the workflow is read: ten seconds at first."""

_STATES = {
    "Pending": "PENDING",
    "Running": "RUNNING",
    "Succeeded": "SUCCEEDED",
    "Failed": "FAILED",
    "Error": "FAILED",
    "Skipped": "SKIPPED",
    "Omitted": None,
}
"""The API server's states by the phase of a node; an omitted node has none."""


def is_complete(run: Any) -> bool:
    """Return whether the list of tasks of a run that has ended is that of its end.

    Attempts do not count: one runs only while its task does, and after a retry of the run, KFP 2.17 lists the
    earlier attempts of the root task as running for ever.
    """
    listed = [detail for detail in details(run) if not _ATTEMPT.search(detail.display_name)]
    return bool(listed) and not any(detail.state in RUNNING | WAITING for detail in listed)


class TaskListing:
    """The tasks of one run, look after look.

    Attributes:
        blocked: Kubernetes' message for pods that cannot start, by task; also of earlier looks.
    """

    def __init__(self, api: Connection) -> None:
        self._api = api
        self.blocked: dict[str, str] = {}
        self._unchanged, self._last = 0, [("", "")]
        self._packed = False
        self._tasks: Sequence[Any] = ()

    def completed(self, run: Any) -> Any:
        """Return a run with its tasks as they are now; as the API lists them, if they cannot be read.

        The workflow is read at the end if the list is not that of the end, once in a while if the list does
        not change, and at every look once its nodes were found compressed.
        """
        listed = [(detail.display_name, detail.state) for detail in details(run)]
        self._unchanged = self._unchanged + 1 if listed == self._last else 0
        self._last = listed
        still = self._unchanged > 0 and self._unchanged % STILL == 0
        if not (self._packed or (not is_complete(run) if run.state in ENDED else still)):
            return run
        nodes, packed = _nodes(self._api, run.run_id)
        self._packed = self._packed or packed
        self.blocked |= failures.blocked(nodes)
        if packed or (nodes and run.state in ENDED):
            self._tasks = [_task(name, node) for name, node in sorted(nodes.items())]
        if self._tasks:
            run.run_details = kfp_server_api.V2beta1RunDetails(task_details=self._tasks)
        return run

    def failure(self, run: Any) -> tuple[str, TrainwrightError] | None:
        """Return the task of a run that failed for a reason that Argo knows, with the error."""
        return failures.failure(_nodes(self._api, run.run_id)[0], self.blocked)


def _nodes(api: Connection, run_id: str) -> tuple[Mapping[str, Any], bool]:
    """Return the nodes of a run's workflow, and whether they are compressed; none if they cannot be read."""
    try:
        answer = document(api.get(f"/apis/v1beta1/runs/{quote(run_id, safe='')}").data)
        status = document(answer["pipeline_runtime"]["workflow_manifest"])["status"]
        if packed := status.get("compressedNodes"):
            return dict(read_json(inflate(base64.b64decode(packed), MAX_BYTES))), True
        return dict(status.get("nodes") or {}), False
    except (*FAILURES, TrainwrightError, EOFError, ValueError, TypeError, KeyError, AttributeError):
        return {}, False


def _task(name: str, node: Mapping[str, Any]) -> Any:
    """Return what the API server would list of a node."""
    begun, ended = (node.get(key) for key in ("startedAt", "finishedAt"))
    children = node.get("children") or []
    return kfp_server_api.V2beta1PipelineTaskDetail(
        task_id=name,
        display_name=node.get("displayName", ""),
        state=_STATES.get(node.get("phase", ""), "PENDING"),
        start_time=datetime.fromisoformat(begun) if begun else None,
        end_time=datetime.fromisoformat(ended) if ended else None,
        child_tasks=[kfp_server_api.PipelineTaskDetailChildTask(pod_name=child) for child in children],
    )

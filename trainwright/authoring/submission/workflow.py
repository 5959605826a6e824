"""The tasks of a run from its Argo Workflow, where the API lists them as they once were.

Argo compresses the nodes of a workflow above 1 MB. KFP 2.17's API server stores the state of such a run and
none of its tasks: what it lists is what it knew before the workflow grew that large, a step that runs for
ever or nothing. It keeps the compressed nodes, and gives them to whom may read the run, in the answer of
``/apis/v1beta1``.
"""

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote

import kfp_server_api

from trainwright.authoring.submission import failures
from trainwright.authoring.submission.connection import FAILURES, Connection, document
from trainwright.authoring.submission.progress import ENDED, RUNNING, WAITING
from trainwright.errors import TrainwrightError

STILL = 2
"""Looks at an unchanged list after which the workflow is asked for: ten seconds at first."""

_STATES = {
    "Pending": "PENDING",
    "Running": "RUNNING",
    "Succeeded": "SUCCEEDED",
    "Failed": "FAILED",
    "Error": "FAILED",
    "Skipped": "SKIPPED",
    "Omitted": None,
}
"""What the API server calls the phase of a node; it leaves an omitted one without a state."""


def is_complete(run: Any) -> bool:
    """Say whether the list of tasks of a run that has ended is that of its end."""
    named = [detail for detail in _details(run) if detail.display_name]
    return bool(named) and not any(detail.state in RUNNING | WAITING for detail in named)


@dataclass(kw_only=True)
class TaskListing:
    """Lists the tasks of one run, look after look.

    Attributes:
        api: Where the run is.
        blocked: What Kubernetes says of pods that cannot start, by task; also of earlier looks.
    """

    api: Connection
    blocked: dict[str, str] = field(default_factory=dict)
    _same: int = 0
    _last: Sequence[Any] = ()
    _packed: bool = False
    _tasks: Sequence[Any] = ()

    def completed(self, run: Any) -> Any:
        """Return a run with its tasks as they are now; as the API lists them, if they cannot be read.

        The workflow is asked for at the end if the list is not that of the end, once in a while if the list
        does not change, and at every look once its nodes were found compressed.
        """
        if not self._is_due(run):
            return run
        nodes, packed = _nodes(self.api, run.run_id)
        self._packed = self._packed or packed
        self.blocked |= failures.blocked(nodes)
        if packed or (nodes and run.state in ENDED):
            self._tasks = list(_tasks(nodes))
        if self._tasks:
            run.run_details = kfp_server_api.V2beta1RunDetails(task_details=self._tasks)
        return run

    def failure(self, run: Any) -> tuple[str, TrainwrightError] | None:
        """Return the task of a run that failed for a reason that Argo knows, with the error."""
        nodes, _ = _nodes(self.api, run.run_id)
        return failures.failure(nodes, self.blocked)

    def _is_due(self, run: Any) -> bool:
        listed = [(detail.display_name, detail.state) for detail in _details(run)]
        self._same = self._same + 1 if listed == self._last else 0
        self._last = listed
        if self._packed:
            return True
        if run.state in ENDED:
            return not is_complete(run)
        return self._same > 0 and self._same % STILL == 0


def _details(run: Any) -> list[Any]:
    return (run.run_details.task_details if run.run_details else None) or []


def _nodes(api: Connection, run_id: str) -> tuple[Mapping[str, Any], bool]:
    """Return the nodes of a run's workflow, and whether they are compressed; none if they cannot be read."""
    try:
        answer = api.client.call_api(
            f"/apis/v1beta1/runs/{quote(run_id, safe='')}",
            "GET",
            auth_settings=["Bearer"],
            _preload_content=False,
            _request_timeout=(api.place.connect_s, api.place.answer_s),
            _return_http_data_only=True,
        )
        status = document(document(answer.data)["pipeline_runtime"]["workflow_manifest"])["status"]
        if packed := status.get("compressedNodes"):
            return dict(json.loads(gzip.decompress(base64.b64decode(packed)))), True
        return dict(status.get("nodes") or {}), False
    except (*FAILURES, OSError, EOFError, ValueError, TypeError, KeyError, AttributeError):
        return {}, False


def _tasks(nodes: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what the API server would list."""
    for name, node in sorted(nodes.items()):
        yield kfp_server_api.V2beta1PipelineTaskDetail(
            task_id=name,
            display_name=node.get("displayName", ""),
            state=_STATES.get(node.get("phase", ""), "PENDING"),
            start_time=_time(node.get("startedAt")),
            end_time=_time(node.get("finishedAt")),
            child_tasks=[
                kfp_server_api.PipelineTaskDetailChildTask(pod_name=child)
                for child in node.get("children") or []
            ],
        )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None

"""The tasks of a run that has ended, from its Argo Workflow where the API lists them as they once were.

Argo compresses the nodes of a workflow above 1 MB. KFP 2.17's API server stores the state of such a run and
none of its tasks: what it lists is what it knew before the workflow grew that large, a step that runs for
ever or nothing. It keeps the compressed nodes, and gives them to whom may read the run, in the answer of
``/apis/v1beta1``.
"""

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

import kfp_server_api

from trainwright.authoring.submission.answers import document
from trainwright.authoring.submission.connection import Connection
from trainwright.authoring.submission.states import GOING_ON, WAITING
from trainwright.authoring.submission.troubles import FAILURES

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
    details = (run.run_details.task_details if run.run_details else None) or []
    named = [detail for detail in details if detail.display_name]
    return bool(named) and not any(detail.state in GOING_ON | WAITING for detail in named)


def completed(api: Connection, run: Any) -> Any:
    """Return a run that has ended with the tasks of its end; as it is, if they cannot be read."""
    if is_complete(run):
        return run
    if tasks := list(_tasks(_nodes(api, run.run_id))):
        run.run_details = kfp_server_api.V2beta1RunDetails(task_details=tasks)
    return run


def _nodes(api: Connection, run_id: str) -> Mapping[str, Any]:
    """Return the nodes of a run's workflow; none if they cannot be read."""
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
            return dict(json.loads(gzip.decompress(base64.b64decode(packed))))
        return dict(status.get("nodes") or {})
    except (*FAILURES, OSError, EOFError, ValueError, TypeError, KeyError, AttributeError):
        return {}


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

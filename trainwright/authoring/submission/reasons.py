"""Why a step failed on a cluster: the line that it printed itself, read from the log of its pod.

Kubeflow tells nothing of a step's exit code: its launcher ends with 1 whatever the step ended with. The line
that every step of this library ends with is in the pod's log, which the API serves as long as it has it.
"""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import urllib3

from trainwright.authoring.submission.connection import Connection
from trainwright.authoring.submission.states import TRIABLE
from trainwright.authoring.submission.troubles import FAILURES
from trainwright.errors import MARK

MOST_LOGS = 12
TAIL_BYTES = 65_536
MOST_BYTES = 64 * 1024 * 1024
"""Of a log, at most so much is read; a step that printed more has no line that we know of."""

_NODE = re.compile(r"(.+)-(\d+)")
_TEMPLATES = ("retry-system-container-impl", "system-container-impl")
"""What KFP 2.17 calls the templates of the pods that run a step, with a retry policy and without."""


def reason(api: Connection, run: Any) -> dict[str, Any]:
    """Return the fields of the failure line of the step that failed; empty if no log has it.

    Never raises: what cannot be read is not known.
    """
    for pod in list(dict.fromkeys(_pods(run)))[:MOST_LOGS]:
        found = _line(_log(api, run.run_id, pod))
        if found:
            return found
    return {}


def _pods(run: Any) -> Iterator[str]:
    """Yield the names that the pods of failed tasks may have: first failure and last attempt first.

    The API names an attempt by its node, ``WORKFLOW-NUMBER``; its pod is called ``WORKFLOW-TEMPLATE-NUMBER``.
    """
    details = (run.run_details.task_details if run.run_details else None) or []
    ended = sorted((detail for detail in details if detail.state in TRIABLE), key=_end)
    executors = [detail for detail in ended if str(detail.display_name).startswith("executor")]
    for detail in [*executors, *ended]:
        nodes = [child.pod_name for child in reversed(detail.child_tasks or []) if child.pod_name]
        for node in [*nodes, *([detail.pod_name] if detail.pod_name else [])]:
            if parts := _NODE.fullmatch(node):
                yield from (f"{parts[1]}-{template}-{parts[2]}" for template in _TEMPLATES)
            yield node


def _end(detail: Any) -> str:
    """Order by the end: of several that failed, the first is the reason."""
    return str(detail.end_time or "9")


def _log(api: Connection, run_id: str, pod: str) -> str:
    """Return the end of a pod's log; empty if the API does not give it."""
    path = f"/apis/v1alpha1/runs/{quote(run_id, safe='')}/nodes/{quote(pod, safe='')}/log"
    limits = (api.place.connect_s, api.place.answer_s)
    try:
        answer = api.client.call_api(
            path,
            "GET",
            auth_settings=["Bearer"],
            _preload_content=False,
            _request_timeout=limits,
            _return_http_data_only=True,
        )
        return _tail(answer)
    except FAILURES:
        return ""


def _tail(answer: urllib3.BaseHTTPResponse) -> str:
    """Read a log to its end, and keep the end only."""
    kept, total = b"", 0
    try:
        for part in answer.stream(TAIL_BYTES):
            kept, total = (kept + part)[-TAIL_BYTES:], total + len(part)
            if total > MOST_BYTES:
                return ""
    finally:
        answer.release_conn()
    return kept.decode(errors="replace")


def _line(log: str) -> dict[str, Any]:
    for line in reversed(log.splitlines()):
        if line.startswith(MARK):
            try:
                found = json.loads(line.removeprefix(MARK))
            except ValueError:
                continue
            if isinstance(found, dict) and isinstance(found.get("code"), int):
                return found
    return {}

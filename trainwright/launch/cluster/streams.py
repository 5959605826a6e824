"""Answers of the API that come line by line, for as long as somebody reads: watches, and logs."""

import json
import re
from collections.abc import Iterator
from typing import Any

import urllib3
from kubernetes import client as k8s  # type: ignore[import-untyped]
from kubernetes.watch.watch import iter_resp_lines  # type: ignore[import-untyped]

from trainwright.launch.cluster.answers import Call, Expired, of_refusal, of_strangers, of_transport

Object = dict[str, Any]
_GONE = 410
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def lines(response: urllib3.BaseHTTPResponse) -> Iterator[str]:
    """Give the lines of an open answer as they come, until it ends or breaks."""
    try:
        for line in iter_resp_lines(response):
            if line:
                yield line
    except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
        # The last two are what a response gives that was closed by another thread.
        raise of_transport(error) from error


def stamped(line: str) -> tuple[str, str]:
    """Part a line of a log from its time; that is empty where the node itself says something in between."""
    stamp, _, text = line.partition(" ")
    return (stamp, text) if _STAMP.fullmatch(stamp) else ("", line)


def changes(response: urllib3.BaseHTTPResponse, call: Call) -> Iterator[Object]:
    """Give the events of a watch.

    Raises:
        Expired: The version it began with is too old.
        Passing: It broke.
    """
    for line in lines(response):
        change = _change(line, call)
        if change["type"] == "ERROR":
            status = change["object"]
            if status.get("code") == _GONE:
                raise Expired(status.get("message", ""))
            told = k8s.ApiException(status=status.get("code") or 500, reason=status.get("message", ""))
            raise of_refusal(told, call)
        yield change


def _change(line: str, call: Call) -> Object:
    """Read one event of a watch."""
    try:
        change = json.loads(line)
    except ValueError:
        change = None
    if isinstance(change, dict) and "type" in change and isinstance(change.get("object"), dict):
        return change
    raise of_strangers(line, call)

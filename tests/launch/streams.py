"""What a real Kubeflow Trainer and a real Kueue did, job by job: watches cut down to what a diagnosis reads.

Kubeflow Trainer 2.3.0, JobSet 0.12.0, Kueue 0.19.2 and the training operator 1.9 on Kubernetes 1.31.
``python -m tests.launch.streams SOURCE`` makes the files in ``data/streams`` again from the full recordings.
"""

import gzip
import json
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.launch.recordings import _pack

DATA = Path(__file__).parent / "data" / "streams"
KINDS = ("trainjobs", "pytorchjobs", "jobsets", "jobs", "pods", "workloads", "events")
CASES = {
    "success": ("trainer-2.3/success", "tw-test-tsucc"),
    "quota": ("trainer-2.3/quota", "tw-test-tquota"),
    "limitrange": ("trainer-2.3/limitrange", "tw-test-tlimit"),
    "stop-foreground": ("trainer-2.3/stop3", "tw-test-tstop3"),
    "stop-background": ("trainer-2.3/stop", "tw-test-tdel"),
    "suspend": ("trainer-2.3/suspend", "tw-test-stfail"),
    "too-much-pytorchjob": ("kueue-0.19/refused", "tw-test-kq4"),
    "too-much-trainjob": ("kueue-0.19/refused", "tw-test-kq5"),
    "no-queue": ("kueue-0.19/refused", "tw-test-kq2"),
    "no-priority": ("kueue-0.19/refused", "tw-test-kq3"),
    "deactivated": ("kueue-0.19/deact", "tw-test-kde2"),
    "deactivated-trainjob": ("kueue-0.19/deact", "tw-test-kde-"),
    "overtime": ("kueue-0.19/maxexec", "tw-test-kmx"),
    "preempted": ("kueue-0.19/pytorch", "tw-test-ka-"),
    "preemptor": ("kueue-0.19/pytorch", "tw-test-kc-"),
    "preempted-trainjob": ("kueue-0.19/trainjob2", "tw-test-ktc"),
    "stuck": ("kueue-0.19/trainjob", "tw-test-kta"),
}
"""Name of a stream: folder of its recording, and how the name of its job begins."""

_METADATA = ("name", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "labels")
_METADATA += ("annotations", "ownerReferences", "finalizers")
_EVENT = ("involvedObject", "reason", "message", "type", "firstTimestamp", "lastTimestamp", "eventTime")
_SPEC = {
    "trainjobs": ("trainer", "suspend", "runtimeRef", "runtimePatches", "managedBy"),
    "pytorchjobs": ("pytorchReplicaSpecs", "runPolicy", "nprocPerNode"),
    "jobsets": ("suspend", "failurePolicy", "successPolicy"),
    "jobs": ("suspend", "parallelism", "completions", "backoffLimit"),
    "pods": ("nodeName", "restartPolicy", "terminationGracePeriodSeconds", "containers"),
    "workloads": ("active", "queueName", "priority", "priorityClassRef", "maximumExecutionTimeSeconds"),
}
_LONGEST = 1200
_IMAGE = re.compile(r"(?:127\.0\.0\.1:5000|localhost)/(?:trainwright/)+torch")

Object = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One event of a watch: plural of the kind, ADDED, MODIFIED or DELETED, and the object."""

    kind: str
    type: str
    body: Object


@cache
def load(name: str) -> tuple[Change, ...]:
    """Return what was seen of one job, in the order in which the cluster did it."""
    with gzip.open(DATA / f"{name}.json.gz", "rt") as stream:
        return tuple(Change(*entry) for entry in json.load(stream))


def bodies(name: str, kind: str) -> list[Object]:
    """Return the versions of the objects of one kind."""
    return [change.body for change in load(name) if change.kind == kind]


def cut(source: Path, folder: str, job: str) -> list[list[Any]]:
    """Cut the recording of one job down."""
    found: dict[tuple[int, str], list[Any]] = {}
    for kind in KINDS:
        path = source / folder / f"{kind}.watch.jsonl.gz"
        text = gzip.decompress(path.read_bytes()).decode() if path.exists() else ""
        for line in text.splitlines():
            entry = json.loads(_IMAGE.sub("trainwright/torch", line))
            body = entry["object"]
            about = body["involvedObject"]["name"] if kind == "events" else body["metadata"]["name"]
            if job in f"{about}-":
                version = int(body["metadata"]["resourceVersion"])
                found[version, body["metadata"]["name"]] = [kind, entry["type"], _cut(kind, body)]
    return [found[key] for key in sorted(found)]


def _cut(kind: str, body: Object) -> Object:
    kept: Object = {"kind": body["kind"], "metadata": _some(body["metadata"], _METADATA)}
    kept["metadata"].get("annotations", {}).pop("trainwright/holder", None)
    if kind == "events":
        message = body["message"][:_LONGEST]
        return kept | _some(body, (*_EVENT, "series")) | {"message": message}
    spec = _some(body["spec"], _SPEC[kind])
    for container in spec.get("containers") or ():
        container["command"] = container.get("command", [])[:3]
    return kept | {"spec": spec, "status": body.get("status") or {}}


def _some(body: Object, names: tuple[str, ...]) -> Object:
    return {name: body[name] for name in names if body.get(name) is not None}


def main(source: Path) -> None:
    """Cut every job of ``CASES`` out of the recordings below a folder."""
    DATA.mkdir(parents=True, exist_ok=True)
    for name, (folder, job) in CASES.items():
        _pack(DATA / f"{name}.json.gz", cut(source, folder, job))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

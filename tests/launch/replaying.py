"""What was done in the recordings, and what became of it, cut down to what a stand-in is held against.

``python -m tests.launch.replaying SOURCE`` makes ``data/standin/replays.json.gz`` from the full recordings.
"""

import gzip
import itertools
import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

REPLAYS = Path(__file__).parent / "data" / "standin" / "replays.json.gz"
LEFT_OUT = {
    "active-deadline": "its deadline of 10 s is a test of its own",
    "active-deadline-busy": "as above",
    "image-pull": "takes a minute of back-off",
    "log-api": "its answers are given again in test_standin_processes.py",
    "lease-annotations": "its answers are given again in test_standin_api.py",
    "ttl": "takes its time: a test of its own",
    "image-pull-misc": "what a node does with an image is told to the stand-in, and not found out by it",
    "operator-outage": "what is seen depends on when: a test of its own",
    "operator-outage-race": "as above",
    "ttl-after-failure/tn": "as ttl",
}
"""Recordings that are not replayed, and why; of one with several jobs each is replayed by itself."""

_JOB_NAME = "training.kubeflow.org/job-name"
_MOST_ENDS = 4
Object = dict[str, Any]


@cache
def replays() -> dict[str, Object]:
    """Return by scenario: the manifest, what was done in its order, and what was seen."""
    with gzip.open(REPLAYS, "rt") as stream:
        found: dict[str, Object] = json.load(stream)
    return found


def job_seen(body: Object) -> list[list[str]]:
    """Return the conditions of a job, in the order of their list."""
    told = (body.get("status") or {}).get("conditions") or []
    return [[entry["type"], entry["status"], entry["reason"]] for entry in told]


def pod_seen(body: Object, change: str) -> str:
    """Return in a line how a pod stands."""
    if change == "DELETED":
        return "gone"
    status, meta = body["status"], body["metadata"]
    words = [status.get("phase", "Pending")]
    for entry in status.get("containerStatuses") or []:
        for kind, state in entry["state"].items():
            said = state.get("exitCode", "") if kind == "terminated" else ""
            words.append(f"{kind} {said} {state.get('reason', '')} after {entry['restartCount']} restarts")
    for entry in status.get("conditions") or []:
        if entry["type"] == "DisruptionTarget" or entry.get("reason") == "Unschedulable":
            words.append(entry["reason"])
    return ", ".join([*words, *(["deleted"] if "deletionTimestamp" in meta else [])])


def in_steps(seen: list[Any]) -> list[Any]:
    """Leave out what is as it was before, and what is only seen by chance."""
    told = [entry for index, entry in enumerate(seen) if index == 0 or entry != seen[index - 1]]
    return [
        entry
        for entry, after in zip(told, [*told[1:], ""], strict=True)
        if not (isinstance(entry, str) and _passes(entry, after))
    ]


def _passes(entry: str, after: str) -> bool:
    """Tell whether a state of a pod is one that a node shows in passing, or not at all."""
    ends = entry.startswith("Running, term") and after.split(", ")[1:2] == entry.split(", ")[1:2]
    return ends or (entry.startswith("Pending, waiting") and entry.endswith("deleted"))


def calm(seen: list[list[list[str]]]) -> list[list[list[str]]]:
    """Return a job's conditions with a to and fro between Running and Restarting shown once.

    After an eviction the real operator goes to and fro by chance.
    """
    told: list[list[list[str]]] = []
    for _, group in itertools.groupby(in_steps(seen), _settled):
        entries = [*group]
        once = [entry for index, entry in enumerate(entries) if entry not in entries[:index]]
        told += once if once[-1] == entries[-1] else [*once, entries[-1]]
    return told


def _settled(conditions: list[list[str]]) -> list[list[str]]:
    return [entry for entry in conditions if entry[0] not in ("Running", "Restarting")]


def counts(body: Object) -> Object:
    """Return a job's counts of pods."""
    told = (body.get("status") or {}).get("replicaStatuses") or {}
    return {
        kind: {name: value for name, value in entry.items() if name != "selector"}
        for kind, entry in told.items()
    }


def events_of(source: Path) -> dict[str, list[Object]]:
    """Read a full recording: what was seen of each job and its pods, by the job's name."""
    plain, packed = source / "watch.jsonl", source / "watch.jsonl.gz"
    text = plain.read_text() if plain.exists() else gzip.decompress(packed.read_bytes()).decode()
    found: dict[str, list[Object]] = {}
    for entry in (json.loads(line) for line in text.splitlines()):
        metadata = entry["object"]["metadata"]
        labels = metadata.get("labels") or {}
        name = metadata["name"] if entry["kind"] == "PyTorchJob" else labels.get(_JOB_NAME)
        if entry["kind"] in {"PyTorchJob", "Pod"} and name:
            found.setdefault(name, []).append(entry)
    return found


def cut(source: Path, job: str, events: list[Object]) -> Object:
    """Cut what a full recording holds of one job down."""
    actions = [json.loads(line) for line in (source / "actions.jsonl").read_text().splitlines()]
    actions = [entry for entry in actions if _is_of(entry["action"], job)]
    steps = sorted([*_done(actions), *_ended(events)], key=lambda step: step[0])
    ends = [step[0] for step in steps if step[1] == "end"]
    # Where there are too many, up to two seconds before the next: its node knows of the end before that.
    last = ends[_MOST_ENDS] - 2 if len(ends) > _MOST_ENDS else float("inf")
    events = [entry for entry in events if entry["t"] < last]
    jobs = [entry for entry in events if entry["kind"] == "PyTorchJob"]
    pods: dict[str, list[str]] = {}
    for entry in events:
        if entry["kind"] == "Pod":
            line = pod_seen(entry["object"], entry["type"])
            pods.setdefault(entry["object"]["metadata"]["name"], []).append(line)
    return {
        "manifest": _manifest(jobs[0]["object"]),
        "steps": [step[1:] for step in steps if step[0] < last],
        "on_term": _told_to_end(events),
        "job": calm([job_seen(entry["object"]) for entry in jobs]),
        "counts": counts(jobs[-1]["object"]),
        "pods": {name: in_steps(_to_the_end(lines)) for name, lines in pods.items()},
    }


def _to_the_end(lines: list[str]) -> list[str]:
    """Let a pod go whose deletion the recording does not show to its end."""
    return [*lines, "gone"] if lines[-1].endswith("deleted") else lines


def _is_of(action: str, job: str) -> bool:
    """Tell whether something was done to a job or its pods, or to all of the cluster."""
    named = re.search(r"PyTorchJob/(\S+)|Pod/(\S+)-\w+-\d+|pods/(\S+)-\w+-\d+/", action)
    return named is None or job in named.groups()


def _manifest(job: Object) -> Object:
    """Return a job as it was submitted, without its programs."""
    for entry in job["spec"]["pytorchReplicaSpecs"].values():
        container = entry["template"]["spec"]["containers"][0]
        entry["template"]["spec"]["containers"] = [
            {"name": container["name"], "image": container["image"], "command": ["python"]}
            | {key: container[key] for key in ("env", "resources") if key in container}
        ]
    metadata = {key: job["metadata"][key] for key in ("name", "labels") if key in job["metadata"]}
    return {"apiVersion": job["apiVersion"], "kind": job["kind"], "metadata": metadata, "spec": job["spec"]}


def _done(actions: list[Object]) -> list[list[Any]]:
    """Read what was done: time, what, and with what."""
    patterns = {
        "create": r"create PyTorchJob/(\S+)",
        "patch": r"patch PyTorchJob/\S+ (\{.*\})",
        "delete": r"delete PyTorchJob/\S+ propagationPolicy=(\w+)",
        "delete owner": r"delete (ConfigMap/owner)",
        "delete pod": r"delete Pod/(\S+)",
        "evict": r"POST pods/(\S+)/eviction",
        "taint": r"(add) node taint",
        "untaint": r"(remove) node taint",
    }
    found = []
    for entry in actions:
        for name, pattern in patterns.items():
            if hit := re.match(pattern, entry["action"]):
                found.append([entry["t"], name, hit[1]])
    return found


def _ended(events: list[Object]) -> list[list[Any]]:
    """List the containers that ended by themselves: time, pod, restarts before, exit code and reason."""
    found: dict[tuple[str, int], list[Any]] = {}
    for entry in events:
        body = entry["object"]
        if entry["kind"] != "Pod" or "deletionTimestamp" in body["metadata"]:
            continue
        for told in body["status"].get("containerStatuses") or []:
            ended, key = told["state"].get("terminated"), (body["metadata"]["uid"], told["restartCount"])
            # Jobs are judged by the phases of pods, which come a second later and in an order of their own.
            if ended and (key not in found or body["status"]["phase"] != found[key][0]):
                what = [body["metadata"]["name"], told["restartCount"], ended["exitCode"], ended["reason"]]
                found[key] = [body["status"]["phase"], entry["t"], "end", what]
    return [entry[1:] for entry in found.values()]


def _told_to_end(events: list[Object]) -> dict[str, int]:
    """Return what each pod ended with after it was told to."""
    found = {}
    for entry in events:
        body = entry["object"]
        if entry["kind"] == "Pod" and "deletionTimestamp" in body["metadata"]:
            for told in body["status"].get("containerStatuses") or []:
                if ended := told["state"].get("terminated"):
                    found[body["metadata"]["name"]] = ended["exitCode"]
    return found


if __name__ == "__main__":
    source = Path(sys.argv[1])
    made: dict[str, Object] = {}
    for folder in sorted(
        {path.parent for path in source.glob("*/watch.jsonl*")} - {source / name for name in LEFT_OUT}
    ):
        jobs_of = events_of(folder)
        for job, events in jobs_of.items():
            name = folder.name if len(jobs_of) == 1 else f"{folder.name}/{job}"
            if name not in LEFT_OUT:
                made[name] = cut(folder, job, events)
    REPLAYS.write_bytes(gzip.compress(json.dumps(made, sort_keys=True).encode(), mtime=0))

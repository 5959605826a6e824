"""What a real operator did, event by event: recordings of a cluster, cut down to what a diagnosis reads.

``python -m tests.launch.recordings SOURCE`` makes the files in ``data/recordings`` and ``data/suspensions``
again from the full ones.
"""

import gzip
import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "recordings"
SUSPENSIONS = DATA.parent / "suspensions"
SUSPENDED = {
    "pytorchjob": ("kueue-0.19/preempt-fail", "PyTorchJob", "tw-test-kpf-4cdc94cfef"),
    "trainjob": ("trainer-2.3/suspend", "TrainJob", "tw-test-stfail-f57c3f6e78"),
}
"""Jobs that were suspended and resumed, and then failed: folder of the recording, kind, name."""

KINDS = ("PyTorchJob", "Pod", "Event")
_JOB, _SET = "training.kubeflow.org/job-name", "jobset.sigs.k8s.io/jobset-name"
_LOG_END, _ARGUMENT_END = 12_000, 60
_METADATA = (
    "name",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "ownerReferences",
)
_EVENT = (
    "involvedObject",
    "reason",
    "message",
    "type",
    "firstTimestamp",
    "lastTimestamp",
    "eventTime",
    "series",
)
_POD = ("phase", "reason", "message", "conditions", "containerStatuses", "initContainerStatuses")
_CONTAINER = ("name", "state", "lastState", "restartCount")
_SCHEDULE = ("replicas", "restartPolicy")

Object = dict[str, Any]


@dataclass(frozen=True)
class Seen:
    """One event of a watch: kind of the object, ADDED, MODIFIED or DELETED, and the object."""

    kind: str
    change: str
    body: Object


@dataclass(frozen=True)
class Recording:
    """What was seen of one job: watch events in the order of their arrival, and the pods' logs by uid."""

    job: str
    events: tuple[Seen, ...]
    logs: dict[str, str]

    def of(self, kind: str) -> list[Seen]:
        """Return the events of one kind: these have an order of their own."""
        return [event for event in self.events if event.kind == kind]


@cache
def load(scenario: str, job: str = "") -> Recording:
    """Read what was seen of one job of a scenario; of its only job, if no name is given."""
    with gzip.open(DATA / f"{scenario}.json.gz", "rt") as stream:
        body = json.load(stream)
    events = [Seen(*entry) for entry in body["events"]]
    names = list(
        dict.fromkeys(event.body["metadata"]["name"] for event in events if event.kind == "PyTorchJob")
    )
    name = job or names[0]
    assert job or len(names) == 1, f"{scenario} has several jobs: {names}"
    mine = tuple(event for event in events if _job_of(event) == name)
    uids = {event.body["metadata"]["uid"] for event in mine if event.kind == "Pod"}
    return Recording(name, mine, {uid: text for uid, text in body["logs"].items() if uid in uids})


@cache
def load_suspended(name: str) -> Recording:
    """Read what was seen of a job that was suspended, resumed, and then failed."""
    body = json.loads(gzip.decompress((SUSPENSIONS / f"{name}.json.gz").read_bytes()))
    return Recording(SUSPENDED[name][2], tuple(Seen(*entry) for entry in body["events"]), {})


def cut_watches(source: Path, kind: str, name: str) -> Object:
    """Cut the watches of one job down; the versions of the objects give one order for all of them."""
    found = []
    for watched in (kind, "Pod"):
        text = gzip.decompress((source / f"{watched.lower()}s.watch.jsonl.gz").read_bytes()).decode()
        for entry in map(json.loads, text.splitlines()):
            body = entry["object"]
            labels = body["metadata"].get("labels") or {}
            owners = {body["metadata"]["name"], labels.get(_JOB), labels.get(_SET)}
            if name in owners:
                found.append(
                    (int(body["metadata"]["resourceVersion"]), [watched, entry["type"], _cut(watched, body)])
                )
    return {"events": [event for _, event in sorted(found, key=lambda entry: entry[0])]}


def _job_of(event: Seen) -> str:
    if event.kind == "PyTorchJob":
        return str(event.body["metadata"]["name"])
    if event.kind == "Pod":
        return str(event.body["metadata"]["labels"][_JOB])
    name = str(event.body["involvedObject"]["name"])
    return name.removesuffix("-0").removesuffix("-1").removesuffix("-master").removesuffix("-worker")


def cut(source: Path) -> Object | None:
    """Cut a full recording down; nothing if it has no watch."""
    plain, packed = source / "watch.jsonl", source / "watch.jsonl.gz"
    if not plain.exists() and not packed.exists():
        return None
    text = plain.read_text() if plain.exists() else gzip.decompress(packed.read_bytes()).decode()
    entries = [json.loads(line) for line in text.splitlines()]
    events = [[entry["kind"], entry["type"], _cut(entry["kind"], entry["object"])] for entry in entries]
    return {"events": [entry for entry in events if entry[0] in KINDS], "logs": _logs(source, events)}


def _cut(kind: str, body: Object) -> Object:
    kept: Object = {"metadata": _some(body["metadata"], _METADATA)}
    if kind == "Event":
        return kept | _some(body, _EVENT)
    status = body.get("status") or {}
    spec = body.get("spec") or {}
    if kind == "PyTorchJob":
        replicas = {name: _some(entry, _SCHEDULE) for name, entry in spec["pytorchReplicaSpecs"].items()}
        kept["spec"] = _some(spec, ("elasticPolicy", "nprocPerNode", "runPolicy")) | {
            "pytorchReplicaSpecs": replicas
        }
        kept["status"] = _some(status, ("conditions", "startTime", "completionTime", "replicaStatuses"))
    elif kind == "TrainJob":
        kept["spec"] = {"trainer": _some(spec["trainer"], ("numNodes", "numProcPerNode"))}
        kept["status"] = _some(status, ("conditions", "jobsStatus"))
    elif kind == "Pod":
        container = _some(spec["containers"][0], ("name", "env", "resources", "command", "args"))
        container["args"] = [text[-_ARGUMENT_END:] for text in container.get("args", [])]
        kept["spec"] = _some(spec, ("nodeName", "restartPolicy")) | {"containers": [container]}
        kept["status"] = _some(status, _POD)
        for name in ("containerStatuses", "initContainerStatuses"):
            if name in status:
                kept["status"][name] = [_some(entry, _CONTAINER) for entry in status[name]]
    return kept


def _some(body: Object, names: tuple[str, ...]) -> Object:
    return {name: body[name] for name in names if body.get(name) is not None}


def _logs(source: Path, events: list[list[Any]]) -> dict[str, str]:
    """Give each log file to its pod: ``NAME.txt`` is the first of that name, ``NAME.gen2.txt`` the second."""
    uids: dict[str, list[str]] = {}
    for kind, _, body in events:
        if kind == "Pod":
            known = uids.setdefault(body["metadata"]["name"], [])
            if body["metadata"]["uid"] not in known:
                known.append(body["metadata"]["uid"])
    logs = {}
    for path in sorted((source / "logs").glob("*.txt")):
        name, _, generation = path.stem.partition(".gen")
        number = int(generation or 1) - 1
        if number < len(uids.get(name, [])):
            logs[uids[name][number]] = path.read_text()[-_LOG_END:]
    return logs


@cache
def refusals() -> tuple[Object, ...]:
    """Read every answer with which the API refused something: ``case``, ``code`` and ``body``."""
    return tuple(json.loads(gzip.decompress((DATA.parent / "refusals.json.gz").read_bytes())))


def _refusals(source: Path) -> list[Object]:
    found = []
    for folder in ("admission", "operator-outage"):
        for entry in json.loads((source / folder / "responses.json").read_text()):
            answer = entry.get("response") or entry
            if answer.get("code", 0) >= 400:
                name = entry.get("case") or entry["what"]
                found.append({"case": name, "code": answer["code"], "body": answer["body"]})
    return found


def _pack(path: Path, body: object) -> None:
    """Write a file that is the same each time."""
    text = json.dumps(body, separators=(",", ":"), sort_keys=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def main(source: Path) -> None:
    """Cut every recording below a folder down."""
    DATA.mkdir(parents=True, exist_ok=True)
    _pack(DATA.parent / "refusals.json.gz", _refusals(source))
    for folder in sorted(path for path in source.iterdir() if path.is_dir()):
        if (body := cut(folder)) is not None:
            _pack(DATA / f"{folder.name}.json.gz", body)
    SUSPENSIONS.mkdir(exist_ok=True)
    for file, (folder_name, kind, name) in SUSPENDED.items():
        _pack(SUSPENSIONS / f"{file}.json.gz", cut_watches(source / folder_name, kind, name))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

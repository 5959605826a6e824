"""Which jobs nobody looks after, and their removal.

A job is removed only if all of this holds: it is labelled as ours, its lease has run out long enough ago,
and the workflow that it belongs to has ended or is gone. Whatever cannot be told, leaves the job alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from trainwright.errors import DependencyError, PermissionRefused, TrainwrightError
from trainwright.launch.cluster.answers import Conflict
from trainwright.launch.cluster.api import Api
from trainwright.launch.cluster.selection import Selection
from trainwright.launch.janitor import workflows
from trainwright.launch.manifests import annotations as names

_TERMINAL = frozenset({"Succeeded", "Failed", "Error"})
_ENDED = frozenset({"Succeeded", "Failed", "Complete"})
_LONGEST_OUTAGE_S = 86_400.0
_OURS = f"{names.MANAGED_BY}={names.OURS}"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """When a job counts as left behind.

    Attributes:
        now: The time.
        margin_s: Seconds after its lease: a launcher may be restarting, or the API be out of reach. A job
            of no workflow is kept for as long as its launcher sits out an outage, if that is longer.
        kept_s: The same for a job that has ended: it holds nothing, and its logs may be read.
    """

    now: datetime
    margin_s: float = 600.0
    kept_s: float = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What becomes of a job.

    Attributes:
        kind: What Kubernetes calls its kind.
        name: Its name.
        uid: Its identity.
        left: Whether nobody looks after it.
        why: The reason for either.
        folder: Folder of its attempt; empty if it names none.
    """

    kind: str
    name: str
    uid: str
    left: bool
    why: str
    folder: str

    def __str__(self) -> str:
        """Say it in a line."""
        return f"{self.kind} {self.name}: {'left behind' if self.left else 'kept'}, {self.why}"


def judge_all(api: Api, rules: Rules, wrong: list[TrainwrightError]) -> Iterator[Judged]:
    """Judge every job of ours of one kind; none where the cluster does not know the kind.

    Args:
        api: Access to the cluster.
        rules: When a job counts as left behind.
        wrong: Gets why a job could not be judged; such a one is kept, and the others are judged all the same.
    """
    try:
        found, _ = api.retry(lambda: api.select(Selection(kind="job", labels=_OURS)))
    except DependencyError:
        return
    for body in found:
        try:
            yield judge(body, api, rules)
        except (PermissionRefused, DependencyError) as error:
            wrong.append(error)
            yield _judged(body, api, f"it cannot be told whether anybody is at it: {error.what}")


def judge(body: Mapping[str, Any], api: Api, rules: Rules) -> Judged:
    """Judge one job by the API's clock, as leases are written; the API is asked only if one has run out."""
    rules = replace(rules, now=rules.now + timedelta(seconds=api.clock.ahead_s))
    return _judged(body, api, _held(body, rules) or _owned(body["metadata"], api))


def _judged(body: Mapping[str, Any], api: Api, why: str) -> Judged:
    """Return what becomes of a job: it is kept for a reason, or it is left behind."""
    metadata = body["metadata"]
    notes = metadata.get("annotations") or {}
    return Judged(
        kind=api.kind.kind,
        name=metadata["name"],
        uid=metadata["uid"],
        left=not why,
        why=why or f"lease until {notes.get(names.LEASE_UNTIL)}, {_whose(metadata)}",
        folder=str(notes.get(names.FOLDER, "")),
    )


def remove(api: Api, judged: Judged, rules: Rules) -> str:
    """Delete a job and then its pods, if it still is as it was judged; say what became of it."""
    body = api.job(judged.name)
    if body is None or body["metadata"]["uid"] != judged.uid:
        return "gone by itself"
    again = judge(body, api, rules)
    if not again.left:
        return f"kept after all, {again.why}"
    try:
        api.delete(judged.name, judged.uid, body["metadata"]["resourceVersion"])
    except Conflict:
        return "kept after all, it has changed this moment"
    return "deleted"


def _held(body: Mapping[str, Any], rules: Rules) -> str:
    """Say why a job is left alone for now; nothing if its time is over."""
    metadata = body["metadata"]
    if (metadata.get("labels") or {}).get(names.MANAGED_BY) != names.OURS:
        return "it is not ours"
    if metadata.get("deletionTimestamp"):
        return "it is being deleted"
    said = (metadata.get("annotations") or {}).get(names.LEASE_UNTIL, "")
    try:
        until = datetime.fromisoformat(said).astimezone(UTC)
    except ValueError:
        return f"its lease {said!r} is no time" if said else "it has no lease"
    ended = _has_ended(body)
    margin_s = rules.kept_s if ended else max(rules.margin_s, _outage_s(metadata))
    if rules.now <= until + timedelta(seconds=margin_s):
        return f"lease until {said}" + (", it has ended" if ended else "")
    return ""


def _outage_s(metadata: Mapping[str, Any]) -> float:
    """Return how long the launcher of a job may be cut off and still come back, in seconds.

    Of a job with a workflow, that one tells whether anybody is at it.
    """
    said = (metadata.get("annotations") or {}).get(names.OUTAGE_S, "")
    if metadata.get("ownerReferences") or not said.isdigit():
        return 0.0
    return min(float(said), _LONGEST_OUTAGE_S)


def _owned(metadata: Mapping[str, Any], api: Api) -> str:
    """Say whose job it is if that one is still at work; nothing if nobody is."""
    for owner in metadata.get("ownerReferences") or []:
        if owner.get("kind") != "Workflow":
            return f"it belongs to {owner.get('kind')} {owner.get('name')}, which is none of ours"
        phase = workflows.phase(api, owner["name"], owner["uid"])
        if phase is not None and phase not in _TERMINAL:
            return f"its workflow {owner['name']} is {phase or 'about to begin'}"
    return ""


def _whose(metadata: Mapping[str, Any]) -> str:
    owners = [str(owner.get("name")) for owner in metadata.get("ownerReferences") or []]
    return f"workflow {', '.join(owners)} ended or gone" if owners else "no owner"


def _has_ended(body: Mapping[str, Any]) -> bool:
    conditions = (body.get("status") or {}).get("conditions") or []
    return any(entry["type"] in _ENDED and entry["status"] == "True" for entry in conditions)

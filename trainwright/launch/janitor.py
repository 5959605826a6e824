"""Removes jobs that nobody looks after any more: what a launcher that was killed could leave behind."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client as k8s  # type: ignore[import-untyped]
from kubernetes import config

from trainwright.errors import DependencyError, InputError, PermissionRefused, TrainwrightError, reported
from trainwright.launch.cluster.api import JOB_KINDS, Api, Selection
from trainwright.launch.cluster.responses import ApiCall, ApiConflict, ApiNotFound, rejection, transport_error
from trainwright.launch.job_directory import remove_job_directory
from trainwright.launch.manifests import annotations as names
from trainwright.retries import RetryPolicy

_TERMINAL = frozenset({"Succeeded", "Failed", "Error"})
_ENDED = frozenset({"Succeeded", "Failed", "Complete"})
_LONGEST_OUTAGE_S = 86_400.0
_OURS = f"{names.MANAGED_BY}={names.OURS}"


@dataclass(frozen=True, kw_only=True)
class SweepRules:
    """The conditions under which a job counts as abandoned.

    Attributes:
        now: The time.
        margin_s: Seconds after its lease: a launcher may be restarting, or the API be out of reach. A job
            without a workflow is kept for as long as its launcher retries in an outage, if longer.
        kept_s: The same for a job that has ended: it holds nothing, and its logs may be read.
    """

    now: datetime
    margin_s: float = 600.0
    kept_s: float = 86_400.0


@dataclass(frozen=True, kw_only=True)
class JobVerdict:
    """The decision about a job.

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


def judge_jobs(api: Api, rules: SweepRules, wrong: list[TrainwrightError]) -> Iterator[JobVerdict]:
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
            yield judge_job(body, api, rules)
        except (PermissionRefused, DependencyError) as error:
            wrong.append(error)
            yield _verdict(body, api, f"its owner is unknown: {error.what}")


def judge_job(body: Mapping[str, Any], api: Api, rules: SweepRules) -> JobVerdict:
    """Judge one job by the API's clock, as leases are written; the API is asked only if one has run out."""
    rules = replace(rules, now=rules.now + timedelta(seconds=api.clock.ahead_s))
    return _verdict(body, api, _reason_to_keep(body, rules) or _active_owner(body["metadata"], api))


def _verdict(body: Mapping[str, Any], api: Api, why: str) -> JobVerdict:
    """Return what becomes of a job: it is kept for a reason, or it is left behind."""
    metadata = body["metadata"]
    notes = metadata.get("annotations") or {}
    return JobVerdict(
        kind=api.kind.kind,
        name=metadata["name"],
        uid=metadata["uid"],
        left=not why,
        why=why or f"lease until {notes.get(names.LEASE_UNTIL)}, {_owner_text(metadata)}",
        folder=str(notes.get(names.FOLDER, "")),
    )


def remove_job(api: Api, judged: JobVerdict, rules: SweepRules) -> str:
    """Delete a job and then its pods, if it still is as it was judged; say what became of it."""
    body = api.job(judged.name)
    if body is None or body["metadata"]["uid"] != judged.uid:
        return "gone by itself"
    again = judge_job(body, api, rules)
    if not again.left:
        return f"kept after all, {again.why}"
    try:
        api.delete(judged.name, judged.uid, body["metadata"]["resourceVersion"])
    except ApiConflict:
        return "kept after all, it has changed this moment"
    return "deleted"


def _reason_to_keep(body: Mapping[str, Any], rules: SweepRules) -> str:
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


def _active_owner(metadata: Mapping[str, Any], api: Api) -> str:
    """Say whose job it is if that one is still at work; nothing if nobody is."""
    for owner in metadata.get("ownerReferences") or []:
        if owner.get("kind") != "Workflow":
            return f"it belongs to {owner.get('kind')} {owner.get('name')}, which is none of ours"
        phase = workflow_phase(api, owner["name"], owner["uid"])
        if phase is not None and phase not in _TERMINAL:
            return f"its workflow {owner['name']} is {phase or 'about to begin'}"
    return ""


def _owner_text(metadata: Mapping[str, Any]) -> str:
    owners = [str(owner.get("name")) for owner in metadata.get("ownerReferences") or []]
    return f"workflow {', '.join(owners)} ended or gone" if owners else "no owner"


def _has_ended(body: Mapping[str, Any]) -> bool:
    conditions = (body.get("status") or {}).get("conditions") or []
    return any(entry["type"] in _ENDED and entry["status"] == "True" for entry in conditions)


_JOB_DIRECTORIES = Path("trainwright") / "jobs"
_DAY_S = 86_400.0
_GIB = 2.0**30


@dataclass(frozen=True, kw_only=True)
class UnusedDirectory:
    """The folder that all attempts at a training share.

    Attributes:
        path: Where it is.
        days: Since when nothing in it has changed.
        size: Bytes in it.
    """

    path: Path
    days: float
    size: int

    def __str__(self) -> str:
        """Say it in a line."""
        return f"home {self.path.name}: unchanged for {self.days:,.1f} days, {self.size / _GIB:,.2f} GiB"


def unused_directories(
    mount: Path, used: Iterable[str], days: float, now: datetime
) -> Iterator[UnusedDirectory]:
    """Find homes that no job uses, and in which nothing has changed for some days.

    Args:
        mount: Where the volume is mounted.
        used: Folders that jobs of the cluster write into.
        days: How many days.
        now: The time.
    """
    folders = [Path(folder) for folder in used if folder]
    for path in sorted((mount / _JOB_DIRECTORIES).glob("*")):
        if not path.is_dir() or any(folder.is_relative_to(path) for folder in folders):
            continue
        home = _measure(path, now)
        if home.days >= days:
            yield home


def _measure(path: Path, now: datetime) -> UnusedDirectory:
    newest, size = path.stat().st_mtime, 0
    for entry in path.rglob("*"):
        try:
            found = entry.lstat()
        except FileNotFoundError:  # removed while we look
            newest = now.timestamp()
            continue
        newest, size = max(newest, found.st_mtime), size + found.st_size
    return UnusedDirectory(path=path, days=(now.timestamp() - newest) / _DAY_S, size=size)


def remove_directory(home: UnusedDirectory) -> str:
    """Remove a home but for what is pinned in it; say what became of it."""
    remove_job_directory(home.path)
    return "kept in part, it is pinned" if home.path.exists() else "removed"


_GROUP, _VERSION, _PLURAL = "argoproj.io", "v1alpha1", "workflows"
_ANSWER_S = 30.0


def workflow_phase(api: Api, name: str, uid: str) -> str | None:
    """Return the phase of a workflow: empty before it begins, nothing if there is none of that identity.

    Raises:
        PermissionRefused: Workflows may not be read.
        DependencyError: The cluster knows no workflows.
        TransientError: The API is out of reach.
    """
    try:
        found = api.retry(lambda: _read_workflow(api, name))
    except ApiNotFound:
        return None
    if found["metadata"]["uid"] != uid:
        return None
    return str((found.get("status") or {}).get("phase", ""))


def _read_workflow(api: Api, name: str) -> dict[str, Any]:
    call = ApiCall(
        verb="get",
        resource=_PLURAL,
        group=_GROUP,
        namespace=api.namespace,
        name=name,
        operator="Argo Workflows",
    )
    try:
        found: dict[str, Any] = k8s.CustomObjectsApi(api.client).get_namespaced_custom_object(
            _GROUP, _VERSION, api.namespace, _PLURAL, name, _request_timeout=_ANSWER_S
        )
    except k8s.ApiException as error:
        raise rejection(error, call) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise transport_error(error) from error
    return found


def main(arguments: list[str]) -> int:
    """Sweep once; 0 unless something could not be done."""
    options = _parser().parse_args(arguments)
    with reported("janitor"):
        sweep(_client(), options, datetime.now(UTC))
    return 0


def sweep(
    client: k8s.ApiClient, options: argparse.Namespace, now: datetime, *, outage_s: float = 60.0
) -> None:
    """Judge and remove, and print what was seen and done.

    Args:
        client: A client of the cluster.
        options: What the command line says.
        now: The time.
        outage_s: Longest API outage to retry through; the next sweep is near.

    Raises:
        TrainwrightError: Something could not be judged or removed; everything else was.
    """
    rules = SweepRules(now=now, margin_s=options.margin_s, kept_s=options.kept_days * 86_400)
    used: list[str] = []
    wrong: list[TrainwrightError] = []
    for kind in JOB_KINDS.values():
        api = Api(client, options.namespace, kind, RetryPolicy(outage_s=outage_s))
        for judged in judge_jobs(api, rules, wrong):
            done = ""
            if judged.left:
                done = "would be deleted" if options.dry_run else _remove(api, judged, rules, wrong)
            used.append(judged.folder)
            _print(f"{judged}: {done}" if done else str(judged))
    if options.volume:
        for home in unused_directories(options.volume, used, options.days, now):
            asked = options.remove_homes and not options.dry_run
            _print(f"{home}: {remove_directory(home) if asked else 'left over'}")
    if wrong:
        raise wrong[0]


def _remove(api: Api, judged: JobVerdict, rules: SweepRules, wrong: list[TrainwrightError]) -> str:
    """Remove a job, and say what became of it; one that cannot be removed must not save the others."""
    try:
        return remove_job(api, judged, rules)
    except (PermissionRefused, DependencyError, InputError) as error:
        wrong.append(error)
        return f"not deleted: {error.what}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("trainwright.launch.janitor", description=__doc__)
    parser.add_argument("--namespace", required=True, help="Namespace to sweep.")
    parser.add_argument("--dry-run", action="store_true", help="Only say what would be done.")
    parser.add_argument("--margin-s", type=float, default=600, help="Seconds after its lease a job is kept.")
    parser.add_argument("--kept-days", type=float, default=1, help="Days that a job which ended is kept.")
    parser.add_argument("--volume", type=Path, help="Where the shared volume is mounted, to look at homes.")
    parser.add_argument(
        "--days", type=float, default=14, help="Days unchanged after which a home is left over."
    )
    parser.add_argument("--remove-homes", action="store_true", help="Remove homes that are left over.")
    return parser


def _client() -> k8s.ApiClient:
    """Use the service account of this pod, or else what the caller's kubectl uses."""
    settings = k8s.Configuration()
    try:
        try:
            config.load_incluster_config(client_configuration=settings)
        except config.ConfigException:
            config.load_kube_config(client_configuration=settings)
    except (config.ConfigException, OSError) as error:
        raise DependencyError(
            f"no access to a cluster: {error}", hint="Run it in a pod, or where kubectl works."
        ) from None
    settings.retries = False
    return k8s.ApiClient(settings)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

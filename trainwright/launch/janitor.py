"""Remove jobs that nobody looks after any more: what a launcher that was killed could leave behind."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kubernetes import client as k8s  # type: ignore[import-untyped]
from kubernetes import config

from trainwright.errors import DependencyError, InputError, PermissionRefused, TrainwrightError, reported
from trainwright.launch.cluster.api import JOB_KINDS, Api, Selection
from trainwright.launch.cluster.lease import LEASE_UNTIL, OUTAGE_S
from trainwright.launch.cluster.responses import ApiConflict
from trainwright.launch.job_directory import remove_job_directory
from trainwright.launch.manifests import FOLDER, MANAGED_BY, OURS
from trainwright.retries import RetryPolicy

_TERMINAL = frozenset({"Succeeded", "Failed", "Error"})
_ENDED = frozenset({"Succeeded", "Failed", "Complete"})
_LONGEST_OUTAGE_S = _DAY_S = 86_400.0
_GIB = 2.0**30


@dataclass(frozen=True, kw_only=True)
class SweepRules:
    """The conditions under which a job counts as abandoned.

    Attributes:
        margin_s: Seconds after its lease: a launcher may be restarting, or the API be out of reach. It is not
            for clocks: a lease is written and judged by the API server's time (``ServerClock``). A job
            without a workflow is kept for as long as its launcher retries in an outage, if longer.
        kept_s: The same for a job that has ended: it holds nothing, and its logs may be read.
    """

    now: datetime
    margin_s: float = 600.0
    kept_s: float = 86_400.0


@dataclass(frozen=True, kw_only=True)
class JobVerdict:
    """The decision about a job: whether it is ``left`` behind, and why; ``folder`` is of its attempt."""

    kind: str
    name: str
    uid: str
    left: bool
    why: str
    folder: str

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.kind} {self.name}: {'left behind' if self.left else 'kept'}, {self.why}"


def judge_jobs(api: Api, rules: SweepRules, wrong: list[TrainwrightError]) -> Iterator[JobVerdict]:
    """Judge every job of ours of one kind; none where the cluster does not know the kind.

    A job that could not be judged is kept, and ``wrong`` gets the reason.
    """
    selection = Selection(kind="job", labels=f"{MANAGED_BY}={OURS}")
    try:
        found, _ = api.retry(lambda: api.select(selection))
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


def _verdict(body: Mapping[str, Any], api: Api, reason_to_keep: str) -> JobVerdict:
    metadata = body["metadata"]
    notes = metadata.get("annotations") or {}
    owners = ", ".join(str(owner.get("name")) for owner in metadata.get("ownerReferences") or [])
    abandoned = f"workflow {owners} ended or gone" if owners else "no owner"
    return JobVerdict(
        kind=api.kind.kind,
        name=metadata["name"],
        uid=metadata["uid"],
        left=not reason_to_keep,
        why=reason_to_keep or f"lease until {notes.get(LEASE_UNTIL)}, {abandoned}",
        folder=str(notes.get(FOLDER, "")),
    )


def _reason_to_keep(body: Mapping[str, Any], rules: SweepRules) -> str:
    """Return why a job is left alone for now; empty if its time is over."""
    metadata = body["metadata"]
    notes = metadata.get("annotations") or {}
    if (metadata.get("labels") or {}).get(MANAGED_BY) != OURS:
        return "it is not ours"
    if metadata.get("deletionTimestamp"):
        return "it is being deleted"
    lease = notes.get(LEASE_UNTIL, "")
    try:
        until = datetime.fromisoformat(lease).astimezone(UTC)
    except ValueError:
        return f"its lease {lease!r} is no time" if lease else "it has no lease"
    conditions = (body.get("status") or {}).get("conditions") or []
    ended = any(entry["type"] in _ENDED and entry["status"] == "True" for entry in conditions)
    # Of a job with a workflow, that one tells whether its launcher still runs.
    outage = "" if metadata.get("ownerReferences") else notes.get(OUTAGE_S, "")
    outage_s = min(float(outage), _LONGEST_OUTAGE_S) if outage.isdecimal() else 0.0
    margin_s = rules.kept_s if ended else max(rules.margin_s, outage_s)
    if rules.now <= until + timedelta(seconds=margin_s):
        return f"lease until {lease}" + (", it has ended" if ended else "")
    return ""


def _active_owner(metadata: Mapping[str, Any], api: Api) -> str:
    """Return which owner is still at work; empty if none is."""
    for owner in metadata.get("ownerReferences") or []:
        if owner.get("kind") != "Workflow":
            return f"it belongs to {owner.get('kind')} {owner.get('name')}, which is none of ours"
        found = api.workflow(owner["name"])
        if found and found["metadata"]["uid"] == owner["uid"]:
            phase = str((found.get("status") or {}).get("phase", ""))
            if phase not in _TERMINAL:
                return f"its workflow {owner['name']} is {phase or 'about to begin'}"
    return ""


def remove_job(api: Api, judged: JobVerdict, rules: SweepRules) -> str:
    """Delete a job and then its pods, if it still is as it was judged; return what became of it."""
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


def unused_directories(
    mount: Path, used: Iterable[str], days: float, now: datetime
) -> Iterator[tuple[Path, str]]:
    """Find job directories that no job uses, and in which nothing has changed for some days.

    Returns:
        Their paths, each with a line that has its age and size.
    """
    folders = [Path(folder) for folder in used if folder]
    for path in sorted((mount / "trainwright" / "jobs").glob("*")):
        if not path.is_dir() or any(folder.is_relative_to(path) for folder in folders):
            continue
        newest, size = path.stat().st_mtime, 0
        for entry in path.rglob("*"):
            try:
                found = entry.lstat()
            except FileNotFoundError:  # a process removes files at this moment
                newest = now.timestamp()
                continue
            newest, size = max(newest, found.st_mtime), size + found.st_size
        age = (now.timestamp() - newest) / _DAY_S
        if age >= days:
            yield path, f"home {path.name}: unchanged for {age:,.1f} days, {size / _GIB:,.2f} GiB"


def main(arguments: list[str]) -> int:
    """Sweep once; 0 unless something could not be done."""
    options = _parser().parse_args(arguments)
    with reported("janitor"):
        sweep(_client(), options, datetime.now(UTC))
    return 0


def sweep(
    client: k8s.ApiClient, options: argparse.Namespace, now: datetime, *, outage_s: float = 60.0
) -> None:
    """Judge and remove, and print what was seen and done."""
    rules = SweepRules(now=now, margin_s=options.margin_s, kept_s=options.kept_days * _DAY_S)
    used: list[str] = []
    wrong: list[TrainwrightError] = []
    for kind in JOB_KINDS.values():
        api = Api(client, options.namespace, kind, RetryPolicy(outage_s=outage_s))
        for judged in judge_jobs(api, rules, wrong):
            done = "would be deleted" if options.dry_run else ""
            if judged.left and not options.dry_run:
                try:
                    done = remove_job(api, judged, rules)
                except (PermissionRefused, DependencyError, InputError) as error:
                    wrong.append(error)
                    done = f"not deleted: {error.what}"
            used.append(judged.folder)
            _print(f"{judged}: {done}" if judged.left else str(judged))
    if options.volume:
        for path, line in unused_directories(options.volume, used, options.days, now):
            done = "left over"
            if options.remove_homes and not options.dry_run:
                remove_job_directory(path)
                done = "kept in part, it is pinned" if path.exists() else "removed"
            _print(f"{line}: {done}")
    if wrong:
        raise wrong[0]


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

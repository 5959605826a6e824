"""Jobs that nobody looks after are removed, and no others."""

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.launch.launching import api, cluster_job
from tests.launch.standin import Cluster, cluster
from tests.launch.standin.clusters import ADMIN
from tests.launch.test_manifests import OWNER, asked
from trainwright.errors import PermissionRefused, TransientError
from trainwright.launch import janitor, manifests
from trainwright.launch import janitor as sweeping
from trainwright.launch.cluster.api import PYTORCHJOB, TRAINJOB
from trainwright.launch.cluster.lease import LEASE_UNTIL, OUTAGE_S, create_or_adopt

Object = dict[str, Any]
NOW = datetime.now(UTC)
LATER = NOW + timedelta(hours=2)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "cluster", operator=False) as found:
        yield found


def options(**changes: Any) -> argparse.Namespace:
    """Return what the command line says."""
    found = janitor._parser().parse_args(["--namespace", "team"])
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def job(
    there: Cluster, run: str, *, lease: str | None = None, kind: str = "pytorchjob", **metadata: Any
) -> str:
    """Store a job whose lease ends now, or as said, and return its name."""
    body = manifests.make_manifest(asked(run=run), kind)
    notes = {LEASE_UNTIL: NOW.strftime("%Y-%m-%dT%H:%M:%SZ") if lease is None else lease}
    body["metadata"]["annotations"] |= {name: value for name, value in notes.items() if value}
    body["metadata"] |= metadata
    there.put(body)
    return str(body["metadata"]["name"])


def workflow(there: Cluster, phase: str, name: str = "run-1") -> list[Object]:
    """Store a workflow, and return the references to it."""
    body = {"apiVersion": OWNER["apiVersion"], "kind": "Workflow", "metadata": {"name": name}}
    made = there.put({**body, "status": {"phase": phase}})
    reference = {"apiVersion": OWNER["apiVersion"], "kind": "Workflow", "name": name}
    return [{**reference, "uid": made["metadata"]["uid"]}]


def swept(
    there: Cluster,
    capsys: pytest.CaptureFixture[str],
    *,
    now: datetime = LATER,
    token: str = "",
    **changes: Any,
) -> str:
    """Sweep, and return what was printed."""
    client = there.api_client(token) if token else there.api_client()
    janitor.sweep(client, options(**changes), now)
    return capsys.readouterr().out


def left(there: Cluster, kind: str = "PyTorchJob") -> list[str]:
    """Return the names of jobs that are there and not being deleted."""
    return [
        body["metadata"]["name"]
        for body in there.objects(kind)
        if not body["metadata"].get("deletionTimestamp")
    ]


@pytest.mark.covers("F25")
def test_a_job_whose_lease_has_run_out_and_whose_run_has_ended_is_deleted(
    there: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    name = job(there, "1", ownerReferences=workflow(there, "Failed"))
    said = swept(there, capsys)
    assert left(there) == []
    assert f"PyTorchJob {name}: left behind" in said
    assert said.rstrip().endswith("workflow run-1 ended or gone: deleted")
    (call,) = (call for call in there.calls if call.verb == "delete")
    assert (call.name, call.resource) == (name, "pytorchjobs")


@pytest.mark.parametrize("phase", ["Running", "Pending", ""])
def test_a_job_whose_run_is_at_work_is_kept(
    there: Cluster, capsys: pytest.CaptureFixture[str], phase: str
) -> None:
    name = job(there, "1", ownerReferences=workflow(there, phase))
    assert f"{name}: kept, its workflow run-1 is {phase or 'about to begin'}" in swept(there, capsys)
    assert left(there) == [name]


@pytest.mark.parametrize(
    ("lease", "why"),
    [
        ((LATER + timedelta(seconds=60)).isoformat(), "kept, lease until"),
        ((LATER - timedelta(seconds=599)).isoformat(), "kept, lease until"),
        ("", "kept, it has no lease"),
        ("tomorrow", "kept, its lease 'tomorrow' is no time"),
    ],
)
def test_a_job_is_kept_until_its_lease_is_surely_over(
    there: Cluster, capsys: pytest.CaptureFixture[str], lease: str, why: str
) -> None:
    name = job(there, "1", lease=lease)
    assert why in swept(there, capsys)
    assert left(there) == [name]


def test_a_job_without_an_owner_is_deleted_by_its_lease_alone(
    there: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    job(there, "1")
    assert "no owner: deleted" in swept(there, capsys)
    assert left(there) == []


def test_what_is_not_ours_is_not_touched(there: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    other = job(there, "1", labels={"app.kubernetes.io/managed-by": "Helm"})
    theirs = there.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}})
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "uid": theirs["metadata"]["uid"]}
    foreign = job(there, "2", ownerReferences=[owner])
    said = swept(there, capsys)
    assert other not in said
    assert f"{foreign}: kept, it belongs to ConfigMap theirs" in said
    assert not [call for call in there.calls if call.verb == "delete"]


def test_a_dry_run_says_the_same_and_does_nothing(there: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    name = job(there, "1")
    assert "no owner: would be deleted" in swept(there, capsys, dry_run=True)
    assert left(there) == [name]


def test_a_job_that_has_ended_is_kept_a_day_for_its_logs(
    there: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    name = job(there, "1", kind="trainjob")
    there.condition(name, "Complete", of="TrainJob")
    assert "it has ended" in swept(there, capsys)
    assert left(there, "TrainJob") == [name]
    assert ": deleted" in swept(there, capsys, now=NOW + timedelta(days=1, seconds=5))
    assert left(there, "TrainJob") == []


def test_a_job_that_was_taken_over_meanwhile_is_kept(there: Cluster) -> None:
    name = job(there, "1")
    access = api(there)
    rules = sweeping.SweepRules(now=LATER)
    (judged,) = sweeping.judge_jobs(access, rules, [])
    assert judged.left

    def renew(body: Object) -> None:
        body["metadata"]["annotations"][LEASE_UNTIL] = (LATER + timedelta(minutes=3)).isoformat()

    there.edit("PyTorchJob", name, renew)
    assert "kept after all, lease until" in sweeping.remove_job(access, judged, rules)
    assert left(there) == [name]


def test_a_run_that_may_not_be_looked_at_keeps_its_job(
    there: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    name = job(there, "1", ownerReferences=workflow(there, "Failed"))
    job(there, "2")
    may = [
        {"apiGroups": [kind.group], "resources": [kind.plural], "verbs": ["list", "get", "delete"]}
        for kind in (PYTORCHJOB, TRAINJOB)
    ]
    token = there.account("system:serviceaccount:team:janitor", may, "team")
    with pytest.raises(PermissionRefused, match="workflows"):
        swept(there, capsys, token=token)
    assert left(there) == [name]


def test_a_cluster_without_one_kind_of_jobs_is_swept_of_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster(tmp_path / "cluster", operator=False, without=[TRAINJOB.plural]) as there:
        job(there, "1")
        assert ": deleted" in swept(there, capsys)


def home(mount: Path, name: str, days: float) -> Path:
    """Make a home in which nothing has changed for some days."""
    path = mount / "trainwright" / "jobs" / name
    (path / "attempts" / "0001").mkdir(parents=True)
    (path / "attempts" / "0001" / "weights").write_bytes(b"x" * 1000)
    then = LATER.timestamp() - days * 86_400
    for entry in [*path.rglob("*"), path]:
        os.utime(entry, (then, then))
    return path


def test_homes_are_reported_and_removed_only_when_asked(
    there: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, fresh, used, pinned = (
        home(tmp_path, name, days) for name, days in (("old", 20), ("fresh", 3), ("used", 20), ("pinned", 20))
    )
    (pinned / "attempts" / "0001" / "pinned-by-me.json").touch()
    os.utime(pinned / "attempts" / "0001" / "pinned-by-me.json", (0, 0))
    os.utime(pinned / "attempts" / "0001", (0, 0))
    body = manifests.make_manifest(
        asked(folder=used / "attempts" / "0001", mount=str(tmp_path)), "pytorchjob"
    )
    there.put(body)
    said = swept(there, capsys, volume=tmp_path)
    assert "home old: unchanged for 20.0 days, 0.00 GiB: left over" in said
    assert "fresh" not in said
    assert "home used" not in said
    assert old.exists()
    said = swept(there, capsys, volume=tmp_path, remove_homes=True)
    assert "home old: unchanged for 20.0 days, 0.00 GiB: removed" in said
    assert "kept in part, it is pinned" in said
    assert [path.exists() for path in (old, fresh, used, pinned)] == [False, True, True, True]


def test_an_api_that_is_away_deletes_nothing(there: Cluster) -> None:
    name = job(there, "1")
    with there.faults.outage(), pytest.raises(TransientError):
        janitor.sweep(there.api_client(), options(), LATER, outage_s=0.1)
    assert left(there) == [name]


def test_a_job_without_a_workflow_is_kept_as_long_as_its_launcher_may_be_cut_off(
    there: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the launcher itself writes it: nothing else says that somebody will come back to it."""
    asked_for = cluster_job(tmp_path)
    held = create_or_adopt(
        api(there, outage_s=900), asked_for, manifests.make_manifest(asked_for, "pytorchjob"), "somebody", 1
    )
    until = datetime.fromisoformat(held.body["metadata"]["annotations"][LEASE_UNTIL])
    swept(there, capsys, now=until + timedelta(seconds=890))
    assert left(there) == [held.name]
    swept(there, capsys, now=until + timedelta(seconds=910))
    assert left(there) == []


def test_of_a_job_with_a_workflow_that_one_tells_how_long_it_is_kept(
    there: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    name = job(there, "1", ownerReferences=workflow(there, "Failed"))
    there.edit("PyTorchJob", name, lambda body: body["metadata"]["annotations"].update({OUTAGE_S: "900"}))
    swept(there, capsys, now=NOW + timedelta(seconds=610))
    assert left(there) == []


ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"python (-m trainwright\.launch\.janitor [^`\n|]*)")
WRITTEN = sorted(
    {found[1].strip() for path in (ROOT / "docs").glob("*.md") for found in LINE.finditer(path.read_text())}
)


def settings(folder: Path, url: str) -> Path:
    """Write what kubectl would use."""
    named = [
        ("cluster", {"server": url}),
        ("user", {"token": ADMIN}),
        ("context", {"cluster": "c", "user": "u"}),
    ]
    content = {f"{kind}s": [{"name": kind[0], kind: body}] for kind, body in named}
    content["contexts"][0]["name"] = "here"
    path = folder / "config"
    path.write_text(
        yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "here"} | content)
    )
    return path


@pytest.mark.parametrize("line", WRITTEN)
def test_the_janitor_of_the_pages_looks_and_ends_well(line: str, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    words = shlex.split(line.replace("/shared", str(tmp_path / "shared")))
    with cluster(tmp_path / "cluster", operator=False, namespaces=("team", "team-a")) as there:
        body = manifests.make_manifest(asked(), "pytorchjob")
        body["metadata"]["namespace"] = "team-a"
        there.put(body)
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env=os.environ | {"KUBECONFIG": str(settings(tmp_path, there.url))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert body["metadata"]["name"] in done.stdout
        assert there.objects("PyTorchJob")


def test_the_pages_start_it() -> None:
    assert any("--dry-run" in line for line in WRITTEN)
    assert any("--remove-homes" in line for line in WRITTEN)

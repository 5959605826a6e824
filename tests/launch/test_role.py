"""What ``deploy/`` grants is what the code calls: no call is refused, and no right is left over."""

import inspect
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.launch.launching import Object, api, cluster_job, complete, launcher, running
from tests.launch.standin import Cluster, cluster
from tests.launch.test_janitor import LATER, options
from tests.launch.test_manifests import asked
from trainwright.errors import PermissionRefused, TrainwrightError
from trainwright.launch import janitor, manifests
from trainwright.launch.cluster.api import JOB_KINDS, Api, JobKind
from trainwright.launch.cluster.launcher import own_workflow
from trainwright.launch.job import Budget
from trainwright.launch.manifests import annotations as names
from trainwright.launch.placement import Placement

BASE = Path(__file__).resolve().parents[2] / "deploy" / "base"
Right = tuple[str, str, str]


def rules(name: str) -> list[Object]:
    """Return the rules of a Role of ``deploy/base``."""
    bodies = [body for path in BASE.glob("*.yaml") for body in yaml.safe_load_all(path.read_text())]
    (role,) = (body for body in bodies if body["kind"] == "Role" and body["metadata"]["name"] == name)
    found: list[Object] = role["rules"]
    return found


def granted(name: str) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in rules(name)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


CALLS = {
    "create",
    "validate",
    "job",
    "delete",
    "annotate",
    "select",
    "watch",
    "remove_pod",
    "events",
    "workloads",
    "workflow",
    "log",
    "log_lines",
}
"""The calls of the launcher's API; what a new one takes has to be called for below, and granted."""


def called(there: Cluster, user: str) -> set[Right]:
    """Return the rights that somebody's calls took; every one of them was granted."""
    calls = [call for call in there.calls if call.user == user]
    assert not [call for call in calls if call.code == 403]
    return {call.right for call in calls}


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "cluster", operator=False, kueue=True) as found:
        found.put({"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "run-1"}})
        yield found


def follow(there: Cluster, root: Path, kind: JobKind, token: str, end: str, **settings: Any) -> None:
    """Run a job to one of its ends: completed, failed for a reason to be looked for, or out of time."""
    timeout_s, queue = 1 if end == "late" else 600, Placement(queue="team-queue" if end == "queued" else "")
    budget = Budget(preemption=0, infrastructure=0)
    job = cluster_job(root, run=end, timeout_s=timeout_s, budget=budget, placement=queue)
    made = manifests.make_manifest(job, kind.name)
    if end == "found":  # by a launcher that was started again
        made["metadata"]["annotations"] |= {names.LEASE_UNTIL: "2026-01-01T00:00:00Z"}
        there.put(made)
    start = launcher(there, kind=kind, token=token, workflow="run-1", renew_s=0.05, settle_s=0.1, **settings)
    with running(lambda: start.run(job)) as coming:
        there.wait(lambda: there.find(kind.kind, job.name))
        there.wait(lambda: ("patch", job.name) in {(call.verb, call.name) for call in there.calls})
        body = there.find(kind.kind, job.name)
        assert body
        if end == "fails":
            add_failed_pod(there, kind, body)
            there.condition(job.name, "Failed", of=kind.kind)
        elif end == "queued":
            there.wait(lambda: any(call.resource == "workloads" for call in there.calls))
        if end not in {"fails", "late"}:
            complete(body)
            there.condition(job.name, {"PyTorchJob": "Succeeded"}.get(kind.kind, "Complete"), of=kind.kind)
    with suppress(TrainwrightError):
        coming.result(0)
    assert not isinstance(coming.exception(0), PermissionRefused)


def add_failed_pod(there: Cluster, kind: JobKind, body: Object) -> None:
    """Put a pod beside a job that ended with exit code 1 and says nothing of itself."""
    stamp = "2026-11-20T10:00:00Z"
    ended = {"exitCode": 1, "reason": "Error", "startedAt": stamp, "finishedAt": stamp}
    name = f"{body['metadata']['name']}-master-0"
    status = {"name": kind.container, "state": {"terminated": ended}, "restartCount": 0, "ready": False}
    status |= {"image": "x", "imageID": "x", "started": False}
    there.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {kind.pods: body["metadata"]["name"]}},
            "spec": {"containers": [{"name": kind.container}]},
            "status": {"phase": "Failed", "containerStatuses": [status], "startTime": stamp},
        }
    )


def test_the_role_of_the_train_step_is_what_its_launcher_calls(there: Cluster, tmp_path: Path) -> None:
    user = "system:serviceaccount:team:pipeline-runner"
    token = there.account(user, rules("trainwright-train"), "team")
    for kind in JOB_KINDS.values():
        for end in ("completes", "fails", "found", "late", "queued"):
            root = tmp_path / kind.name / end
            root.mkdir(parents=True)
            follow(there, root, kind, token, end)
        own_workflow(api(there, kind=kind, token=token))
        api(there, kind=kind, token=token).remove_pod("absent", "of a lost node")
    assert called(there, user) == granted("trainwright-train")
    methods = {name for name, kind in vars(Api).items() if inspect.isfunction(kind) and name[0] != "_"}
    assert methods - {"retry"} == CALLS, "a new call has to be made above, too"


def test_the_role_of_the_janitor_is_what_it_calls(there: Cluster) -> None:
    user = "system:serviceaccount:team:trainwright-janitor"
    token = there.account(user, rules("trainwright-janitor"), "team")
    workflow = there.find("Workflow", "run-1")
    assert workflow
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run-1"}
    for kind in JOB_KINDS.values():
        body = manifests.make_manifest(asked(run=kind.name), kind.name)
        until = datetime.now(UTC) - timedelta(days=1)
        body["metadata"]["annotations"] |= {names.LEASE_UNTIL: until.isoformat()}
        there.put(body)
        owned = manifests.make_manifest(asked(run=f"{kind.name} owned"), kind.name)
        owned["metadata"]["annotations"] |= {names.LEASE_UNTIL: until.isoformat()}
        owned["metadata"]["ownerReferences"] = [{**owner, "uid": workflow["metadata"]["uid"]}]
        there.put(owned)
    janitor.sweep(there.api_client(token), options(), LATER)
    assert called(there, user) == granted("trainwright-janitor")


def test_the_pods_of_a_job_may_do_nothing() -> None:
    bodies = [body for path in BASE.glob("*.yaml") for body in yaml.safe_load_all(path.read_text())]
    bound = [
        subject["name"] for body in bodies if body["kind"] == "RoleBinding" for subject in body["subjects"]
    ]
    assert "trainwright-job" not in bound
    assert sorted(bound) == ["trainwright-janitor", "trainwright-launcher"]

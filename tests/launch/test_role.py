"""The rights that deploy/ grants are those that the launcher and the janitor use."""

import copy
import inspect
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.launch.kustomized import resolved
from tests.launch.launching import Object, api, cluster_job, complete, launcher, running
from tests.launch.standin import Cluster, cluster, schema
from tests.launch.test_janitor import LATER, options
from tests.launch.test_manifests import asked
from trainwright.errors import PermissionRefused, TrainwrightError
from trainwright.experiment.resources import JobPlacement, Resources, RetryBudget
from trainwright.launch import janitor, kubernetes_names, manifests
from trainwright.launch.cluster.api import JOB_KINDS, Api, JobKind
from trainwright.launch.cluster.launcher import own_workflow
from trainwright.launch.cluster.lease import LEASE_UNTIL

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
    timeout_s, queue = (
        1 if end == "late" else 600,
        JobPlacement(queue="team-queue" if end == "queued" else ""),
    )
    budget = RetryBudget(preemption=0, infrastructure=0)
    job = cluster_job(root, run=end, timeout_s=timeout_s, budget=budget, placement=queue)
    made = manifests.make_manifest(job, kind.name)
    if end == "found":  # by a launcher that was started again
        made["metadata"]["annotations"] |= {LEASE_UNTIL: "2026-01-01T00:00:00Z"}
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


@pytest.mark.covers("A9")
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
        body["metadata"]["annotations"] |= {LEASE_UNTIL: until.isoformat()}
        there.put(body)
        owned = manifests.make_manifest(asked(run=f"{kind.name} owned"), kind.name)
        owned["metadata"]["annotations"] |= {LEASE_UNTIL: until.isoformat()}
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


Object = dict[str, Any]
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*.yaml") if not path.name.startswith("gs-"))

CUSTOM = {
    "Kustomization": {"apiVersion", "kind", "labels", "namespace", "resources", "images", "patches"},
    "ResourceFlavor": {"nodeLabels", "nodeTaints", "tolerations", "topologyName"},
    "ClusterQueue": {
        "namespaceSelector",
        "queueingStrategy",
        "preemption",
        "resourceGroups",
        "cohortName",
        "flavorFungibility",
        "admissionChecksStrategy",
        "stopPolicy",
        "fairSharing",
    },
    "Cohort": {"parentName", "resourceGroups", "fairSharing"},
    "LocalQueue": {"clusterQueue", "stopPolicy", "fairSharing"},
    "WorkloadPriorityClass": {"apiVersion", "kind", "metadata", "value", "description"},
    "ClusterTrainingRuntime": {"mlPolicy", "podGroupPolicy", "template"},
}
"""Fields of kinds that no client knows: of the specification, or of the whole where there is none."""


LABEL_KEY = re.compile(r"([a-z0-9][a-z0-9.-]*/)?[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def is_quantity(text: object) -> bool:
    """Tell whether a text is a quantity of Kubernetes."""
    try:
        kubernetes_names.amount_of(str(text))
    except ValueError:
        return False
    return True


def bodies() -> Iterator[tuple[str, Object]]:
    for path in FILES:
        for body in yaml.safe_load_all(path.read_text()):
            yield str(path.relative_to(DEPLOY)), body


ALL = list(bodies())
SERVICE, ENGINE = "trainwright-service", "trainwright-engine"
"""They stand apart from the runs: tests/house/test_deploy.py looks at their policies."""

POLICIES = [
    body
    for _, body in ALL
    if body["kind"] == "NetworkPolicy" and not body["metadata"]["name"].startswith((SERVICE, ENGINE))
]


def named(kind: str) -> list[Object]:
    return [body for _, body in ALL if body["kind"] == kind]


def pods() -> Iterator[tuple[str, Object]]:
    """Every pod that something here makes."""
    for where, body in ALL:
        if body["kind"] == "CronJob":
            yield where, body["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        if body["kind"] == "ClusterTrainingRuntime":
            for job in body["spec"]["template"]["spec"]["replicatedJobs"]:
                yield where, job["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(("where", "body"), ALL)
def test_every_object_has_only_fields_that_there_are(where: str, body: Object) -> None:
    kind = body["kind"]
    if kind in CUSTOM:
        assert set(body.get("spec", body)) <= CUSTOM[kind], where
    else:
        shape = schema.of_model(f"V1{kind}")
        assert (schema.unknown(body, shape), schema.faults(body, shape)) == ([], []), where
    if kind != "Kustomization":
        assert kubernetes_names.is_subdomain(body["metadata"]["name"])
        labels = body["metadata"].get("labels") or {}
        assert all(
            LABEL_KEY.fullmatch(key) and kubernetes_names.is_label(value) for key, value in labels.items()
        ), where


def test_no_object_is_there_twice() -> None:
    seen = [
        (body["kind"], body["metadata"]["name"], body["metadata"].get("namespace"))
        for _, body in ALL
        if body["kind"] != "Kustomization"
    ]
    assert len(seen) == len(set(seen))


def test_no_secret_has_a_value() -> None:
    for where, body in ALL:
        if body["kind"] == "Secret":
            assert not {"data", "stringData"} & body.keys(), where
    for where, spec in pods():
        for container in spec["containers"]:
            for entry in container.get("env", []):
                assert "valueFrom" in entry, f"{where}: {entry['name']}"


@pytest.mark.covers("A12")
def test_every_image_is_taken_by_digest() -> None:
    overlays = {where: body for where, body in ALL if where.startswith("overlays/")}
    assert len(overlays) == 2
    made = {container["image"] for where, spec in pods() for container in spec["containers"]}
    assert not [image for image in made if ":" in image], "a tag can come to mean another image"
    for where, body in overlays.items():
        (image,) = body["images"]
        assert (image["name"], "newTag" in image) == ("trainwright/launcher", False), where
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", image["digest"]), where


@pytest.mark.covers("A10")
@pytest.mark.parametrize(("where", "spec"), list(pods()))
def test_every_pod_is_restricted(where: str, spec: Object) -> None:
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    needs = "janitor" in where
    assert spec["automountServiceAccountToken"] is needs
    if needs:
        (container,) = spec["containers"]
        for part in ("requests", "limits"):
            assert container["resources"][part].keys() == {"cpu", "memory"}
            assert all(is_quantity(amount) for amount in container["resources"][part].values())
        assert next(mount for mount in container["volumeMounts"] if mount["mountPath"] == "/shared")[
            "readOnly"
        ]


def test_no_account_brings_a_token_along() -> None:
    accounts = named("ServiceAccount")
    assert {body["metadata"]["name"] for body in accounts} == {
        "trainwright-launcher",
        "trainwright-job",
        "trainwright-janitor",
        "trainwright-ci",
        "trainwright-promote",
        SERVICE,
        ENGINE,
    }
    bringing = {
        body["metadata"]["name"] for body in accounts if body.get("automountServiceAccountToken", True)
    }
    assert bringing == {"trainwright-promote"}, (
        "the account of a run: Argo and KFP call the API from its pods"
    )


@pytest.mark.covers("A9")
def test_no_role_takes_everything_or_reads_secrets() -> None:
    assert not named("ClusterRole")
    keys = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    keys |= {"resourceNames": ["mlpipeline-minio-artifact"]}  # what KFP's own driver and launcher read
    for role in named("Role"):
        for rule in role["rules"]:
            if role["metadata"]["name"] == "trainwright-promote" and rule == keys:
                continue
            said = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not said & {"*", "secrets", "pods/exec", "escalate", "bind", "impersonate"}


def selected(policy: Object) -> str:
    (pair,) = policy["spec"]["podSelector"]["matchLabels"].items()
    return "=".join(pair)


@pytest.mark.covers("A11")
def test_whatever_may_talk_is_denied_everything_else() -> None:
    denied = {
        selected(body)
        for body in POLICIES
        if not body["spec"].keys() & {"ingress", "egress"}
        and body["spec"]["policyTypes"] == ["Ingress", "Egress"]
    }
    assert denied == {selected(body) for body in POLICIES}
    assert f"{manifests.MANAGED_BY}={manifests.OURS}" in denied
    (janitor,) = named("CronJob")
    labels = janitor["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    assert {f"{key}={value}" for key, value in labels.items()} <= denied


def blocks(policy: Object) -> Iterator[Object]:
    for rule in policy["spec"].get("egress", []):
        for peer in rule["to"]:
            if "ipBlock" in peer:
                yield peer["ipBlock"]


@pytest.mark.covers("A11")
def test_the_metadata_address_of_a_cloud_is_closed_to_all() -> None:
    import ipaddress

    address = ipaddress.ip_address("169.254.169.254")
    for policy in POLICIES:
        for block in blocks(policy):
            inside = address in ipaddress.ip_network(block["cidr"])
            kept_out = any(address in ipaddress.ip_network(part) for part in block.get("except", []))
            assert kept_out or not inside, policy["metadata"]["name"]


def test_pods_of_a_job_reach_one_another_and_not_the_api() -> None:
    (policy,) = (body for body in POLICIES if body["metadata"]["name"] == "trainwright-jobs")
    peers = [peer for rule in policy["spec"]["egress"] for peer in rule["to"]]
    mine = {"podSelector": {"matchLabels": {manifests.MANAGED_BY: manifests.OURS}}}
    assert mine in peers
    assert policy["spec"]["ingress"] == [{"from": [mine]}]
    assert 6443 not in [port["port"] for rule in policy["spec"]["egress"] for port in rule.get("ports", [])]


def test_everybody_looks_up_names() -> None:
    asks = {
        selected(body)
        for body in POLICIES
        for rule in body["spec"].get("egress", [])
        if {(port["protocol"], port["port"]) for port in rule.get("ports", [])} == {("UDP", 53), ("TCP", 53)}
    }
    assert asks == {selected(body) for body in POLICIES}


def test_local_queue_leads_to_the_queue_of_its_team_that_lets_its_namespace_in() -> None:
    (cohort,) = named("Cohort")
    queues = {queue["metadata"]["name"]: queue["spec"] for queue in named("ClusterQueue")}
    local = named("LocalQueue")
    assert [queue["spec"]["clusterQueue"] for queue in local] == list(queues)
    flavors = {body["metadata"]["name"] for body in named("ResourceFlavor")}
    for queue, spec in zip(local, queues.values(), strict=True):
        namespace = queue["metadata"]["namespace"]
        assert spec["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": namespace}
        assert spec["cohortName"] == cohort["metadata"]["name"]
        assert {flavor["name"] for group in spec["resourceGroups"] for flavor in group["flavors"]} == flavors
    for spec in (*queues.values(), cohort["spec"]):
        for group in spec["resourceGroups"]:
            for flavor in group["flavors"]:
                assert [entry["name"] for entry in flavor["resources"]] == group["coveredResources"]


def test_the_runtime_has_what_a_trainjob_patches() -> None:
    (runtime,) = named("ClusterTrainingRuntime")
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert job["name"] == "node"
    assert runtime["metadata"]["name"] == JobPlacement().runtime
    assert job["template"]["spec"]["backoffLimit"] == 0
    grace_s = job["template"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > Resources().grace_s + 5
    assert [entry["name"] for entry in job["template"]["spec"]["template"]["spec"]["containers"]] == ["node"]


def test_every_file_beside_a_kustomization_is_part_of_it() -> None:
    for path in DEPLOY.rglob("kustomization.yaml"):
        listed = set(yaml.safe_load(path.read_text())["resources"])
        beside = {other.name for other in path.parent.glob("*.yaml")} - {path.name}
        assert {name for name in listed if not name.startswith("..")} == beside
        for name in listed - beside:
            assert (path.parent / name / "kustomization.yaml").exists()


Rule = Callable[[Object], Iterator[str]]
OVERLAYS = {"overlays/single-user": "pipeline-runner", "overlays/profile": "default-editor", "kueue": ""}
CALLS_THE_API = {"trainwright-janitor"}
"""Accounts whose own pods need a token; a step's token is asked for by Kubeflow Pipelines."""


def workload(where: str, body: Object, spec: Object, ends: Object) -> Object:
    """What the rules look at: a pod, and what ends whatever makes it."""
    return {"where": where, "kind": body["kind"], "pod": spec, "ends": ends}


def janitor_rules(overlay: str) -> Object:
    (body,) = (body for body in resolved(DEPLOY / overlay) if body["kind"] == "CronJob")
    job = body["spec"]["jobTemplate"]["spec"]
    return workload(overlay, body, job["template"]["spec"], {**body["spec"], **job})


def training(kind: str) -> Iterator[Object]:
    """The pods of a job as its operator makes them: a TrainJob's are the runtime's, patched by the job."""
    job = asked(placement=JobPlacement(service_account="trainwright-job"))
    body = manifests.make_manifest(job, kind)
    if kind == "pytorchjob":
        for replica in body["spec"]["pytorchReplicaSpecs"].values():
            ends = {**body["spec"]["runPolicy"], "restarts": replica["restartPolicy"]}
            yield workload(kind, body, replica["template"]["spec"], ends)
        return
    (runtime,) = yaml.safe_load_all((DEPLOY / "trainer" / "runtime.yaml").read_text())
    made = runtime["spec"]["template"]["spec"]
    (patch,) = body["spec"]["runtimePatches"]
    spec = merged(
        made["replicatedJobs"][0]["template"]["spec"]["template"]["spec"],
        patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"][
            "spec"
        ],
    )
    (container,) = spec["containers"]
    trainer = body["spec"]["trainer"]
    container |= {"image": trainer["image"], "resources": trainer["resourcesPerNode"]}
    ends = body["spec"] | {"backoffLimit": made["failurePolicy"]["maxRestarts"]}
    yield workload(kind, body, spec, ends | {"restarts": spec["restartPolicy"]})


def merged(below: Object, above: Object) -> Object:
    """Merge a pod with a patch of it; the one container with the one that is patched."""
    found = below | above
    (container,), (changes,) = below["containers"], above["containers"]
    assert container["name"] == changes["name"]
    return found | {"containers": [container | changes]}


def everything() -> list[Object]:
    jobs = [found for kind in ("pytorchjob", "trainjob") for found in training(kind)]
    return [janitor_rules("overlays/single-user"), janitor_rules("overlays/profile"), *jobs]


def restricted(found: Object) -> Iterator[str]:
    """Not root, no rights, nothing writable: the profile "restricted" of Kubernetes, and more."""
    security = found["pod"].get("securityContext", {})
    if security.get("runAsNonRoot") is not True:
        yield "may be root"
    if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "no seccomp profile"
    for container in found["pod"]["containers"]:
        wanted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
        wanted |= {"capabilities": {"drop": ["ALL"]}}
        if container.get("securityContext") != wanted:
            yield f"{container['name']}: {container.get('securityContext')}"


def bounded(found: Object) -> Iterator[str]:
    """Requests and limits, for cores and memory."""
    for container in found["pod"]["containers"]:
        resources = container.get("resources", {})
        for part in ("requests", "limits"):
            given = resources.get(part, {})
            if not all(is_quantity(given.get(kind, "")) for kind in ("cpu", "memory")):
                yield f"{container['name']}: {part} {given}"


def identified(found: Object) -> Iterator[str]:
    """An account of its own, never the namespace's default."""
    if found["pod"].get("serviceAccountName", "default") == "default":
        yield "no service account"


def tokenless(found: Object) -> Iterator[str]:
    """A token of the API is mounted where somebody calls it, and said not to be everywhere else."""
    wanted = found["pod"].get("serviceAccountName") in CALLS_THE_API
    if found["pod"].get("automountServiceAccountToken") is not wanted:
        yield f"automountServiceAccountToken {found['pod'].get('automountServiceAccountToken')}"


def ending(found: Object) -> Iterator[str]:
    """A deadline, and no tries but those of who decides on them: the next round, or the launcher."""
    ends = found["ends"]
    if not 0 < ends.get("activeDeadlineSeconds", 0) <= 8 * 24 * 3600:
        yield f"a deadline of {ends.get('activeDeadlineSeconds')} s"
    tries = ends.get("backoffLimit", 0 if found["kind"] == "PyTorchJob" else None)  # its own policy decides
    if tries != 0 or found["pod"].get("restartPolicy", ends.get("restarts")) != "Never":
        yield f"{tries} tries behind the back of who decides on them"
    if found["kind"] == "CronJob" and ends.get("concurrencyPolicy") != "Forbid":
        yield "two at a time"


def pinned(found: Object) -> Iterator[str]:
    """An image by its digest, from a registry that is named_rules."""
    for container in found["pod"]["containers"]:
        if not re.fullmatch(r"[\w.-]+(:\d+)?/.+@sha256:[0-9a-f]{64}", container["image"]):
            yield container["image"]


RULES: tuple[Rule, ...] = (restricted, bounded, identified, tokenless, ending, pinned)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("found", everything(), ids=lambda found: f"{found['kind']} {found['where']}")
def test_a_pod_on_the_cluster_keeps_the_rule(rule: Rule, found: Object) -> None:
    assert list(rule(found)) == []


def container(found: Object) -> Object:
    first: Object = found["pod"]["containers"][0]
    return first


BREAKS: list[tuple[Rule, Callable[[Object], object]]] = [
    (restricted, lambda found: found["pod"]["securityContext"].pop("runAsNonRoot")),
    (restricted, lambda found: found["pod"]["securityContext"].update(seccompProfile={"type": "Unconfined"})),
    (restricted, lambda found: container(found)["securityContext"].update(privileged=True)),
    (restricted, lambda found: container(found)["securityContext"].pop("readOnlyRootFilesystem")),
    (bounded, lambda found: container(found)["resources"].pop("limits")),
    (bounded, lambda found: container(found)["resources"].pop("requests")),
    (bounded, lambda found: container(found)["resources"]["limits"].pop("memory")),
    (bounded, lambda found: container(found)["resources"]["requests"].update(cpu="much")),
    (identified, lambda found: found["pod"].pop("serviceAccountName")),
    (tokenless, lambda found: found["pod"].pop("automountServiceAccountToken")),
    (tokenless, lambda found: found["pod"].update(serviceAccountName="trainwright-job")),
    (ending, lambda found: found["ends"].pop("activeDeadlineSeconds")),
    (ending, lambda found: found["ends"].update(backoffLimit=6)),
    (ending, lambda found: found["pod"].update(restartPolicy="OnFailure")),
    (ending, lambda found: found["ends"].update(concurrencyPolicy="Allow")),
    (pinned, lambda found: container(found).update(image="registry.example/trainwright/launcher:0.1.0")),
    (pinned, lambda found: container(found).update(image="trainwright/launcher")),
]


@pytest.mark.parametrize("number", range(len(BREAKS)), ids=lambda number: BREAKS[number][0].__name__)
def test_the_rule_refuses_what_breaks_it(number: int) -> None:
    rule, break_it = BREAKS[number]
    found = copy.deepcopy(janitor_rules("overlays/profile"))
    break_it(found)
    assert list(rule(found))


@pytest.mark.parametrize(("overlay", "account"), [pair for pair in OVERLAYS.items() if pair[1]])
def test_an_overlay_binds_whom_steps_run_as_and_stays_in_its_namespace(overlay: str, account: str) -> None:
    made = resolved(DEPLOY / overlay)
    (namespace,) = {body["metadata"]["namespace"] for body in made}
    bindings = {body["metadata"]["name"]: body for body in made if body["kind"] == "RoleBinding"}
    roles = {body["metadata"]["name"] for body in made if body["kind"] == "Role"}
    accounts = {body["metadata"]["name"] for body in made if body["kind"] == "ServiceAccount"}
    assert {body["roleRef"]["name"] for body in bindings.values()} == roles
    for binding in bindings.values():
        assert all(subject["namespace"] == namespace for subject in binding["subjects"])
        names = {subject["name"] for subject in binding["subjects"]}
        assert names - accounts <= {account}
        assert (account in names) == (binding["metadata"]["name"] == "trainwright-train")
    assert all(
        body["automountServiceAccountToken"] is False for body in made if "automount" in str(body.keys())
    )


def test_only_profiles_have_the_account_of_ci() -> None:
    """A single-user API asks nobody who calls, so rights there would only look like a lock."""
    having = [
        overlay
        for overlay in OVERLAYS
        if "trainwright-ci" in [body["metadata"]["name"] for body in resolved(DEPLOY / overlay)]
    ]
    assert having == ["overlays/profile"]


def test_what_is_not_understood_is_no_overlay(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: []\nsecretGenerator: []\n")
    with pytest.raises(AssertionError, match="secretGenerator"):
        resolved(tmp_path)


def named_rules(made: list[Object]) -> dict[tuple[str, str, str], Object]:
    return {
        (body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]): body for body in made
    }


@pytest.mark.skipif(not shutil.which("kubectl"), reason="there is no kubectl to compare with")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubectl_makes_the_same(overlay: str) -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", DEPLOY / overlay], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert named_rules(list(yaml.safe_load_all(done.stdout))) == named_rules(resolved(DEPLOY / overlay))

"""What ``deploy/`` holds is what a cluster takes, and as restricted as it can be."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.launch.standin import schema
from trainwright.experiment.resources import Resources
from trainwright.launch import kubernetes_names
from trainwright.launch.manifests import annotations as names
from trainwright.launch.manifests.trainjob import CONTAINER, REPLICATED
from trainwright.launch.placement import Placement

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
    "LocalQueue": {"clusterQueue", "stopPolicy", "fairSharing"},
    "WorkloadPriorityClass": {"apiVersion", "kind", "metadata", "value", "description"},
    "ClusterTrainingRuntime": {"mlPolicy", "podGroupPolicy", "template"},
}
"""Fields of kinds that no client knows: of the specification, or of the whole where there is none."""


def bodies() -> Iterator[tuple[str, Object]]:
    for path in FILES:
        for body in yaml.safe_load_all(path.read_text()):
            yield str(path.relative_to(DEPLOY)), body


ALL = list(bodies())
POLICIES = [body for _, body in ALL if body["kind"] == "NetworkPolicy"]


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
            kubernetes_names.is_key(key) and kubernetes_names.is_label(value) for key, value in labels.items()
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


def test_every_image_is_taken_by_digest() -> None:
    overlays = {where: body for where, body in ALL if where.startswith("overlays/")}
    assert len(overlays) == 2
    made = {container["image"] for where, spec in pods() for container in spec["containers"]}
    assert not [image for image in made if ":" in image], "a tag can come to mean another image"
    for where, body in overlays.items():
        (image,) = body["images"]
        assert (image["name"], "newTag" in image) == ("trainwright/launcher", False), where
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", image["digest"]), where


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
            assert all(
                kubernetes_names.is_quantity(amount) for amount in container["resources"][part].values()
            )
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
    }
    assert all(body["automountServiceAccountToken"] is False for body in accounts)


def test_no_role_takes_everything_or_reads_secrets() -> None:
    assert not named("ClusterRole")
    for role in named("Role"):
        for rule in role["rules"]:
            said = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not said & {"*", "secrets", "pods/exec", "escalate", "bind", "impersonate"}


def selected(policy: Object) -> str:
    (pair,) = policy["spec"]["podSelector"]["matchLabels"].items()
    return "=".join(pair)


def test_whatever_may_talk_is_denied_everything_else() -> None:
    denied = {
        selected(body)
        for body in POLICIES
        if not body["spec"].keys() & {"ingress", "egress"}
        and body["spec"]["policyTypes"] == ["Ingress", "Egress"]
    }
    assert denied == {selected(body) for body in POLICIES}
    assert f"{names.MANAGED_BY}={names.OURS}" in denied
    (janitor,) = named("CronJob")
    labels = janitor["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    assert {f"{key}={value}" for key, value in labels.items()} <= denied


def blocks(policy: Object) -> Iterator[Object]:
    for rule in policy["spec"].get("egress", []):
        for peer in rule["to"]:
            if "ipBlock" in peer:
                yield peer["ipBlock"]


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
    mine = {"podSelector": {"matchLabels": {names.MANAGED_BY: names.OURS}}}
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


def test_a_queue_leads_to_a_pool_that_lets_its_namespace_in() -> None:
    (pool,) = named("ClusterQueue")
    (teams,) = pool["spec"]["namespaceSelector"]["matchExpressions"]
    queues = named("LocalQueue")
    assert [queue["metadata"]["namespace"] for queue in queues] == teams["values"]
    assert {queue["spec"]["clusterQueue"] for queue in queues} == {pool["metadata"]["name"]}
    flavors = {body["metadata"]["name"] for body in named("ResourceFlavor")}
    for group in pool["spec"]["resourceGroups"]:
        assert {flavor["name"] for flavor in group["flavors"]} == flavors
        for flavor in group["flavors"]:
            assert [entry["name"] for entry in flavor["resources"]] == group["coveredResources"]


def test_the_runtime_has_what_a_trainjob_patches() -> None:
    (runtime,) = named("ClusterTrainingRuntime")
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert job["name"] == REPLICATED
    assert runtime["metadata"]["name"] == Placement().runtime
    assert job["template"]["spec"]["backoffLimit"] == 0
    grace_s = job["template"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > Resources().grace_s + 5
    assert [entry["name"] for entry in job["template"]["spec"]["template"]["spec"]["containers"]] == [
        CONTAINER
    ]


def test_every_file_beside_a_kustomization_is_part_of_it() -> None:
    for path in DEPLOY.rglob("kustomization.yaml"):
        listed = set(yaml.safe_load(path.read_text())["resources"])
        beside = {other.name for other in path.parent.glob("*.yaml")} - {path.name}
        assert {name for name in listed if not name.startswith("..")} == beside
        for name in listed - beside:
            assert (path.parent / name / "kustomization.yaml").exists()

"""``trainwright doctor --host`` says what an installation lacks, what that costs and what to apply."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.authoring.api.client import QUICK, command
from tests.authoring.api.server import Api, serving
from tests.launch.standin import Cluster, cluster
from trainwright.authoring.installation import cluster_reader, inspection
from trainwright.authoring.submission import connection
from trainwright.authoring.submission.connection import Endpoint
from trainwright.authoring.terminal import Diagnostic
from trainwright.errors import DependencyError, InputError, PermissionRefused

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
RUNNER = "system:serviceaccount:kubeflow:pipeline-runner"
CONTROLLER = "workflow-controller-configmap"
MANIFESTS = {
    "artifactRepository": "archiveLogs: true\ns3: {bucket: mlpipeline}\n",
    "workflowDefaults": "spec: {templateDefaults: {retryStrategy: {limit: '2', retryPolicy: OnError}}}",
}
"""What KFP 2.17's manifests put into Argo's ConfigMap."""


def deployment(name: str, image: str) -> dict[str, Any]:
    spec = {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}
    return {"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": name}, "spec": spec}


def config_map(name: str, data: dict[str, str]) -> dict[str, Any]:
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": data}


def secret(name: str, *keys: str) -> dict[str, Any]:
    data = dict.fromkeys(keys, "UExBTlRFRA==")
    return {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": name}, "data": data}


def claim(modes: tuple[str, ...] = ("ReadWriteMany",), phase: str = "Bound") -> dict[str, Any]:
    return {
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "metadata": {"name": "trainwright-shared"},
        "spec": {"accessModes": list(modes)},
        "status": {"phase": phase},
    }


def furnish(running: Cluster) -> None:
    """Install Kubeflow Pipelines as its manifests do, and this library's deploy/ folder."""
    service = {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "mlflow"}}
    account = {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "pipeline-runner"}}
    runtime = yaml.safe_load((DEPLOY / "trainer" / "runtime.yaml").read_text())
    for body in (
        deployment("ml-pipeline", "ghcr.io/kubeflow/kfp-api-server:2.17.0"),
        deployment("workflow-controller", "quay.io/argoproj/workflow-controller:v4.0.8"),
        deployment("training-operator", "docker.io/kubeflow/training-operator:v1-9@sha256:00"),
        config_map(CONTROLLER, MANIFESTS),
        config_map("kfp-launcher", {"defaultPipelineRoot": "minio://mlpipeline/v2/artifacts"}),
        secret("mlpipeline-minio-artifact", "accesskey", "secretkey"),
        yaml.safe_load((DEPLOY / "trust.yaml").read_text()),
        service | {"spec": {"ports": [{"port": 5000}]}},
        account,
        claim(),
        runtime,
    ):
        running.put(body, "kubeflow")
    running.account(RUNNER, rules("trainwright-train"), "kubeflow")
    resize(running, {"cpu": "8", "memory": "32Gi"})


def resize(running: Cluster, allocatable: dict[str, str]) -> None:
    for node in running.objects("Node"):
        name = node["metadata"]["name"]
        running.edit("Node", name, lambda body: body.setdefault("status", {}).update(allocatable=allocatable))


def rules(role: str) -> list[dict[str, Any]]:
    bodies = yaml.safe_load_all((DEPLOY / "base" / "train.yaml").read_text())
    (found,) = (body for body in bodies if (body["kind"], body["metadata"]["name"]) == ("Role", role))
    return list(found["rules"])


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    spaces = ("kubeflow", "team-a", "kubeflow-system")
    with cluster(tmp_path / "claims", processes=False, kueue=True, namespaces=spaces) as found:
        furnish(found)
        yield found


@pytest.fixture
def server() -> Iterator[Api]:
    with serving() as api:
        yield api


def inspect(server: Api, running: Cluster | None, token: str = "", space: str = "") -> dict[str, Diagnostic]:
    api = connection.connect(Endpoint(host=server.url, namespace=space), QUICK)
    below = cluster_reader.ClusterReader(running.api_client(*[token] * bool(token))) if running else None
    return {finding.name: finding for finding in inspection.inspect(api, server.store.multi_user, below)}


def states(found: dict[str, Diagnostic], state: str) -> set[str]:
    return {name for name, finding in found.items() if finding.state == state}


def test_an_installation_with_everything_is_ready(server: Api, running: Cluster) -> None:
    found = inspect(server, running)
    assert states(found, "miss") == states(found, "?") == set()
    assert states(found, "note") == {"queues"}, "there is no LocalQueue, which only placement.queue needs"
    assert found["argo"].text == "workflow-controller:v4.0.8"
    assert found["server"].text == "kfp-api-server:2.17.0"
    assert "training-operator:v1-9" in found["pytorchjob"].text
    assert found["mlflow"].text.startswith("http://mlflow.kubeflow.svc:5000")
    assert "one attempt" in found["retries"].text
    inspection.require(list(found.values()))
    assert {call.verb for call in running.calls} <= {"get", "list", "create"}
    assert {call.group for call in running.calls if call.verb == "create"} == {"authorization.k8s.io"}


def test_no_secret_value_is_shown(server: Api, running: Cluster) -> None:
    shown = "".join(f"{finding}{finding.fields()}" for finding in inspect(server, running).values())
    assert "UExBTlRFRA" not in shown
    assert "PLANTED" not in shown


@pytest.mark.parametrize(
    ("tag", "state", "text"),
    [
        ("2.17.0", "ok", "version 2.17.0, without profiles"),
        ("2.16.1", "note", "version 2.16.1, without profiles"),
        ("unknown", "ok", "answers, without profiles; it does not say its version (2.17 or later is needed)"),
    ],
)
def test_the_version_of_kfp_is_said(server: Api, tag: str, state: str, text: str) -> None:
    server.store.tag = tag
    found = inspect(server, None)
    assert (found["kfp"].state, found["kfp"].text) == (state, text)


@pytest.mark.parametrize(
    ("defaults", "state", "words"),
    [
        (
            "",
            "note",
            "OnFailure, Argo's own default, since the installation names none: a step that fails runs",
        ),
        ("spec: {templateDefaults: {retryStrategy: {retryPolicy: Always}}}", "note", "Always: a step that"),
        ("spec: {templateDefaults: {retryStrategy: {retryPolicy: OnError}}}", "ok", "has one attempt"),
        ("spec: [", "note", "Argo's own default"),
    ],
)
def test_the_retry_policy_is_said_with_what_it_costs(
    server: Api, running: Cluster, defaults: str, state: str, words: str
) -> None:
    running.put(config_map(CONTROLLER, {"workflowDefaults": defaults}), "kubeflow")
    found = inspect(server, running)
    assert (found["retries"].state, words in found["retries"].text) == (state, True), found["retries"]
    assert ("docs/exit-codes.md" in found["retries"].advice) == (state == "note")
    assert found["logs"].state == "note"
    assert "archiveLogs: true" in found["logs"].advice


def gone(running: Cluster, kind: str, name: str, space: str = "kubeflow") -> None:
    from kubernetes import client as k8s

    paths = {
        "Secret": f"/api/v1/namespaces/{space}/secrets/{name}",
        "PersistentVolumeClaim": f"/api/v1/namespaces/{space}/persistentvolumeclaims/{name}",
        "ServiceAccount": f"/api/v1/namespaces/{space}/serviceaccounts/{name}",
        "ConfigMap": f"/api/v1/namespaces/{space}/configmaps/{name}",
        "ClusterTrainingRuntime": f"/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes/{name}",
    }
    client: k8s.ApiClient = running.api_client()
    client.call_api(paths[kind], "DELETE", auth_settings=["BearerToken"], response_type="object")
    running.wait(lambda: running.find(kind, name, space) is None)


@pytest.mark.parametrize(
    ("kind", "name", "finding", "state", "advice"),
    [
        ("Secret", "mlpipeline-minio-artifact", "keys", "miss", "KFP's manifests"),
        ("PersistentVolumeClaim", "trainwright-shared", "claim", "miss", "deploy/overlays/single-user"),
        ("ServiceAccount", "pipeline-runner", "account", "miss", "--service-account"),
        ("ClusterTrainingRuntime", "trainwright-torch", "runtime", "note", "deploy/trainer/runtime.yaml"),
        ("ConfigMap", "trainwright-trust", "trust", "note", "deploy/trust.yaml"),
    ],
)
def test_what_is_missing_is_said_with_what_to_apply(
    server: Api, running: Cluster, kind: str, name: str, finding: str, state: str, advice: str
) -> None:
    gone(running, kind, name)
    found = inspect(server, running)
    assert (found[finding].state, advice in found[finding].advice) == (state, True), found[finding]
    if state == "miss":
        with pytest.raises(DependencyError, match=f"not ready: {finding}"):
            inspection.require(list(found.values()))


def test_rights_that_the_steps_lack_end_with_50(server: Api, tmp_path: Path) -> None:
    with cluster(tmp_path, processes=False, namespaces=("kubeflow",)) as running:
        furnish(running)
        for account in running._service.accounts.by_token.values():
            if account.user == RUNNER:
                account.rules.pop(0)  # type: ignore[union-attr, attr-defined] - a list
        found = inspect(server, running)
        assert "lacks create pytorchjobs" in found["rights"].text
        assert found["rights"].advice == "kubectl apply -k deploy/overlays/single-user"
        with pytest.raises(PermissionRefused, match="not ready: rights"):
            inspection.require(list(found.values()))


def test_the_rights_that_are_asked_for_are_those_that_deploy_grants() -> None:
    granted = {
        (group, resource, verb)
        for rule in rules("trainwright-train")
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert set(inspection.TRAIN_RIGHTS) == granted
    bodies = yaml.safe_load_all((DEPLOY / "ci" / "submit.yaml").read_text())
    (role,) = (body for body in bodies if body["kind"] == "Role")
    (verbs,) = (rule["verbs"] for rule in role["rules"] if rule["resources"] == ["runs"])
    assert set(inspection.SUBMIT_RIGHTS) == set(verbs)


def test_a_caller_without_rights_is_told_what_is_not_known_and_nothing_false(
    server: Api, running: Cluster
) -> None:
    found = inspect(server, running, token=running.account("nobody", []))
    assert states(found, "miss") == set()
    assert states(found, "?") >= {
        "retries",
        "store",
        "account",
        "rights",
        "claim",
        "mlflow",
        "nodes",
        "queues",
    }
    inspection.require(list(found.values()))


def test_a_caller_who_may_not_ask_about_others_learns_the_rights_from_the_binding(
    server: Api, running: Cluster
) -> None:
    may_read = [{"apiGroups": ["*"], "resources": ["rolebindings"], "verbs": ["get"]}]
    token = running.account("reader", may_read)
    assert inspect(server, running, token)["rights"].state == "miss"
    subjects = [{"kind": "ServiceAccount", "name": "pipeline-runner"}]
    binding = {"kind": "RoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1", "subjects": subjects}
    running.put(binding | {"metadata": {"name": "trainwright-train"}}, "kubeflow")
    assert inspect(server, running, token)["rights"].state == "ok"


def test_a_cluster_without_any_operator_cannot_train(server: Api, tmp_path: Path) -> None:
    without, spaces = ("pytorchjobs", "trainjobs"), ("kubeflow",)
    with cluster(tmp_path, processes=False, operator=False, namespaces=spaces, without=without) as running:
        found = inspect(server, running)
    assert found["queues"].text.startswith("no Kueue")
    assert found["training"].state == "miss"
    assert "neither PyTorchJobs nor TrainJobs: every train step ends with 21" in found["training"].text


def test_a_cluster_with_trainer_alone_needs_its_runtime_and_its_kind_of_job(
    server: Api, tmp_path: Path
) -> None:
    with cluster(tmp_path, processes=False, namespaces=("kubeflow",), without=("pytorchjobs",)) as running:
        found = inspect(server, running)
    apply = "kubectl apply -f deploy/trainer/runtime.yaml"
    assert (found["runtime"].state, found["runtime"].advice) == ("miss", apply)
    assert found["pytorchjob"].advice == "Set resources.launcher: trainjob in the experiment file."


def test_a_queue_is_shown_with_its_room(server: Api, running: Cluster) -> None:
    resources = [{"name": "cpu", "nominalQuota": "128"}, {"name": "memory", "nominalQuota": "13Gi"}]
    flavors = [{"name": "on-demand", "resources": resources}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": flavors}
    reserved = [{"name": "on-demand", "resources": [{"name": "cpu", "total": "500m"}]}]
    api = "kueue.x-k8s.io/v1beta2"
    pool = {"kind": "ClusterQueue", "apiVersion": api, "metadata": {"name": "pool"}}
    running.put(pool | {"spec": {"resourceGroups": [group]}, "status": {"flavorsReservation": reserved}})
    queue = {"kind": "LocalQueue", "apiVersion": api, "metadata": {"name": "training"}}
    running.put(queue | {"spec": {"clusterQueue": "pool"}, "status": {"pendingWorkloads": 3}}, "kubeflow")
    found = inspect(server, running)["queue"]
    assert (found.state, found.text) == (
        "ok",
        "training (ClusterQueue pool): 3 waiting; used: cpu 0.5 of 128, memory 0 of 13Gi",
    )
    running.put(queue | {"spec": {"clusterQueue": "nope"}}, "kubeflow")
    assert inspect(server, running)["queue"].state == "miss"


def test_nodes_that_hold_no_step_are_found_and_named(server: Api, running: Cluster) -> None:
    resize(running, {"cpu": "300m", "memory": "32Gi"})
    found = inspect(server, running)["nodes"]
    assert found.state == "miss"
    assert "none holds" in found.text
    assert "validate (" in found.text
    assert inspection.largest_steps()["validate"] == (1.0, 4e9), "the defaults of the parameters of sizes"


@pytest.mark.parametrize(
    ("body", "state", "words"),
    [
        (claim(("ReadWriteOnce",)), "note", "several nodes cannot mount it"),
        (claim(phase="Pending"), "note", "is Pending"),
        (claim(phase="Lost"), "miss", "is Lost"),
    ],
)
def test_a_claim_that_will_not_do_is_found(
    server: Api, running: Cluster, body: dict[str, Any], state: str, words: str
) -> None:
    running.put(body, "kubeflow")
    found = inspect(server, running)["claim"]
    assert (found.state, words in found.text) == (state, True)


@pytest.mark.parametrize(
    ("root", "keys", "finding", "state"),
    [
        ("azblob://a/b", (), "store", "miss"),
        ("s3://team/root", (), "s3", "note"),
        ("s3://team/root", ("AWS_ACCESS_KEY_ID",), "s3", "miss"),
        ("s3://team/root", ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "s3", "ok"),
        ("", (), "store", "ok"),
    ],
)
def test_a_store_is_judged_with_its_keys(
    server: Api, running: Cluster, root: str, keys: tuple[str, ...], finding: str, state: str
) -> None:
    running.put(config_map("kfp-launcher", {"defaultPipelineRoot": root}), "kubeflow")
    if keys:
        running.put(secret("trainwright-store", *keys), "kubeflow")
    found = inspect(server, running)[finding]
    assert found.state == state, found
    if finding == "s3" and state != "ok":
        assert "ut the keys into Secret trainwright-store: see deploy/store.yaml" in found.advice
        assert ("workload identity" in found.advice) == (not keys), "an identity needs no keys"


def test_a_namespace_that_is_none_ends_with_10_and_profiles_are_asked_in_their_own(
    server: Api, running: Cluster
) -> None:
    found = inspect(server, running, space="nope")
    with pytest.raises(InputError, match="not ready: namespace"):
        inspection.require(list(found.values()))
    server.store.multi_user = True
    found = inspect(server, running, space="team-a")
    assert "no ServiceAccount default-editor in team-a" in found["account"].text
    assert found["claim"].advice.startswith("kubectl apply -k deploy/overlays/profile")
    assert found["submit"].state == "ok"
    assert inspect(server, running, running.account("ci", []), "team-a")["submit"].state == "note"


def test_a_kubernetes_api_that_is_away_or_does_not_know_the_caller_ends_with_its_code(
    server: Api, running: Cluster
) -> None:
    with pytest.raises(PermissionRefused, match="does not take the kubeconfig's credentials"):
        inspect(server, running, token="nobody's")  # noqa: S106 - none
    with running.faults.outage(), pytest.raises(DependencyError, match="the Kubernetes API does not answer"):
        inspect(server, running)


def test_the_command_writes_lines_and_ends_with_the_code(
    server: Api, running: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(running.kubeconfig(tmp_path / "kubeconfig")))
    asked = command(tmp_path, "doctor", "--host", server.url, "--json")
    out, err = asked.communicate()
    assert asked.returncode == 0, err
    assert {"name", "state", "text", "advice"} <= set(json.loads(out.splitlines()[0]))
    gone(running, "PersistentVolumeClaim", "trainwright-shared")
    asked = command(tmp_path, "doctor", "--host", server.url)
    out, err = asked.communicate()
    assert asked.returncode == 21
    assert "  miss  claim      no PersistentVolumeClaim trainwright-shared in kubeflow" in out
    assert "this installation is not ready: claim" in err


def test_without_a_kubeconfig_only_what_kfp_tells_is_said(
    server: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    asked = command(tmp_path, "doctor", "--host", server.url)
    out, err = asked.communicate()
    assert asked.returncode == 0, err
    assert "no kubeconfig: only what the API of Kubeflow Pipelines tells is known" in out
    asked = command(tmp_path, "doctor", "--namespace", "team-a")
    assert "Add --host" in asked.communicate()[1]
    assert asked.returncode == 10
    server.forbidden = True
    asked = command(tmp_path, "doctor", "--host", server.url)
    asked.communicate()
    assert asked.returncode == 50

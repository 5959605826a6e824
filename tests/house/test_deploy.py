"""What ``deploy/`` grants is what the code calls: no call is refused, and no right is left over."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines import promote_model, train_and_register
from pipelines.train_and_register import DATABASE, SECRETS
from tests.launch.kustomized import resolved
from trainwright.authoring import arguments
from trainwright.authoring.tasks import (
    KFP_STORE,
    KFP_STORE_KEYS,
    STORE,
    STORE_SETTINGS,
    SUMMARIZE,
    SUMMARIZE_FOLDER,
)
from trainwright.experiment.experiment import OWNER_LABELS
from trainwright.launch.manifests import QUEUE
from trainwright.registry.policy import PolicyFile
from trainwright.service.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
STORAGE = ROOT / "trainwright" / "storage"

READS = {"head", "page", "pull", "protection"}
"""Methods of a bucket that a source needs; a store needs all."""

GOOGLE = {
    "head": {"storage.objects.get"},
    "page": {"storage.objects.list"},
    "pull": {"storage.objects.get"},
    "protection": {"storage.buckets.get"},
    "push": {"storage.objects.create"},
    "delete": {"storage.objects.delete"},
}
"""What each call of ``storage/gs.py`` asks for; Google's reference of IAM permissions for JSON methods."""

AMAZON = {
    "head_object": {"s3:GetObject", "s3:GetObjectVersion"},
    "get_object": {"s3:GetObject", "s3:GetObjectVersion"},
    "list_objects_v2": {"s3:ListBucket"},
    "list_object_versions": {"s3:ListBucketVersions"},
    "get_bucket_versioning": {"s3:GetBucketVersioning"},
    "put_object": {"s3:PutObject"},
    "create_multipart_upload": {"s3:PutObject"},
    "upload_part": {"s3:PutObject"},
    "complete_multipart_upload": {"s3:PutObject"},
    "abort_multipart_upload": {"s3:AbortMultipartUpload"},
    "delete_object": {"s3:DeleteObject"},
}
"""What each call of boto3 asks for; Amazon's reference of actions for S3."""

WRITES = {name for name in AMAZON if re.match("put|create|upload|complete|abort|delete", name)}


def methods(module: str) -> set[str]:
    """The public methods of a store's bucket class."""
    tree = ast.parse((STORAGE / f"{module}.py").read_text())
    (bucket,) = (
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.endswith("Bucket")
    )
    names = {node.name for node in bucket.body if isinstance(node, ast.FunctionDef)}
    return {name for name in names if not name.startswith("_")}


def calls_of_boto() -> set[str]:
    """Every call of the S3 client in the file that makes them."""
    trees = [ast.parse((STORAGE / f"{name}.py").read_text()) for name in ("s3",)]
    return {
        node.func.attr
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value).endswith("client")
    }


@pytest.mark.parametrize(("name", "wanted"), [("gs-source", READS), ("gs-store", set(GOOGLE))])
def test_a_role_of_google_grants_exactly_what_is_called(name: str, wanted: set[str]) -> None:
    assert methods("gs") == GOOGLE.keys(), "a new call needs its permissions above, too"
    granted = yaml.safe_load((DEPLOY / f"{name}.yaml").read_text())["includedPermissions"]
    assert granted == sorted(set().union(*(GOOGLE[method] for method in wanted)))


@pytest.mark.parametrize(("name", "writes"), [("s3-source", False), ("s3-store", True)])
def test_a_policy_of_amazon_grants_exactly_what_is_called(name: str, writes: bool) -> None:
    assert calls_of_boto() == AMAZON.keys(), "a new call needs its actions above, too"
    asked = set().union(*(AMAZON[call] for call in AMAZON if writes or call not in WRITES))
    statements = json.loads((DEPLOY / f"{name}.json").read_text())["Statement"]
    assert {action for statement in statements for action in statement["Action"]} == asked
    for statement in statements:
        of_the_bucket = all("Bucket" in action for action in statement["Action"])
        assert statement["Resource"].endswith("BUCKET") == of_the_bucket, statement["Sid"]
        assert statement["Effect"] == "Allow"


def test_the_database_password_is_a_file_of_the_two_steps_that_read_the_source() -> None:
    (secret,) = yaml.safe_load_all((DEPLOY / "database.yaml").read_text())
    assert (secret["kind"], secret["metadata"]["name"]) == ("Secret", DATABASE)
    assert not {"data", "stringData"} & secret.keys(), "a secret does not belong into git"
    assert f"password_file: {SECRETS}/password" in (DEPLOY / "database.yaml").read_text()
    compiled = ROOT / "compiled" / "pipelines" / "train_and_register.yaml"
    _, platform = yaml.safe_load_all(compiled.read_text())
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    mounted = {name: body["secretAsVolume"] for name, body in executors.items() if "secretAsVolume" in body}
    assert mounted.keys() == {"exec-ingest", "exec-resolve", "exec-register", "exec-summarize"}
    [own] = mounted["exec-summarize"]
    assert (own["secretName"], own["mountPath"], own["optional"]) == (SUMMARIZE, SUMMARIZE_FOLDER, True)
    for [volume] in (mounted["exec-ingest"], mounted["exec-resolve"]):
        assert (volume["secretName"], volume["mountPath"], volume["optional"]) == (DATABASE, SECRETS, True)


def test_keys_and_policy_of_promotions_are_files_of_the_steps_that_sign() -> None:
    text = (DEPLOY / "trust.yaml").read_text()
    (mounted,) = yaml.safe_load_all(text)
    policy = PolicyFile.parse(mounted["data"]["policy.json"], "deploy/trust.yaml")
    assert policy.approval is not None
    assert mounted["metadata"]["name"] == promote_model.TRUST
    assert f"signing_key: {promote_model.KEY_FOLDER}/key" in text
    assert promote_model.KEY_FOLDER == train_and_register.KEY_FOLDER
    for name, step, secret in (
        ("promote_model", "promote", promote_model.KEY),
        ("train_and_register", "register", train_and_register.KEY),
    ):
        _, platform = yaml.safe_load_all((ROOT / "compiled" / "pipelines" / f"{name}.yaml").read_text())
        executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
        [volume] = executors[f"exec-{step}"]["secretAsVolume"]
        assert (volume["secretName"], volume["mountPath"]) == (secret, promote_model.KEY_FOLDER)
    pipeline, platform = yaml.safe_load_all(
        (ROOT / "compiled" / "pipelines" / "promote_model.yaml").read_text()
    )
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    [folder] = executors["exec-promote"]["configMapAsVolume"]
    assert (folder["configMapName"], folder["mountPath"]) == (promote_model.TRUST, promote_model.TRUST_FOLDER)
    assert "trust" not in pipeline["root"]["inputDefinitions"]["parameters"], "the requester cannot choose it"


def test_canary_may_change_a_service_that_exists_and_nothing_else() -> None:
    role, binding = yaml.safe_load_all((DEPLOY / "serving.yaml").read_text())
    code = (ROOT / "trainwright" / "canary" / "canary.py").read_text()
    calls = [method.lower() for method in re.findall(r'exchange\("(\w+)"', code)]
    assert role["rules"] == [
        {"apiGroups": ["serving.kserve.io"], "resources": ["inferenceservices"], "verbs": calls}
    ]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


PROMOTE = {
    ("configmaps", "kfp-launcher", "get"),  # v2/config/env.go
    ("secrets", KFP_STORE, "get"),  # v2/objectstore/object_store.go
    ("pods", "", "get"),  # v2/component/launcher_v2.go
    ("workflows", "", "get"),  # v2/cmd/driver/main.go, and summarize
    ("workflowtaskresults", "", "create"),  # Argo's executor
    ("workflowtaskresults", "", "patch"),
}
"""What the pods of a run of promote_model call: backend/src of Kubeflow Pipelines 2.17.0."""


def test_promotions_have_a_namespace_and_an_account_that_reads_no_secret_but_kubeflows_own() -> None:
    made = resolved(DEPLOY / "release")
    assert {body["metadata"]["namespace"] for body in made} == {"team-a-release"}
    by_kind = {body["kind"]: body for body in made if body["metadata"]["name"] == "trainwright-promote"}
    granted = {
        (kind, name, verb)
        for rule in by_kind["Role"]["rules"]
        for kind in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }
    assert granted == PROMOTE
    [subject] = by_kind["RoleBinding"]["subjects"]
    account = by_kind["ServiceAccount"]["metadata"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    text = (DEPLOY / "release" / "promote.yaml").read_text()
    assert f"generic {promote_model.KEY} " in text
    assert not [body for body in made if body["kind"] == "Secret"], "a secret does not belong into git"


def engine_objects(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The objects of a file of deploy/engines by kind and name."""
    made = yaml.safe_load_all((DEPLOY / "engines" / f"{name}.yaml").read_text())
    return {(body["kind"], body["metadata"]["name"]): body for body in made}


def locked_version(package: str, lock: str) -> str:
    [found] = re.findall(rf"^{package}==(\S+)", (ROOT / "images" / lock).read_text(), re.MULTILINE)
    return str(found)


def test_pods_of_engines_have_no_rights_and_open_to_steps_alone() -> None:
    shared = engine_objects("network")
    assert shared["ServiceAccount", "trainwright-engine"]["automountServiceAccountToken"] is False
    steps = {"podSelector": {"matchLabels": {"pipelines.kubeflow.org/v2_component": "true"}}}
    feast = {"podSelector": {"matchLabels": {"app.kubernetes.io/component": "feast"}}}
    for policy, other in (("trainwright-engine-feast", steps), ("trainwright-steps-feast", feast)):
        spec = shared["NetworkPolicy", policy]["spec"]
        assert (spec["ingress"], spec["egress"]) == ([{"from": [other]}], [{"to": [other]}])
        assert spec["podSelector"] == ({**steps, **feast} if other is steps else steps)["podSelector"]
    spark, flink = engine_objects("spark"), engine_objects("flink")
    [ray] = engine_objects("ray").values()
    assert not [kind for kind, _ in (*spark, *flink, *shared) if kind.endswith(("Role", "RoleBinding"))]
    templates = [body["spec"]["template"] for (kind, _), body in spark.items() if kind == "Deployment"]
    groups = [ray["spec"]["headGroupSpec"], *ray["spec"]["workerGroupSpecs"]]
    templates += [group["template"] for group in groups]
    for template in templates:
        labels, pod = template["metadata"]["labels"], template["spec"]
        assert labels.items() >= feast["podSelector"]["matchLabels"].items()
        assert labels["app.kubernetes.io/name"] == "trainwright-engine" == pod["serviceAccountName"]
        assert pod["automountServiceAccountToken"] is False
        assert [one["image"].partition(":")[0] for one in pod["containers"]] == ["trainwright/feast"]


def test_spark_is_the_cluster_that_the_pages_name() -> None:
    made = engine_objects("spark")
    service = made["Service", "spark-master"]["spec"]
    assert {port["port"] for port in service["ports"]} == {7077, 6066}
    assert service["clusterIP"] == "None", "else pods get a SPARK_MASTER_PORT that Spark cannot read"
    for kind in ("master", "worker"):
        template = made["Deployment", f"spark-{kind}"]["spec"]["template"]
        assert template["spec"]["containers"][0]["command"][1].endswith(f".{kind}.{kind.title()}")
    assert template["spec"]["containers"][0]["args"] == ["spark://spark-master:7077"]
    assert "spark.master: spark://spark-master:7077\n" in (ROOT / "docs" / "features.md").read_text()


def test_ray_is_the_cluster_that_the_pages_name_and_has_probes_without_a_dashboard() -> None:
    [(key, ray)] = engine_objects("ray").items()
    assert f'ray_address: "{key[1]}-head-svc:6379"' in (ROOT / "docs" / "features.md").read_text()
    lock = "feast/requirements-engines.lock"
    assert ray["spec"]["rayVersion"] == locked_version("ray", lock)
    assert "\naiohttp==" not in (ROOT / "images" / lock).read_text(), "with a dashboard, use KubeRay's probes"
    head, [nodes] = ray["spec"]["headGroupSpec"], ray["spec"]["workerGroupSpecs"]
    ports = {"head": 6379, "node": int(nodes["rayStartParams"]["node-manager-port"])}
    for [container] in (part["template"]["spec"]["containers"] for part in (head, nodes)):
        for probe in (container["livenessProbe"], container["readinessProbe"]):
            assert probe["tcpSocket"] == {"port": ports[container["name"]]}


def test_flink_runs_the_image_of_the_step_and_takes_jobs_from_steps_alone() -> None:
    made = engine_objects("flink")
    cluster = made["FlinkDeployment", "flink-ingest"]["spec"]
    [worker] = cluster["taskManager"]["podTemplate"]["spec"]["containers"]
    assert worker["image"].startswith("trainwright/ingest:")
    assert cluster["podTemplate"]["spec"]["automountServiceAccountToken"] is False
    [jobs] = made["Deployment", "flink-ingest-jobs"]["spec"]["template"]["spec"]["containers"]
    beam = locked_version("apache-beam", "ingest/requirements.lock")
    assert jobs["image"] == f"apache/beam_{cluster['image'].replace(':', '')}_job_server:{beam}"
    # The operator makes Services flink-ingest and flink-ingest-rest, and takes over others of these names.
    ports = {port["port"] for port in made["Service", "flink-ingest-jobs"]["spec"]["ports"]}
    assert {f"--job-port={max(ports)}", f"--artifact-port={min(ports)}"} <= set(jobs["args"])
    _, submitted = made["NetworkPolicy", "trainwright-engine-flink"]["spec"]["ingress"]
    for rule in (submitted, *made["NetworkPolicy", "trainwright-steps-flink"]["spec"]["egress"]):
        assert {port["port"] for port in rule["ports"]} == ports
    text = (DEPLOY / "engines" / "flink.yaml").read_text()
    options = re.findall(r"^#\s+- (--\S+)", text, re.MULTILINE)
    assert f"--job_endpoint=flink-{{step}}-jobs:{max(ports)}" in options
    for option in options:
        assert option in (ROOT / "docs" / "engines.md").read_text() or option == "--parallelism=2"


def test_workers_of_flink_reach_stores_as_steps_do() -> None:
    cluster = engine_objects("flink")["FlinkDeployment", "flink-ingest"]["spec"]
    [worker] = cluster["taskManager"]["podTemplate"]["spec"]["containers"]
    sources = [(kind, ref["name"]) for one in worker["envFrom"] for kind, ref in one.items()]
    assert sources == [("configMapRef", STORE), ("secretRef", STORE)]
    given = {one["name"]: next(iter(one["valueFrom"].values()))["key"] for one in worker["env"]}
    renamed = {name: key for key, name in STORE_SETTINGS.items() if key != name}
    assert given == renamed | {name: key for key, name in KFP_STORE_KEYS.items()}


def test_no_role_of_ours_reads_secrets_of_the_namespace() -> None:
    for path in DEPLOY.rglob("*.yaml"):
        for body in yaml.safe_load_all(path.read_text()):
            for rule in body.get("rules", []) if body.get("kind", "").endswith("Role") else []:
                assert "*" not in [*rule["resources"], *rule["verbs"]], path
                assert "secrets" not in rule["resources"] or rule["resourceNames"] == [KFP_STORE], path


def test_an_absolute_password_file_is_passed_on_as_it_is(tmp_path: Path) -> None:
    experiment = yaml.safe_load((ROOT / "examples" / "flights" / "flights.yaml").read_text())
    experiment["data"] |= {
        "source": "postgresql://db.example:5432/flights",
        "format": "sql",
        "sql": {
            "select": "select 1",
            "tables": ["flights"],
            "user": "trainwright",
            "password_file": f"{SECRETS}/password",
        },
    }
    (tmp_path / "schema.pbtxt").write_text("")
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    given = arguments.read(tmp_path / "experiment.yaml")
    assert given["data"]["sql"]["password_file"] == f"{SECRETS}/password"
    assert given["data"]["source"] == "postgresql://db.example:5432/flights"


@pytest.mark.parametrize("name", ["steps", "jobs"])
def test_steps_and_jobs_reach_the_port_of_the_store_of_kubeflow_and_of_its_pods(name: str) -> None:
    policy = yaml.safe_load((DEPLOY / "network" / f"{name}.yaml").read_text())
    space = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kubeflow"}}}
    [rule] = [rule for rule in policy["spec"]["egress"] if space in rule["to"]]
    assert {8333, 9000} <= {entry["port"] for entry in rule["ports"]}


def test_the_store_file_declares_no_secret_and_no_endpoint() -> None:
    [settings] = yaml.safe_load_all((DEPLOY / "store.yaml").read_text())
    assert settings["kind"] == "ConfigMap", "a second apply would delete the keys of a Secret"
    assert not any(key.endswith(("_ENDPOINT", "_S3")) for key in settings["data"])


def test_every_file_is_explained() -> None:
    explained = set(re.findall(r"\]\(([^)]+)\)", (DEPLOY / "README.md").read_text()))
    files = {str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*") if path.is_file()}
    assert {name for name in explained if not name.startswith("..")} == files - {"README.md"}


def service_objects() -> dict[str, dict[str, Any]]:
    """The objects of deploy/service.yaml by kind; policies by what they do."""
    made = list(yaml.safe_load_all((DEPLOY / "service.yaml").read_text()))
    return {body.get("spec", {}).get("action", body["kind"]): body for body in made}


def test_service_trusts_a_header_that_only_the_gateway_can_send() -> None:
    made = service_objects()
    settings = Settings.parse(made["ConfigMap"]["data"]["settings.json"], "deploy/service.yaml")
    assert settings.auth == "gateway"
    assert settings.registry_of("late").audit
    selected = [made["Deployment"]["spec"]["selector"], made["NetworkPolicy"]["spec"]["podSelector"]]
    selected += [made[action]["spec"]["selector"] for action in ("DENY", "ALLOW")]
    assert selected == [{"matchLabels": {"app.kubernetes.io/name": "trainwright-service"}}] * 4
    gateway = ["cluster.local/ns/istio-system/sa/istio-ingressgateway-service-account"]
    assert made["DENY"]["spec"]["rules"] == [{"from": [{"source": {"notPrincipals": gateway}}]}]
    [allowed] = made["ALLOW"]["spec"]["rules"]
    assert allowed["from"] == [{"source": {"principals": gateway}}]
    assert [one["key"] for one in allowed["when"]] == ["request.headers[kubeflow-userid]"]
    [entry] = made["NetworkPolicy"]["spec"]["ingress"]
    assert [set(source) for source in entry["from"]] == [{"namespaceSelector", "podSelector"}], "both at once"
    assert [port["port"] for port in entry["ports"]] == [settings.port]


def test_service_runs_with_restricted_rights_and_a_token_for_pipelines_alone() -> None:
    made = service_objects()
    pod = made["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert not pod["automountServiceAccountToken"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    tokens = [
        source for volume in pod["volumes"] for source in volume.get("projected", {}).get("sources", [])
    ]
    assert [one["serviceAccountToken"]["audience"] for one in tokens] == ["pipelines.kubeflow.org"]
    roles = yaml.safe_load_all((DEPLOY / "ci" / "submit.yaml").read_text())
    [role] = [body for body in roles if body["kind"] == "Role"]
    assert made["RoleBinding"]["roleRef"]["name"] == role["metadata"]["name"]
    assert container["args"] == ["/etc/trainwright/service/settings.json"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}


def test_policy_of_the_queues_demands_the_labels_that_a_job_in_a_queue_gets() -> None:
    policy, binding = yaml.safe_load_all((DEPLOY / "kueue" / "labels.yaml").read_text())
    [missing] = policy["spec"]["variables"]
    assert set(re.findall(r'"([^"]+)"', missing["expression"])) == {*OWNER_LABELS, QUEUE}
    [selector] = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    queues = [
        entry
        for entry in yaml.safe_load_all((DEPLOY / "kueue" / "teams.yaml").read_text())
        if entry["kind"] == "LocalQueue"
    ]
    assert selector["values"] == [queue["metadata"]["namespace"] for queue in queues]

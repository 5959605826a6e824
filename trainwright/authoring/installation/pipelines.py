"""Kubeflow Pipelines itself: its version, Argo's retry policy and log archive, its store and the keys."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import kfp_server_api
import yaml

from trainwright.authoring.diagnostic import Diagnostic
from trainwright.authoring.installation.reading import Answer, ClusterReader, Object
from trainwright.authoring.submission.connection import Connection, document

OLDEST = (2, 17)
SYSTEM = "kubeflow"
"""Namespace of the installation's own servers where there are profiles."""

RUNNERS = {False: "pipeline-runner", True: "default-editor"}
"""Account that steps run as, without and with profiles."""

DEFAULT_ROOT = "minio://mlpipeline/v2/artifacts"
"""Where KFP keeps artifacts when its ConfigMap says nothing."""

SCHEMES = ("minio", "s3", "gs")
KEYS = frozenset({"accesskey", "secretkey"})
_CONTROLLER = "workflow-controller"
ARGO_DEFAULT = "OnFailure"

RETRIES = {
    "OnError": ("ok", "a step that fails has one attempt, a pod that is lost is replaced"),
    "OnFailure": (
        "note",
        "a step that fails runs three times, with bad input too; a pod that is lost ends its run",
    ),
    "Always": ("note", "a step that fails runs three times, with bad input too"),
}
"""By Argo's ``retryPolicy``: what it does to the steps of this library."""

RETRY_ADVICE = (
    "Set templateDefaults.retryStrategy {limit: '2', retryPolicy: OnError} in workflow-controller-configmap, "
    "as KFP 2.17's manifests do: docs/exit-codes.md."
)


@dataclass(frozen=True, kw_only=True)
class Installation:
    """The installation to inspect.

    Attributes:
        api: The API of Kubeflow Pipelines.
        cluster: The Kubernetes cluster; None without a kubeconfig.
        profiles: The installation has profiles (multi-user mode).
        namespace: Where runs have their pods.
        system: Where the installation's own servers are.
    """

    api: Connection
    cluster: ClusterReader | None
    profiles: bool
    namespace: str
    system: str

    @property
    def runner(self) -> str:
        """The service account that steps run as unless a submission names another one."""
        return RUNNERS[self.profiles]


def inspect_api(place: Installation) -> Iterator[Diagnostic]:
    """Inspect what the API of Kubeflow Pipelines tells: its version, and whether it takes the caller."""
    health = kfp_server_api.HealthzServiceApi(place.api.client).healthz_service_get_healthz
    answer = place.api.read("asking for its health", health, _preload_content=False)
    tag = str((document(answer.data) or {}).get("tag_name", ""))  # the generated client leaves it out
    profiles = "with profiles" if place.profiles else "without profiles"
    version = re.match(r"v?(\d+)\.(\d+)", tag)
    if version is None:
        yield Diagnostic(
            "kfp", "ok", f"answers, {profiles}; it does not say its version (2.17 or later is needed)"
        )
    elif (int(version[1]), int(version[2])) < OLDEST:
        advice = "Install Kubeflow Pipelines 2.17 or later: older ones were not tried."
        yield Diagnostic("kfp", "note", f"version {tag}, {profiles}", advice)
    else:
        yield Diagnostic("kfp", "ok", f"version {tag}, {profiles}")
    named = {"namespace": place.namespace} if place.profiles else {}
    place.api.read("listing runs", place.api.runs.run_service_list_runs, page_size=1, **named)
    yield Diagnostic("runs", "ok", "the caller may list runs" + (f" in {place.namespace}" if named else ""))


def inspect_argo(cluster: ClusterReader, place: Installation) -> Iterator[Diagnostic]:
    """Inspect Argo: its version, what it retries, and whether it archives logs."""
    yield _argo_version(cluster.get(f"/apis/apps/v1/namespaces/{place.system}/deployments/{_CONTROLLER}"))
    path = f"/api/v1/namespaces/{place.system}/configmaps/{_CONTROLLER}-configmap"
    answer = cluster.get(path)
    if answer.state == "hidden":
        text = f"the caller may not read ConfigMap {_CONTROLLER}-configmap in {place.system}"
        yield Diagnostic("retries", "?", text, "Ask whoever installed it for templateDefaults.retryStrategy.")
        yield Diagnostic("logs", "?", "not known: the same ConfigMap says it")
        return
    data = answer.body.get("data", {})
    named = _policy(data)
    policy = named or ARGO_DEFAULT
    state, text = RETRIES.get(policy, ("note", "a policy that this library does not know"))
    where = policy if named else f"{policy}, Argo's own default, since the installation names none"
    yield Diagnostic("retries", state, f"{where}: {text}", "" if state == "ok" else RETRY_ADVICE)
    if _part(data, "artifactRepository").get("archiveLogs"):
        yield Diagnostic("logs", "ok", "archived: a failed step's exit code is there when its pod is gone")
    else:
        advice = "Set archiveLogs: true in artifactRepository of workflow-controller-configmap."
        yield Diagnostic("logs", "note", "not archived: a step's exit code is lost with its pod", advice)


def _argo_version(answer: Answer) -> Diagnostic:
    image = image_of(answer.body)
    if answer.state == "found":
        return Diagnostic("argo", "ok", image or "runs")
    if answer.state == "hidden":
        return Diagnostic("argo", "?", "the caller may not read its Deployment")
    text = f"no Deployment {_CONTROLLER} in this namespace"
    return Diagnostic(
        "argo", "note", text, "Look whether Kubeflow Pipelines is in another namespace: --namespace."
    )


def image_of(deployment: Object) -> str:
    """Return name and tag of a Deployment's first image; empty if it has none."""
    containers = deployment.get("spec", {}).get("template", {}).get("spec", {}).get("containers") or [{}]
    image: str = containers[0].get("image", "")
    return image.partition("@")[0].rpartition("/")[2]


def _part(data: Object, key: str) -> Object:
    """Read a part of Argo's ConfigMap, which is YAML in a text."""
    try:
        found = yaml.safe_load(data.get(key) or "")
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}


def _policy(data: Object) -> str:
    """Return the policy for a retry strategy that names none, which is what KFP compiles; empty for none."""
    found: Any = _part(data, "workflowDefaults")
    for key in ("spec", "templateDefaults", "retryStrategy", "retryPolicy"):
        found = found.get(key) if isinstance(found, dict) else None
    return str(found or "")


def inspect_store(cluster: ClusterReader, place: Installation) -> Iterator[Diagnostic]:
    """Inspect where artifacts lie, and whether steps have the keys for it."""
    named = f"/api/v1/namespaces/{place.namespace}"
    answer = cluster.get(f"{named}/configmaps/kfp-launcher")
    if answer.state == "hidden":
        yield Diagnostic("store", "?", "the caller may not read ConfigMap kfp-launcher")
        return
    root = answer.body.get("data", {}).get("defaultPipelineRoot") or DEFAULT_ROOT
    scheme = root.partition("://")[0]
    if scheme not in SCHEMES:
        text = f"{root}: this library reads and writes minio://, s3:// and gs:// only"
        yield Diagnostic("store", "miss", text, "Set defaultPipelineRoot in ConfigMap kfp-launcher.")
        return
    yield Diagnostic("store", "ok", root)
    if scheme == "minio":
        yield _keys(cluster.get(f"{named}/secrets/mlpipeline-minio-artifact"), place)
    own = cluster.get(f"{named}/secrets/trainwright-store")
    settings = cluster.get(f"{named}/configmaps/trainwright-store")
    yield _own_keys(own, settings, scheme, place)


def _keys(answer: Answer, place: Installation) -> Diagnostic:
    name = f"Secret mlpipeline-minio-artifact in {place.namespace}"
    if answer.state == "hidden":
        return Diagnostic("keys", "?", f"the caller may not read {name}")
    if answer.state == "absent":
        advice = "KFP's manifests, or its profile controller, make it: look whether they are applied whole."
        return Diagnostic("keys", "miss", f"no {name}: no step can read or write minio://", advice)
    if lacking := sorted(KEYS - (answer.body.get("data") or {}).keys()):
        advice = "Steps and KFP's own launcher take the keys accesskey and secretkey."
        return Diagnostic("keys", "miss", f"{name} lacks {', '.join(lacking)}", advice)
    return Diagnostic("keys", "ok", name)


def _own_keys(secret: Answer, settings: Answer, scheme: str, place: Installation) -> Diagnostic:
    """Judge the optional objects that give steps an endpoint and keys for s3://."""
    advice = "Put the keys into Secret trainwright-store: see deploy/store.yaml."
    if "hidden" in {secret.state, settings.state}:
        return Diagnostic("s3", "?", "the caller may not read Secret or ConfigMap trainwright-store")
    keys = sorted((secret.body.get("data") or {}).keys())
    endpoint = (settings.body.get("data") or {}).get("AWS_ENDPOINT_URL_S3", "Amazon's own endpoint")
    if "AWS_ACCESS_KEY_ID" in keys and "AWS_SECRET_ACCESS_KEY" in keys:
        return Diagnostic("s3", "ok", f"keys from Secret trainwright-store, {endpoint}")
    if secret.state == "found" and keys:
        text = f"Secret trainwright-store has {', '.join(keys)}, not both keys that S3 needs"
        return Diagnostic("s3", "miss", text, advice)
    text = f"no keys in Secret trainwright-store: steps read s3:// by the role of {place.runner} alone"
    identity = f"A role of {place.runner} (workload identity) needs nothing. With static keys: "
    return (
        Diagnostic("s3", "note", text, identity + advice) if scheme == "s3" else Diagnostic("s3", "ok", text)
    )

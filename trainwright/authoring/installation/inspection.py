"""Inspect an installation from the outside in: the API, Argo, the store, operators, queues, the namespace."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import kfp_server_api
from kubernetes.utils import parse_quantity  # type: ignore[import-untyped]

from trainwright.authoring import catalog
from trainwright.authoring.installation.cluster_reader import Answer, ClusterReader, Object
from trainwright.authoring.submission.connection import Connection, document
from trainwright.authoring.terminal import Diagnostic
from trainwright.errors import ERRORS, DependencyError, InputError, PermissionRefused
from trainwright.yaml_reader import read_yaml, read_yaml_documents

OLDEST = (2, 17)
SYSTEM = "kubeflow"
"""Namespace of the installation's own servers where there are profiles."""

DEFAULT_ROOT = "minio://mlpipeline/v2/artifacts"
"""KFP's pipeline root unless its ConfigMap names another."""

RETRIES = {
    "OnError": ("ok", "a step that fails has one attempt, a pod that is lost is replaced"),
    "OnFailure": (
        "note",
        "a step that fails runs three times, with bad input too; a pod that is lost ends its run",
    ),
    "Always": ("note", "a step that fails runs three times, with bad input too"),
}
"""By Argo's ``retryPolicy``: the consequence for the steps of this library."""

RETRY_ADVICE = (
    "Set templateDefaults.retryStrategy {limit: '2', retryPolicy: OnError} in workflow-controller-configmap, "
    "as KFP 2.17's manifests do: docs/exit-codes.md."
)
OPERATOR, TRAINER, KUEUE = "kubeflow.org/v1", "trainer.kubeflow.org/v1alpha1", "kueue.x-k8s.io/v1beta2"
DEPLOYMENTS = {
    OPERATOR: "training-operator",
    TRAINER: "kubeflow-trainer-controller-manager",
    KUEUE: "kueue-controller-manager",
}
NAMESPACES = ("kubeflow", "kubeflow-system", "kueue-system")
"""Namespaces of the operators in their own manifests."""

Right = tuple[str, str, str]
JOBS = ("create", "delete", "get", "list", "patch", "watch")
TRAIN_RIGHTS: tuple[Right, ...] = (
    *(("kubeflow.org", "pytorchjobs", verb) for verb in JOBS),
    *(("trainer.kubeflow.org", "trainjobs", verb) for verb in JOBS),
    *(("", "pods", verb) for verb in ("delete", "list", "watch")),
    ("", "pods/log", "get"),
    ("", "events", "list"),
    ("kueue.x-k8s.io", "workloads", "list"),
    ("argoproj.io", "workflows", "get"),
)
"""Rights of the account of a train step: the Role of deploy/base/train.yaml."""

SUBMIT_RIGHTS = ("create", "get", "list", "readArtifact", "retry", "terminate")
"""Rights on runs of a caller where there are profiles: the Role of deploy/ci/submit.yaml."""

CLAIM, RUNTIME, PIPELINE = "trainwright-shared", "trainwright-torch", "train_and_register"
_PARAMETER = re.compile(r"\{\{\$\.inputs\.parameters\['pipelinechannel--([^']+)'\]\}\}")


def inspect(api: Connection, profiles: bool, cluster: ClusterReader | None) -> Iterator[Diagnostic]:
    """Yield the findings about an installation, as far as the caller's rights reach. Nothing is changed."""
    yield from _inspect_api(api, profiles)
    if cluster is None:
        text = "no kubeconfig: only what the API of Kubeflow Pipelines tells is known"
        advice = (
            "With one (kubectl config current-context), store, rights, queues and nodes are inspected too."
        )
        yield Diagnostic("kubernetes", "?", text, advice)
        return
    version = cluster.get("/version").body.get("gitVersion", "of an unknown version")
    yield Diagnostic("kubernetes", "ok", f"{version} at {cluster.address}")
    namespace = api.place.namespace or SYSTEM
    if cluster.get(f"/api/v1/namespaces/{namespace}").state == "absent":
        advice = "Name your profile's namespace, or the one Kubeflow Pipelines is installed in: --namespace."
        text = f"the cluster has no namespace {namespace}"
        yield Diagnostic("namespace", "miss", text, advice, code=InputError.code)
        return
    yield Diagnostic("namespace", "ok", namespace)
    yield from _ClusterInspection(cluster, namespace, profiles).findings()


def require(findings: Sequence[Diagnostic]) -> None:
    """Raise the error that fits what an installation lacks."""
    missing = [finding for finding in findings if finding.state == "miss"]
    if not missing:
        return
    codes = {finding.code for finding in missing}
    error = ERRORS[codes.pop()] if len(codes) == 1 else DependencyError
    names = ", ".join(finding.name for finding in missing)
    raise error(f"this installation is not ready: {names}", hint="See the lines above.")


def _inspect_api(api: Connection, profiles: bool) -> Iterator[Diagnostic]:
    health = kfp_server_api.HealthzServiceApi(api.client).healthz_service_get_healthz
    answer = api.read("asking for its health", health, _preload_content=False)
    tag = str((document(answer.data) or {}).get("tag_name", ""))  # the generated client leaves it out
    mode = "with profiles" if profiles else "without profiles"
    version = re.match(r"v?(\d+)\.(\d+)", tag)
    if version is None:
        yield Diagnostic(
            "kfp", "ok", f"answers, {mode}; it does not say its version (2.17 or later is needed)"
        )
    elif (int(version[1]), int(version[2])) < OLDEST:
        advice = "Install Kubeflow Pipelines 2.17 or later: older ones were not tried."
        yield Diagnostic("kfp", "note", f"version {tag}, {mode}", advice)
    else:
        yield Diagnostic("kfp", "ok", f"version {tag}, {mode}")
    api.read("listing runs", api.runs.run_service_list_runs, page_size=1, **api.scope)
    where = f" in {api.place.namespace}" if api.scope else ""
    yield Diagnostic("runs", "ok", f"the caller may list runs{where}")


class _ClusterInspection:
    """Inspects the cluster below an installation; ``namespace`` is that of the runs' pods."""

    def __init__(self, cluster: ClusterReader, namespace: str, profiles: bool) -> None:
        self._cluster, self._namespace, self._profiles = cluster, namespace, profiles
        self._system = SYSTEM if profiles else namespace
        self._runner = "default-editor" if profiles else "pipeline-runner"
        self._overlay = f"kubectl apply -k deploy/overlays/{'profile' if profiles else 'single-user'}"

    def findings(self) -> Iterator[Diagnostic]:
        """Yield every finding."""
        yield self._server()
        yield self._argo()
        yield from self._retries_and_logs()
        yield from self._store()
        yield from self._training()
        yield from self._queues()
        yield self._account()
        yield self._rights()
        if self._profiles:
            yield self._submit_rights()
        yield self._claim()
        yield self._trust()
        yield self._mlflow()
        yield self._nodes()

    def _get(self, kind: str, name: str) -> Answer:
        """Return an object of the runs' namespace."""
        return self._cluster.get(f"/api/v1/namespaces/{self._namespace}/{kind}/{name}")

    def _deployment(self, name: str, namespace: str = "") -> tuple[str, str]:
        """Return the state of a Deployment, and name and tag of its first image."""
        path = f"/apis/apps/v1/namespaces/{namespace or self._system}/deployments/{name}"
        answer = self._cluster.get(path)
        template = answer.body.get("spec", {}).get("template", {})
        containers = template.get("spec", {}).get("containers") or [{}]
        image: str = containers[0].get("image", "")
        return answer.state, image.partition("@")[0].rpartition("/")[2]

    @staticmethod
    def _existence(name: str, state: str, what: str, found: str, absent: Diagnostic) -> Diagnostic:
        """Return the finding about an object that exists, is absent, or may not be read."""
        if state == "hidden":
            return Diagnostic(name, "?", f"the caller may not read {what}")
        return Diagnostic(name, "ok", found) if state == "found" else absent

    def _server(self) -> Diagnostic:
        """Look for the API server of Kubeflow Pipelines: the kubeconfig may be that of another cluster."""
        state, image = self._deployment("ml-pipeline")
        text = f"no Deployment ml-pipeline in {self._system}"
        text += ": this may be another cluster than the one behind --host"
        absent = Diagnostic("server", "note", text, "Look at kubectl config current-context.")
        return self._existence("server", state, f"Deployments in {self._system}", image, absent)

    def _argo(self) -> Diagnostic:
        state, image = self._deployment("workflow-controller")
        text = "no Deployment workflow-controller in this namespace"
        advice = "Look whether Kubeflow Pipelines is in another namespace: --namespace."
        absent = Diagnostic("argo", "note", text, advice)
        return self._existence("argo", state, "its Deployment", image or "runs", absent)

    def _retries_and_logs(self) -> Iterator[Diagnostic]:
        name = "workflow-controller-configmap"
        answer = self._cluster.get(f"/api/v1/namespaces/{self._system}/configmaps/{name}")
        if answer.state == "hidden":
            text = f"the caller may not read ConfigMap {name} in {self._system}"
            advice = "Ask whoever installed it for templateDefaults.retryStrategy."
            yield Diagnostic("retries", "?", text, advice)
            yield Diagnostic("logs", "?", "not known: the same ConfigMap says it")
            return
        # The policy of a retry strategy that names none, which is what KFP compiles.
        named: Any = _yaml_part(answer.data, "workflowDefaults")
        for key in ("spec", "templateDefaults", "retryStrategy", "retryPolicy"):
            named = named.get(key) if isinstance(named, dict) else None
        policy = str(named or "OnFailure")
        state, text = RETRIES.get(policy, ("note", "a policy that this library does not know"))
        where = policy if named else f"{policy}, Argo's own default, since the installation names none"
        yield Diagnostic("retries", state, f"{where}: {text}", "" if state == "ok" else RETRY_ADVICE)
        if _yaml_part(answer.data, "artifactRepository").get("archiveLogs"):
            yield Diagnostic(
                "logs", "ok", "archived: a failed step's exit code is there when its pod is gone"
            )
        else:
            advice = "Set archiveLogs: true in artifactRepository of workflow-controller-configmap."
            yield Diagnostic("logs", "note", "not archived: a step's exit code is lost with its pod", advice)

    def _store(self) -> Iterator[Diagnostic]:
        answer = self._get("configmaps", "kfp-launcher")
        if answer.state == "hidden":
            yield Diagnostic("store", "?", "the caller may not read ConfigMap kfp-launcher")
            return
        root = answer.data.get("defaultPipelineRoot") or DEFAULT_ROOT
        scheme = root.partition("://")[0]
        if scheme not in {"minio", "s3", "gs"}:
            text = f"{root}: this library reads and writes minio://, s3:// and gs:// only"
            yield Diagnostic("store", "miss", text, "Set defaultPipelineRoot in ConfigMap kfp-launcher.")
            return
        yield Diagnostic("store", "ok", root)
        if scheme == "minio":
            yield self._kfp_keys()
        yield self._own_keys(scheme)

    def _kfp_keys(self) -> Diagnostic:
        answer = self._get("secrets", "mlpipeline-minio-artifact")
        name = f"Secret mlpipeline-minio-artifact in {self._namespace}"
        if answer.state == "hidden":
            return Diagnostic("keys", "?", f"the caller may not read {name}")
        if answer.state == "absent":
            advice = (
                "KFP's manifests, or its profile controller, make it: look whether they are applied whole."
            )
            return Diagnostic("keys", "miss", f"no {name}: no step can read or write minio://", advice)
        if lacking := sorted({"accesskey", "secretkey"} - answer.data.keys()):
            advice = "Steps and KFP's own launcher take the keys accesskey and secretkey."
            return Diagnostic("keys", "miss", f"{name} lacks {', '.join(lacking)}", advice)
        return Diagnostic("keys", "ok", name)

    def _own_keys(self, scheme: str) -> Diagnostic:
        """Judge the optional objects that give steps an endpoint and keys for s3://."""
        secret = self._get("secrets", "trainwright-store")
        settings = self._get("configmaps", "trainwright-store")
        advice = "Put the keys into Secret trainwright-store: see deploy/store.yaml."
        if "hidden" in {secret.state, settings.state}:
            return Diagnostic("s3", "?", "the caller may not read Secret or ConfigMap trainwright-store")
        keys = sorted(secret.data.keys())
        if {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= set(keys):
            endpoint = settings.data.get("AWS_ENDPOINT_URL_S3", "Amazon's own endpoint")
            return Diagnostic("s3", "ok", f"keys from Secret trainwright-store, {endpoint}")
        if keys:
            text = f"Secret trainwright-store has {', '.join(keys)}, not both keys that S3 needs"
            return Diagnostic("s3", "miss", text, advice)
        text = f"no keys in Secret trainwright-store: steps read s3:// by the role of {self._runner} alone"
        if scheme != "s3":
            return Diagnostic("s3", "ok", text)
        identity = f"A role of {self._runner} (workload identity) needs nothing. With static keys: "
        return Diagnostic("s3", "note", text, identity + advice)

    def _training(self) -> Iterator[Diagnostic]:
        operator = self._cluster.serves(OPERATOR, "pytorchjobs")
        trainer = self._cluster.serves(TRAINER, "trainjobs")
        if operator:
            yield Diagnostic("pytorchjob", "ok", f"training operator: {self._version(OPERATOR)}")
        if trainer:
            yield Diagnostic("trainjob", "ok", f"Kubeflow Trainer: {self._version(TRAINER)}")
            yield self._runtime(needed=not operator)
        if not operator and not trainer:
            text = "the cluster knows neither PyTorchJobs nor TrainJobs: every train step ends with 21"
            advice = "Install the training operator 1.9, or Kubeflow Trainer: docs/running-on-kubeflow.md."
            yield Diagnostic("training", "miss", text, advice)
        elif not operator:
            text = "no PyTorchJobs, which resources.launcher asks for by default"
            advice = "Set resources.launcher: trainjob in the experiment file."
            yield Diagnostic("pytorchjob", "note", text, advice)

    def _version(self, kind: str) -> str:
        """Return the image of an operator, which has its version, from wherever its Deployment is."""
        spaces = dict.fromkeys([self._system, *NAMESPACES])
        found = [self._deployment(DEPLOYMENTS[kind], space) for space in spaces]
        if image := next((image for state, image in found if state == "found"), ""):
            return image
        hidden = any(state == "hidden" for state, _ in found)
        return "its version is not known" + (": the caller may not read Deployments" if hidden else "")

    def _runtime(self, *, needed: bool) -> Diagnostic:
        state = self._cluster.get(f"/apis/{TRAINER}/clustertrainingruntimes/{RUNTIME}").state
        name, advice = f"ClusterTrainingRuntime {RUNTIME}", "kubectl apply -f deploy/trainer/runtime.yaml"
        text = f"no {name}: no TrainJob of this library starts"
        absent = Diagnostic("runtime", "miss" if needed else "note", text, advice)
        return self._existence("runtime", state, name, name, absent)

    def _queues(self) -> Iterator[Diagnostic]:
        if not self._cluster.serves(KUEUE):
            old = self._cluster.serves("kueue.x-k8s.io/v1beta1")
            text = "Kueue is older than 0.15" if old else "no Kueue: jobs start as soon as they are made"
            advice = "placement.queue needs Kueue 0.15 or later." if old else ""
            yield Diagnostic("queues", "note" if old else "ok", text, advice)
            return
        yield Diagnostic("kueue", "ok", self._version(KUEUE))
        answer = self._cluster.get(f"/apis/{KUEUE}/namespaces/{self._namespace}/localqueues")
        if answer.state != "found":
            yield Diagnostic("queues", "?", f"the caller may not list LocalQueues in {self._namespace}")
        elif not answer.items:
            text = f"{self._namespace} has no LocalQueue: a job with placement.queue is never admitted"
            yield Diagnostic(
                "queues", "note", text, "Adapt deploy/kueue, then kubectl apply -k deploy/kueue."
            )
        else:
            yield from map(self._queue, answer.items)

    def _queue(self, queue: Object) -> Diagnostic:
        name, spec = queue["metadata"]["name"], queue.get("spec", {})
        behind = spec.get("clusterQueue", "")
        waiting = queue.get("status", {}).get("pendingWorkloads", 0)
        text = f"{name} (ClusterQueue {behind}): {waiting} waiting"
        answer = self._cluster.get(f"/apis/{KUEUE}/clusterqueues/{behind}")
        if answer.state == "absent":
            advice = "Adapt deploy/kueue, then kubectl apply -k deploy/kueue."
            return Diagnostic("queue", "miss", f"{name}: there is no ClusterQueue {behind}", advice)
        if answer.state == "hidden":
            return Diagnostic("queue", "?", f"{text}; the caller may not read the ClusterQueue's quota")
        stopped = spec.get("stopPolicy") or answer.body.get("spec", {}).get("stopPolicy") or "None"
        if stopped != "None":
            text = f"{text}; stopped ({stopped}): nothing is admitted"
            return Diagnostic("queue", "note", text, "Whoever stopped it has to set stopPolicy: None.")
        used = ", ".join(
            f"{name} {_amount(reserved)} of {_amount(quota)}"
            for name, (reserved, quota) in _quotas(answer.body).items()
        )
        return Diagnostic("queue", "ok", f"{text}; used: {used}")

    def _account(self) -> Diagnostic:
        state, name = self._get("serviceaccounts", self._runner).state, f"ServiceAccount {self._runner}"
        text = f"no {name} in {self._namespace}: no pod of a run can start"
        advice = "Kubeflow makes it: look whether this is a profile's namespace, or name --service-account."
        absent = Diagnostic("account", "miss", text, advice)
        return self._existence("account", state, name, f"{self._runner}, whom steps run as", absent)

    def _rights(self) -> Diagnostic:
        """Judge the rights of the steps' account, by their RoleBinding if the caller may not ask."""
        served = {
            "kubeflow.org": self._cluster.serves(OPERATOR, "pytorchjobs"),
            "trainer.kubeflow.org": self._cluster.serves(TRAINER, "trainjobs"),
            "kueue.x-k8s.io": self._cluster.serves(KUEUE),
        }
        needed = [right for right in TRAIN_RIGHTS if served.get(right[0], True)]
        lacking = []
        for right in needed:
            allowed = self._cluster.allowed(self._namespace, *right, account=self._runner)
            if allowed is None:
                return self._binding()
            lacking += [] if allowed else [right]
        if not lacking:
            text = f"{self._runner} may run training jobs ({len(needed)} rights)"
            return Diagnostic("rights", "ok", text)
        listed = ", ".join(f"{verb} {resource}" for _, resource, verb in lacking[:4])
        more = f" and {len(lacking) - 4} more" if len(lacking) > 4 else ""  # noqa: PLR2004
        text = f"{self._runner} lacks {listed}{more}: a train step that needs it ends with 50"
        return Diagnostic("rights", "miss", text, self._overlay, code=PermissionRefused.code)

    def _binding(self) -> Diagnostic:
        group = "/apis/rbac.authorization.k8s.io/v1"
        answer = self._cluster.get(f"{group}/namespaces/{self._namespace}/rolebindings/trainwright-train")
        if answer.state == "hidden":
            return Diagnostic("rights", "?", f"the caller may not ask what {self._runner} may do")
        if self._runner in {entry.get("name") for entry in answer.body.get("subjects") or []}:
            return Diagnostic("rights", "ok", f"RoleBinding trainwright-train names {self._runner}")
        text = f"no RoleBinding trainwright-train names {self._runner}: a train step ends with 50"
        return Diagnostic("rights", "miss", text, self._overlay, code=PermissionRefused.code)

    def _submit_rights(self) -> Diagnostic:
        place = (self._namespace, "pipelines.kubeflow.org", "runs")
        lacking = [verb for verb in SUBMIT_RIGHTS if not self._cluster.allowed(*place, verb)]
        if not lacking:
            text = f"the caller may submit, follow, retry and stop runs in {self._namespace}"
            return Diagnostic("submit", "ok", text)
        text = f"the kubeconfig's identity may not {', '.join(lacking)} runs in {self._namespace}"
        return Diagnostic("submit", "note", text, "CI has an account of its own: kubectl apply -k deploy/ci.")

    def _claim(self) -> Diagnostic:
        answer = self._get("persistentvolumeclaims", CLAIM)
        if answer.state == "hidden":
            return Diagnostic("claim", "?", f"the caller may not read PersistentVolumeClaim {CLAIM}")
        if answer.state == "absent":
            text = (
                f"no PersistentVolumeClaim {CLAIM} in {self._namespace}: the pod of a train step never starts"
            )
            advice = f"{self._overlay}, or name your own in resources.claim."
            return Diagnostic("claim", "miss", text, advice)
        phase = answer.body.get("status", {}).get("phase", "Pending")
        modes = answer.body.get("spec", {}).get("accessModes") or []
        if phase == "Lost":
            text, advice = f"{CLAIM} is Lost: its volume is gone", "Make it anew on another volume."
            return Diagnostic("claim", "miss", text, advice)
        if "ReadWriteMany" not in modes:
            text = f"{CLAIM} is {', '.join(modes)}: a job on several nodes cannot mount it"
            return Diagnostic("claim", "note", text, "Use a storage class with ReadWriteMany.")
        if phase != "Bound":
            advice = "With volumeBindingMode WaitForFirstConsumer that is normal before the first training."
            return Diagnostic("claim", "note", f"{CLAIM} is {phase}", advice)
        return Diagnostic("claim", "ok", f"{CLAIM} is bound, {', '.join(modes)}")

    def _trust(self) -> Diagnostic:
        answer, name = self._get("configmaps", "trainwright-trust"), "ConfigMap trainwright-trust"
        text = f"no {name} in {self._namespace}: promote_model ends with 10"
        absent = Diagnostic("trust", "note", text, "It has keys and policy: see deploy/trust.yaml.")
        found = f"{name} has {', '.join(sorted(answer.data))}"
        return self._existence("trust", answer.state, name, found, absent)

    def _mlflow(self) -> Diagnostic:
        spaces = dict.fromkeys([self._namespace, self._system, "mlflow"])
        answers = {space: self._cluster.get(f"/api/v1/namespaces/{space}/services") for space in spaces}
        found = [
            f"http://{entry['metadata']['name']}.{space}.svc:{port.get('port')}"
            for space, answer in answers.items()
            for entry in answer.items
            if "mlflow" in entry["metadata"]["name"]
            for port in (entry.get("spec", {}).get("ports") or [])[:1]
        ]
        if found:
            return Diagnostic("mlflow", "ok", f"{', '.join(found)}: for registry.tracking_uri")
        if "hidden" in {answer.state for answer in answers.values()}:
            return Diagnostic("mlflow", "?", f"the caller may not list Services in {' or '.join(answers)}")
        text = f"no Service called mlflow in {', '.join(answers)}: register ends with 21 without a server"
        return Diagnostic("mlflow", "note", text, "Name the server that you use in registry.tracking_uri.")

    def _nodes(self) -> Diagnostic:
        """Compare the largest pods of the main pipeline with empty nodes."""
        answer = self._cluster.get("/api/v1/nodes")
        if answer.state != "found":
            text = "the caller may not list nodes: whether the steps' pods fit is not known"
            return Diagnostic("nodes", "?", text)
        free = [node.get("status", {}).get("allocatable", {}) for node in answer.items]
        sizes = [tuple(float(parse_quantity(node.get(key, 0))) for key in ("cpu", "memory")) for node in free]
        tight = [
            f"{name} ({cores:g} cores, {memory / 1e9:.1f} GB)"
            for name, (cores, memory) in sorted(largest_steps().items())
            if not any(cores <= has and memory <= room for has, room in sizes)
        ]
        largest = max((cores for cores, _ in sizes), default=0.0)
        text = f"{len(sizes)} node{'s' * (len(sizes) != 1)}, the largest with {largest:g} cores"
        if tight:
            advice = "Ask for less in the pipeline's parameters of sizes, or add a larger node."
            return Diagnostic("nodes", "miss", f"{text}; none holds {', '.join(tight)}", advice)
        return Diagnostic("nodes", "ok", f"{text}; each step of {PIPELINE} fits on an empty node")


def _yaml_part(data: Object, key: str) -> Object:
    """Read a part of Argo's ConfigMap, which is YAML in a text."""
    try:
        found = read_yaml(str(data.get(key) or ""), aliases=True)
    except InputError:
        return {}
    return found if isinstance(found, dict) else {}


def _amount(number: float) -> str:
    """Return an amount of a resource as text; bytes in Gi."""
    return f"{number:g}" if number < 1 << 20 else f"{number / (1 << 30):.4g}Gi"


def _quotas(queue: Object) -> dict[str, tuple[float, float]]:
    """Return, by resource, the reserved amount of a ClusterQueue and its quota, over all flavors."""
    groups = queue.get("spec", {}).get("resourceGroups") or []
    flavors = [flavor for group in groups for flavor in group.get("flavors") or []]
    reserved: dict[str, float] = {}
    quota: dict[str, float] = {}
    for total, key, found in (
        (quota, "nominalQuota", flavors),
        (reserved, "total", queue.get("status", {}).get("flavorsReservation") or []),
    ):
        for entry in (entry for flavor in found for entry in flavor.get("resources") or []):
            total[entry["name"]] = total.get(entry["name"], 0.0) + float(parse_quantity(entry.get(key, 0)))
    return {name: (reserved.get(name, 0.0), quota.get(name, 0.0)) for name in {**quota, **reserved}}


def largest_steps() -> dict[str, tuple[float, float]]:
    """Return cores and bytes that the pods of the main pipeline's steps request, by executor, on defaults."""
    document = read_yaml_documents(catalog.pipeline(PIPELINE))[0]
    defaults = document["root"].get("inputDefinitions", {}).get("parameters", {})

    def amount(text: str) -> float:
        if parameter := _PARAMETER.fullmatch(text):
            text = str(defaults.get(parameter[1], {}).get("defaultValue") or 0)
        return float(parse_quantity(text))

    found = {}
    for label, executor in document["deploymentSpec"]["executors"].items():
        resources = executor.get("container", {}).get("resources", {})
        keys = ("resourceCpuRequest", "resourceMemoryRequest")
        cores, memory = (amount(resources.get(key, "0")) for key in keys)
        found[label.removeprefix("exec-")] = (cores, memory)
    return found

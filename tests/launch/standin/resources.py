"""The kinds of objects that the stand-in knows, and how their addresses are read."""

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """A kind of objects.

    Attributes:
        group: API group; empty for the core.
        version: The one version that is served.
        plural: Name in addresses.
        kind: Name in objects.
        namespaced: Whether its objects belong to a namespace.
        custom: Whether a CustomResourceDefinition declares it: no strategic merge patch.
        status: Whether ``status`` is a subresource, which an ordinary write leaves as it is.
        schema: Name of the schema that its objects are checked against; empty for none.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    custom: bool = False
    status: bool = False
    schema: str = ""

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full(self) -> str:
        """The name that messages use: ``pytorchjobs.kubeflow.org``, ``pods``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _custom(group: str, version: str, plural: str, kind: str, **more: Any) -> Resource:
    return Resource(group, version, plural, kind, **{"custom": True, "status": True, **more})


_TRAINER, _KUEUE = ("trainer.kubeflow.org", "v1alpha1"), ("kueue.x-k8s.io", "v1beta2")

RESOURCES = (
    Resource("", "v1", "pods", "Pod", status=True),
    Resource("", "v1", "services", "Service"),
    Resource("", "v1", "configmaps", "ConfigMap"),
    Resource("", "v1", "secrets", "Secret"),
    Resource("", "v1", "events", "Event"),
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    Resource("", "v1", "serviceaccounts", "ServiceAccount"),
    Resource("", "v1", "resourcequotas", "ResourceQuota"),
    Resource("", "v1", "namespaces", "Namespace", namespaced=False),
    Resource("", "v1", "nodes", "Node", namespaced=False, status=True),
    Resource("apps", "v1", "deployments", "Deployment", status=True),
    Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    Resource("batch", "v1", "jobs", "Job", status=True),
    Resource("batch", "v1", "cronjobs", "CronJob", status=True),
    Resource("coordination.k8s.io", "v1", "leases", "Lease"),
    Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False),
    _custom("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", schema="pytorchjob"),
    _custom(*_TRAINER, "trainjobs", "TrainJob", schema="trainjob"),
    _custom(*_TRAINER, "trainingruntimes", "TrainingRuntime", status=False),
    _custom(*_TRAINER, "clustertrainingruntimes", "ClusterTrainingRuntime", status=False, namespaced=False),
    _custom("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet"),
    _custom(*_KUEUE, "workloads", "Workload"),
    _custom(*_KUEUE, "localqueues", "LocalQueue"),
    _custom(*_KUEUE, "clusterqueues", "ClusterQueue", namespaced=False),
    _custom(*_KUEUE, "workloadpriorityclasses", "WorkloadPriorityClass", status=False, namespaced=False),
    _custom("argoproj.io", "v1alpha1", "workflows", "Workflow", status=False),
)

REVIEWS = "authorization.k8s.io"
"""Group of reviews of rights: they are answered, and never stored."""

RESOURCES += (
    Resource(REVIEWS, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False),
    Resource(REVIEWS, "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview"),
)

BY_KIND = {resource.kind: resource for resource in RESOURCES}
BY_PLURAL = {resource.plural: resource for resource in RESOURCES}
POD, JOB, EVENT = BY_KIND["Pod"], BY_KIND["PyTorchJob"], BY_KIND["Event"]


@dataclass(frozen=True)
class Address:
    """What an address names: a kind, and a namespace, an object and a part of it where given."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def read_address(path: str, known: tuple[Resource, ...]) -> Address | None:
    """Read a path such as ``/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/a``; nothing if it is none."""
    parts = [part for part in path.split("/") if part]
    if parts[:2] == ["api", "v1"]:
        group, version, rest = "", "v1", parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    if not rest or len(rest) > 3:
        return None
    for resource in known:
        if (resource.group, resource.version, resource.plural) == (group, version, rest[0]):
            return Address(resource, namespace, *rest[1:])
    return None

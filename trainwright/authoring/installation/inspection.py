"""Inspect an installation from the outside in: the API, Argo, the store, operators, queues, the namespace."""

from collections.abc import Iterator, Sequence

from trainwright.authoring.diagnostic import Diagnostic
from trainwright.authoring.installation import namespace, pipelines, reading, training
from trainwright.authoring.installation.pipelines import SYSTEM, Installation
from trainwright.authoring.installation.reading import ClusterReader
from trainwright.authoring.submission.connection import Connection
from trainwright.errors import DependencyError, InputError, PermissionRefused, TrainwrightError

ERRORS: dict[int, type[TrainwrightError]] = {
    error.code: error for error in (InputError, DependencyError, PermissionRefused)
}


def inspect(api: Connection, profiles: bool, cluster: ClusterReader | None) -> Iterator[Diagnostic]:
    """Yield what is found of an installation, as far as the caller's rights reach. Nothing is changed.

    Args:
        api: The API of Kubeflow Pipelines.
        profiles: The installation has profiles (multi-user mode).
        cluster: The Kubernetes cluster below it; None without a kubeconfig.

    Raises:
        TrainwrightError: One of the two APIs does not answer, or does not take the caller at all.
    """
    where = api.place.namespace or SYSTEM
    place = Installation(
        api=api, cluster=cluster, profiles=profiles, namespace=where, system=SYSTEM if profiles else where
    )
    yield from pipelines.inspect_api(place)
    if cluster is None:
        text = "no kubeconfig: only what the API of Kubeflow Pipelines tells is known"
        advice = (
            "With one (kubectl config current-context), store, rights, queues and nodes are inspected too."
        )
        yield Diagnostic("kubernetes", "?", text, advice)
        return
    version = cluster.get("/version").body.get("gitVersion", "of an unknown version")
    yield Diagnostic("kubernetes", "ok", f"{version} at {cluster.address}")
    found = cluster.get(f"/api/v1/namespaces/{where}")
    if found.state == "absent":
        advice = "Name your profile's namespace, or the one Kubeflow Pipelines is installed in: --namespace."
        yield Diagnostic("namespace", "miss", f"the cluster has no namespace {where}", advice, code=10)
        return
    yield Diagnostic("namespace", "ok", where)
    yield _server(cluster, place)
    yield from pipelines.inspect_argo(cluster, place)
    yield from pipelines.inspect_store(cluster, place)
    yield from training.inspect_training(cluster, place)
    yield from training.inspect_queues(cluster, place)
    yield from namespace.inspect_accounts(cluster, place)
    yield from namespace.inspect_claim(cluster, place)
    yield from namespace.inspect_mlflow(cluster, place)
    yield from namespace.inspect_nodes(cluster)


def _server(cluster: ClusterReader, place: Installation) -> Diagnostic:
    """Look for the API server of Kubeflow Pipelines: the kubeconfig may be that of another cluster."""
    answer = cluster.get(f"/apis/apps/v1/namespaces/{place.system}/deployments/ml-pipeline")
    if answer.state == "found":
        return Diagnostic("server", "ok", pipelines.image_of(answer.body))
    if answer.state == "hidden":
        return Diagnostic("server", "?", f"the caller may not read Deployments in {place.system}")
    text = (
        f"no Deployment ml-pipeline in {place.system}: this may be another cluster than the one behind --host"
    )
    return Diagnostic("server", "note", text, "Look at kubectl config current-context.")


def require(findings: Sequence[Diagnostic]) -> None:
    """Raise the error that fits what an installation lacks; nothing if a run would find all it needs.

    Raises:
        InputError: The namespace is none.
        PermissionRefused: Only rights are missing.
        DependencyError: Something else is missing.
    """
    missing = [finding for finding in findings if finding.state == "miss"]
    if not missing:
        return
    codes = {finding.code for finding in missing}
    error = ERRORS[codes.pop() if len(codes) == 1 else DependencyError.code]
    names = ", ".join(finding.name for finding in missing)
    raise error(f"this installation is not ready: {names}", hint="See the lines above.")


connect = reading.connect

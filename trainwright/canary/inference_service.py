"""The KServe InferenceService of a canary, and its server-side apply."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from trainwright.documents import canonical
from trainwright.errors import DependencyError, InputError, PermissionRefused
from trainwright.experiment import InferenceService
from trainwright.http_limits import limited
from trainwright.redaction import redacted
from trainwright.retries import GaveUp, retry

if TYPE_CHECKING:
    import requests

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_READ_BY_KSERVE = ("gs://", "s3://", "https://", "http://", "pvc://", "hdfs://", "oci://")
_TIMEOUT_S = (5, 30)
_RETRY_S = 300.0


@dataclass(frozen=True)
class ApiServer:
    """Address, token and certificate authority of a Kubernetes API."""

    url: str
    token: str
    ca: str | bool = True

    @classmethod
    def of_pod(cls) -> Self:
        """Return the API of this pod's cluster, with the token of its service account.

        Raises:
            DependencyError: This is no pod, or its account mounts no token.
        """
        try:
            token = (_ACCOUNT / "token").read_text()
        except OSError as error:
            raise DependencyError(
                f"no access to a cluster: {error}",
                where="serving.service.apply",
                hint="Outside of a cluster set apply: false, and apply inference_service.json with kubectl.",
            ) from None
        return cls("https://kubernetes.default.svc", token, str(_ACCOUNT / "ca.crt"))


def manifest(service: InferenceService, source: str, percent: int) -> dict[str, Any]:
    """Return the fields that this library owns: the model, and its percentage of the traffic.

    KServe sends the rest to the last revision that had 100 %.
    """
    model: dict[str, Any] = {"modelFormat": {"name": service.model_format}, "storageUri": source}
    model |= {"runtime": service.runtime} if service.runtime else {}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": service.name, "namespace": service.namespace},
        "spec": {"predictor": {"canaryTrafficPercent": percent, "model": model}},
    }


def apply(document: dict[str, Any], api: ApiServer) -> None:
    """Apply a manifest; fields that it does not name stay as they are.

    Raises:
        InputError: KServe cannot read the model, or the API rejects the manifest.
        PermissionRefused: The account lacks the right.
        DependencyError: The API does not answer.
    """
    import requests

    meta, uri = document["metadata"], document["spec"]["predictor"]["model"]["storageUri"]
    name = f"InferenceService {meta['namespace']}/{meta['name']}"
    if not uri.startswith(_READ_BY_KSERVE):
        raise InputError(
            f"KServe reads models from {', '.join(_READ_BY_KSERVE)}; found {redacted(uri)}",
            where=name,
            hint="Give MLflow an artifact store that it does not serve itself, such as s3://.",
        )
    try:
        passing = (requests.ConnectionError, requests.Timeout)
        answer = retry(
            lambda: _patch(document, api), lambda error: isinstance(error, passing), name, _RETRY_S
        )
    except (GaveUp, requests.RequestException) as error:
        hint = "Until it answers, `kubectl apply --server-side -f inference_service.json` does the same."
        raise DependencyError(f"the Kubernetes API does not answer: {error}", where=name, hint=hint) from None
    if answer.status_code in {401, 403}:
        raise PermissionRefused(
            f"the Kubernetes API refuses: {answer.text[:300]}",
            where=name,
            hint="Apply deploy/serving.yaml in its namespace. The InferenceService has to exist.",
        )
    if not answer.ok:
        raise InputError(
            f"the Kubernetes API answers {answer.status_code}: {answer.text[:300]}",
            where=name,
            hint="Look at serving.service, and at whether KServe is installed.",
        )


def _patch(document: dict[str, Any], api: ApiServer) -> "requests.Response":
    import requests

    meta = document["metadata"]
    path = f"apis/serving.kserve.io/v1beta1/namespaces/{meta['namespace']}/inferenceservices/{meta['name']}"
    with requests.Session() as session, limited():
        session.trust_env = False
        answer = session.patch(
            f"{api.url}/{path}",
            params={"fieldManager": "trainwright", "force": "true", "fieldValidation": "Strict"},
            headers={
                "Authorization": f"Bearer {api.token}",
                "Content-Type": "application/apply-patch+yaml",
            },
            data=canonical(document),
            timeout=_TIMEOUT_S,
            verify=api.ca,
        )
    if answer.status_code >= 500 or answer.status_code == 429:  # noqa: PLR2004
        raise requests.ConnectionError(f"{answer.status_code}: {answer.text[:200]}")
    return answer

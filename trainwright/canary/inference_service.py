"""The KServe InferenceService of a canary, and its server-side apply."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from trainwright.documents import canonical
from trainwright.errors import DependencyError, InputError, PermissionRefused, TrainwrightError
from trainwright.experiment import InferenceService
from trainwright.http_exchange import HttpStatus, exchange, is_transient
from trainwright.redaction import redacted
from trainwright.retries import GaveUp, retry

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_READ_BY_KSERVE = ("gs://", "s3://", "https://", "http://", "pvc://", "hdfs://", "oci://")
_TIMEOUT_S = 30.0
_RETRY_S = 300.0


@dataclass(frozen=True)
class ApiServer:
    """Address, token and CA file of a Kubernetes API; without one, the certificates of the machine."""

    url: str
    token: str = field(repr=False)
    ca: str = ""

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
    meta, uri = document["metadata"], document["spec"]["predictor"]["model"]["storageUri"]
    name = f"InferenceService {meta['namespace']}/{meta['name']}"
    if not uri.startswith(_READ_BY_KSERVE):
        raise InputError(
            f"KServe reads models from {', '.join(_READ_BY_KSERVE)}; found {redacted(uri)}",
            where=name,
            hint="Give MLflow an artifact store that it does not serve itself, such as s3://.",
        )
    path = f"apis/serving.kserve.io/v1beta1/namespaces/{meta['namespace']}/inferenceservices/{meta['name']}"
    url = f"{api.url}/{path}?fieldManager=trainwright&force=true&fieldValidation=Strict"
    headers = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/apply-patch+yaml"}
    body = canonical(document).encode()

    def patch() -> None:
        exchange("PATCH", url, headers, body, timeout_s=_TIMEOUT_S, authority=api.ca)

    try:
        retry(patch, is_transient, name, _RETRY_S)
    except HttpStatus as error:
        raise _rejection(error, name) from None
    except (GaveUp, OSError) as error:
        hint = "Until it answers, `kubectl apply --server-side -f inference_service.json` does the same."
        raise DependencyError(f"the Kubernetes API does not answer: {error}", where=name, hint=hint) from None


def _rejection(error: HttpStatus, name: str) -> TrainwrightError:
    if error.code in {401, 403}:
        return PermissionRefused(
            f"the Kubernetes API refuses: {error}",
            where=name,
            hint="Apply deploy/serving.yaml in its namespace. The InferenceService has to exist.",
        )
    return InputError(
        f"the Kubernetes API answers {error}",
        where=name,
        hint="Look at serving.service, and at whether KServe is installed.",
    )

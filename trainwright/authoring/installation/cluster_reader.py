"""Read objects of a Kubernetes cluster with the caller's own rights; a missing right is no error."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import urllib3
from kubernetes import client as k8s  # type: ignore[import-untyped]
from kubernetes import config
from kubernetes.config.config_exception import ConfigException  # type: ignore[import-untyped]

from trainwright.documents import InvalidJson, read_json
from trainwright.errors import DependencyError, PermissionRefused
from trainwright.http_limits import limited

Object = dict[str, Any]
TIMEOUTS_S = (5.0, 20.0)
_REVIEWS = "/apis/authorization.k8s.io/v1"


@dataclass(frozen=True)
class Answer:
    """An answer of the API server: ``hidden`` when the caller may not look."""

    state: Literal["found", "absent", "hidden"]
    body: Object = field(default_factory=dict)  # the object or list; empty unless found

    @property
    def items(self) -> list[Object]:
        """The entries of a list."""
        return self.body.get("items") or []

    @property
    def data(self) -> Object:
        """The data of a ConfigMap or Secret."""
        return self.body.get("data") or {}


class ClusterReader:
    """A Kubernetes cluster as the caller may read it. Nothing is changed."""

    def __init__(self, client: k8s.ApiClient) -> None:
        self._client = client
        self._answers: dict[str, Answer] = {}
        self.address = str(client.configuration.host)

    def get(self, path: str) -> Answer:
        """Return the object or list at a path; each is read once."""
        if path not in self._answers:
            self._answers[path] = self._call("GET", path)
        return self._answers[path]

    def serves(self, group_version: str, resource: str = "") -> bool:
        """Return whether the cluster has an API, and in it a custom resource by its plural name."""
        answer = self.get(f"/apis/{group_version}")
        names = {entry.get("name") for entry in answer.body.get("resources") or []}
        return answer.state == "found" and (not resource or resource in names)

    def allowed(self, namespace: str, group: str, resource: str, verb: str, account: str = "") -> bool | None:
        """Return whether an account has a right in a namespace; None if the caller may not ask.

        Args:
            namespace: Where.
            group: API group.
            resource: Plural name, with its subresource: ``pods/log``.
            verb: As a Role names it.
            account: A service account of the namespace; empty for the caller.
        """
        plural, _, part = resource.partition("/")
        what = {"namespace": namespace, "group": group, "resource": plural, "verb": verb}
        spec: Object = {"resourceAttributes": what | ({"subresource": part} if part else {})}
        kind, path, metadata = "SelfSubjectAccessReview", f"{_REVIEWS}/selfsubjectaccessreviews", {}
        if account:
            kind, metadata = "LocalSubjectAccessReview", {"namespace": namespace}
            path = f"{_REVIEWS}/namespaces/{namespace}/localsubjectaccessreviews"
            groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
            spec |= {"user": f"system:serviceaccount:{namespace}:{account}", "groups": groups}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}
        answer = self._call("POST", path, body)
        return bool(answer.body.get("status", {}).get("allowed")) if answer.state == "found" else None

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        advice = "Look whether kubectl version answers: it reads the same configuration."
        try:
            with limited():
                answer = self._client.call_api(
                    path,
                    method,
                    header_params={"Accept": "application/json", "Content-Type": "application/json"},
                    body=body,
                    auth_settings=["BearerToken"],
                    _preload_content=False,
                    _return_http_data_only=True,
                    _request_timeout=TIMEOUTS_S,
                )
                found = read_json(answer.data)
        except k8s.ApiException as error:
            if error.status in {403, 404}:
                return Answer("hidden" if error.status == 403 else "absent")  # noqa: PLR2004
            if error.status == 401:  # noqa: PLR2004
                hint = "Renew the credentials of the kubeconfig, or leave it out: unset KUBECONFIG."
                text = "the Kubernetes API does not take the kubeconfig's credentials"
                raise PermissionRefused(text, where=self.address, hint=hint) from None
            text = f"the Kubernetes API answered with {error.status}: {error.reason}"
            raise DependencyError(text, where=self.address, hint=advice) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            text = "the Kubernetes API does not answer"
            raise DependencyError(text, where=self.address, hint=advice) from error
        except InvalidJson as error:
            text = f"what answers is not the Kubernetes API: {error.what}"
            raise DependencyError(text, where=self.address, hint=advice) from None
        return Answer("found", found if isinstance(found, dict) else {})


def connect() -> ClusterReader | None:
    """Connect to the cluster of the caller's kubeconfig, as kubectl does; None if there is none."""
    try:
        client = config.new_client_from_config()
    except (ConfigException, OSError):
        return None
    client.configuration.retries = False
    return ClusterReader(k8s.ApiClient(client.configuration))

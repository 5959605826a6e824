"""Read objects of a Kubernetes cluster with the caller's own rights; what may not be read is no failure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import urllib3
from kubernetes import client as k8s  # type: ignore[import-untyped]
from kubernetes import config
from kubernetes.config.config_exception import ConfigException  # type: ignore[import-untyped]

from trainwright.errors import DependencyError, PermissionRefused

Object = dict[str, Any]
CONNECT_S, ANSWER_S = 5.0, 20.0
_REVIEWS = "/apis/authorization.k8s.io/v1"
_FORBIDDEN, _UNAUTHORIZED, _NOT_FOUND = 403, 401, 404


@dataclass(frozen=True)
class Answer:
    """An answer of the API server.

    Attributes:
        state: ``found``, ``absent``, or ``hidden`` when the caller may not look.
        body: The object or list; empty unless found.
    """

    state: Literal["found", "absent", "hidden"]
    body: Object = field(default_factory=dict)

    @property
    def items(self) -> list[Object]:
        """The entries of a list."""
        return self.body.get("items") or []


class ClusterReader:
    """A Kubernetes cluster as the caller may read it. Nothing is changed.

    Args:
        client: A configured client.
    """

    def __init__(self, client: k8s.ApiClient) -> None:
        self._client = client
        self._seen: dict[str, Answer] = {}

    @property
    def address(self) -> str:
        """The address of the API server."""
        return str(self._client.configuration.host)

    def get(self, path: str) -> Answer:
        """Return what is at an address; asked once.

        Raises:
            DependencyError: The API server does not answer, or with an error of its own.
            PermissionRefused: It does not know the caller.
        """
        if path not in self._seen:
            self._seen[path] = self._call("GET", path)
        return self._seen[path]

    def serves(self, group_version: str) -> bool:
        """Say whether the cluster has an API: whether its custom resources are installed."""
        return self.get(f"/apis/{group_version}").state == "found"

    def allowed(self, namespace: str, group: str, resource: str, verb: str, account: str = "") -> bool | None:
        """Say whether an account has a right in a namespace; None if the caller may not ask.

        Args:
            namespace: Where.
            group: API group.
            resource: Plural name, with its subresource: ``pods/log``.
            verb: As a Role names it.
            account: A service account of the namespace; empty for the caller.
        """
        plural, _, part = resource.partition("/")
        what = {"namespace": namespace, "group": group, "resource": plural, "verb": verb}
        what |= {"subresource": part} if part else {}
        spec: Object = {"resourceAttributes": what}
        kind, path = "SelfSubjectAccessReview", f"{_REVIEWS}/selfsubjectaccessreviews"
        if account:
            kind = "LocalSubjectAccessReview"
            path = f"{_REVIEWS}/namespaces/{namespace}/localsubjectaccessreviews"
            groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
            spec |= {"user": f"system:serviceaccount:{namespace}:{account}", "groups": groups}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": kind,
            "metadata": {"namespace": namespace} if account else {},
            "spec": spec,
        }
        answer = self._call("POST", path, body)
        return bool(answer.body.get("status", {}).get("allowed")) if answer.state == "found" else None

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        try:
            found = self._client.call_api(
                path,
                method,
                header_params={"Accept": "application/json", "Content-Type": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
                response_type="object",
                _return_http_data_only=True,
                _request_timeout=(CONNECT_S, ANSWER_S),
            )
        except k8s.ApiException as error:
            if error.status == _NOT_FOUND:
                return Answer("absent")
            if error.status == _FORBIDDEN:
                return Answer("hidden")
            if error.status == _UNAUTHORIZED:
                hint = "Renew the credentials of the kubeconfig, or leave it out: unset KUBECONFIG."
                text = "the Kubernetes API does not take the kubeconfig's credentials"
                raise PermissionRefused(text, where=self.address, hint=hint) from None
            raise self._down(f"answered with {error.status}: {error.reason}") from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._down("does not answer") from error
        return Answer("found", found if isinstance(found, dict) else {})

    def _down(self, how: str) -> DependencyError:
        hint = "Look whether kubectl version answers: it reads the same configuration."
        return DependencyError(f"the Kubernetes API {how}", where=self.address, hint=hint)


def connect() -> ClusterReader | None:
    """Connect to the cluster of the caller's kubeconfig, as kubectl does; None if there is none."""
    try:
        client = config.new_client_from_config()
    except (ConfigException, OSError):
        return None
    client.configuration.retries = False
    return ClusterReader(k8s.ApiClient(client.configuration))

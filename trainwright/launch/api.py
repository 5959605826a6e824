"""The few calls of the Kubernetes API that a launcher makes, with its errors in our words."""

import json
import secrets
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import urllib3
from kubernetes import client as k8s  # type: ignore[import-untyped]

from trainwright.errors import (
    DependencyError,
    InputError,
    PermissionRefused,
    TrainwrightError,
    TransientError,
)

_T = TypeVar("_T")
GROUP, VERSION, PLURAL = "kubeflow.org", "v1", "pytorchjobs"
_TIMEOUT_S = 30
_SLOWEST_S = 30.0


class Conflict(Exception):
    """The API says that the object is already there."""


class Api:
    """PyTorchJobs and pods of one namespace.

    A call that fails for a passing reason is made again, with growing pauses, until the API has been
    out of reach for ``outage_s``.

    Args:
        client: A configured client.
        namespace: The namespace.
        outage_s: Longest outage that is sat out, in seconds.
        pause_s: First pause after a failed call, in seconds.
    """

    def __init__(
        self, client: k8s.ApiClient, namespace: str, *, outage_s: float = 900, pause_s: float = 1
    ) -> None:
        self._jobs, self._pods = k8s.CustomObjectsApi(client), k8s.CoreV1Api(client)
        self.namespace, self._outage_s, self._pause_s = namespace, outage_s, pause_s

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """Create a job. After a lost reply the second try ends in :class:`Conflict`, as it should.

        Raises:
            Conflict: There is a job of that name.
        """
        created: dict[str, Any] = self._persist(
            lambda: self._jobs.create_namespaced_custom_object(
                GROUP,
                VERSION,
                self.namespace,
                PLURAL,
                body,
                field_validation="Strict",
                _request_timeout=_TIMEOUT_S,
            )
        )
        return created

    def job(self, name: str) -> dict[str, Any] | None:
        """Return a job, or nothing if there is none of that name."""
        found: dict[str, Any] | None = self._persist(
            lambda: self._jobs.get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURAL, name, _request_timeout=_TIMEOUT_S
            ),
            absent=True,
        )
        return found

    def delete(self, name: str) -> None:
        """Delete a job with all that belongs to it; it may be gone already."""
        options = k8s.V1DeleteOptions(propagation_policy="Foreground")
        self._persist(
            lambda: self._jobs.delete_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURAL, name, body=options, _request_timeout=_TIMEOUT_S
            ),
            absent=True,
        )

    def pods(self, name: str) -> list[dict[str, Any]]:
        """Return the pods of a job."""
        selector = f"training.kubeflow.org/job-name={name}"
        answer = self._persist(
            lambda: self._pods.list_namespaced_pod(
                self.namespace, label_selector=selector, _preload_content=False, _request_timeout=_TIMEOUT_S
            )
        )
        items: list[dict[str, Any]] = json.loads(answer.data)["items"]
        return items

    def _persist(self, call: Callable[[], _T], *, absent: bool = False) -> Any:
        """Make a call until it succeeds, is refused for good, or the outage lasts too long."""
        end, pause = time.monotonic() + self._outage_s, self._pause_s
        while True:
            try:
                return call()
            except k8s.ApiException as error:
                if absent and error.status == 404 and "page not found" not in str(error.body):  # noqa: PLR2004
                    return None
                passing = _in_our_words(error)
                if not isinstance(passing, TransientError):
                    raise passing from error
            except (urllib3.exceptions.HTTPError, OSError) as error:
                passing = TransientError(f"cannot reach the Kubernetes API: {error}")
            if time.monotonic() + pause > end:
                raise passing
            sys.stderr.write(f"{passing.what}; trying again in {pause:.0f} s\n")
            time.sleep(pause * secrets.SystemRandom().uniform(0.5, 1.0))
            pause = min(2 * pause, _SLOWEST_S)


def _in_our_words(error: k8s.ApiException) -> TrainwrightError | Conflict:
    """Translate an answer of the API."""
    message = _message(error)
    match error.status:
        case 409:
            return Conflict(message)
        case 400 | 415 | 422:
            return InputError(f"the Kubernetes API refuses the job: {message}", where="job for a cluster")
        case 401 | 403:
            return _refusal(message)
        case 404:
            return DependencyError(
                f"the cluster knows no PyTorchJobs ({message})",
                hint="Install the Kubeflow training operator v1, or look at the namespace.",
            )
    return TransientError(f"the Kubernetes API answers {error.status}: {message}")


def _refusal(message: str) -> TrainwrightError:
    """Translate a 401 or 403. The latter stands for several things; only the message tells them apart."""
    if "admission webhook" in message:
        return InputError(f"the training operator refuses the job: {message}", where="job for a cluster")
    if "exceeded quota" in message:
        return DependencyError(
            f"the namespace's quota is used up: {message}", hint="Wait, or ask for a larger one."
        )
    return PermissionRefused(
        f"the service account of this step is not allowed to do this: {message}",
        hint="It needs create, get and delete of pytorchjobs.kubeflow.org, and list of pods: see deploy/.",
    )


def _message(error: k8s.ApiException) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.body or error.reason).strip()[:200]

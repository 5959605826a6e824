"""Mirror a registered model of MLflow in Kubeflow Hub, the model registry of Kubeflow.

Nothing reads the Hub to decide. Each call makes it equal to MLflow, whatever earlier calls missed. The Hub
deletes nothing: a version that MLflow no longer has is archived.
"""

import http.client
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from trainwright.artifacts import Model
from trainwright.credentials import read_secret
from trainwright.documents import canonical, read_json
from trainwright.errors import (
    DependencyError,
    InputError,
    PermissionRefused,
    TrainwrightError,
    TransientError,
)
from trainwright.experiment import Registry
from trainwright.http_exchange import HttpStatus, exchange, is_transient
from trainwright.registry.listing import all_versions
from trainwright.registry.names import ARCHIVED, STAGE
from trainwright.registry.versions import registered_model, version_page
from trainwright.retries import GaveUp, retry
from trainwright.tracking.run_log import PREFIX
from trainwright.tracking.server import open_client, persist

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

_API = "/api/model_registry/v1alpha3/"
_RETRY_S, _TIMEOUT_S = 60.0, 10.0
"""Longest outage that a step waits for, since MLflow has the version already; and one wait for bytes."""

_ATTEMPTS = 5
"""Attempts to mirror a model that others keep changing."""

_PAGE = 100
_ADDRESS = "Set registry.hub to the address of its REST API, as http://model-registry-service.kubeflow:8080."
_log = logging.getLogger(__name__)

Fields = dict[str, Any]
"""Fields of an object of the Hub, as JSON."""


NOT_MIRRORED = ", not mirrored in Kubeflow Hub"
"""End of a record's headline after a warning."""


@dataclass(frozen=True)
class _Mirrored:
    """Fields of a model in the Hub, and of each version and its artifact by the version's number."""

    model: Fields
    versions: Mapping[str, tuple[Fields, Fields]]


def try_mirror(registry: Registry) -> str:
    """Mirror a model if ``registry.hub`` is set; return why that failed, which the next call makes up for."""
    try:
        if registry.hub:
            mirror(registry)
    except TrainwrightError as error:
        again = (
            f"The next change of this model updates it, as does: trainwright model mirror {registry.model}"
        )
        text = f"Kubeflow Hub was not updated: {error.what} ({error.where}). {error.hint} {again}"
        _log.warning(text)
        return text
    return ""


def mirror(registry: Registry) -> int:
    """Make Kubeflow Hub equal to MLflow for one registered model; return the number of its versions.

    Raises:
        InputError: MLflow has no such model, ``registry.hub`` is no Hub, or has another one of
            this name.
        PermissionRefused: The Hub rejects this identity.
        DependencyError: The Hub or MLflow was away.
        TransientError: Other processes kept changing the model.
    """
    if not registry.hub:
        raise InputError("registry.hub is not set", where="registry.hub", hint=_ADDRESS)
    uri = registry.tracking_uri
    hub, before = _Hub(registry), None
    for _ in range(_ATTEMPTS):
        # Whoever writes last reads MLflow after that, so mirrors of several changes end with the last one.
        desired = persist(lambda: _read(open_client(uri), registry), uri, registry.retry_s)
        if desired == before:
            return len(desired.versions)
        hub.write(desired)
        before = desired
    raise TransientError(
        f"{registry.model!r} changed in MLflow during each of {_ATTEMPTS} attempts to mirror it",
        where=f"registry.hub: {registry.hub}",
    )


def _read(client: "MlflowClient", registry: Registry) -> _Mirrored:
    """Read what MLflow has. A version without a stage does not count."""
    model = registered_model(client, registry.model)
    aliases: dict[str, list[str]] = {}
    for alias, number in sorted(model.aliases.items()):
        aliases.setdefault(str(number), []).append(alias)
    found = [version for version in all_versions(client, registry.model) if STAGE in version.tags]
    # The Hub's newest version is the last that was created there.
    found.sort(key=lambda version: int(version.version))
    return _Mirrored(
        _without_empty({"owner": registry.author, "description": model.description}),
        {
            str(version.version): (
                _version_fields(version, aliases.get(str(version.version), []), registry),
                _artifact_fields(version),
            )
            for version in found
        },
    )


def _without_empty(fields: Fields) -> Fields:
    return {name: value for name, value in fields.items() if value}


def _version_fields(version: "ModelVersion", aliases: list[str], registry: Registry) -> Fields:
    number = str(version.version)
    tags = {name: value for name, value in version.tags.items() if name.startswith(PREFIX)}
    tags |= {
        f"{PREFIX}aliases": ", ".join(aliases),
        f"{PREFIX}mlflow_run": str(version.run_id or ""),
        f"{PREFIX}mlflow_version": version_page(registry, number) or f"models:/{registry.model}/{number}",
    }
    fields = {"description": version.description, "author": tags.get(f"{PREFIX}author", "")}
    state = "ARCHIVED" if version.tags[STAGE] == ARCHIVED else "LIVE"
    return _without_empty(fields) | {"state": state, "customProperties": _properties(tags)}


def _artifact_fields(version: "ModelVersion") -> Fields:
    run = version.tags.get(f"{PREFIX}pipeline_run", "")
    source = {"modelSourceKind": "pipelines", "modelSourceClass": "pipelinerun", "modelSourceId": run}
    digest = version.tags.get(f"{PREFIX}model_digest", "")
    return {
        "artifactType": "model-artifact",
        "uri": str(version.source),
        "state": "LIVE",
        "modelFormatName": "trainwright",
        "modelFormatVersion": str(Model.SCHEMA_VERSION),
        **(source if run else {}),
        "customProperties": _properties({f"{PREFIX}model_digest": digest}),
    }


def _properties(values: Mapping[str, str]) -> Fields:
    # The Hub's UI shows a property with an empty value as a label.
    return {
        name: {"metadataType": "MetadataStringValue", "string_value": value}
        for name, value in values.items()
        if value
    }


def _changes(found: Fields, desired: Fields) -> Fields:
    """Return the fields to change. The Hub replaces custom properties as a whole; those of others stay."""
    others = {
        name: value
        for name, value in found.get("customProperties", {}).items()
        if not name.startswith(PREFIX)
    }
    desired = {key: others | value if key == "customProperties" else value for key, value in desired.items()}
    return {name: value for name, value in desired.items() if found.get(name) != value}


_GONE: Fields = {
    "state": "ARCHIVED",
    "customProperties": _properties({STAGE: "deleted in MLflow"}),
}
"""Fields of a version that MLflow no longer has."""


def _is_transient(error: Exception) -> bool:
    # A conflict: another process created the same version or artifact, which the next attempt finds.
    return is_transient(error) or (isinstance(error, HttpStatus) and error.code == http.client.CONFLICT)


class _Hub:
    """The REST API of Kubeflow Hub, for one registered model."""

    def __init__(self, registry: Registry) -> None:
        self._model, self._external_id = registry.model, f"mlflow:{registry.model}"
        self._url, self._retry_s = registry.hub.rstrip("/"), min(registry.retry_s, _RETRY_S)
        self._headers = {"Content-Type": "application/json"}
        if registry.hub_token_file:
            token = read_secret(registry.hub_token_file, "registry.hub_token_file").strip()
            self._headers["Authorization"] = f"Bearer {token}"

    def write(self, desired: _Mirrored) -> None:
        """Write what differs; doing it again changes nothing."""
        where = f"registry.hub: {self._url}"
        try:
            retry(partial(self._write, desired), _is_transient, f"writing to {self._url}", self._retry_s)
        except HttpStatus as error:
            if error.code in {http.client.UNAUTHORIZED, http.client.FORBIDDEN}:
                hint = "Put a token that may write into the file that registry.hub_token_file names."
                raise PermissionRefused(f"Kubeflow Hub denies: {error}", where=where, hint=hint) from None
            raise InputError(f"Kubeflow Hub answers {error}", where=where, hint=_ADDRESS) from None
        except (ValueError, LookupError, TypeError) as error:
            said = f"{type(error).__name__}: {error}"[:200]
            raise InputError(f"not an answer of Kubeflow Hub: {said}", where=where, hint=_ADDRESS) from None
        except (GaveUp, OSError) as error:
            hint = "Look at the Hub, and at the network policy of steps."
            raise DependencyError(f"Kubeflow Hub does not answer: {error}", where=where, hint=hint) from None

    def _write(self, desired: _Mirrored) -> None:
        model = self._write_model(desired.model)
        found = {entry["name"]: entry for entry in self._list(f"registered_models/{model}/versions")}
        for number, (fields, artifact) in desired.versions.items():
            new = {"name": number, "registeredModelId": model}
            entry = found.get(number) or self._send("POST", "model_versions", new)
            if _changes(entry, fields):
                # The artifact first: a version in its desired state has its artifact, also after a crash.
                self._write_artifact(f"model_versions/{entry['id']}/artifacts", artifact)
                self._update("model_versions", entry, fields)
        for number in found.keys() - desired.versions.keys():
            if STAGE in found[number].get("customProperties", {}):
                self._update("model_versions", found[number], _GONE)

    def _write_model(self, fields: Fields) -> str:
        """Create or update the registered model; return its id."""
        new = {"name": self._model, "externalId": self._external_id, **fields}
        try:
            found = self._find_model() or self._send("POST", "registered_models", new)
        except HttpStatus as error:
            if error.code != http.client.CONFLICT:
                raise
            found = self._find_model()  # another process may have created it meanwhile
        if found.get("name") != self._model:
            raise InputError(
                f"Kubeflow Hub has a model {self._model!r}, perhaps in other case, that is not from MLflow",
                where=f"registry.hub: {self._url}",
                hint=f"If it is this one, set its externalId in the Hub to {self._external_id!r}.",
            )
        self._update("registered_models", found, fields)
        return str(found["id"])

    def _find_model(self) -> Fields:
        """Return the registered model; empty if there is none."""
        # By name the Hub compares as SQL's LIKE does, in which "_" is any character.
        query = urlencode({"externalId": self._external_id})
        try:
            return self._send("GET", f"registered_model?{query}")
        except HttpStatus as error:
            if error.code != http.client.NOT_FOUND:
                raise
            return {}

    def _write_artifact(self, path: str, fields: Fields) -> None:
        found = next((entry for entry in self._list(path) if entry.get("name") == self._model), None)
        if found is None:
            self._send("POST", path, {"name": self._model, **fields})
        else:
            self._update("model_artifacts", found, fields)

    def _update(self, kind: str, found: Fields, desired: Fields) -> None:
        if changes := _changes(found, desired):
            # A change that does not name the state resets it: to LIVE, or UNKNOWN of an artifact.
            state = desired.get("state") or found.get("state", "LIVE")
            self._send("PATCH", f"{kind}/{found['id']}", changes | {"state": state})

    def _list(self, path: str) -> Iterator[Fields]:
        token = ""
        while True:
            page = self._send("GET", f"{path}?{urlencode({'pageSize': _PAGE, 'nextPageToken': token})}")
            yield from page["items"]
            token = page["nextPageToken"]
            if not token:
                return

    def _send(self, method: str, path: str, fields: Fields | None = None) -> Fields:
        body = None if fields is None else canonical(fields).encode()
        answer = exchange(method, f"{self._url}{_API}{path}", self._headers, body, timeout_s=_TIMEOUT_S)
        return dict(read_json(answer, where=path))

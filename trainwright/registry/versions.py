"""Versions and aliases as MLflow has them: read, pointed, and read back. Every call may be repeated."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from trainwright.errors import InputError
from trainwright.registry.names import AUDITED, HEAD, KEY, STAGE

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

_ABSENT = "RESOURCE_DOES_NOT_EXIST"


def quoted(text: str) -> str:
    """Write a text as a literal of MLflow's filters, which know two kinds of quotes and no escape."""
    return f'"{text}"' if "'" in text else f"'{text}'"


def find_versions(client: "MlflowClient", name: str, key: str) -> "list[ModelVersion]":
    """Return the versions that were registered under a key, the first one, which counts, first."""
    found = client.search_model_versions(f"name = {quoted(name)} and tag.`{KEY}` = '{key}'")
    return sorted(found, key=lambda version: int(version.version))


def version_of(client: "MlflowClient", name: str, version: str) -> "ModelVersion":
    """Return one version.

    Raises:
        InputError: There is none of that number.
    """
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version(name, version)
    except MlflowException as error:
        if error.error_code != _ABSENT:
            raise
        raise InputError(
            f"{name!r} has no version {version!r}",
            where="promotion.version",
            hint="Versions and their stages are listed by: trainwright model history",
        ) from None


def missing(client: "MlflowClient", name: str, versions: Iterable[str]) -> set[str]:
    """Return those of some versions that MLflow has not: somebody deleted them there."""
    from mlflow.exceptions import MlflowException

    gone = set()
    for version in set(versions):
        try:
            client.get_model_version(name, version)
        except MlflowException as error:
            if error.error_code != _ABSENT:
                raise
            gone.add(version)
    return gone


def registered(client: "MlflowClient", name: str) -> "RegisteredModel":
    """Return the registered model, with its aliases and tags.

    Raises:
        InputError: There is none of that name.
    """
    from mlflow.exceptions import MlflowException

    # Searched for: asked for by its name, MLflow first reads every version that the model has.
    for model in client.search_registered_models(f"name = {quoted(name)}"):
        if model.name == name:
            return model
    try:
        return client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != _ABSENT:
            raise
        raise InputError(
            f"no model {name!r} is registered", where="registry.model", hint="Run register first."
        ) from None


def audited(model: "RegisteredModel") -> dict[str, str]:
    """Return version by alias, of those that the audit covers."""
    return {alias: str(version) for alias, version in model.aliases.items() if alias in AUDITED}


def read_aliases(client: "MlflowClient", name: str) -> dict[str, str]:
    """Return version by alias, of those that the audit covers."""
    return audited(registered(client, name))


def read_head(client: "MlflowClient", name: str) -> str:
    """Return what MLflow has noted of the end of the audit; empty if nothing."""
    return str(registered(client, name).tags.get(HEAD, ""))


def alias_of(client: "MlflowClient", name: str, alias: str) -> str:
    """Return the version that an alias points at; empty if it points nowhere."""
    return str(registered(client, name).aliases.get(alias, ""))


def point(client: "MlflowClient", name: str, aliases: Mapping[str, str], stages: Mapping[str, str]) -> bool:
    """Let the audited aliases point where they are to, mark the versions' stages, and read both back.

    Args:
        client: MLflow's client.
        name: The registered model.
        aliases: Version by alias; one of :data:`AUDITED` that is absent is taken away.
        stages: Stage by version.

    Returns:
        Whether everything was found as it was set: another may have set it at the same moment.
    """
    there = read_aliases(client, name)
    # Those that move on come first, so that at no moment nothing is in production.
    for alias in sorted(AUDITED, key=lambda alias: alias not in aliases):
        if aliases.get(alias) == there.get(alias):
            continue
        if alias in aliases:
            client.set_registered_model_alias(name, alias, aliases[alias])
        else:
            client.delete_registered_model_alias(name, alias)
    for version, stage in stages.items():
        client.set_model_version_tag(name, version, STAGE, stage)
    read = {version: client.get_model_version(name, version).tags.get(STAGE) for version in stages}
    return read_aliases(client, name) == dict(aliases) and read == dict(stages)


def read_document(client: "MlflowClient", run: str, path: str) -> Any:
    """Read a JSON file among the files of a run.

    Raises:
        InputError: There is none, or it is not JSON.
    """
    # Asked for first: what is not there is for MLflow a server's error, which would be waited out.
    listed = {entry.path for entry in client.list_artifacts(run, path.rpartition("/")[0])}
    if path not in listed:
        raise InputError(
            f"run {run} has no file {path}",
            hint="It was not registered by this library, or its files were removed: register it again.",
        )
    with TemporaryDirectory() as scratch:
        text = Path(client.download_artifacts(run, path, scratch)).read_text()
    try:
        return json.loads(text)
    except ValueError:
        raise InputError(f"{path} of run {run} is not JSON") from None

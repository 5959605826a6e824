"""Versions and aliases in MLflow: find, create, read and point. Every call may be repeated."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from trainwright.errors import InputError, TransientError
from trainwright.registry.names import AUDITED, CANDIDATE, HEAD, KEY, PRODUCTION, STAGE
from trainwright.tracking.history import metric_batches
from trainwright.tracking.server import SQLITE, database

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
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


def missing_versions(client: "MlflowClient", name: str, versions: Iterable[str]) -> set[str]:
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


def registered_model(client: "MlflowClient", name: str) -> "RegisteredModel":
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


def audited_aliases(model: "RegisteredModel") -> dict[str, str]:
    """Return version by alias, of those that the audit covers."""
    return {alias: str(version) for alias, version in model.aliases.items() if alias in AUDITED}


def read_aliases(client: "MlflowClient", name: str) -> dict[str, str]:
    """Return version by alias, of those that the audit covers."""
    return audited_aliases(registered_model(client, name))


def read_head(client: "MlflowClient", name: str) -> str:
    """Return what MLflow has noted of the end of the audit; empty if nothing."""
    return str(registered_model(client, name).tags.get(HEAD, ""))


def alias_of(client: "MlflowClient", name: str, alias: str) -> str:
    """Return the version that an alias points at; empty if it points nowhere."""
    return str(registered_model(client, name).aliases.get(alias, ""))


def point_aliases(
    client: "MlflowClient", name: str, aliases: Mapping[str, str], stages: Mapping[str, str]
) -> bool:
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


MODEL_DIGEST_TAG = "trainwright.model_digest"
"""Tag of a version: digest of its model's manifest."""


@dataclass(frozen=True)
class ProductionVersion:
    """A version that an alias points at.

    Attributes:
        version: Its number in the registry.
        model: Digest of its model's manifest.
        source: Where its files are.
    """

    version: str
    model: str
    source: str


def find_production(client: "MlflowClient", name: str) -> ProductionVersion | None:
    """Return the version in production; None where there is none, or no such model yet.

    Raises:
        InputError: A version without the digest of its model is in production: it was not registered here.
    """
    found = _pointed_at(client, name)
    if found is None:
        return None
    if not found.tags.get(MODEL_DIGEST_TAG):
        raise InputError(
            f"version {found.version} of {name} is in production and has no tag {MODEL_DIGEST_TAG}",
            where=f"alias {PRODUCTION}",
            hint="Promote a version that the register step made.",
        )
    return ProductionVersion(str(found.version), found.tags[MODEL_DIGEST_TAG], str(found.source))


def _pointed_at(client: "MlflowClient", name: str) -> "ModelVersion | None":
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(name, PRODUCTION)
    except MlflowException as error:
        # A missing model is RESOURCE_DOES_NOT_EXIST, a missing alias INVALID_PARAMETER_VALUE. The word alone
        # says nothing: it is in the request's address, and so in the message of a server that is away.
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        if error.error_code == "INVALID_PARAMETER_VALUE" and "alias" in str(error).lower():
            return None
        raise


_ALIAS_ATTEMPTS = 10

ALIAS = CANDIDATE
"""Points at the newest version that counts."""


def find_version(client: "MlflowClient", name: str, key: str) -> "ModelVersion | None":
    """Return the version that was registered under a key: the first, if there are several."""
    return next(iter(find_versions(client, name, key)), None)


def open_run(
    client: "MlflowClient", name: str, key: str, tracking_uri: str, tags: Mapping[str, str]
) -> "Run":
    """Return the run that a registration logs to: the one a killed attempt began, or a new one."""
    experiment = _experiment(client, name, tracking_uri)
    found = client.search_runs(
        [experiment], f"tags.`{KEY}` = '{key}'", order_by=["attributes.start_time ASC"]
    )
    if found:
        return found[0]
    return client.create_run(experiment, tags={**tags, KEY: key}, run_name=f"{name} {key[:8]}")


def _experiment(client: "MlflowClient", name: str, tracking_uri: str) -> str:
    """Return the id of the experiment named like the model; with SQLite, files lie beside the database."""
    found = client.get_experiment_by_name(name)
    if found is None:
        beside = None
        if tracking_uri.startswith(SQLITE):
            beside = (database(tracking_uri).parent / "artifacts").as_uri()
        _unless_there(lambda: client.create_experiment(name, artifact_location=beside))
        found = client.get_experiment_by_name(name)
    if found is None or found.lifecycle_stage != "active":
        raise InputError(
            f"the experiment {name!r} was deleted in MLflow", where=tracking_uri, hint="Restore it there."
        )
    return str(found.experiment_id)


def _unless_there(create: Callable[[], object]) -> None:
    """Create something, unless it is there: another process may have made it a moment ago."""
    from mlflow.exceptions import MlflowException

    try:
        create()
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def log_run(
    client: "MlflowClient", run: str, params: Mapping[str, Any], metrics: Mapping[str, float], time_ms: int
) -> None:
    """Log parameters and figures in a batch each; logging them again changes nothing."""
    from mlflow.entities import Metric, Param

    for start in range(0, len(params), 100):
        part = list(params.items())[start : start + 100]
        client.log_batch(run, params=[Param(key, str(value)) for key, value in part])
    figures = [Metric(key, value, time_ms, 0) for key, value in metrics.items()]
    for start in range(0, len(figures), 1000):
        client.log_batch(run, metrics=figures[start : start + 1000])


def log_curves(client: "MlflowClient", run: str, history: Path) -> None:
    """Log the curves of the training, if it left any; logging them again changes nothing."""
    if history.exists():
        for _, values in metric_batches(history):
            client.log_batch(run, metrics=values)


def log_files(client: "MlflowClient", run: str, folders: Sequence[tuple[Path, str]]) -> None:
    """Upload folders, each to its place among the run's artifacts, and close the run."""
    for folder, place in folders:
        client.log_artifacts(run, str(folder), place)
    client.set_terminated(run)


def create_version(
    client: "MlflowClient", name: str, key: str, run: "Run", tags: Mapping[str, str], description: str
) -> None:
    """Create the version and its tags in one transaction; :func:`settle_version` resolves duplicates."""
    _unless_there(lambda: client.create_registered_model(name))
    source = f"{run.info.artifact_uri}/model"
    client.create_model_version(
        name, source, run.info.run_id, tags={**tags, KEY: key}, description=description
    )


def settle_version(client: "MlflowClient", name: str, key: str) -> "ModelVersion":
    """Return the one version that stands under a key, and let it count; take all others back.

    MLflow numbers versions one after the other and refuses none, so two processes at once, or a request that
    was sent again, make two. The lowest number stands: it was there before any other could be seen, so
    everybody finds the same. A copy that the network brings after all this has no stage, and is taken back by
    whoever comes next; nothing reads it before.
    """
    found = find_versions(client, name, key)
    if not found:
        raise TransientError(
            f"the version of {name!r} that was just made is not found",
            where="registry",
            hint="MLflow answers from a copy that lags behind, or somebody deleted it: run register again.",
        )
    first, *others = found
    for other in others:
        _unless_gone(partial(client.delete_model_version, name, str(other.version)))
        if other.run_id and other.run_id != first.run_id:
            _unless_gone(partial(client.delete_run, str(other.run_id)))
    if STAGE not in first.tags:
        client.set_model_version_tag(name, str(first.version), STAGE, CANDIDATE)
    return first


def _unless_gone(remove: Callable[[], object]) -> None:
    """Remove something; another process may have done it a moment ago."""
    from mlflow.exceptions import MlflowException

    try:
        remove()
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "INVALID_STATE"):
            raise


def point_candidate(client: "MlflowClient", name: str) -> None:
    """Let the alias point at the newest version that counts, also where another sets it at this moment."""
    counting = f"name = {quoted(name)} and tag.`{STAGE}` = '{CANDIDATE}'"
    for _ in range(_ALIAS_ATTEMPTS):
        # One is enough: to read all of some thousand takes MLflow longer than its clients wait.
        last = client.search_model_versions(counting, max_results=1, order_by=["version_number DESC"])
        newest = max((int(version.version) for version in last), default=0)
        if newest <= int(alias_of(client, name, ALIAS) or 0):
            return
        client.set_registered_model_alias(name, ALIAS, str(newest))

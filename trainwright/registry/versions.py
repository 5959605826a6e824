"""Versions and aliases in MLflow: find, create, read and point. Every call may be repeated."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from trainwright.documents import digest_file, read_json
from trainwright.errors import InputError, ModelRefused, TransientError
from trainwright.experiment import Registry
from trainwright.registry.names import AUDITED, CANDIDATE, HEAD, KEY, PRODUCTION, STAGE
from trainwright.tracking.history import experiment_named, metric_batches

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel


ABSENT = "RESOURCE_DOES_NOT_EXIST"


@contextmanager
def ignored(*codes: str) -> Iterator[None]:
    """Leave the block at an error of MLflow with one of these codes."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code not in codes:
            raise


def quoted(text: str) -> str:
    """Quote a literal for MLflow's filters, which have two kinds of quotes and no escape."""
    return f'"{text}"' if "'" in text else f"'{text}'"


def find_versions(client: "MlflowClient", name: str, key: str) -> "list[ModelVersion]":
    """Return the versions registered under a key; the first is the one that counts."""
    found = client.search_model_versions(f"name = {quoted(name)} and tag.`{KEY}` = '{key}'")
    return sorted(found, key=lambda version: int(version.version))


def version_of(client: "MlflowClient", name: str, version: str) -> "ModelVersion":
    """Return one version; InputError if it does not exist."""
    with ignored(ABSENT):
        return client.get_model_version(name, version)
    raise InputError(
        f"{name!r} has no version {version!r}",
        where="promotion.version",
        hint="trainwright model list lists the versions.",
    )


def missing_versions(client: "MlflowClient", name: str, versions: Iterable[str]) -> set[str]:
    """Return the versions that were deleted in MLflow."""
    gone = set(versions)
    for version in tuple(gone):
        with ignored(ABSENT):
            client.get_model_version(name, version)
            gone.remove(version)
    return gone


def registered_model(client: "MlflowClient", name: str) -> "RegisteredModel":
    """Return the registered model with its aliases and tags; InputError if it does not exist."""
    # Search first: get_registered_model reads every version of the model.
    for model in client.search_registered_models(f"name = {quoted(name)}"):
        if model.name == name:
            return model
    with ignored(ABSENT):
        return client.get_registered_model(name)
    raise InputError(f"no model {name!r} is registered", where="registry.model", hint="Run register first.")


def version_page(registry: Registry, version: str) -> str:
    """Return the URL of a version in MLflow's UI; empty where a browser cannot reach it."""
    root = registry.page or registry.tracking_uri
    if not root.startswith(("http://", "https://")):
        return ""
    if not registry.page:
        host = urlsplit(root).hostname or ""
        local = host == "localhost" or ":" in host  # this machine; an IPv6 address
        # Only pods resolve the name of a Kubernetes Service.
        if not local and ("." not in host or host.endswith(".svc") or ".svc." in host):
            return ""
    return f"{root.rstrip('/')}/#/models/{quote(registry.model, safe='')}/versions/{version}"


def read_aliases(client: "MlflowClient", name: str) -> dict[str, str]:
    """Return version by audited alias."""
    aliases = registered_model(client, name).aliases
    return {alias: str(version) for alias, version in aliases.items() if alias in AUDITED}


def read_head(client: "MlflowClient", name: str) -> str:
    """Return MLflow's note of the audit's last entry; empty if there is none."""
    return str(registered_model(client, name).tags.get(HEAD, ""))


def alias_of(client: "MlflowClient", name: str, alias: str) -> str:
    """Return the version of an alias; empty if the alias does not exist."""
    return str(registered_model(client, name).aliases.get(alias, ""))


def point_aliases(
    client: "MlflowClient", name: str, aliases: Mapping[str, str], stages: Mapping[str, str]
) -> bool:
    """Set the audited aliases (removing absent ones) and the stages; return whether both read back as set."""
    there = read_aliases(client, name)
    # Set before deleting, so that production never is empty.
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


def missing_file(run: str, path: str) -> InputError:
    """Return the error about a file or folder that a run does not have."""
    return InputError(
        f"run {run} has no file {path}",
        hint="It was not registered by this library, or its files were removed: register it again.",
    )


def read_document(client: "MlflowClient", run: str, path: str, sha256: str = "") -> Any:
    """Read a JSON artifact of a run; InputError if it is missing, not JSON, or has another digest."""
    # List first: MLflow reports a missing file as a server error, which would be retried.
    listed = {entry.path for entry in client.list_artifacts(run, path.rpartition("/")[0])}
    if path not in listed:
        raise missing_file(run, path)
    with TemporaryDirectory() as scratch:
        file = Path(client.download_artifacts(run, path, scratch))
        if sha256 and (found := digest_file(file)) != sha256:
            raise InputError(
                f"{path} of run {run} has digest {found[:12]}, expected {sha256[:12]}",
                where=f"run {run}",
                hint="It was changed in MLflow: restore it, or evaluate and register again.",
            )
        return read_json(file, where=f"{path} of run {run}")


MODEL_DIGEST_TAG = "trainwright.model_digest"
"""Tag of a version: digest of its model's manifest."""


@dataclass(frozen=True)
class ProductionVersion:
    """A version in production: its number, the digest of its manifest, and the URI of its files."""

    version: str
    model: str
    source: str


def find_production(client: "MlflowClient", name: str, alias: str = PRODUCTION) -> ProductionVersion | None:
    """Return the version in production, or of another alias; None if there is none, or no such model.

    Raises:
        InputError: The version has no digest of its model: another tool registered it.
        ModelRefused: No alias says so, but a version has the stage.
    """
    found = _pointed_at(client, name, alias)
    if found is None:
        if alias == PRODUCTION:
            _require_no_stage(client, name)
        return None
    if not found.tags.get(MODEL_DIGEST_TAG):
        raise InputError(
            f"version {found.version} of {name} is {alias} and has no tag {MODEL_DIGEST_TAG}",
            where=f"alias {alias}",
            hint="Promote a version that the register step made.",
        )
    return ProductionVersion(str(found.version), found.tags[MODEL_DIGEST_TAG], str(found.source))


def _require_no_stage(client: "MlflowClient", name: str) -> None:
    """Check that no version was promoted to production, where the alias is gone."""
    promoted = f"name = {quoted(name)} and tag.`{STAGE}` = '{PRODUCTION}'"
    if found := client.search_model_versions(promoted, max_results=1):
        raise ModelRefused(
            f"version {found[0].version} of {name} was promoted to {PRODUCTION}, and the alias is gone",
            where=f"alias {PRODUCTION}",
            hint=f"Find who removed the alias; then trainwright model restore {name}.",
        )


def _pointed_at(client: "MlflowClient", name: str, alias: str) -> "ModelVersion | None":
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(name, alias)
    except MlflowException as error:
        # A missing model is RESOURCE_DOES_NOT_EXIST, a missing alias INVALID_PARAMETER_VALUE. "alias" in the
        # message alone proves nothing: it is in the URL, hence in the message of an unreachable server.
        if error.error_code == ABSENT:
            return None
        if error.error_code == "INVALID_PARAMETER_VALUE" and "alias" in str(error).lower():
            return None
        raise


_ALIAS_ATTEMPTS = 10

_GONE = (ABSENT, "INVALID_PARAMETER_VALUE", "INVALID_STATE")
"""Errors of MLflow for the deletion of what is deleted already."""

ALIAS = CANDIDATE
"""Points at the newest version that counts."""


def find_version(client: "MlflowClient", name: str, key: str) -> "ModelVersion | None":
    """Return the first version registered under a key."""
    return next(iter(find_versions(client, name, key)), None)


def open_run(
    client: "MlflowClient", name: str, key: str, tracking_uri: str, tags: Mapping[str, str]
) -> "Run":
    """Return the run of a registration: that of a killed attempt, or a new one."""
    experiment = experiment_named(name, client, tracking_uri)
    found = client.search_runs(
        [experiment], f"tags.`{KEY}` = '{key}'", order_by=["attributes.start_time ASC"]
    )
    if found:
        return found[0]
    return client.create_run(experiment, tags={**tags, KEY: key}, run_name=f"{name} {key[:8]}")


def log_run(
    client: "MlflowClient", run: str, params: Mapping[str, Any], metrics: Mapping[str, float], time_ms: int
) -> None:
    """Log parameters and metrics in batches; repeating it changes nothing."""
    from mlflow.entities import Metric, Param

    for start in range(0, len(params), 100):
        part = list(params.items())[start : start + 100]
        client.log_batch(run, params=[Param(key, str(value)) for key, value in part])
    figures = [Metric(key, value, time_ms, 0) for key, value in metrics.items()]
    for start in range(0, len(figures), 1000):
        client.log_batch(run, metrics=figures[start : start + 1000])


def log_curves(client: "MlflowClient", run: str, history: Path) -> None:
    """Log the training curves if there are any; repeating it changes nothing."""
    if history.exists():
        for _, values in metric_batches(history):
            client.log_batch(run, metrics=values)


def log_files(client: "MlflowClient", run: str, folders: Sequence[tuple[Path, str]]) -> None:
    """Upload folders to their artifact paths and end the run."""
    for folder, place in folders:
        client.log_artifacts(run, str(folder), place)
    client.set_terminated(run)


def create_version(
    client: "MlflowClient", name: str, key: str, run: "Run", tags: Mapping[str, str], description: str
) -> None:
    """Create the version and its tags in one transaction; :func:`settle_version` resolves duplicates."""
    with ignored("RESOURCE_ALREADY_EXISTS"):
        client.create_registered_model(name)
    source = f"{run.info.artifact_uri}/model"
    client.create_model_version(
        name, source, run.info.run_id, tags={**tags, KEY: key}, description=description
    )


def settle_version(client: "MlflowClient", name: str, key: str) -> "ModelVersion":
    """Return the first version under a key and tag its stage; delete its duplicates.

    MLflow rejects no version, so two processes, or a repeated request, create two. The lowest number counts:
    everybody finds the same. A duplicate that arrives later has no stage, so nothing reads it, and the next
    call deletes it.
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
        with ignored(*_GONE):
            client.delete_model_version(name, str(other.version))
        if other.run_id and other.run_id != first.run_id:
            with ignored(*_GONE):
                client.delete_run(str(other.run_id))
    if STAGE not in first.tags:
        client.set_model_version_tag(name, str(first.version), STAGE, CANDIDATE)
    return first


def point_candidate(client: "MlflowClient", name: str) -> None:
    """Set the alias to the newest candidate, also while other processes do."""
    counting = f"name = {quoted(name)} and tag.`{STAGE}` = '{CANDIDATE}'"
    for _ in range(_ALIAS_ATTEMPTS):
        # One is enough: reading thousands takes MLflow longer than its clients wait.
        last = client.search_model_versions(counting, max_results=1, order_by=["version_number DESC"])
        newest = max((int(version.version) for version in last), default=0)
        if newest <= int(alias_of(client, name, ALIAS) or 0):
            return
        client.set_registered_model_alias(name, ALIAS, str(newest))

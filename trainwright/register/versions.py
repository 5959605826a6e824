"""One registered version a candidate, however often and by how many processes at once it is asked for."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.errors import InputError, TransientError
from trainwright.registry.names import CANDIDATE, KEY, STAGE
from trainwright.registry.versions import alias_of, find_versions, quoted
from trainwright.tracking.server import SQLITE, database
from trainwright.tracking.shipping import requests

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

_TRIES = 10

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
        for _, values in requests(history):
            client.log_batch(run, metrics=values)


def log_files(client: "MlflowClient", run: str, folders: Sequence[tuple[Path, str]]) -> None:
    """Upload folders, each to its place among the run's artifacts, and close the run."""
    for folder, place in folders:
        client.log_artifacts(run, str(folder), place)
    client.set_terminated(run)


def create_version(
    client: "MlflowClient", name: str, key: str, run: "Run", tags: Mapping[str, str], description: str
) -> None:
    """Create the version, with its tags in the same transaction. :func:`settle` says which one stands."""
    _unless_there(lambda: client.create_registered_model(name))
    source = f"{run.info.artifact_uri}/model"
    client.create_model_version(
        name, source, run.info.run_id, tags={**tags, KEY: key}, description=description
    )


def settle(client: "MlflowClient", name: str, key: str) -> "ModelVersion":
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


def point_alias(client: "MlflowClient", name: str) -> None:
    """Let the alias point at the newest version that counts, also where another sets it at this moment."""
    counting = f"name = {quoted(name)} and tag.`{STAGE}` = '{CANDIDATE}'"
    for _ in range(_TRIES):
        # One is enough: to read all of some thousand takes MLflow longer than its clients wait.
        last = client.search_model_versions(counting, max_results=1, order_by=["version_number DESC"])
        newest = max((int(version.version) for version in last), default=0)
        if newest <= int(alias_of(client, name, ALIAS) or 0):
            return
        client.set_registered_model_alias(name, ALIAS, str(newest))

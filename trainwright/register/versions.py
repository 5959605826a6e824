"""One registered version a candidate, however often and by how many processes at once it is asked for."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.errors import InputError
from trainwright.tracking.server import SQLITE, database
from trainwright.tracking.shipping import requests

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

KEY = "trainwright.idempotency_key"
"""The tag that makes a version, and its run, findable."""

ALIAS = "candidate"
"""Points at the newest registered version."""


def find_version(client: "MlflowClient", name: str, key: str) -> "ModelVersion | None":
    """Return the version that was registered under a key: the first, if there are several."""
    found = client.search_model_versions(f"name = '{name}' and tag.`{KEY}` = '{key}'")
    return min(found, key=lambda version: int(version.version), default=None)


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
) -> "ModelVersion":
    """Create the version, with its tags in the same transaction, and return the one that stands.

    If another process created one under the same key meanwhile, or an answer was lost and the request
    repeated, the lowest number stands, so all agree; the other is taken back.
    """
    _unless_there(lambda: client.create_registered_model(name))
    source = f"{run.info.artifact_uri}/model"
    made = client.create_model_version(
        name, source, run.info.run_id, tags={**tags, KEY: key}, description=description
    )
    first = find_version(client, name, key) or made
    if int(first.version) != int(made.version):
        client.delete_model_version(name, str(made.version))
        if first.run_id != run.info.run_id:
            client.delete_run(run.info.run_id)
    return first


def point_alias(client: "MlflowClient", name: str, version: int) -> None:
    """Let the alias point at a version, unless it points at a newer one already."""
    current = client.get_registered_model(name).aliases.get(ALIAS)
    if current is None or int(current) < version:
        client.set_registered_model_alias(name, ALIAS, str(version))

"""List the versions of a registered model, and show one with its evidence."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from trainwright.experiment import Registry
from trainwright.registry.names import STAGE
from trainwright.registry.transfer import find_version, require_database
from trainwright.registry.versions import quoted, registered_model
from trainwright.tracking.server import open_client, persist, search_all

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

_TAG = "trainwright."
_DIGITS = 8


@dataclass(frozen=True)
class VersionSummary:
    """A registered version.

    Attributes:
        version: Its number.
        aliases: Names that point to it, such as ``production``.
        created: Time of the registration, ISO 8601 in UTC.
        tags: Tags of the registration without their prefix: ``stage``, ``decision``, ``model_digest``,
            ``data_digest``, ``git_sha`` and others; empty for a version that another tool registered.
        run: MLflow's run, with parameters, curves and files.
        metrics: Newest values of the run's metrics, without those of slices; empty in a list.
        params: Parameters of the training; empty in a list.
    """

    version: str
    aliases: tuple[str, ...]
    created: str
    tags: Mapping[str, str]
    run: str
    metrics: Mapping[str, float]
    params: Mapping[str, str]


def list_versions(registry: Registry) -> list[VersionSummary]:
    """Return all versions of a model, the newest first.

    Raises:
        InputError: There is no such model or registry.
        DependencyError: The registry was away for ``registry.retry_s``.
    """
    require_database(registry.tracking_uri)

    def read() -> list[VersionSummary]:
        client = open_client(registry.tracking_uri)
        aliases = _aliases(client, registry.model)
        found = [_summary(version, aliases) for version in all_versions(client, registry.model)]
        return sorted(found, key=lambda one: int(one.version), reverse=True)

    return persist(read, registry.tracking_uri, registry.retry_s)


def all_versions(client: "MlflowClient", name: str) -> "Iterator[ModelVersion]":
    """Yield all versions of a model."""
    return search_all(client.search_model_versions, f"name = {quoted(name)}")


def show_version(registry: Registry, which: str) -> VersionSummary:
    """Return one version by its number or alias, with metrics and parameters.

    Raises:
        InputError: There is no such version.
        DependencyError: The registry was away for ``registry.retry_s``.
    """
    require_database(registry.tracking_uri)

    def read() -> VersionSummary:
        client = open_client(registry.tracking_uri)
        version = find_version(client, registry.model, which)
        data = client.get_run(str(version.run_id)).data
        metrics = {name: value for name, value in sorted(data.metrics.items()) if "/" not in name}
        return _summary(version, _aliases(client, registry.model), metrics, dict(sorted(data.params.items())))

    return persist(read, registry.tracking_uri, registry.retry_s)


def _aliases(client: "MlflowClient", name: str) -> dict[str, list[str]]:
    """Return the aliases of each version."""
    found: dict[str, list[str]] = {}
    for alias, version in sorted(registered_model(client, name).aliases.items()):
        found.setdefault(str(version), []).append(alias)
    return found


def _summary(
    version: "ModelVersion",
    aliases: Mapping[str, list[str]],
    metrics: Mapping[str, float] = {},
    params: Mapping[str, str] = {},
) -> VersionSummary:
    created = datetime.fromtimestamp(version.creation_timestamp / 1000, UTC)
    tags = {name.removeprefix(_TAG): value for name, value in sorted(version.tags.items())}
    number = str(version.version)
    return VersionSummary(
        version=number,
        aliases=tuple(aliases.get(number, ())),
        created=created.isoformat(timespec="seconds"),
        tags=tags,
        run=str(version.run_id),
        metrics=metrics,
        params=params,
    )


def list_lines(name: str, versions: list[VersionSummary]) -> Iterator[str]:
    """Yield a table of versions."""
    header = (
        "version",
        "stage",
        "aliases",
        "registered, UTC",
        "decision",
        "data",
        "data gate",
        "model",
        "author",
    )
    rows = [
        (
            one.version,
            one.tags.get(STAGE.removeprefix(_TAG), "-"),
            ", ".join(one.aliases) or "-",
            one.created[:16].replace("T", " "),
            one.tags.get("decision", "-"),
            one.tags.get("data_digest", "-")[:_DIGITS],
            one.tags.get("data_decision", "-"),
            one.tags.get("model_digest", "-")[:_DIGITS],
            one.tags.get("author", "-"),
        )
        for one in versions
    ]
    yield f"{name}   {len(rows):,} versions"
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def show_lines(name: str, one: VersionSummary) -> Iterator[str]:
    """Yield everything that is recorded of a version, one fact per line."""
    yield f"{name} version {one.version}   {', '.join(one.aliases) or 'no alias'}   registered {one.created}"
    parts = {
        "tag": one.tags,
        "metric": {key: f"{value:.6g}" for key, value in one.metrics.items()},
        "parameter": one.params,
        "MLflow": {"run": one.run},
    }
    for part, facts in parts.items():
        width = max(map(len, facts), default=0)
        for key, value in facts.items():
            yield f"  {part:<10}{key:<{width}}  {value}"


def to_json(found: VersionSummary | list[VersionSummary]) -> str:
    """Return versions as JSON."""
    return json.dumps([asdict(one) for one in found] if isinstance(found, list) else asdict(found))

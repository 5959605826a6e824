"""Facts about registered versions: what they were trained on, the newest one's age, a monitored metric."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from trainwright.experiment import Registry, Triggers
from trainwright.experiment.run import MonitoredMetric
from trainwright.registry.listing import VersionSummary, list_versions
from trainwright.registry.names import PRODUCTION
from trainwright.tracking.server import open_client, persist


@dataclass(frozen=True, kw_only=True)
class Registered:
    """Facts about a model in the registry."""

    trained: frozenset[str] = frozenset()
    newest: datetime | None = None
    metric: float | None = None
    metric_problem: str = ""


def read_registered(registry: Registry, rules: Triggers, now: datetime) -> Registered:
    """Ask the registry for the facts that the conditions need.

    Raises:
        DependencyError: The registry was away for ``registry.retry_s``.
        PermissionRefused: It denies this identity.
    """
    client = open_client(registry.tracking_uri)
    condition = f"name = '{registry.model}'"
    known = persist(
        lambda: client.search_registered_models(condition), registry.tracking_uri, registry.retry_s
    )
    versions = list_versions(registry) if known else []
    value, problem = _metric(registry, rules.metric, versions, now) if rules.metric else (None, "")
    return Registered(
        trained=frozenset(filter(None, (one.tags.get("source_digest", "") for one in versions))),
        newest=datetime.fromisoformat(versions[0].created) if versions else None,
        metric=value,
        metric_problem=problem,
    )


def _metric(
    registry: Registry, metric: MonitoredMetric, versions: list[VersionSummary], now: datetime
) -> tuple[float | None, str]:
    """Return the newest value of the metric of the version in production, or why there is none to rely on."""
    version = next((one for one in versions if PRODUCTION in one.aliases), None)
    if version is None:
        return None, f"no version of {registry.model} is in production, so nothing has {metric.name}"
    client = open_client(registry.tracking_uri)
    history = persist(
        lambda: client.get_metric_history(version.run, metric.name), registry.tracking_uri, registry.retry_s
    )
    where = f"MLflow run {version.run} of version {version.version}"
    if not history:
        return None, f"{where} has no metric {metric.name}"
    last = max(history, key=lambda entry: (entry.timestamp, entry.step))
    logged = datetime.fromtimestamp(last.timestamp / 1000, UTC)
    if now - logged > timedelta(days=metric.within_days):
        return None, f"{metric.name} of {where} is of {logged:%Y-%m-%d}, within_days is {metric.within_days}"
    return float(last.value), ""

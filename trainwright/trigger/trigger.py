"""The trigger step: look at the facts, decide, and start the run on Kubeflow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from trainwright.errors import DependencyError, InputError
from trainwright.experiment import Registry, StartedBy, Triggers
from trainwright.experiment.run import MonitoredMetric
from trainwright.placeholders import filled
from trainwright.registry.listing import VersionSummary, list_versions
from trainwright.registry.names import PRODUCTION
from trainwright.report import markdown
from trainwright.tracking import Stopwatch
from trainwright.tracking.server import open_client, persist
from trainwright.trigger.cluster import Cluster, TriggerTarget
from trainwright.trigger.decision import START, WAIT, Decision, Facts, Start, decide, obstacles


@dataclass(frozen=True, kw_only=True)
class TriggerRequest:
    """The parameters of one decision.

    Attributes:
        kubeflow: Address of the API inside the cluster; empty to decide only.
        run_id: The reconciler's own run.
        earlier: Earlier starts, where there is no API that lists them: sections of ``run.started_by`` with
            ``run`` and ``state``.
        dry_run: Start nothing.
    """

    rules: Triggers
    target: TriggerTarget
    registry: Registry
    source: str
    day: date
    drift: str = ""
    drift_headline: str = ""
    kubeflow: str = ""
    run_id: str = ""
    earlier: Sequence[Mapping[str, Any]] = ()
    dry_run: bool = False


@dataclass(frozen=True)
class Triggered:
    """The decision, and the run that was started; empty if none was."""

    decision: str
    reason: str
    run: str


def read_request(
    sections: Mapping[str, Mapping[str, Any]], day: str, scheduled: str, now: datetime, **more: Any
) -> TriggerRequest:
    """Parse the parameters of the step.

    Args:
        sections: ``triggers``, ``target`` and ``registry``.
        day: The date to decide for; empty for that of the schedule, else the day in UTC.
        scheduled: Time for which the reconciler was scheduled, or a placeholder that nothing replaced.
        now: The present.
        more: The other fields of the request.

    Raises:
        InputError: A section is invalid, or ``day`` is no day.
    """
    text = day or filled(scheduled)[:10] or now.astimezone(UTC).date().isoformat()
    try:
        parsed = date.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"expected a day, found {text!r:.80}", where="parameter date", hint="Write it as 2026-01-31."
        ) from None
    return TriggerRequest(
        rules=Triggers.parse(sections["triggers"], "parameter triggers"),
        target=TriggerTarget(**sections["target"]),
        registry=Registry.parse(sections["registry"], "parameter registry"),
        day=parsed,
        **more,
    )


def trigger(request: TriggerRequest, record: Path, summary: Path, now: datetime) -> Triggered:
    """Decide, start the run, and write the record and the summary.

    Raises:
        DependencyError: A check could not be made. If another condition held, its run was started before.
    """
    watch = Stopwatch()
    facts = read_facts(request, now)
    cluster = Cluster.connected(request.kubeflow, request.run_id) if request.kubeflow else None
    started = [one for one, _ in cluster.starts(request.target.trigger)] if cluster else _earlier(request)
    made = decide(request.rules, facts, started, now, request.day)
    result = Triggered(made.decision, "; ".join(made.reasons), "")
    if cluster and not request.dry_run:
        result = start(cluster, request, made)
    headline = f"{made.headline}; started run {result.run}" if result.run else made.headline
    record.mkdir(parents=True, exist_ok=True)
    watch.record(
        record,
        "trigger",
        headline,
        config={"triggers": request.rules.model_dump(mode="json"), "date": request.day.isoformat()},
        inputs={"source": request.source, "package": request.target.version},
    )
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(f"**{markdown.escape(headline)}**\n\n{_table(made)}")
    if made.unknown:
        raise DependencyError(
            f"a check could not be made: {'; '.join(made.unknown)}",
            where=f"trigger {request.target.trigger}, decided {headline}",
            hint="Repair what the check reads, or take its condition out of the schedule.",
        )
    return result


def start(cluster: Cluster, request: TriggerRequest, made: Decision) -> Triggered:
    """Start the run; withdraw it if an older start, made at the same moment, forbids it.

    Every reconciler looks again after its own start, and counts older runs only. So of several that did not
    see each other exactly one stays, also if midnight lies between them. A repeated step starts nothing, and
    looks again for the attempt that crashed: its run was created after the reconciler's own.
    """
    target, reason = request.target, "; ".join(made.reasons)
    run = ""
    if made.decision == START:
        by = StartedBy(
            trigger=target.trigger, date=request.day.isoformat(), source=request.source, reason=reason
        )
        run = cluster.submit(target, by)
    starts = cluster.starts(target.trigger)
    for at, (one, (created, _)) in enumerate(starts):
        mine = one.day == request.day and one.state == "active" and created >= cluster.began
        if mine and any(obstacles(request.rules, [older for older, _ in starts[:at]], request.day)):
            cluster.terminate(one.run)
            run = "" if run == one.run else run
    return Triggered(START if run else WAIT, reason, run)


def _earlier(request: TriggerRequest) -> list[Start]:
    return [
        Start(run=one["run"], day=date.fromisoformat(one["date"]), source=one["source"], state=one["state"])
        for one in request.earlier
    ]


def _table(made: Decision) -> str:
    words = {True: "yes", False: "no", None: "unknown"}
    rows = [[check.name, check.what, words[check.holds]] for check in made.checks]
    rows += [["not now", obstacle, ""] for obstacle in made.obstacles]
    return markdown.table(["condition", "found", "holds"], rows)


def read_facts(request: TriggerRequest, now: datetime) -> Facts:
    """Return the facts that the conditions need; those about versions are in the registry.

    Raises:
        DependencyError: The registry was away for ``registry.retry_s``.
        PermissionRefused: It denies this identity.
    """
    registry, wanted = request.registry, request.rules.metric
    client = open_client(registry.tracking_uri)
    condition = f"name = '{registry.model}'"
    known = persist(
        lambda: client.search_registered_models(condition), registry.tracking_uri, registry.retry_s
    )
    versions = list_versions(registry) if known else []
    value, problem = _metric(registry, wanted, versions, now) if wanted else (None, "")
    return Facts(
        source=request.source,
        trained=frozenset(filter(None, (one.tags.get("source_digest", "") for one in versions))),
        newest=datetime.fromisoformat(versions[0].created) if versions else None,
        drift=request.drift,
        drift_headline=request.drift_headline,
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

"""The ``trigger`` component: it starts a pipeline when a condition holds, at most once a date."""

from typing import NamedTuple

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.SERVICE, install_kfp_package=False)
def trigger(  # noqa: PLR0917 - kfp passes them by name
    triggers: dict,
    target: dict,
    registry: dict,
    source_version: str,
    record: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
    drift: str = "",
    drift_headline: str = "",
    date: str = "",
    scheduled: str = "",
    kubeflow: str = "",
    run_id: str = "",
    earlier: list = [],  # noqa: B006 - the default of a component's input
    dry_run: bool = False,
) -> NamedTuple("Triggered", [("decision", str), ("reason", str), ("run", str)]):  # type: ignore[valid-type]
    """Start a pipeline if new data arrived, the serving log drifted, the model is old or its metric fell.

    Never cache this step: what it looks at is outside.

    Args:
        triggers: Conditions and limits: ``triggers`` of a schedule.
        target: ``trigger``, ``pipeline``, ``version`` and ``arguments`` of what it starts.
        registry: Name of the registered model and address of MLflow: the section ``registry``.
        source_version: Content digest of the source.
        record: The decision, and what it was made from.
        summary: Every condition, with what was found.
        drift: Decision of `monitor`; '' if it did not run.
        drift_headline: What it found.
        date: Date to decide for; '' for the day for which the run was scheduled, in UTC.
        scheduled: When that was: ``dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER``.
        kubeflow: Address of the API of Kubeflow Pipelines; '' to decide and start nothing.
        run_id: This run: ``dsl.PIPELINE_JOB_ID_PLACEHOLDER``.
        earlier: Without ``kubeflow``: the earlier starts.
        dry_run: Decide, and start nothing.

    Returns:
        decision: START or WAIT. reason: The conditions that hold. run: Id of the started run; '' if none was.
    """
    from datetime import UTC, datetime
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.trigger import trigger as step

    with reported("trigger"):
        sections = {"triggers": triggers, "target": target, "registry": registry}
        more = {
            "source": source_version,
            "drift": drift,
            "drift_headline": drift_headline,
            "kubeflow": kubeflow,
            "run_id": run_id,
            "earlier": earlier,
            "dry_run": dry_run,
        }
        request = step.read_request(sections, date, scheduled, datetime.now(UTC), **more)
        made = step.trigger(request, Path(record.path), Path(summary.path), datetime.now(UTC))
        describe("trigger", record, summary)
    return (made.decision, made.reason, made.run)

"""The reconciler of a schedule with triggers: it starts the schedule's pipeline when a condition holds."""

from kfp import dsl, kubernetes

from components.monitor.component import monitor
from components.resolve.component import resolve
from components.summarize.component import summarize
from components.trigger.component import trigger
from pipelines.train_and_register import DATABASE, MLFLOW, SECRETS
from trainwright.authoring.tasks import SUMMARIZE, configure, grant_mlflow, grant_run_end

API_LABEL = "access-ml-pipeline"
"""Label of pods that get a token for the API: that of the PodDefault in Kubeflow's documentation."""


def _configured(decided: dsl.PipelineTask) -> None:
    configure(decided, cpu="500m", memory="1G", cached=False, store=False)
    kubernetes.add_pod_label(grant_mlflow(decided, MLFLOW), API_LABEL, "true")


@dsl.pipeline(name="retrain", display_name="Retrain when needed")
def retrain(
    triggers: dict,
    target: dict,
    source: str,
    data: dict,
    registry: dict,
    kubeflow: str = "",
    earlier: list = [],  # noqa: B006 - a default of a pipeline's form
    dry_run: bool = False,
    date: str = "",
    serving: str = "",
    baseline: str = "",
    validation: dict = {},  # noqa: B006
    features: dict = {},  # noqa: B006
    run: dict = {},  # noqa: B006
) -> None:
    """Look at the source, the registry and earlier starts, and start a pipeline if a condition holds.

    `trainwright schedules apply` fills in the arguments of a schedule with triggers (docs/triggers.md).

    Args:
        triggers: Conditions and limits: ``triggers`` of a schedule.
        target: The pipeline to start: ``trigger``, ``pipeline``, ``version`` and ``arguments``.
        source: Rows that the pipeline trains on.
        data: Section ``data`` of the experiment file.
        registry: Section ``registry``.
        kubeflow: Address of the API inside the cluster; '' to start nothing.
        earlier: Without ``kubeflow``: the earlier starts.
        dry_run: Decide, and start nothing.
        date: Date to decide for; '' for the day for which the run was scheduled, in UTC.
        serving: The log of served rows; '' to compare none.
        baseline: The accepted baseline that it is compared with.
        validation: Section ``validation``: limits of drift.
        features: Section ``features``: limits of joined features.
        run: Section ``run``.
    """
    scheduled = dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER
    finish = summarize(section=run, registry=registry, scheduled=scheduled)
    configure(finish, cpu="500m", memory="1G", cached=False)
    grant_mlflow(grant_run_end(finish), SUMMARIZE)
    with dsl.ExitHandler(finish, name="retrain"):
        resolved = resolve(
            source=source, data=data, date=date, scheduled=scheduled, baseline=baseline, serving=serving
        )
        configure(resolved, cpu="500m", memory="1G", cached=False)
        kubernetes.use_secret_as_volume(resolved, secret_name=DATABASE, mount_path=SECRETS, optional=True)
        given = {
            "triggers": triggers,
            "target": target,
            "registry": registry,
            "source_version": resolved.outputs["version"],
            "date": date,
            "scheduled": scheduled,
            "kubeflow": kubeflow,
            "run_id": dsl.PIPELINE_JOB_ID_PLACEHOLDER,
            "earlier": earlier,
            "dry_run": dry_run,
        }
        with dsl.If(serving == "", "without-serving-log"):
            _configured(trigger(**given))
        with dsl.If(serving != "", "with-serving-log"):
            compared = monitor(
                validation=validation, features=features, references=resolved.outputs["references"]
            )
            configure(compared, cpu="1", memory="4G", cached=False)
            drift = {"drift": compared.outputs["decision"], "drift_headline": compared.outputs["headline"]}
            _configured(trigger(**given, **drift).set_display_name("trigger-with-drift"))

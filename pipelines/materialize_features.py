"""The job for schedules: the newest features go into the online store."""

from kfp import dsl

from components.materialize.component import materialize
from components.resolve.component import resolve
from components.summarize.component import summarize
from trainwright.authoring.tasks import configure, grant_run_end


@dsl.pipeline(name="materialize-features", display_name="Materialize features")
def materialize_features(
    feature_source: str,
    materialize_section: dict = {},  # noqa: B006 - a default of a pipeline's form
    date: str = "",
    run: dict = {},  # noqa: B006
    materialize_cpu: str = "1",
    materialize_memory: str = "4G",
) -> None:
    """Bring the newest row of every key into the online store, and check that it is there.

    Definitions are not applied here: a person does that, after a look at the plan (docs/features.md).

    Args:
        feature_source: The definitions and offline files; their content goes on the record.
        materialize_section: Section ``materialize`` of the experiment file.
        date: The run's date: a day or a time with its zone; '' for the time for which the run was scheduled.
        run: Section ``run``.
        materialize_cpu: Cores of the pod of ``materialize``: ``steps.materialize.cpu``.
        materialize_memory: Memory of the pod of ``materialize``: ``steps.materialize.memory``.
    """
    finish = summarize(section=run, scheduled=dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER)
    grant_run_end(configure(finish, cpu="500m", memory="1G", cached=False))
    with dsl.ExitHandler(finish, name="materialize-features"):
        features_now = resolve(source=feature_source).set_display_name("resolve-features")
        configure(features_now, cpu="500m", memory="1G", cached=False)
        materialized = materialize(
            features_version=features_now.outputs["version"],
            section=materialize_section,
            date=date,
            scheduled=dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER,
        )
        configure(materialized, cpu=materialize_cpu, memory=materialize_memory, hours=6, cached=False)

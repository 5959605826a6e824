"""The job for schedules: the newest features go into the online store."""

from kfp import dsl, kubernetes

from components.materialize.component import materialize
from components.resolve.component import resolve
from components.summarize.component import summarize
from trainwright.authoring import images

HOUR_S = 3600
RETRIES = 2


def _set(task: dsl.PipelineTask, *, cpu: str, memory: str, hours: int = 1) -> None:
    """Give a task its resources, retries and time limit. None is cached: all look at what is outside.

    A schedule must not start a run while the last one is going on: set its ``max_concurrency`` to 1. If it
    does, the second waits for the first one's lease, and then only repeats its overlap.
    """
    task.set_cpu_request(cpu).set_cpu_limit(cpu)
    task.set_memory_request(memory).set_memory_limit(memory)
    longest = f"{(RETRIES + 1) * hours + 1}h"
    task.set_retry(RETRIES, backoff_duration="30s", backoff_factor=2.0, backoff_max_duration=longest)
    task.set_caching_options(False)
    kubernetes.set_timeout(task, hours * HOUR_S)
    kubernetes.set_security_context(task, images.USER, images.USER, run_as_non_root=True)


@dsl.pipeline(name="materialize-features", display_name="Materialize features")
def materialize_features(feature_source: str, materialize_section: str, date: str = "") -> None:
    """Bring the newest row of every key into the online store, and check that it is there.

    Definitions are not applied here: a person does that, after a look at the plan (docs/features.md).

    Args:
        feature_source: The definitions and offline files; their content goes on the record.
        materialize_section: Section ``materialize`` of the experiment file, as JSON.
        date: The run's date: a day or a time with its zone; '' for the time for which the run was scheduled.
    """
    finish = summarize()
    _set(finish, cpu="500m", memory="1G")
    with dsl.ExitHandler(finish):
        features_now = resolve(source=feature_source).set_display_name("resolve-features")
        _set(features_now, cpu="1", memory="1G")
        materialized = materialize(
            features_version=features_now.outputs["version"],
            section=materialize_section,
            date=date,
            scheduled=dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER,
        )
        _set(materialized, cpu="2", memory="2G", hours=6)

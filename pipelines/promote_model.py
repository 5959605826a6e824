"""The job that brings a registered version to its next stage."""

from kfp import dsl, kubernetes

from components.promote.component import promote
from components.summarize.component import summarize
from trainwright.authoring import images

HOUR_S = 3600
RETRIES = 2


def _set(task: dsl.PipelineTask, *, cpu: str, memory: str) -> None:
    """Give a task its resources, retries and time limit; to repeat a promotion is to do it once."""
    task.set_cpu_request(cpu).set_cpu_limit(cpu)
    task.set_memory_request(memory).set_memory_limit(memory)
    longest = f"{RETRIES + 2}h"
    task.set_retry(RETRIES, backoff_duration="30s", backoff_factor=2.0, backoff_max_duration=longest)
    task.set_caching_options(False)
    kubernetes.set_timeout(task, HOUR_S)
    kubernetes.set_security_context(task, images.USER, images.USER, run_as_non_root=True)


@dsl.pipeline(name="promote-model", display_name="Promote a model")
def promote_model(registry: str, promotion: str, request: str) -> None:
    """Bring a registered version to staging, canary, production or the archive, if it has what that demands.

    Args:
        registry: Section ``registry`` of the experiment file, as JSON.
        promotion: Section ``promotion``, as JSON.
        request: What is asked for, by whom and why, as JSON: {"to": "staging", "by": "anna", "reason": "…"}.
    """
    finish = summarize()
    _set(finish, cpu="500m", memory="1G")
    with dsl.ExitHandler(finish):
        moved = promote(registry=registry, promotion=promotion, request=request)
        _set(moved, cpu="1", memory="2G")

"""The job that brings a registered version to its next stage."""

from kfp import dsl

from components.promote.component import promote
from components.summarize.component import summarize
from trainwright.authoring.tasks import configure


@dsl.pipeline(name="promote-model", display_name="Promote a model")
def promote_model(
    registry: dict = {},  # noqa: B006 - a default of a pipeline's form
    promotion: dict = {},  # noqa: B006
    request: dict = {},  # noqa: B006
) -> None:
    """Bring a registered version to staging, canary, production or the archive, if it has what that demands.

    Args:
        registry: Section ``registry`` of the experiment file.
        promotion: Section ``promotion``.
        request: What is asked for, by whom and why: {"to": "staging", "by": "anna", "reason": "…"}.
    """
    finish = summarize()
    configure(finish, cpu="500m", memory="1G", cached=False)
    with dsl.ExitHandler(finish, name="promote-model"):
        moved = promote(registry=registry, promotion=promotion, request=request)
        configure(moved, cpu="500m", memory="2G", cached=False)

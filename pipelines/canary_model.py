"""The job for schedules: the canary is compared with production, and gets its share of the traffic."""

from kfp import dsl, kubernetes

from components.canary.component import canary
from components.get_production_model.component import get_production_model
from components.hold.component import hold
from components.summarize.component import summarize
from pipelines.promote_model import TRUST, TRUST_FOLDER
from pipelines.train_and_register import MLFLOW
from trainwright.authoring.tasks import SUMMARIZE, configure, grant_mlflow, grant_run_end


@dsl.pipeline(name="canary-model", display_name="Judge a canary")
def canary_model(
    registry: dict = {},  # noqa: B006 - a default of a pipeline's form
    promotion: dict = {},  # noqa: B006
    serving: dict = {},  # noqa: B006
    run: dict = {},  # noqa: B006
) -> None:
    """Compare the version that is the canary with the one in production, by the log of served requests.

    Args:
        registry: Section ``registry`` of the experiment file.
        promotion: Section ``promotion``.
        serving: Section ``serving``.
        run: Section ``run``.
    """
    finish = summarize(
        section=run, registry=registry, scheduled=dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER
    )
    configure(finish, cpu="500m", memory="1G", cached=False)
    grant_mlflow(grant_run_end(finish), SUMMARIZE)
    with dsl.ExitHandler(finish, name="canary-model"):
        production = get_production_model(registry=registry)
        candidate = get_production_model(registry=registry, alias="canary").set_display_name("get-canary")
        for found in (production, candidate):
            grant_mlflow(configure(found, cpu="500m", memory="1G", cached=False, store=False), MLFLOW)
        judged = canary(
            serving=serving,
            promotion=promotion,
            registry=registry,
            trust=TRUST_FOLDER,
            candidate=candidate.outputs["registered"],
            candidate_model=candidate.outputs["model_version"],
            candidate_source=candidate.outputs["source"],
            production=production.outputs["registered"],
            production_model=production.outputs["model_version"],
            production_source=production.outputs["source"],
        )
        configure(judged, cpu="1", memory="4G", cached=False)
        kubernetes.use_config_map_as_volume(
            judged, config_map_name=TRUST, mount_path=TRUST_FOLDER, optional=True
        )
        with dsl.If(judged.outputs["Output"] != "PASS", "canary-held"):
            held = hold(verdict=judged.outputs["verdict"], gate="canary").set_display_name("held-by-canary")
            configure(held, cpu="500m", memory="1G", cached=False, store=False)

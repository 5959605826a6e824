"""The job that brings a registered version to its next stage."""

from kfp import dsl, kubernetes

from components.hold.component import hold
from components.promote.component import promote
from components.summarize.component import summarize
from trainwright.authoring.tasks import SUMMARIZE, configure, grant_mlflow, grant_run_end

TRUST, KEY = "trainwright-trust", "trainwright-promote"
"""A ConfigMap with policy and trusted keys; the Secret with the key of the audit and MLflow's credentials."""

TRUST_FOLDER, KEY_FOLDER = "/etc/trainwright/trust", "/var/run/secrets/trainwright-audit"


@dsl.pipeline(name="promote-model", display_name="Promote a model")
def promote_model(
    registry: dict = {},  # noqa: B006 - a default of a pipeline's form
    promotion: dict = {},  # noqa: B006
    request: dict = {},  # noqa: B006
    run: dict = {},  # noqa: B006
) -> None:
    """Bring a registered version to staging, canary, production or the archive, if it has what that demands.

    Args:
        registry: Section ``registry`` of the experiment file.
        promotion: Section ``promotion``.
        request: What is asked for, by whom and why: {"to": "staging", "by": "anna", "reason": "…"}.
        run: Section ``run``.
    """
    finish = summarize(
        section=run, registry=registry, scheduled=dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER
    )
    configure(finish, cpu="500m", memory="1G", cached=False)
    grant_mlflow(grant_run_end(finish), SUMMARIZE)
    with dsl.ExitHandler(finish, name="promote-model"):
        # A constant, not a parameter: who starts a run cannot choose the policy that it is judged by.
        moved = promote(registry=registry, promotion=promotion, request=request, trust=TRUST_FOLDER)
        configure(moved, cpu="500m", memory="2G", cached=False)
        grant_mlflow(moved, KEY)
        kubernetes.use_config_map_as_volume(
            moved, config_map_name=TRUST, mount_path=TRUST_FOLDER, optional=True
        )
        kubernetes.use_secret_as_volume(moved, secret_name=KEY, mount_path=KEY_FOLDER, optional=True)
        with dsl.If(moved.outputs["Output"] != "PASS", "promotion-held"):
            held = hold(verdict=moved.outputs["record"], gate="promote").set_display_name("held-by-promote")
            configure(held, cpu="500m", memory="1G", cached=False, store=False)

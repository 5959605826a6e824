"""Section ``run``: the owner of a run, and its record in MLflow."""

from pydantic import Field

from trainwright.experiment.section import Section


class RunSettings(Section):
    """Owner of a run, and its record in MLflow."""

    owner: str = Field("", description="Person or team that owns the run.")
    cost_centre: str = Field("", description="Cost centre that pays for it.")
    mlflow: bool = Field(True, description="Log the run in MLflow, at `registry.tracking_uri`.")
    page: str = Field("", pattern=r"^(https?://\S+)?$", description="Kubeflow's address for browsers.")

"""Section ``registry``: where the model is registered."""

from pydantic import Field

from trainwright.experiment.section import Name, Section


class Registry(Section):
    """Where the model is registered."""

    model: Name = Field(description="Name of the registered model.")
    tracking_uri: Name = Field(
        description="MLflow tracking and registry address; sqlite:///FILE works alone."
    )
    retry_s: int = Field(600, ge=0, description="Keep trying this long while that address does not answer.")

"""Section ``training.parallel``: how the processes of a training share its work."""

from typing import Literal

from pydantic import Field

from trainwright.experiment.section import Section


class Parallel(Section):
    """Degrees of parallelism; their product, with ``replicate`` filling the rest, is the number of processes."""

    replicate: int | None = Field(
        None, ge=1, description="Copies of the model that see other rows (DDP); absent: as many as fit."
    )
    shard: int = Field(
        1, ge=1, description="Processes that see other rows and divide parameters and optimizer (FSDP2)."
    )
    tensor: int = Field(1, ge=1, description="Processes that divide each layer's matrices.")
    pipeline: int = Field(1, ge=1, description="Stages that the layers are divided into.")
    schedule: Literal["gpipe", "1f1b"] = Field("1f1b", description="Order of the stages' micro-batches.")
    micro_batches: int | None = Field(
        None, ge=1, description="Micro-batches a step in flight between stages; absent: twice the stages."
    )

    @property
    def in_flight(self) -> int:
        """Micro-batches that a share is cut into for the stages; 1 without stages."""
        return (self.micro_batches or 2 * self.pipeline) if self.pipeline > 1 else 1

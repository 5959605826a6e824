"""Section ``training.feeding``: how samples reach the model."""

from pydantic import Field

from trainwright.experiment.section import Name, Section


class Feeding(Section):
    """Order, prefetching and the local cache of samples."""

    streams: int | None = Field(
        None,
        ge=1,
        description="Parts of the order that are read side by side: the same order for any number of data-"
        "parallel processes that divides it; absent: the least multiple of 8 that the job's number divides.",
    )
    block: int = Field(4096, ge=1, description="Neighbouring samples that are moved together.")
    window: int = Field(
        262_144, ge=1, description="Samples of a stream that are mixed with one another after that."
    )
    prefetch: int = Field(4, ge=1, le=1024, description="Batches that are prepared ahead.")
    cache: Name | None = Field(
        None, description="Folder on a fast disk of the node for encoded samples; absent: the job's folder."
    )
    cache_gib: float | None = Field(
        None, gt=0, description="Largest size of that folder; absent: what is free of its disk, less a tenth."
    )

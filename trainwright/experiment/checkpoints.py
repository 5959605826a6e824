"""Section ``training.checkpoints``: what survives a kill."""

from pydantic import Field

from trainwright.experiment.section import Name, Section


class Checkpointing(Section):
    """How often the state of a training is saved, where, and for how long."""

    every_steps: int | None = Field(
        None, ge=1, description="Steps between two checkpoints; absent: by time alone."
    )
    every_s: float = Field(
        600, gt=0, description="Seconds between two checkpoints, where no number of steps is given."
    )
    keep: int = Field(3, ge=2, description="Newest verified checkpoints that are kept.")
    keep_best: bool = Field(True, description="Whether the one with the least loss on `watch` is kept too.")
    store: Name | None = Field(
        None,
        description="Folder or URI that committed checkpoints are copied to; absent: the job's folder alone.",
    )
    wait_s: float = Field(
        60, ge=0, description="Seconds that the end of a training waits for the last copy to `store`."
    )

"""Section ``training.guards``: what ends a training that goes wrong, or that has learned enough."""

from typing import Literal

from pydantic import Field

from trainwright.experiment.section import Name, Section


class EarlyStopping(Section):
    """End when a split that is not learned from does not get better any more."""

    split: Name = Field(description="Split that is watched; neither learned from nor evaluated on.")
    every_steps: int | None = Field(None, ge=1, description="Steps between two looks; absent: each epoch.")
    patience: int = Field(3, ge=1, description="Looks without a gain before the training ends.")
    min_gain: float = Field(0.0, ge=0, description="Fall of the loss that counts as a gain.")


class Guards(Section):
    """Limits of a training's health."""

    not_finite: Literal["stop", "roll_back", "skip"] = Field(
        "stop",
        description="When a loss or gradient is not finite: end; or go back to the last checkpoint and leave "
        "the batch out; or leave it out on the spot.",
    )
    forgiven: int = Field(2, ge=0, description="Batches that may be left out before the training ends.")
    spike: float | None = Field(
        12.0,
        gt=3,
        description="Robust deviations of the smoothed loss above its recent median at which the training "
        "has diverged; null or `never`: never.",
    )
    window: int = Field(200, ge=20, description="Steps that count as recent.")
    norm_spike: float | None = Field(
        20.0,
        gt=1,
        description="Times its recent median at which the norm of a gradient is worth a warning; null or `never`: none.",
    )
    slow: float | None = Field(
        2.0,
        gt=1,
        description="Deprecated, without effect: slow processes are not named any more (null or `never` too).",
    )
    halve_micro_batch: bool = Field(
        False,
        description="Whether a training that runs out of GPU memory is tried once more with half the "
        "micro-batch; its sums are then rounded otherwise. Takes one of `resources.restarts`.",
    )
    stall_s: float = Field(
        600, gt=0, description="Seconds without a step after which the training counts as hung."
    )
    collective_s: float = Field(
        600, gt=0, description="Seconds that an exchange in a step may take, from the third step on."
    )
    early_stopping: EarlyStopping | None = Field(None, description="When enough is learned; null: never.")

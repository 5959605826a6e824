"""Section ``training``: how the model is fitted."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainwright.experiment.checkpoints import Checkpointing
from trainwright.experiment.feeding import Feeding
from trainwright.experiment.guards import Guards
from trainwright.experiment.objective import Objective
from trainwright.experiment.parallel import Parallel
from trainwright.experiment.section import Fraction, Name, Section

Decay = Annotated[float, Field(ge=0, lt=1)]


class Tracking(Section):
    """Where the curves of a training go, beside its own page."""

    uri: str | None = Field(
        None,
        pattern=r"^https?://[^\s@]+$",
        description="MLflow server that gets the curves while they grow; absent: the run that KFP gives, or "
        "none. The registered model's run gets them in any case.",
    )
    experiment: Name = Field("trainwright", description="MLflow experiment, where no run is given by KFP.")
    every_steps: int = Field(10, ge=1, description="Steps between two points of a curve.")
    gpu_hour: float | None = Field(None, ge=0, description="Price of a GPU for an hour; null: no cost.")


class Training(Section):
    """How the model is fitted."""

    split: Name = Field("train", description="Split that is learned from.")
    epochs: int = Field(3, ge=1, description="Passes over the training split.")
    steps: int | None = Field(None, ge=1, description="Steps after which it ends; absent: after `epochs`.")
    batch_size: int = Field(8192, ge=1, description="Global batch, in samples, over all processes.")
    micro_batch: int | None = Field(
        None,
        ge=1,
        description="Most samples that a process handles at once; the gradients of a batch add up.",
    )
    learning_rate: float = Field(1e-3, gt=0, description="Peak learning rate of AdamW.")
    schedule: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="How the rate falls from its peak: to 0, or not at all."
    )
    warmup: Fraction = Field(0.05, description="Share of the steps in which the rate rises to its peak.")
    weight_decay: float = Field(1e-4, ge=0, description="Decoupled weight decay.")
    betas: tuple[Decay, Decay] = Field((0.9, 0.999), description="AdamW's decay of its two moments.")
    clip: float | None = Field(
        None, gt=0, description="Largest norm of a gradient; larger ones are shortened."
    )
    precision: Literal["float32", "bf16", "fp16"] = Field("float32", description="Of the arithmetic.")
    compile: bool = Field(False, description="Whether torch.compile is used.")
    recompute: bool = Field(
        False, description="Whether activations are computed again in the backward pass, to save memory."
    )
    seed: int = Field(0, ge=0, description="Seed of weights, dropout and order.")
    predict: tuple[Name, ...] = Field(("evaluate",), min_length=1, description="Splits scored at the end.")
    objective: Objective = Field(default_factory=Objective)
    parallel: Parallel = Field(default_factory=Parallel)
    feeding: Feeding = Field(default_factory=Feeding)
    checkpoints: Checkpointing = Field(default_factory=Checkpointing)
    guards: Guards = Field(default_factory=Guards)
    tracking: Tracking = Field(default_factory=Tracking)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        every = self.checkpoints.every_steps
        if every and self.steps and every > self.steps:
            raise ValueError(
                f"checkpoints.every_steps {every} is above steps {self.steps}: none would be made"
            )
        watched = self.guards.early_stopping
        if watched and watched.split in {self.split, *self.predict}:
            raise ValueError(
                f"guards.early_stopping.split {watched.split!r} is learned from or scored: a model chosen by "
                "it would be judged on what it was chosen by"
            )
        if self.guards.halve_micro_batch and self.parallel.pipeline > 1:
            raise ValueError(
                f"guards.halve_micro_batch changes nothing in {self.parallel.pipeline} stages "
                "(parallel.pipeline): these cut a batch into parallel.micro_batches"
            )
        if watched and self.parallel.pipeline > 1:
            raise ValueError(
                f"guards.early_stopping watches a split, which a model in {self.parallel.pipeline} stages "
                "(parallel.pipeline) cannot: its stages can only be run to learn"
            )
        return self

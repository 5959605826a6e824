"""Sections ``network``, ``training`` and ``resources``: the model, how it is fitted, and on how much."""

from typing import Annotated, Literal

from pydantic import Field

from trainwright.experiment.section import Name, Section


class Network(Section):
    """The tabular network: embeddings for categories, then fully connected layers."""

    kind: Literal["mlp"] = Field("mlp", description="Architecture.")
    hidden: tuple[Annotated[int, Field(ge=1, le=65536)], ...] = Field(
        (256, 128), description="Units a layer."
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.1, description="Share of units dropped in training."
    )
    embedding: int = Field(16, ge=1, le=1024, description="Largest width of a category's embedding.")
    scaling: Literal["standard", "quantile"] = Field(
        "standard",
        description="Of numbers: by mean and deviation, or by their place among the training rows.",
    )
    max_categories: int = Field(256, ge=2, description="Categories kept a column; the rest share one bucket.")
    min_category_rows: int = Field(10, ge=1, description="Categories in fewer rows share that bucket too.")


class Training(Section):
    """How the model is fitted."""

    split: Name = Field("train", description="Split that is learned from.")
    epochs: int = Field(3, ge=1, description="Passes over the training split.")
    batch_size: int = Field(8192, ge=1, description="Global batch, in rows, over all processes.")
    learning_rate: float = Field(1e-3, gt=0, description="Peak learning rate of AdamW.")
    weight_decay: float = Field(1e-4, ge=0, description="Decoupled weight decay.")
    seed: int = Field(0, ge=0, description="Seed of weights, dropout and order.")
    predict: tuple[Name, ...] = Field(("evaluate",), min_length=1, description="Splits scored at the end.")


class Resources(Section):
    """Where and on how much the training runs."""

    launcher: Literal["auto", "local", "pytorchjob"] = Field(
        "auto", description="auto: pytorchjob on a cluster."
    )
    nodes: int = Field(1, ge=1, description="Pods; always 1 with the local launcher.")
    processes: int = Field(2, ge=1, description="Processes a node.")
    timeout_s: int = Field(3600, ge=1, description="The job is stopped after this many seconds.")
    cpu: float = Field(2, gt=0, description="Cores a pod.")
    memory_gib: float = Field(4, gt=0, description="Memory a pod.")
    gpus: int = Field(0, ge=0, description="GPUs a pod.")
    claim: Name = Field(
        "trainwright-shared",
        description="On a cluster: PersistentVolumeClaim that the train step and its job share.",
    )
    mount: str = Field("/shared", pattern=r"^/\S*$", description="On a cluster: where the claim is mounted.")

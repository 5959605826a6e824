"""Documents about a model: its manifest, and the result of its smoke test."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from trainwright.artifacts.record import Environment
from trainwright.documents import Document


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """One file of a model's folder; ``path`` is relative to the folder."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Model(Document):
    """The manifest of a trained model's folder; written last, so a folder without it is not a model.

    Attributes:
        files: Weights, program, transforms, signature, input example, model card.
        kind: The architecture, such as ``mlp``.
        inputs: Names of the raw columns that it reads.
        label: Column that it predicts.
        training_data: Digest of the training set.
        config: Configuration of the training.
        metrics: Final metrics of the training, such as ``train_loss``.
        parents: Digests by name: the training set and its own parents, such as the feature service and every
            view, and the fitted transforms.
    """

    FILE: ClassVar[str] = "model.json"
    files: tuple[ModelFile, ...]
    kind: str
    inputs: tuple[str, ...]
    label: str
    training_data: str
    config: dict[str, Any]
    metrics: dict[str, float] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Trial(Document):
    """The result of a smoke test: a fresh process loaded the model and scored the input example.

    Attributes:
        model: Digest of the model's manifest.
        input_example: SHA-256 of the file with the scored rows.
        passed: True if it returned scores that match its signature.
        said: Summary of the scores, or the error.
        scores: SHA-256 of the scores; empty without any.
        environment: Environment of the process.
    """

    FILE: ClassVar[str] = "trial.json"
    model: str
    input_example: str
    passed: bool
    said: str
    scores: str
    environment: Environment
